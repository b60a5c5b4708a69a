"""Figures: from sections to the charts that they have, and the data of these."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.record import Record
from harness.settings import FRAMEWORKS
from pipeline.report.charts import CHARTS, MEMORY_KINDS, MIB, OVERVIEW, Chart, Points, axis_charts
from pipeline.report.compare import NAMES, Mode, OneDevice, Row, Section, scaling, tally
from pipeline.report.option_axis import OptionAxis, option_axis, speed_ups, split_modes
from pipeline.report.wording import (
    differences,
    fastest_modes,
    flag_names,
    unlike_names,
    use_case_title,
    verdict,
)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The charts of one section, and the data that they share."""

    charts: tuple[Chart, ...]
    data: Mapping[str, Points]


def overview(compared: Sequence[Section]) -> Drawing:
    """One point for each section: the geometric mean over its variants."""
    points: Points = []
    for section in compared:
        setup, found = section.setup, tally(section.rows)
        if found.mean is None:
            continue
        cell = setup.cell
        points.append(
            {
                "place": f"{cell.benchmark}: {use_case_title(cell)} | {setup.device}",
                "order": len(points),
                "device": setup.device,
                "benchmark": cell.benchmark,
                "use_case": cell.use_case,
                "ratio": found.mean,
                **_ends(found.interval),
                "favours": _favours(found.mean),
                "variants": found.ratios,
                "flags": ", ".join(flag_names(mode for row in section.rows for mode in row.modes)) or "none",
                "two sides": unlike_names(section.rows) or "all equal",
            }
        )
    return Drawing(charts=(OVERVIEW,) if points else (), data={"overview": points})


def section_drawing(section: Section, alone: OneDevice) -> Drawing:
    data = {
        "ratios": _ratio_points(section),
        "modes": [_mode_point(order, row, mode) for order, row in enumerate(section.rows) for mode in row.modes],
        "memory": list(_memory_points(section)),
        "learning": list(_learning_points(section)),
        "batches": list(_batch_points(section)),
        "scaling": list(_scaling_points(section, alone)),
    }
    charts = [chart for chart in CHARTS if _has_something(chart, data[chart.data])]
    if axis := option_axis(section):
        data |= _axis_data(axis)
        charts += [chart for chart in axis_charts(axis.option) if data[chart.data]]
    used = {chart.data for chart in charts}
    return Drawing(charts=tuple(charts), data={name: points for name, points in data.items() if name in used})


def _has_something(chart: Chart, points: Points) -> bool:
    """The field of the x axis has a value somewhere. Batch sizes need two of them for a line."""
    if chart.name == "batch_size":
        return len({point["batch_size"] for point in points}) > 1
    return any(point.get(chart.x) is not None for point in points)


def _ends(interval: tuple[float, float] | None) -> dict[str, float]:
    return {} if interval is None else {"low": interval[0], "high": interval[1]}


def _favours(ratio: float) -> str:
    return NAMES["jax" if ratio > 1 else "torch"]


def _ratio_points(section: Section) -> Points:
    return [
        {
            "variant": row.label,
            "order": order,
            "ratio": row.ratio.value,
            **_ends(row.ratio.interval),
            "flags": ", ".join(flag_names(fastest_modes(row))) or "none",
            "verdict": row.ratio.verdict,
            "in words": verdict(row.ratio),
            "two sides": (differences(row.comparison) if row.comparison else "") or "all equal",
        }
        for order, row in enumerate(section.rows)
        if row.ratio is not None
    ]


def _mode_point(order: int, row: Row, mode: Mode) -> dict[str, Any]:
    numbers = mode.numbers
    return _without_nothing(
        {
            "variant": row.label,
            "order": order,
            "framework": NAMES[mode.framework],
            "mode": mode.execution_mode,
            "fastest": row.best(mode.framework) is mode,
            "flags": ", ".join(sorted(mode.flags)) or "none",
            "replicates": len(mode.throughputs),
            "throughput": _rounded(mode.throughput_samples_per_s),
            **{name: _rounded(value) for name, value in _ends(mode.throughput_interval).items()},
            "p50_ms": _scaled(numbers.get("step_time_p50_s"), 1e3),
            "p95_ms": _scaled(numbers.get("step_time_p95_s"), 1e3),
            "compile_s": _scaled(numbers.get("compile_time_s"), 1),
            "compile_warm_s": _scaled(numbers.get("compile_time_warm_s"), 1),
            "gross_mj": _scaled(numbers.get("energy_gross_joules_per_sample"), 1e3),
            "net_mj": _scaled(numbers.get("energy_net_joules_per_sample"), 1e3),
        }
    )


def _fastest(section: Section) -> Iterable[tuple[int, Row, Mode]]:
    for order, row in enumerate(section.rows):
        for framework in FRAMEWORKS:
            if mode := row.best(framework):
                yield order, row, mode


def _memory_points(section: Section) -> Iterable[dict[str, Any]]:
    for order, row, mode in _fastest(section):
        for number, kind in MEMORY_KINDS.items():
            if number in mode.numbers:
                yield {
                    "variant": row.label,
                    "order": order,
                    "framework": NAMES[mode.framework],
                    "mode": mode.execution_mode,
                    "kind": kind,
                    "mib": _scaled(mode.numbers[number], 1 / MIB),
                }


def _learning_points(section: Section) -> Iterable[dict[str, Any]]:
    """The test accuracy after each epoch over the training time until then: medians over replicates."""
    for _, row, mode in _fastest(section):
        by_epoch: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for record in mode.records:
            for epoch, time_s, accuracy in _curve(record):
                by_epoch[epoch].append((time_s, accuracy))
        for epoch, points in sorted(by_epoch.items()):
            times_s, accuracies = zip(*points, strict=True)
            yield {
                "group": row.label,
                "framework": NAMES[mode.framework],
                "mode": mode.execution_mode,
                "epoch": epoch,
                "time_s": _rounded(statistics.median(times_s)),
                "accuracy": _rounded(statistics.median(accuracies)),
                "worst": _rounded(min(accuracies)),
                "best": _rounded(max(accuracies)),
            }


def _curve(record: Record) -> Iterable[tuple[int, float, float]]:
    time_s = 0.0
    for point in record.result.epochs if record.result else []:
        time_s += point.train_time_s
        yield point.epoch, time_s, point.test_accuracy


def _batch_points(section: Section) -> Iterable[dict[str, Any]]:
    for _, row, mode in _fastest(section):
        variant = row.variant
        options = "".join(f", {value}" for _, value in sorted(variant.options.items()))
        yield {
            "group": f"{variant.model}, {variant.precision}{options}",
            "framework": NAMES[mode.framework],
            "mode": mode.execution_mode,
            "batch_size": variant.batch_size,
            "throughput": _rounded(mode.throughput_samples_per_s),
            "settings": row.settings,
            **{name: _rounded(value) for name, value in _ends(mode.throughput_interval).items()},
        }


def _scaling_points(section: Section, alone: OneDevice) -> Iterable[dict[str, Any]]:
    for order, row in enumerate(section.rows):
        for mode in row.modes:
            found = scaling(section.setup, row, mode, alone)
            for kind, share in (("strong", found.strong), ("weak", found.weak)):
                if share is not None:
                    yield {
                        "variant": row.label,
                        "order": order,
                        "framework": NAMES[mode.framework],
                        "mode": mode.execution_mode,
                        "kind": kind,
                        "efficiency": _rounded(share),
                        "unstable": kind in found.unstable,
                        "flags": "unstable" if kind in found.unstable else "none",
                    }


def _axis_data(axis: OptionAxis) -> dict[str, Points]:
    """A point for each panel, line and value: its step time, its speed-up over the loop, its memory."""
    data: dict[str, Points] = {"axis_step": [], "axis_speed_up": [], "axis_memory": []}
    modes = {
        framework: {line.execution_mode for panel in axis.panels for line in panel.lines if line.framework == framework}
        for framework in FRAMEWORKS
    }
    parts = {framework: split_modes(sorted(of_one)) for framework, of_one in modes.items()}
    for panel in axis.panels:
        for line in panel.lines:
            formulation, run_as = parts[line.framework][line.execution_mode]
            names = {
                "group": panel.label,
                "framework": NAMES[line.framework],
                "mode": line.execution_mode,
                "formulation": formulation,
                "run_as": run_as,
            }
            for value, mode in line.modes.items():
                step_ms = _rounded(mode.numbers["step_time_s"] * 1e3)
                data["axis_step"].append({**names, "value": value, "step_ms": step_ms})
                for number, kind in AXIS_MEMORY_KINDS.items():
                    if number in mode.numbers:
                        mib = _scaled(mode.numbers[number], 1 / MIB)
                        group = f"{panel.label} | {kind}"
                        data["axis_memory"].append({**names, "group": group, "value": value, "mib": mib})
            loop = panel.loop(line.framework)
            if loop is not None and panel.has_others(
                line.framework
            ):  # the loop's own line is at 1, so it has its shape here too
                data["axis_speed_up"] += [
                    {
                        **names,
                        "value": value,
                        "speed_up": _rounded(estimate.value),
                        **{name: _rounded(end) for name, end in _ends(estimate.interval).items()},
                    }
                    for value, estimate in speed_ups(line, loop).items()
                ]
    return data


AXIS_MEMORY_KINDS = {"memory_step_peak_bytes": "steady step", "memory_pool_peak_bytes": "pool"}
"""What tensors hold, and what is reserved for them."""


def _rounded(value: float) -> float:
    """Five significant digits: more than any chart or tooltip shows."""
    return float(f"{value:.5g}")


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else _rounded(value * factor)


def _without_nothing(point: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in point.items() if value is not None}
