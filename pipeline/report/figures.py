"""Figures: from sections to the charts that they have, and the data of these."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.results.quantities import BY_NAME, Quantity
from harness.results.record import Record
from pipeline.report.answer import groups_of
from pipeline.report.batch_axis import BatchPanel, batch_panels
from pipeline.report.charts import (
    Chart,
    Points,
    axis_charts,
    charts_of,
    roofline,
    throughput_over_batch_size,
    time_by_class,
)
from pipeline.report.compare import NAMES, Mode, OneDevice, Row, Section, scaling
from pipeline.report.declared import task_of
from pipeline.report.option_axis import OptionAxis, option_axis, speed_ups
from pipeline.report.why import terms_of
from pipeline.report.why_words import term_words
from pipeline.report.wording import differences, fastest_modes, flag_names, verdict


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The charts of one section, and the data that they share."""

    charts: tuple[Chart, ...]
    data: Mapping[str, Points]


def published_points(compared: Sequence[Section]) -> Points:
    """The answers of README.md that are a ratio."""
    answers = [answer for group in groups_of(compared) for answer in group.answers]
    return [
        {
            "place": f"{one.work} | {one.detail}",
            "order": order,
            "ratio": _rounded(one.ratio),
            **_ends(one.interval, _rounded),
            "words": one.who + (f", {one.by.partition(' (')[0]}" if one.outcome == "faster" else ""),
            "verdict": f"{NAMES[one.faster]} faster"
            if one.outcome == "faster" and one.faster
            else _OTHERS[one.outcome],
        }
        for order, one in enumerate(answers)
        if one.ratio is not None
    ]


_OTHERS = {"same": "same", "open": "undecided", "none": "undecided"}


def section_drawing(section: Section, alone: OneDevice) -> Drawing:
    data = {
        "ratios": _ratio_points(section),
        "learning": list(_learning_points(section)),
        "scaling": list(_scaling_points(section, alone)),
        "batch_throughput": list(_batch_points(batch_panels(section))),
    }
    metric = task_of(section.setup.cell.benchmark).metric
    possible = [*charts_of(metric), throughput_over_batch_size()]
    charts = [chart for chart in possible if _has_something(chart, data[chart.data])]
    if axis := option_axis(section):
        data |= _axis_data(axis)
        charts += [chart for chart in axis_charts(axis) if data[chart.data]]
    if points := list(_term_points(section)):
        data["time_by_class"] = points
        charts.append(time_by_class(on_device=any(point["on_device"] for point in points)))
    if points := _roofline_points(section):
        data["roofline"] = points
        charts.append(roofline())
    used = {chart.data for chart in charts}
    return Drawing(charts=tuple(charts), data={name: points for name, points in data.items() if name in used})


def _has_something(chart: Chart, points: Points) -> bool:
    """The horizontal axis has as many values as the chart takes; batch sizes need two for a line."""
    return len({point[chart.x] for point in points if point.get(chart.x) is not None}) >= chart.fewest_x


def _ends(interval: tuple[float, float] | None, shown: Callable[[float], float] = float) -> dict[str, float]:
    return {} if interval is None else {"low": shown(interval[0]), "high": shown(interval[1])}


def _ratio_points(section: Section) -> Points:
    return [
        {
            "variant": row.label,
            "order": order,
            "ratio": row.ratio.value,
            **_ends(row.ratio.interval),
            "flags": ", ".join(flag_names(row)) or "none",
            "verdict": row.ratio.verdict,
            "in words": verdict(row.ratio),
            "two sides": (differences(row.comparison) if row.comparison else "") or "all equal",
        }
        for order, row in enumerate(section.rows)
        if row.ratio is not None
    ]


def _named(row: Row, order: int, mode: Mode) -> dict[str, Any]:
    return {"variant": row.label, "order": order, "framework": NAMES[mode.framework], "mode": mode.execution_mode}


def _shown(mode: Mode, quantity: Quantity) -> float | None:
    """In its unit."""
    value = mode.numbers.get(quantity.name)
    return None if value is None else _rounded(quantity.scaled(value))


def _fastest(section: Section) -> Iterable[tuple[int, Row, Mode]]:
    for order, row in enumerate(section.rows):
        for mode in fastest_modes(row):
            yield order, row, mode


def _learning_points(section: Section) -> Iterable[dict[str, Any]]:
    """The metric after each epoch over the training time until then: medians over replicates."""
    higher_is_better = task_of(section.setup.cell.benchmark).metric.higher_is_better
    worst, best = (min, max) if higher_is_better else (max, min)
    for _, row, mode in _fastest(section):
        by_epoch: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for record in mode.records:
            for epoch, time_s, metric in _curve(record):
                by_epoch[epoch].append((time_s, metric))
        for epoch, points in sorted(by_epoch.items()):
            times_s, metrics = zip(*points, strict=True)
            yield {
                "group": row.label,
                "framework": NAMES[mode.framework],
                "mode": mode.execution_mode,
                "epoch": epoch,
                "time_s": _rounded(statistics.median(times_s)),
                "metric": _rounded(statistics.median(metrics)),
                "worst": _rounded(worst(metrics)),
                "best": _rounded(best(metrics)),
            }


def _curve(record: Record) -> Iterable[tuple[int, float, float]]:
    time_s = 0.0
    for point in record.result.epochs if record.result else []:
        time_s += point.train_time_s
        yield point.epoch, time_s, point.test_metric


def _batch_points(panels: Iterable[BatchPanel]) -> Iterable[dict[str, Any]]:
    """One for each panel, batch size and mode."""
    for panel in panels:
        for batch_size, mode, is_best in panel.points:
            yield {
                "group": panel.label,
                "framework": NAMES[mode.framework],
                "mode": mode.execution_mode,
                "chosen": is_best,
                "batch_size": batch_size,
                "flags": ", ".join(sorted(mode.flags)) or "none",
                "throughput": _rounded(mode.throughput_samples_per_s),
                **_ends(mode.throughput_interval, _rounded),
            }


def _term_points(section: Section) -> Iterable[dict[str, Any]]:
    for order, row, mode in _fastest(section):
        terms = terms_of(mode)
        if terms is None or terms.refusals:
            continue
        for term_order, (term, time_s) in enumerate(terms.terms_s.items()):
            if time_s > 0:
                yield {
                    **_named(row, order, mode),
                    "side": f"{row.label} | {NAMES[mode.framework]} {mode.execution_mode}",
                    "on_device": terms.on_device,
                    "term": term_words(term, on_device=terms.on_device),
                    "term_order": term_order,
                    "ms": _rounded(time_s * 1e3),
                    "count": _rounded(terms.kernels_of(term)),
                }


def _roofline_points(section: Section) -> Points:
    """None without a ceiling of the device."""
    steps: Points = []
    for order, row, mode in _fastest(section):
        terms = terms_of(mode)
        work = terms.explanation.work if terms is not None else None
        if terms is None or work is None or terms.share_of_attainable is None or not work.least_bytes:
            continue
        steps.append(
            {
                **_named(row, order, mode),
                "kind": "step",
                "precision": row.variant.precision,
                "intensity": _rounded(work.operations / work.least_bytes),
                "teraflops": _rounded(work.operations / terms.step_s / 1e12),
                "share": _rounded(terms.share_of_attainable),
            }
        )
    attainable = section.attainable
    if not steps or attainable is None or attainable.bytes_per_s is None:
        return []
    intensities = [point["intensity"] for point in steps]
    roofs = [
        point
        for precision in dict.fromkeys(point["precision"] for point in steps)
        if (peak := attainable.peak(precision)) is not None
        for point in _roof(precision, peak, attainable.bytes_per_s.best, min(intensities), max(intensities))
    ]
    return [*steps, *roofs]


def _roof(precision: str, peak: float, bytes_per_s: float, least: float, most: float) -> Points:
    """min(peak, intensity * bandwidth), from left of all points and of the ridge to right of them."""
    ridge = peak / bytes_per_s
    ends = (min(least, ridge) / 2, ridge, 2 * max(most, ridge))
    return [
        {
            "kind": "roof",
            "precision": precision,
            "intensity": _rounded(intensity),
            "teraflops": _rounded(min(peak, intensity * bytes_per_s) / 1e12),
        }
        for intensity in ends
    ]


def _scaling_points(section: Section, alone: OneDevice) -> Iterable[dict[str, Any]]:
    for order, row in enumerate(section.rows):
        for mode in row.modes:
            found = scaling(section.setup, row, mode, alone)
            for kind, share in (("strong", found.strong), ("weak", found.weak)):
                if share is not None:
                    yield {
                        **_named(row, order, mode),
                        "kind": kind,
                        "efficiency": _rounded(share.value),
                    }


def _axis_data(axis: OptionAxis) -> dict[str, Points]:
    """A point for each panel, line and value: its step time, its speed-up over the loop, its memory."""
    data: dict[str, Points] = {"axis_step": [], "axis_speed_up": [], "axis_memory": []}
    for panel in axis.panels:
        for line in panel.lines:
            names = {
                "group": panel.label,
                "framework": NAMES[line.framework],
                "mode": line.execution_mode,
                "formulation": line.formulation,
                "run_as": line.run_as,
            }
            for value, mode in line.modes.items():
                step_ms = _shown(mode, BY_NAME["step_time_s"])
                data["axis_step"].append({**names, "value": value, "step_ms": step_ms})
                for kind in AXIS_MEMORY_KINDS:
                    if kind.name in mode.numbers:
                        group = f"{panel.label} | {kind.words}"
                        mib = _shown(mode, kind)
                        data["axis_memory"].append({**names, "group": group, "value": value, "mib": mib})
            loop = panel.loop(line.framework)
            if loop is not None and panel.has_others(line.framework):
                # The loop's own line is at 1, so it has its shape here too.
                data["axis_speed_up"] += [
                    {
                        **names,
                        "value": value,
                        "speed_up": _rounded(estimate.value),
                        **_ends(estimate.interval, _rounded),
                    }
                    for value, estimate in speed_ups(line, loop).items()
                ]
    return data


AXIS_MEMORY_KINDS = BY_NAME["memory_step_peak_bytes"], BY_NAME["memory_pool_peak_bytes"]
"""What tensors hold, and what is reserved for them."""


def _rounded(value: float) -> float:
    """Five significant digits: more than any chart or tooltip shows."""
    return float(f"{value:.5g}")
