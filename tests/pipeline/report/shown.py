"""What a report shows of records, where the parity gate passes every pair: on the terminal and on its page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.paths import Results
from harness.plan import JobPlan
from harness.results.record import Record
from pipeline.report.command import ReportOptions, print_summary, report_command
from pipeline.report.compare import Judge, Section, sections
from pipeline.report.page import page_html
from pipeline.report.tables import modes_table
from pipeline.report.terminal import print_answers
from tests.made.report_records import passed, plain, save, text

UNBROKEN = 1000
"""Columns of a terminal that breaks no sentence."""


def answers_of(compared: Sequence[Section], width: int = UNBROKEN) -> str:
    """The terminal's text."""
    console = plain(width)
    print_answers(compared, console)
    return text(console)


def modes_of(section: Section) -> dict[str, list[str]]:
    """The cells of each mode in the page's table of modes, without the first, by the mode."""
    return {line.cells[0]: list(line.cells[1:]) for line in modes_table(section).lines if not line.is_group}


def page_of(records: Sequence[Record], refused: Sequence[str] = ()) -> str:
    return page_html(sections(records, passed), records, refused, Path("results"))


def reported(results: Results, *records: Record, judge: Judge = passed, **options: Any) -> tuple[str, str]:
    """Saves the records and reports what is in the folder, without figures: the terminal's text, and the page."""
    for one in records:
        save(one, results)
    console = plain(UNBROKEN)
    assert report_command(results, ReportOptions(figures=False, **options), console, judge) == 0
    return text(console), (results.report / "report.html").read_text(encoding="utf-8")


def summary_of(results: Results, plans: list[JobPlan], width: int = 80) -> str:
    """What `--wait` ends with."""
    console = plain(width)
    print_summary(results, plans, console, passed)
    return text(console)
