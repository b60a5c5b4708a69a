"""The report on the terminal: the answers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.plan import Framework
from harness.results.record import Record
from pipeline.report.answer import Answer, groups_of
from pipeline.report.calibration import CalibratedDevices, trust_sentences
from pipeline.report.compare import Section
from pipeline.report.left_out import left_out_lines
from pipeline.report.table import Table, terminal_table
from pipeline.report.wording import chance_sentence, failure_lines

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


def print_answers(compared: Sequence[Section], console: "Console", calibrated: CalibratedDevices | None = None) -> None:
    """For each device: who is faster at how many, then each answer with its reason, then how sure that is."""
    for group in groups_of(compared):
        console.rule(style="dim")
        print_wrapped(console, group.headline, style="bold")
        if group.about:
            print_wrapped(console, group.about, style="dim")
        for answer in group.answers:
            console.print()
            _print_answer(answer, console)
        sure = [chance_sentence(group.sections)]
        if calibrated is not None:
            sure += trust_sentences(calibrated.get(group.device, ()))
        if any(sure):
            console.print()
        for sentence in filter(None, sure):
            print_wrapped(console, sentence, style="dim")
    for section in compared:
        for line in failure_lines(section.without_number):
            print_wrapped(console, f"No number: {section.setup.cell.benchmark}: {line}", style="yellow")
        if section.awaited:
            print_wrapped(console, f"Screened so far, with no replicate yet: {', '.join(section.awaited)}")


def _print_answer(one: Answer, console: "Console") -> None:
    print_wrapped(console, f"{one.work} ({one.detail})")
    print_wrapped(console, one.sentence, indent=2, style=COLORS[one.faster] if one.outcome == "faster" else "bold")
    facts = [one.speeds, f"ready after {one.ready}" if one.ready else "", one.rests_on]
    if any(facts):
        print_wrapped(console, "; ".join(filter(None, facts)), indent=2)
    for text in one.more:
        print_wrapped(console, text, indent=2)
    if one.why:
        print_wrapped(console, f"Why: {one.why}" if not one.why.startswith("Not explained") else one.why, indent=2)
    if one.doubt:
        print_wrapped(console, f"But: {one.doubt}", indent=2, style="yellow")


def print_table(table: Table, console: "Console") -> None:
    if table.lines:
        console.print(terminal_table(table))
        if table.caption:
            print_wrapped(console, table.caption, style="dim")
    for note in table.notes:
        print_wrapped(console, note)


def print_left_out(records: Sequence[Record], console: "Console") -> None:
    for line in left_out_lines(records):
        print_wrapped(console, line)


def print_line(console: "Console", text: str, *, style: str | None = None) -> None:
    """As it stands, also where it is longer than a line."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def print_wrapped(console: "Console", text: str, *, indent: int = 0, style: str | None = None) -> None:
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
    print_line(console, wrapped, style=style)
