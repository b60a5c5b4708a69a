"""What a numeric option, such as the number of models trained at once, does to the speed of each execution mode.

Pure. Any option that is a number and has more than one value may be the axis. Speed-ups are within one framework: over
its own mode that does the work piece by piece.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.plan import FRAMEWORKS, Framework, Variant
from harness.results.sequential import FIRST_LOOK
from harness.results.statistics import PairedRatio, paired_ratio
from pipeline.report.compare import NAMES, SAME, Mode, RowKey, Section, data_id, row_labels, settings_digest
from pipeline.report.declared import NOT_DECLARED, mode_of


@dataclass(frozen=True, kw_only=True)
class Line:
    """One framework in one execution mode, over the option's values."""

    framework: Framework
    execution_mode: str
    run_as: str
    """How its formulation is run, in words."""
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


@dataclass(frozen=True, kw_only=True)
class OptionAxis:
    option: str
    panels: tuple[Panel, ...]

    @property
    def loops(self) -> str:
        """`loop` of PyTorch (eager), `unrolled` of JAX (compiled): what the other modes of each are compared with."""
        found = {line.framework: line for panel in self.panels for line in panel.lines if line.is_loop}
        loops = [found[framework] for framework in reversed(FRAMEWORKS) if framework in found]
        return ", ".join(f"`{one.execution_mode}` of {NAMES[one.framework]} ({one.run_as})" for one in loops)


def option_name(option: str) -> str:
    """`models` is `number of models`; an option that is no plural has its own name."""
    name = option.replace("_", " ")
    return f"number of {name}" if name.endswith("s") else name


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
    # Of each panel, by framework and execution mode: what has a number at which value, and at which memory ran out.
    modes: dict[RowKey, dict[tuple[Framework, str], dict[float, Mode | None]]] = {}
    for row in section.rows:
        if option in row.variant.options:
            key = RowKey(_label(row.variant, option), row.settings_digest, row.data_id)
            for mode in row.modes:
                of_mode = modes.setdefault(key, {}).setdefault((mode.framework, mode.execution_mode), {})
                of_mode[_value(row.variant, option)] = mode
    for record in short:
        measurement, variant = record.measurement, record.measurement.variant
        if option in variant.options:
            key = RowKey(_label(variant, option), settings_digest(measurement), data_id(record))
            if record.data is None:  # memory may run out before the data are known
                key = next((other for other in modes if other.without_data == key.without_data), key)
            of_mode = modes.setdefault(key, {}).setdefault((measurement.framework, variant.execution_mode), {})
            of_mode.setdefault(_value(variant, option), None)
    labels = row_labels(modes)
    use_case = section.setup.cell.use_case_name
    return OptionAxis(
        option=option,
        panels=tuple(
            Panel(label=labels[key], lines=tuple(sorted((_line(use_case, *one) for one in of.items()), key=_order)))
            for key, of in modes.items()
        ),
    )


def _line(use_case_name: str, name: tuple[Framework, str], of_mode: Mapping[float, Mode | None]) -> Line:
    declared = mode_of(name[0], use_case_name, name[1])
    values = sorted(of_mode)
    return Line(
        framework=name[0],
        execution_mode=name[1],
        run_as=declared.run.words if declared else NOT_DECLARED,
        is_loop=declared is not None and declared.is_loop,
        modes={value: mode for value in values if (mode := of_mode[value])},
        out_of_memory=tuple(value for value in values if of_mode[value] is None),
    )


def _order(line: Line) -> tuple[int, bool, str]:
    return FRAMEWORKS.index(line.framework), not line.is_loop, line.execution_mode


def _label(variant: Variant, option: str) -> str:
    others = {name: value for name, value in variant.options.items() if name != option}
    return variant.model_copy(update={"options": others}).comparison_key


def _value(variant: Variant, option: str) -> float:
    value = variant.options[option]
    assert isinstance(value, int | float), "axis_option chooses numbers only"
    return value


def compared_speed_ups(line: Line, loop: Line) -> dict[float, PairedRatio]:
    """By the option's value, ascending: throughput over that of the loop, paired by replicate, where both have a number
    that may be compared, and as many replicates as a first look takes."""
    found = {}
    for value, mode in line.modes.items():
        other = loop.modes.get(value)
        if other is not None and not mode.why_worthless and not other.why_worthless:
            common = sorted(mode.throughputs.keys() & other.throughputs.keys())
            if len(common) >= FIRST_LOOK:
                found[value] = paired_ratio(*([one.throughputs[number] for number in common] for one in (mode, other)))
    return found


def where_it_wins(found: Mapping[float, PairedRatio]) -> str:
    """Where a line is faster than its loop: `always`, `never`, `from 8`, or the very values of what comes and goes.
    Faster: the interval excludes 1 and is not `same`."""
    values = list(found)
    ends = {value: one.interval for value, one in found.items() if one.interval}
    faster = [value for value, one in ends.items() if one.low > 1 and one.high > SAME.high]
    if not values:
        return f"not compared with {FIRST_LOOK} replicates"
    if len(values) == 1:
        return f"{'at' if faster else 'not at'} {values[0]:g}, no other compared"
    if not faster:
        return "never"
    if faster == values:
        return "always"
    return f"from {faster[0]:g}" if faster == values[-len(faster) :] else f"only at {values_text(faster)}"


def values_text(values: Iterable[float]) -> str:
    """`1, 8, 64`"""
    return ", ".join(f"{value:g}" for value in values)
