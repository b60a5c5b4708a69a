"""The comparison as tables on the terminal: what `--wait` and `report` print."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.plan import FRAMEWORKS, Framework
from harness.results.quantities import THROUGHPUT, number, shown_in
from harness.results.record import Record
from pipeline.report import devices_axis
from pipeline.report.calibrations import CalibratedDevices, for_terminal
from pipeline.report.ceilings import DeviceCeilings, ceiling_lines
from pipeline.report.chance import chance_sentence
from pipeline.report.compare import NAMES, OneDevice, Row, Section, headline, scaling
from pipeline.report.declared import task_of
from pipeline.report.devices_axis import device_panels
from pipeline.report.left_out import left_out_lines
from pipeline.report.models import model_lines, models_of
from pipeline.report.option_axis import OptionAxis, option_axis
from pipeline.report.why_words import why_lines
from pipeline.report.wording import (
    WHOSE_SIDE,
    absent_lines,
    axis_name,
    best_of,
    bracket,
    chance_mark,
    choice_note,
    cold_start,
    declared_lines,
    difference_mark,
    difference_notes,
    failure_lines,
    flag_lines,
    flag_names,
    loops_text,
    newest_text,
    no_ratio_lines,
    pays_after,
    registered_text,
    rules_sentence,
    scaling_lines,
    scaling_texts,
    times,
    verdict,
    which_pair,
    win_lines,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def new_console() -> "Console":
    from rich.console import Console

    return Console()


def null_console() -> "Console":
    """Shows nothing to nobody."""
    import io

    from rich.console import Console

    return Console(file=io.StringIO(), width=80)


def print_sections(compared: Sequence[Section], console: "Console", alone: OneDevice) -> None:
    for section in compared:
        console.rule(style="dim")
        console.print(headline(section.setup), style="bold", highlight=False, markup=False)
        for line in flag_lines(section.rows):
            console.print(line, highlight=False, markup=False)
        if section.rows:
            _print_tables(section, console, alone)
        notes = difference_notes(section.rows).values()
        lines = [f"({mark}) The two sides: {note}" for mark, note in enumerate(notes, start=1)]
        if section.awaited:
            lines.append(f"Screened so far, with no replicate yet: {', '.join(section.awaited)}")
        lines += [f"No ratio: {line}" for line in no_ratio_lines(section.rows)]
        lines += [f"No number: {line}" for line in failure_lines(section.without_number)]
        lines += [f"No number for {line}" for line in absent_lines(section.rows, on_terminal=True)]
        for line in lines:
            console.print(line, highlight=False, markup=False)
    if sentences := [*filter(None, [chance_sentence(compared), rules_sentence(compared)])]:
        console.rule(style="dim")
        console.print(" ".join(sentences), highlight=False, markup=False)


def print_left_out(records: Iterable[Record], console: "Console") -> None:
    for line in left_out_lines(records):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_calibrations(calibrated: CalibratedDevices, console: "Console") -> None:
    if calibrated:
        console.rule(style="dim")
    for device, found in calibrated.items():
        for sentence in for_terminal(device, found):
            console.print(sentence, highlight=False, markup=False)


def print_ceilings(ceilings: DeviceCeilings, console: "Console") -> None:
    if ceilings:
        console.rule(style="dim")
    for line in ceiling_lines(ceilings):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_devices(compared: Sequence[Section], console: "Console") -> None:
    """Device against device; nothing where no variant has two."""
    panels = device_panels(compared)
    if not panels:
        return
    console.rule(style="dim")
    console.print("Device against device", style="bold")
    table = _table(*devices_axis.HEADS)
    for panel in panels:
        _add_row(table, f"{panel.place}: {panel.label}", style="bold")
        for device, on_device in panel.devices.items():
            name, *numbers = devices_axis.cells(device, on_device.row)
            found = devices_axis.flags(on_device.row)
            _add_row(table, f"  {name}{f' ({found})' if found else ''}", *numbers)
    console.print(table)
    console.print(devices_axis.ABOUT, style="dim", highlight=False)


def _print_tables(section: Section, console: "Console", alone: OneDevice) -> None:
    console.print(_pair_table(section.rows))
    console.print(
        "Samples per second: median over replicates, each framework in its fastest mode. Ratio: "
        f"geometric mean over paired replicates, with its 95 % interval. {WHOSE_SIDE} "
        f"{choice_note(section.rows)}".rstrip(),
        style="dim",
        highlight=False,
    )
    for line in declared_lines(section.rows):
        console.print(line, highlight=False, markup=False)
    console.print(registered_text(section), style="dim", highlight=False, markup=False)
    for row in section.rows:
        if paid := pays_after(row):
            console.print(f"{row.label}: {paid}", highlight=False, markup=False)
    for row, sentence in why_lines(section.rows):
        console.print(f"{row.label}: {sentence}", highlight=False, markup=False)
    console.print(_mode_table(section))
    for line in model_lines(models_of([section])):
        console.print(line, style="dim", highlight=False, markup=False)
    if section.setup.cell.devices > 1:
        _print_scaling(section, alone, console)
    axis = option_axis(section)
    if axis is not None and axis.has_loops:
        _print_wins(axis, console)


def _pair_table(rows: Sequence[Row]) -> "Table":
    table = _table("variant", "flags", *(f"{NAMES[one]}\n{THROUGHPUT.short}" for one in FRAMEWORKS), "JAX / PyTorch")
    notes = difference_notes(rows)
    for row in rows:
        cells = [*(_best_cell(row, framework) for framework in FRAMEWORKS), _ratio_cell(row, notes)]
        _add_row(table, _breakable(row.label), "\n".join(flag_names(row)), *cells)
    return table


def _best_cell(row: Row, framework: Framework) -> str:
    mode = row.best(framework)
    if mode is None:
        return "none"
    lines = [number(mode.throughput_samples_per_s), f"({mode.name})", best_of(row, framework), cold_start(mode)]
    return "\n".join(filter(None, lines))


def _ratio_cell(row: Row, notes: Iterable[str]) -> str:
    comparison = row.comparison
    if comparison is None:
        return "no pair"
    estimate = comparison.estimate
    if estimate is None:
        return "no ratio:\n" + (
            f"parity {comparison.judgement.state}" if comparison.replicates else "no common replicate"
        )
    mark = difference_mark(row, notes)
    ratio = f"{times(estimate.value)}{bracket(estimate.interval)}" + (f" ({mark})" if mark else "")
    chance = chance_mark(row.q, marked=row.may_be_chance)
    newer = newest_text(comparison)
    lines = [ratio, verdict(estimate).replace(": ", "\n"), chance, which_pair(row), newer.replace(": ", "\n")]
    return "\n".join(filter(None, lines))


def _print_scaling(section: Section, alone: OneDevice, console: "Console") -> None:
    cell = section.setup.cell
    table = _table("scaling efficiency", "strong", "weak", "communi-\ncation")
    modes = [(row, mode, scaling(section.setup, row, mode, alone)) for row in section.rows for mode in row.modes]
    for row, mode, found in modes:
        shares = scaling_texts(found)
        if any(shares):
            _add_row(table, f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}", *shares)
    notes = []
    if any(found.strong is not None or found.weak is not None for _, _, found in modes):
        notes.append(
            f"Throughput on {cell.devices} devices over {cell.devices} times that of one, which had the whole batch "
            f"(strong) or 1/{cell.devices} of it (weak)."
        )
    else:
        notes.append(
            f"No scaling efficiency: this folder has no record of {cell.use_case_name} on one such device with the "
            f"same settings and the same batch, or 1/{cell.devices} of it."
        )
    if any(found.communication is not None for _, _, found in modes):
        notes.append("Communication: the share of the step's time that goes when nothing is moved between the devices.")
    if table.row_count:
        console.print(table)
    console.print(" ".join(notes), style="dim", highlight=False)
    named = [(f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}", found) for row, mode, found in modes]
    for line in scaling_lines(named):
        console.print(f"One device / {cell.devices}: {line}", highlight=False, markup=False)


def _print_wins(axis: OptionAxis, console: "Console") -> None:
    name = axis_name(axis.option)
    table = _table("mode", "faster than\nits loop", "speed-up", "out of\nmemory at")
    for panel in axis.panels:
        _add_row(table, panel.label, style="bold")
        for win in win_lines(panel):
            line = win.line
            mode = f"  {NAMES[line.framework]} {line.execution_mode}"
            _add_row(table, mode, win.wins, win.last, win.out_of_memory)
    console.print(table)
    console.print(
        f"From which {name} on a mode is faster than the same framework's loop: {loops_text(axis)}.",
        style="dim",
        highlight=False,
    )


def _mode_table(section: Section) -> "Table":
    """Every execution mode below its variant; columns only where there is any number."""
    metric = task_of(section.setup.cell.benchmark).metric
    there = {name for row in section.rows for mode in row.modes for name in mode.numbers}
    columns = [quantity for quantity in shown_in("terminal") if quantity.name in there]
    # Heads are broken at their spaces: the name of a mode leaves little of 80 columns.
    table = _table("every mode", *(quantity.short_title(metric).replace(" ", "\n") for quantity in columns))
    for row in section.rows:
        _add_row(table, _breakable(row.label), style="bold")
        for mode in row.modes:
            numbers = (quantity.text(mode.numbers.get(quantity.name), metric) for quantity in columns)
            _add_row(table, f"  {NAMES[mode.framework]} {mode.name}", *numbers)
        for one in row.only_screened:
            throughput = f"({number(one.throughput_samples_per_s)})"
            cells = (throughput if quantity is THROUGHPUT else "" for quantity in columns)
            _add_row(table, f"  {NAMES[one.framework]} {one.execution_mode}", *cells, style="dim")
    return table


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column in columns:
        is_text = column in ("variant", "device", "every mode", "flags", "scaling efficiency", "mode")
        table.add_column(
            column,
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=column == "every mode",
        )
    return table


def _add_row(table: "Table", *cells: str, style: str | None = None) -> None:
    """As it stands: a `[...]` in a cell is no markup."""
    from rich.text import Text

    table.add_row(*map(Text, cells), style=style)


def _breakable(label: str) -> str:
    """Two lines at the most: the model and batch size, then the rest."""
    parts = label.split("-")
    return label if len(label) <= 16 else "-".join(parts[:2]) + "-\n" + "-".join(parts[2:])
