"""The report on the terminal: the answers, and with `--details` the tables of each section."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.plan import Framework
from harness.results.record import Record
from pipeline.report.answer import Answer, groups_of
from pipeline.report.calibrations import CalibratedDevices, trust_sentences
from pipeline.report.compare import OneDevice, Section, headline
from pipeline.report.devices_axis import devices_table
from pipeline.report.left_out import left_out_lines
from pipeline.report.scaling_axis import scaling_over_devices
from pipeline.report.table import Table, terminal_table
from pipeline.report.tables import modes_table, scaling_table, sides_table, wins_table
from pipeline.report.wording import chance_sentence, failure_lines, rules_sentence

if TYPE_CHECKING:
    from rich.console import Console

COLORS: Mapping[Framework | None, str] = {"jax": "bold blue", "torch": "bold dark_orange", None: "bold"}


def new_console() -> "Console":
    from rich.console import Console

    return Console()


def null_console() -> "Console":
    """Shows nothing to nobody."""
    import io

    from rich.console import Console

    return Console(file=io.StringIO(), width=80)


def print_answers(
    compared: Sequence[Section], console: "Console", alone: OneDevice, calibrated: CalibratedDevices | None = None
) -> None:
    """For each device: who is faster at how many, then each answer with its reason, then how sure that is."""
    for group in groups_of(compared, alone):
        console.rule(style="dim")
        _print(console, group.headline, style="bold")
        if group.about:
            _print(console, group.about, style="dim")
        for answer in group.answers:
            console.print()
            _print_answer(answer, console)
        sure = [chance_sentence(group.sections), rules_sentence(group.sections)]
        if calibrated is not None:
            sure += trust_sentences(calibrated.get(group.device, ()))
        if any(sure):
            console.print()
        for sentence in filter(None, sure):
            _print(console, sentence, style="dim")
    for section in compared:
        for line in failure_lines(section.without_number):
            _print(console, f"No number: {section.setup.cell.benchmark}: {line}", style="yellow")
        if section.awaited:
            _print(console, f"Screened so far, with no replicate yet: {', '.join(section.awaited)}")


def _print_answer(one: Answer, console: "Console") -> None:
    _print(console, f"{one.work} ({one.detail})")
    _print(console, one.sentence, indent=2, style=COLORS[one.faster] if one.outcome == "faster" else "bold")
    facts = [one.speeds, f"ready after {one.ready}" if one.ready else "", one.rests_on]
    if any(facts):
        _print(console, "; ".join(filter(None, facts)), indent=2)
    for text in one.more:
        _print(console, text, indent=2)
    if one.why:
        _print(console, f"Why: {one.why}" if not one.why.startswith("Not explained") else one.why, indent=2)
    if one.doubt:
        _print(console, f"But: {one.doubt}", indent=2, style="yellow")


def print_details(compared: Sequence[Section], console: "Console", alone: OneDevice) -> None:
    """The tables that fit a terminal; the page has more columns and more tables."""
    for section in compared:
        console.rule(style="dim")
        _print(console, headline(section.setup), style="bold")
        for table in (modes_table(section, "terminal"), scaling_table(section, alone), wins_table(section)):
            print_table(table, console)
        for line in sides_table(section).lines:
            if line.cells[2]:
                _print(console, f"{line.cells[0]}: {line.cells[2]}")
    print_table(scaling_over_devices(compared, {}), console)
    print_table(devices_table(compared), console)


def print_table(table: Table, console: "Console") -> None:
    if table.lines:
        console.print(terminal_table(table))
        _print(console, table.caption, style="dim")
    for note in table.notes:
        _print(console, note)


def print_left_out(records: Iterable[Record], console: "Console") -> None:
    for line in left_out_lines(records):
        _print(console, line)


def _print(console: "Console", text: str, *, indent: int = 0, style: str | None = None) -> None:
    """As the text stands, wrapped between words with the lines after the first two columns further in."""
    import textwrap

    wrapped = textwrap.fill(
        text,
        max(console.width, 40),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 * (indent > 0)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(wrapped, style=style, highlight=False, markup=False, soft_wrap=True)
