"""What a report shows of records, where the parity gate passes every pair: on the terminal and on its page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.paths import Results
from harness.results.record import Record
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.compare import Judge, Section, sections
from pipeline.report.page import page_html
from pipeline.report.terminal import print_answers
from tests.made.report_records import passed, plain, save, text

UNBROKEN = 1000
"""Columns of a terminal that breaks no sentence."""


def answers_of(compared: Sequence[Section], width: int = UNBROKEN) -> str:
    """The terminal's text."""
    console = plain(width)
    print_answers(compared, console)
    return text(console)


def page_of(records: Sequence[Record], refused: Sequence[str] = ()) -> str:
    return page_html(sections(records, passed), records, refused, Path("results"))


def reported(results: Results, *records: Record, judge: Judge = passed, **options: Any) -> tuple[str, str]:
    """Saves the records and reports what is in the folder, without figures: the terminal's text, and the page."""
    for one in records:
        save(one, results)
    console = plain(UNBROKEN)
    assert report_command(results, ReportOptions(figures=False, **options), console, judge) == 0
    return text(console), (results.report / "report.html").read_text(encoding="utf-8")
