"""Figures: from sections to the charts that they have."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from harness.results.record import Record
from pipeline.report.answer import Answer, answer_of, groups_of
from pipeline.report.charts import (
    Chart,
    Points,
    learning_curves,
    ratios,
    throughput_over,
    time_by_class,
)
from pipeline.report.compare import MANY_STEPS, NAMES, Mode, Row, RowKey, Section, row_labels
from pipeline.report.declared import task_of
from pipeline.report.why import terms_of
from pipeline.report.why_words import term_words
from pipeline.report.wording import fastest_modes

PUBLISHED_WIDTH = 230
"""Pixels: with its labels still legible on a phone."""


def published_chart(compared: Sequence[Section]) -> Chart:
    """Of README.md: its answers that are a ratio."""
    title = "Which framework is faster, by what factor; bars: 95 % intervals"
    answers = [(f"{one.work} | {one.detail}", one) for group in groups_of(compared) for one in group.answers]
    return ratios("published", title, _answer_points(answers), row_height=40, with_words=True)


def section_charts(section: Section) -> list[Chart]:
    """Those that have a point, in the order in which they are shown."""
    metric = task_of(section.setup.cell.benchmark).metric
    terms = list(_term_points(section))
    answers = [(row.label, answer_of(section, row)) for row in section.rows]
    found = [
        ratios("ratio", "JAX over PyTorch", _answer_points(answers)),
        learning_curves(list(_learning_points(section)), metric),
        *_throughput_charts(section),
        time_by_class(terms, on_device=any(point["on_device"] for point in terms)),
    ]
    return [chart for chart in found if chart.points]


def _answer_points(answers: Iterable[tuple[str, Answer]]) -> Points:
    """Of those that are a ratio, each with its label."""
    return [
        {
            "place": label,
            "order": order,
            "ratio": _rounded(one.ratio),
            **_ends(one.interval),
            "words": one.who + (f", {one.amount}" if one.outcome == "faster" else ""),
            "verdict": f"{NAMES[one.faster]} faster"
            if one.outcome == "faster" and one.faster
            else _OTHERS[one.outcome],
        }
        for order, (label, one) in enumerate(answers)
        if one.ratio is not None
    ]


_OTHERS = {"same": "same", "open": "undecided", "none": "undecided"}


def _ends(interval: tuple[float, float] | None) -> dict[str, float]:
    return {} if interval is None else {"low": _rounded(interval[0]), "high": _rounded(interval[1])}


def _named(mode: Mode) -> dict[str, Any]:
    return {"framework": NAMES[mode.framework], "mode": mode.execution_mode}


def _fastest(section: Section) -> Iterable[tuple[int, Row, Mode]]:
    for order, row in enumerate(section.rows):
        for mode in fastest_modes(row):
            yield order, row, mode


def _learning_points(section: Section) -> Iterable[dict[str, Any]]:
    """The metric after each epoch over the training time until then: medians over replicates, and its extremes."""
    for _, row, mode in _fastest(section):
        by_epoch: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for record in mode.records:
            for epoch, time_s, metric in _curve(record):
                by_epoch[epoch].append((time_s, metric))
        for epoch, points in sorted(by_epoch.items()):
            times_s, metrics = zip(*points, strict=True)
            yield {
                "group": row.label,
                **_named(mode),
                "chosen": True,
                "epoch": epoch,
                "time_s": _rounded(statistics.median(times_s)),
                "metric": _rounded(statistics.median(metrics)),
                **_ends((min(metrics), max(metrics))),
            }


def _curve(record: Record) -> Iterable[tuple[int, float, float]]:
    time_s = 0.0
    for point in record.result.epochs if record.result else []:
        time_s += point.train_time_s
        yield point.epoch, time_s, point.test_metric


def _throughput_charts(section: Section) -> list[Chart]:
    """Over the batch size, and over each option that is a number."""
    options = dict.fromkeys(name for row in section.rows for name in row.variant.options)
    return [
        throughput_over(axis, _in_words(axis), list(_points_over(axis, section))) for axis in (BATCH_SIZE, *options)
    ]


BATCH_SIZE = "batch_size"


def _in_words(axis: str) -> str:
    """`models` is `number of models`; what is no plural has its own name."""
    name = axis.replace("_", " ")
    return f"number of {name}" if name.endswith("s") else name


def _points_over(axis: str, section: Section) -> Iterable[dict[str, Any]]:
    """One for each value and mode, in a group for all rows that differ in this alone; none of what was measured at one
    value, of what has no place on a logarithmic axis, and of modes that are compared with nothing."""
    found: dict[RowKey, list[tuple[float, Row]]] = defaultdict(list)
    for row in section.rows:
        variant = row.variant
        value = {BATCH_SIZE: variant.batch_size, **variant.options}.get(axis)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            continue
        others = [f"batch {variant.batch_size}"] if axis != BATCH_SIZE else []
        others += [variant.precision, *(str(other) for name, other in sorted(variant.options.items()) if name != axis)]
        label = f"{variant.model} | {', '.join(others)}{MANY_STEPS if row.many_steps_in_a_call else ''}"
        found[RowKey(label, row.settings_digest, row.data_id)].append((value, row))
    labels = row_labels(found)
    for key, rows in found.items():
        for value, row in sorted(rows, key=lambda one: one[0]) if len(rows) > 1 else ():
            for mode in row.modes:
                if not mode.why_worthless:
                    yield {
                        "group": labels[key],
                        **_named(mode),
                        "chosen": row.best(mode.framework) is mode,
                        "value": value,
                        "flags": ", ".join(sorted(mode.flags)) or "none",
                        "throughput": _rounded(mode.throughput_samples_per_s),
                        **_ends(mode.throughput_interval),
                    }


def _term_points(section: Section) -> Iterable[dict[str, Any]]:
    for order, row, mode in _fastest(section):
        terms = terms_of(mode)
        if terms is None or terms.refusals:
            continue
        for term_order, (term, time_s) in enumerate(terms.terms_s.items()):
            if time_s > 0:
                yield {
                    "variant": row.label,
                    "order": order,
                    **_named(mode),
                    "side": f"{row.label} | {NAMES[mode.framework]} {mode.execution_mode}",
                    "on_device": terms.on_device,
                    "term": term_words(term, on_device=terms.on_device),
                    "term_order": term_order,
                    "ms": _rounded(time_s * 1e3),
                    "count": _rounded(terms.kernels_of(term)),
                }


def _rounded(value: float) -> float:
    """Five significant digits: more than any chart or tooltip shows."""
    return float(f"{value:.5g}")
