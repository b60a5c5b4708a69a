"""The report's folder: the page, the CSV, the LaTeX tables and the figures."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from harness.files import way_out, write_atomically
from pipeline.report.answer import answers_table, groups_of
from pipeline.report.charts import PRINT, specification
from pipeline.report.compare import Section, Setup
from pipeline.report.csv_files import csv_text, phases_csv_text, why_csv_text
from pipeline.report.drawing import Figure, drawn
from pipeline.report.figures import section_charts
from pipeline.report.scaling_axis import scaling_chart
from pipeline.report.table import latex
from pipeline.report.tables import report_tables, section_tables


class ReportFiles(NamedTuple):
    html: Path
    csv: Path
    phases: Path
    why: Path
    tables: Path
    figures: Path


def report_files(folder: Path) -> ReportFiles:
    names = ("report.html", "comparison.csv", "phases.csv", "why.csv", "tables", "figures")
    return ReportFiles(*(folder / name for name in names))


def write_text(path: Path, text: str) -> None:
    with way_out(path):
        write_atomically(path, text, replace=True)


def write_tables(files: ReportFiles, compared: Sequence[Section]) -> None:
    write_text(files.csv, csv_text(compared))
    write_text(files.phases, phases_csv_text(compared))
    write_text(files.why, why_csv_text(compared))
    _clear(files.tables, "*.tex")
    for name, text in latex_tables(compared).items():
        write_text(files.tables / f"{name}.tex", text)


def latex_tables(compared: Sequence[Section]) -> dict[str, str]:
    """File name (without its ending) to text: `overview` of all answers, the report's tables, and of each section its
    tables."""
    answers = [answer for group in groups_of(compared) for answer in group.answers]
    tables = {"overview": latex(answers_table("overview", "JAX or PyTorch", answers))} if answers else {}
    of_all = report_tables(compared)
    tables |= {one.name: latex(one) for one in of_all}
    names = section_names(compared)
    for section in compared:
        name, comment = names[section.setup], section.setup.place
        tables |= {f"{name}-{one.name}": latex(one, [comment]) for one in section_tables(section) if one.lines}
    return tables


def figures(files: ReportFiles, compared: Sequence[Section]) -> list[Figure]:
    """All that are to be drawn. Pure."""
    names = section_names(compared)
    found = [
        (f"{names[section.setup]}-{chart.name}", section.setup.place, chart)
        for section in compared
        for chart in section_charts(section)
    ]
    of_all = scaling_chart(compared)
    found += [(of_all.name, "JAX and PyTorch", of_all)] if of_all.points else []
    return [
        Figure(path=files.figures / name, specification=specification(chart, PRINT, title=title))
        for name, title, chart in found
    ]


def write_figures(files: ReportFiles, figures: Sequence[Figure]) -> AbstractContextManager[Iterable[str | None]]:
    """Begins to; see `drawn`."""
    with way_out(files.figures):
        files.figures.mkdir(parents=True, exist_ok=True)
    for ending in ("svg", "pdf"):
        _clear(files.figures, f"*.{ending}")
    return drawn(figures)


LONGEST_NAME = 150
"""Of a section, without what is added for a chart or a table: a file system takes 255 bytes."""


def section_names(compared: Sequence[Section]) -> Mapping[Setup, str]:
    """A file name for each, that says what it holds: `mnist-1-train-nvidia-h200`. Unique."""
    names: dict[Setup, str] = {}
    for section in compared:
        setup = section.setup
        cell = setup.cell
        parts = [cell.benchmark, str(cell.use_case), cell.use_case_name, setup.devices]
        parts += [cell.gpu] if cell.gpu != "any" else []
        parts += [setup.data] if setup.data != "real" else []
        parts += ["quick"] if setup.quick else []
        name = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:LONGEST_NAME].strip("-")
        numbered = [name, *(f"{name}-{number}" for number in range(2, len(names) + 2))]
        names[setup] = next(one for one in numbered if one not in names.values())
    return names


def _clear(folder: Path, pattern: str) -> None:
    """What an earlier report left: its sections may be gone."""
    for path in folder.glob(pattern):
        path.unlink()
