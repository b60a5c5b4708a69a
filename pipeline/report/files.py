"""The report's folder: the page, the CSV, the LaTeX tables and the figures."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from harness.files import write_atomically
from harness.results.record import Record
from pipeline.report.calibrations import CalibratedDevices
from pipeline.report.charts import PRINT, specification
from pipeline.report.compare import OneDevice, Section, Setup, headline
from pipeline.report.drawing import Figure, drawn
from pipeline.report.figures import overview, section_drawing
from pipeline.report.page import page_html
from pipeline.report.tables import csv_text, latex_tables, phases_csv_text, why_csv_text


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """What is written where."""

    html: Path
    csv: Path
    phases: Path
    """CSV of the phases of each step."""
    why: Path
    """CSV of where a step's time goes."""
    tables: Path
    figures: Path


def report_files(folder: Path, *, html: Path | None = None, csv: Path | None = None) -> ReportFiles:
    return ReportFiles(
        html=html or folder / "report.html",
        csv=csv or folder / "comparison.csv",
        phases=folder / "phases.csv",
        why=folder / "why.csv",
        tables=folder / "tables",
        figures=folder / "figures",
    )


def write_page(
    files: ReportFiles,
    compared: Sequence[Section],
    alone: OneDevice,
    records: Sequence[Record],
    refused: Sequence[str],
    source: Path,
    calibrated: CalibratedDevices,
) -> None:
    page = page_html(compared, alone, records, refused, source, calibrated)
    write_atomically(files.html, page, replace=True)


def write_tables(
    files: ReportFiles, compared: Sequence[Section], alone: OneDevice, calibrated: CalibratedDevices
) -> None:
    write_atomically(files.csv, csv_text(compared, alone), replace=True)
    write_atomically(files.phases, phases_csv_text(compared), replace=True)
    write_atomically(files.why, why_csv_text(compared), replace=True)
    _clear(files.tables, "*.tex")
    for name, text in latex_tables(compared, section_names(compared), calibrated).items():
        write_atomically(files.tables / f"{name}.tex", text, replace=True)


def figures(files: ReportFiles, compared: Sequence[Section], alone: OneDevice, *, png: bool) -> list[Figure]:
    """All that are to be drawn. Pure."""
    names = section_names(compared)
    quotable = [section for section in compared if not section.setup.doubts]
    found = [
        Figure(path=files.figures / chart.name, specification=specification(chart, drawing.data, PRINT), png=png)
        for drawing in [overview(quotable)]
        for chart in drawing.charts
    ]
    for section in compared:
        drawing = section_drawing(section, alone)
        for chart in drawing.charts:
            spec = specification(chart, drawing.data, PRINT, title=headline(section.setup))
            path = files.figures / f"{names[section.setup]}-{chart.name}"
            found.append(Figure(path=path, specification=spec, png=png))
    return found


def write_figures(files: ReportFiles, figures: Sequence[Figure]) -> AbstractContextManager[Iterable[None]]:
    """Begins to; see `drawn`."""
    files.figures.mkdir(parents=True, exist_ok=True)
    for ending in ("svg", "pdf", "png"):
        _clear(files.figures, f"*.{ending}")
    return drawn(figures)


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
        name = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
        taken = set(names.values())
        number = next(number for number in range(1, len(taken) + 2) if _numbered(name, number) not in taken)
        names[setup] = _numbered(name, number)
    return names


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _clear(folder: Path, pattern: str) -> None:
    """What an earlier report left: its sections may be gone."""
    for path in folder.glob(pattern):
        path.unlink()
