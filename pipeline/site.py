"""`main.py site`: every row of results/published/ in one table, as a folder that needs no server and no network:
index.html, and beside it for each shelf the page of its report and the records that the table links to, as JSON.
"""

import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ProjectError
from harness.files import read_json
from harness.paths import PUBLISHED, Results
from harness.plan import FRAMEWORKS
from harness.printable import printable
from harness.results.installed import lock_words
from harness.results.parity_gate import ParityGate
from harness.results.quantities import number
from harness.results.record import Record
from pipeline.collector import without_collector
from pipeline.report.answer import Answer, answer_of
from pipeline.report.calibration import calibrated_devices, read_calibrations
from pipeline.report.ceilings import read_all_ceilings
from pipeline.report.compare import NAMES, Mode, Row, Setup, sections
from pipeline.report.page import TEMPLATES, measured_sentence, page_html, template
from pipeline.report.publish import shelves
from pipeline.report.reading import read_records
from pipeline.report.wording import end_of_axis, use_case_title

SITE_BEGINS = '<!doctype html>\n<html lang="en" data-made-by="main.py site">'
"""By which the index of a site is known."""
IN_A_SITE = {"index.html", "shelves"}
FILTERS = ("device", "benchmark", "use case", "precision", "result")
"""Lists of the page; a row has a value for each."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one framework reached in its fastest mode."""

    text: str
    """`JAX 18,649 samples/s (step.jit)`"""
    records: Mapping[str, str]
    """Number and samples per second of each process, and the record's file in the site."""


@dataclass(frozen=True, kw_only=True)
class SiteRow:
    answer: Answer
    model: str
    filtered: Mapping[str, str]
    """By FILTERS."""
    shelf: str
    report: str
    """The file of its shelf's report in the site."""
    place: str
    """The anchor of its section there."""
    locks: Sequence[str]
    measured: str
    """`JAX 0.10.2 and PyTorch 2.14.1, 24 measurements, 2026-11-25.`"""
    sides: Sequence[Side]


def make_site(output: Path, published: Path = PUBLISHED) -> int:
    """Writes the folder `output`, in place of a site that is there. Returns the command's exit status.

    Raises:
        ProjectError: nothing is published, or `output` is something else than a site, or cannot be written.
    """
    target, where = Path(os.path.realpath(output)), f"--output {printable(str(output), keep='')}"
    _require_a_site_or_nothing(target, where)
    with without_collector():
        files, refused = site_files(published)
    for sentence in refused:
        print(f"Warning: {sentence}")
    try:
        _put(files, target)
    except OSError as error:
        raise ProjectError(f"{where}: cannot be written: {error.strerror}; choose another folder") from error
    print(f"{len(files)} files. Open {printable(str(target), keep='')}/index.html in a browser.")
    return 0


def _require_a_site_or_nothing(target: Path, where: str) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ProjectError(f"{where}: is no folder; choose another name")
    there = {path.name for path in target.iterdir()}
    if others := sorted(there - IN_A_SITE):
        raise ProjectError(f"{where}: has {printable(others[0], keep='')}, which no site has; choose another folder")
    index = target / "index.html"
    if there and not (index.is_file() and index.read_bytes().startswith(SITE_BEGINS.encode())):
        raise ProjectError(f"{where}: holds no site that this command made; choose another folder")


def _put(files: Mapping[str, str | Path], target: Path) -> None:
    """The index first: by it an unfinished site is known, too."""
    if target.exists():
        shutil.rmtree(target)
    for name, content in sorted(files.items()):
        text = content if isinstance(content, str) else json.dumps(json.loads(read_json(content)), indent=1)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")


def site_files(published: Path) -> tuple[dict[str, str | Path], list[str]]:
    """By the names of files their texts, or the record that is to be copied; and a sentence for each file of a shelf
    that was not read.

    Raises:
        ProjectError: nothing is published.
    """
    files: dict[str, str | Path] = {}
    rows: list[SiteRow] = []
    records: list[Record] = []
    calibrations, odd = read_calibrations([Results(root=published).calibration])
    refused = [*odd]
    for shelf in shelves(published):
        reading = read_records(sorted(shelf.records().rglob("*.json")))
        ceilings, odd_ones = read_all_ceilings(shelf.ceilings)
        compared = sections(reading.records, ParityGate(shelf).judge, ceilings)
        devices = {section.setup.device for section in compared}
        calibrated, name = calibrated_devices(calibrations, devices), shelf.root.name
        source, report = Path("results/published", name), f"shelves/{name}/report.html"
        files[report] = page_html(compared, reading.records, reading.refused, source, calibrated)
        names = {
            _key(record): f"shelves/{path.relative_to(published).as_posix()}"
            for path, record in zip(reading.paths, reading.records, strict=True)
        }
        for index, section in enumerate(compared):
            places = {"shelf": name, "report": report, "place": f"s{index}"}
            rows += [_row(section.setup, row, answer_of(section, row), names, places) for row in section.rows]
        records += reading.records
        refused += [*reading.refused, *odd_ones]
    if not rows:
        raise ProjectError(f"{published}: nothing is published; first: python main.py report --publish NAME")
    linked = {name for row in rows for side in row.sides for name in side.records.values()}
    of_records = {name: published / name.partition("/")[2] for name in linked}
    return files | of_records | {"index.html": _index(rows, records)}, refused


RecordKey = tuple[str, str | None, str, str]


def _key(record: Record) -> RecordKey:
    """What no two records share: one job measures the same work once at a time."""
    return record.measurement_id, record.job, record.started_at, record.ended_at


def _row(setup: Setup, row: Row, answer: Answer, names: Mapping[RecordKey, str], places: Mapping[str, str]) -> SiteRow:
    """
    Args:
        names: of each record, its file in the site.
        places: where the row's shelf and report are.
    """
    modes = [mode for framework in FRAMEWORKS if (mode := row.best(framework))]
    records = [record for mode in modes for record in mode.records]
    use_case = f"{setup.cell.use_case}: {use_case_title(setup.cell)}"
    values = (setup.devices, setup.cell.benchmark, use_case, row.variant.precision, _result(answer))
    return SiteRow(
        answer=answer,
        model=row.variant.model,
        filtered=dict(zip(FILTERS, values, strict=True)),
        **places,
        locks=sorted({lock_words(lock) if (lock := one.environment.get("lock")) else "none" for one in records}),
        measured=measured_sentence(records),
        sides=[_side(mode, names) for mode in modes],
    )


def _result(answer: Answer) -> str:
    if answer.outcome == "faster" and answer.faster:
        return f"{NAMES[answer.faster]} is faster"
    return {"same": "both are the same", "none": "no ratio"}.get(answer.outcome, "not decided")


def _side(mode: Mode, names: Mapping[RecordKey, str]) -> Side:
    return Side(
        text=f"{NAMES[mode.framework]} {number(mode.throughput_samples_per_s)} samples/s ({mode.name})",
        records={
            f"{replicate + 1}: {number(mode.throughputs[replicate])}": names[_key(record)]
            for record in mode.records
            if (replicate := record.measurement.replicate) in mode.throughputs
        },
    )


def _index(rows: Sequence[SiteRow], records: Sequence[Record]) -> str:
    from markupsafe import Markup

    of_devices: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        of_devices[row.filtered["device"]][row.filtered["result"]] += 1
    style = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "site.css"))
    return template("site.html.j2").render(
        begins=Markup(SITE_BEGINS),
        style=Markup(style),
        script=Markup((TEMPLATES / "site.js").read_text(encoding="utf-8")),
        rows=sorted(rows, key=lambda row: (*row.filtered.values(), row.answer.detail)),
        filters={name: sorted({row.filtered[name] for row in rows}) for name in FILTERS},
        of_devices=dict(sorted(of_devices.items())),
        scale=end_of_axis(row.answer.ratio for row in rows),
        measured=measured_sentence(records),
        no_gpu=all(row.answer.setup.is_cpu for row in rows),
    )
