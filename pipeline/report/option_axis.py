"""What a numeric option, such as the number of models trained at once, does to the speed of each execution mode.

Pure. Any option that is a number and has more than one value may be the axis. Speed-ups are within one framework: over
its own mode that does the work piece by piece.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.plan import FRAMEWORKS, Framework, Variant
from harness.results.record import Record
from harness.results.sequential import FIRST_LOOK
from harness.results.statistics import PairedRatio, paired_ratio
from pipeline.report.compare import SAME, Mode, RowKey, Section, data_id, row_labels, settings_digest
from pipeline.report.declared import how_it_runs, mode_of


@dataclass(frozen=True, kw_only=True)
class Line:
    """One framework in one execution mode, over the option's values."""

    framework: Framework
    execution_mode: str
    formulation: str
    run_as: str
    """How the formulation is run, in words."""
    is_loop: bool
    """It does one piece after the other: the others of its framework are compared with it."""
    modes: Mapping[float, Mode]
    """By the option's value, ascending."""
    out_of_memory: tuple[float, ...]
    """Values without any number, as memory ran out."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """All lines that share model, batch size, precision, other options and settings."""

    label: str
    lines: tuple[Line, ...]
    """JAX before PyTorch; its loop first, the others by name."""

    def loop(self, framework: Framework) -> Line | None:
        return next((line for line in self.lines if line.framework == framework and line.is_loop), None)

    def has_others(self, framework: Framework) -> bool:
        """Whether there is a number to compare with that of the loop."""
        return any(line.modes for line in self.lines if line.framework == framework and not line.is_loop)


@dataclass(frozen=True, kw_only=True)
class OptionAxis:
    option: str
    panels: tuple[Panel, ...]

    @property
    def has_loops(self) -> bool:
        """Whether anything can be compared with a loop."""
        return bool(self.loops)

    @property
    def loops(self) -> Mapping[Framework, Line]:
        """One of each framework that has one: PyTorch's before JAX's."""
        found = {line.framework: line for panel in self.panels for line in panel.lines if line.is_loop}
        return {framework: found[framework] for framework in reversed(FRAMEWORKS) if framework in found}


@dataclass(frozen=True, kw_only=True)
class Win:
    """Where a line is faster than the loop of its framework."""

    compared_at: tuple[float, ...]
    """Values at which both have as many replicates as a first look takes."""
    faster_at: tuple[float, ...]
    last: PairedRatio | None
    """The speed-up at the largest value of `compared_at`."""


def axis_option(variants: Iterable[Variant]) -> str | None:
    """The option that is a positive number wherever it is, and has the most values, at least two; by name among equals.
    Variants may lack it, as records from before it was an option do."""
    values: dict[str, set[object]] = defaultdict(set)
    for variant in variants:
        for name, value in variant.options.items():
            values[name].add(value)
    axes = {name: len(found) for name, found in values.items() if len(found) > 1 and all(map(_is_positive, found))}
    return min(axes, key=lambda name: (-axes[name], name), default=None)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def option_axis(section: Section) -> OptionAxis | None:
    """None where no numeric option has several values."""
    short = [record for record in section.without_number if record.outcome == "out_of_memory"]
    variants = [row.variant for row in section.rows]
    option = axis_option([*variants, *(record.measurement.variant for record in short)])
    if option is None:
        return None
    use_case = section.setup.cell.use_case_name
    found: dict[RowKey, _Found] = defaultdict(_Found)
    for row in section.rows:
        if option not in row.variant.options:
            continue
        for mode in row.modes:
            of_panel = found[RowKey(_label(row.variant, option), row.settings_digest, row.data_id)]
            of_panel.modes[mode.framework, mode.execution_mode][_value(row.variant, option)] = mode
    for record in short:
        measurement = record.measurement
        if option not in measurement.variant.options:
            continue
        key = RowKey(_label(measurement.variant, option), settings_digest(measurement), data_id(record))
        if record.data is None:  # memory may run out before the data are known
            key = next((other for other in found if other.without_data == key.without_data), key)
        of_panel = found[key]
        of_panel.short[measurement.framework, measurement.variant.execution_mode].append(record)
    labels = row_labels(found)
    return OptionAxis(
        option=option,
        panels=tuple(
            Panel(label=labels[key], lines=of_panel.lines(option, use_case)) for key, of_panel in found.items()
        ),
    )


class _Found:
    """A panel while its records are gathered."""

    def __init__(self) -> None:
        self.modes: dict[tuple[Framework, str], dict[float, Mode]] = defaultdict(dict)
        self.short: dict[tuple[Framework, str], list[Record]] = defaultdict(list)

    def lines(self, option: str, use_case_name: str) -> tuple[Line, ...]:
        lines = []
        for framework, mode in {**self.modes, **self.short}:
            declared = mode_of(framework, use_case_name, mode)
            modes = self.modes.get((framework, mode), {})
            short = {_value(one.measurement.variant, option) for one in self.short.get((framework, mode), [])}
            lines.append(
                Line(
                    framework=framework,
                    execution_mode=mode,
                    formulation=declared.formulation if declared else mode,
                    run_as=how_it_runs(declared),
                    is_loop=declared is not None and declared.is_loop,
                    modes=dict(sorted(modes.items())),
                    out_of_memory=tuple(sorted(short - modes.keys())),
                )
            )
        lines.sort(key=lambda line: (FRAMEWORKS.index(line.framework), not line.is_loop, line.execution_mode))
        return tuple(lines)


def _label(variant: Variant, option: str) -> str:
    others = {name: value for name, value in variant.options.items() if name != option}
    return variant.model_copy(update={"options": others}).comparison_key


def _value(variant: Variant, option: str) -> float:
    value = variant.options[option]
    assert isinstance(value, int | float), "axis_option chooses numbers only"
    return value


def speed_up(mode: Mode, loop: Mode) -> PairedRatio | None:
    """Throughput over that of the loop, paired by replicate; None without a common one, or where one is worthless."""
    if mode.why_worthless or loop.why_worthless:
        return None
    common = sorted(mode.throughputs.keys() & loop.throughputs.keys())
    if not common:
        return None
    return paired_ratio([mode.throughputs[one] for one in common], [loop.throughputs[one] for one in common])


def speed_ups(line: Line, loop: Line) -> dict[float, PairedRatio]:
    """By the option's value, ascending, where both have a number."""
    found = {value: speed_up(mode, loop.modes[value]) for value, mode in line.modes.items() if value in loop.modes}
    return {value: estimate for value, estimate in found.items() if estimate is not None}


def where_it_wins(line: Line, loop: Line) -> Win:
    found = speed_ups(line, loop)
    decided = {value: one for value, one in found.items() if one.replicates >= FIRST_LOOK}
    return Win(
        compared_at=tuple(decided),
        faster_at=tuple(value for value, estimate in decided.items() if _is_faster(estimate)),
        last=list(decided.values())[-1] if decided else None,
    )


def _is_faster(estimate: PairedRatio) -> bool:
    """The interval excludes 1 and is not `same`."""
    return estimate.interval is not None and estimate.interval.low > 1 and estimate.interval.high > SAME.high
