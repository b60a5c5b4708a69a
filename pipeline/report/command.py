"""`main.py report`, and the comparison that `--wait` ends with: reads records, shows and writes what they say."""

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.files import write_atomically
from harness.paths import Results
from harness.plan import Cell, JobPlan, Measurement
from harness.results.looks import needed
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from pipeline.report.baseline import NOTHING_IN_COMMON, baseline_csv, baseline_table, changes_of
from pipeline.report.calibration import PUBLISHED_CALIBRATIONS, calibrated_devices, read_calibrations
from pipeline.report.compare import NAMES, UNKNOWN_DEVICE, Judge, Section, device_name, sections
from pipeline.report.device_peaks import read_all_device_peaks
from pipeline.report.files import (
    figures,
    report_files,
    write_figures,
    write_tables,
    write_text,
)
from pipeline.report.page import page_html
from pipeline.report.publish import shelves
from pipeline.report.reading import Reading, read_records
from pipeline.report.readme import PART_OF_README, PICTURES, full_sections, picture_svg, pictures, published_part
from pipeline.report.terminal import (
    new_console,
    null_console,
    print_answers,
    print_left_out,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from rich.console import Console

TRY = "python main.py --benchmark mnist --use_case 1 --data sample --quick --wait"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What the command line asks for. An empty tuple means all."""

    figures: bool = True
    gpus: tuple[str, ...] = ()
    """Names of experiments.yaml, or parts of the names that the devices give themselves."""
    benchmarks: tuple[str, ...] = ()
    use_cases: tuple[int | str, ...] = ()
    """By number or name."""
    readme: Path | None = None
    """Whose table is to be renewed."""
    baseline: Results | None = None
    """The results folder with whose records each framework is compared instead."""
    fail_above: float | None = None
    """The slowdown from which on `baseline` is failed: 0.03 is 3 %."""

    def takes(self, section: Section) -> bool:
        return self.takes_cell(section.setup.cell, section.setup.device)

    def takes_cell(self, cell: Cell, device: str) -> bool:
        names = (cell.gpu.lower(), device.lower())
        return bool(
            (not self.gpus or any(gpu.lower() == names[0] or gpu.lower() in names[1] for gpu in self.gpus))
            and (not self.benchmarks or cell.benchmark in self.benchmarks)
            and (not self.use_cases or {cell.use_case, cell.use_case_name} & {*self.use_cases})
        )


def print_summary(
    results: Results, plans: list[JobPlan], console: "Console | None" = None, judge: Judge | None = None
) -> None:
    """The comparison of what the plans measure, from the records that are there by now."""
    console = console or new_console()
    judge = judge or ParityGate(results).judge
    measurements = {measurement.id: measurement for plan in plans for measurement in plan.measurements()}
    reading = read_records(dict.fromkeys(path for one in measurements.values() for path in results.record_files(one)))
    _print_refused(reading.refused, console)
    beside = sections(_one_device_records(results, plans, console), judge)
    compared = sections(reading.records, judge, alone=beside[0].alone if beside else None)
    print_left_out(reading.records, console)
    print_answers(compared, console)
    recorded = {record.measurement_id for record in reading.records}
    of_cells: dict[Cell, list[JobPlan]] = defaultdict(list)
    for plan in plans:
        of_cells[plan.cell].append(plan)
    to_do = [measurement for of_cell in of_cells.values() for measurement in needed(of_cell, results, None)]
    missing = [measurement for measurement in to_do if measurement.id not in recorded]
    if missing:
        console.print(f"Not measured yet: {len(missing)} of {len(to_do)} ({_shortened(missing)}).")
    spared = len(measurements) - len(to_do)
    if spared:
        console.print(
            f"Not needed so far, by the screening and by the looks at each ratio: {spared} of {len(measurements)}."
        )


def make_page(results: Results) -> Path | None:
    """The page of `main.py report`, and what belongs to it but the figures, without a word. None where there is no
    record."""
    if report_command(results, ReportOptions(figures=False), null_console()):
        return None
    return report_files(results.report).html


def report_command(
    results: Results, options: ReportOptions, console: "Console | None" = None, judge: Judge | None = None
) -> int:
    """Write and show the report of `main.py report`. Return 1 if there is nothing to compare, else 0."""
    console = console or new_console()
    if options.baseline is not None:
        return _against_baseline(results, options.baseline, options, console)
    return _report(results, options, console, judge or ParityGate(results).judge)


def _read(results: Results, console: "Console") -> Reading:
    reading = read_records(sorted(results.records().rglob("*.json")))
    _print_refused(reading.refused, console)
    return reading


def _against_baseline(results: Results, baseline: Results, options: ReportOptions, console: "Console") -> int:
    """The table of `--baseline`. 1 if nothing can be compared, or something is slower by more than `fail_above`."""

    def records_of(folder: Results) -> list[Record]:
        records = _read(folder, console).records
        return [one for one in records if options.takes_cell(one.measurement.cell, device_name(one))]

    changes, missing = changes_of(records_of(baseline), records_of(results))
    if not changes:
        print_line(console, NOTHING_IN_COMMON)
        return 1
    file = results.report / "baseline.csv"
    write_text(file, baseline_csv(changes))
    print_table(baseline_table(changes, missing, options.fail_above), console)
    print_line(console, f"The same with all digits: {file}")
    return int(options.fail_above is not None and any(one.is_slower_by(options.fail_above) for one in changes))


def _report(results: Results, options: ReportOptions, console: "Console", judge: Judge) -> int:
    reading = _read(results, console)
    files = report_files(results.report)
    peaks, odd = read_all_device_peaks(results.device_peaks)
    _print_refused(odd, console)
    everything = sections(reading.records, judge, peaks)
    compared = [section for section in everything if options.takes(section)]
    if options.readme is not None:
        _update_readme(options.readme, results, everything, reading.records, console)
        if not reading.records:
            return 0
    if not compared:
        print_line(console, _nothing(results, reading, everything))
        return 1
    to_draw = figures(files, compared) if options.figures else []
    with write_figures(files, to_draw) if options.figures else nullcontext([]) as drawn:  # while the rest is done here
        calibrations, refused = read_calibrations([PUBLISHED_CALIBRATIONS, results.calibration])
        cells, devices = {section.setup.cell for section in compared}, {section.setup.device for section in compared}
        calibrated = calibrated_devices(calibrations, devices - {UNKNOWN_DEVICE})
        records = [r for r in reading.records if r.measurement.cell in cells and device_name(r) in devices]
        page = page_html(compared, records, (*reading.refused, *refused), results.root, calibrated)
        write_text(files.html, page)
        write_tables(files, compared)
        print_left_out(records, console)
        _print_refused(refused, console)
        print_answers(compared, console, calibrated)
        _print_refused([problem for problem in drawn if problem], console)
    console.rule(style="dim")
    others = [files.csv.name, files.tables.name, *([files.figures.name] if options.figures else [])]
    print_line(console, f"Beside the page: {', '.join(others)}", style="dim")
    print_line(console, f"Page: {files.html}")  # what a person opens next
    return 0


def _update_readme(
    path: Path, results: Results, compared: Sequence[Section], records: Sequence[Record], console: "Console"
) -> None:
    shelved = on_shelves(results)
    _print_refused(shelved.refused, console)
    compared, records = [*compared, *shelved.sections], [*records, *shelved.records]
    drawn = pictures(compared)
    for name in PICTURES:
        if name in drawn:
            write_atomically(results.root / name, picture_svg(drawn[name]), replace=True)
        else:
            (results.root / name).unlink(missing_ok=True)
    folder = Path(os.path.relpath(results.root, path.parent)).as_posix()
    changed = PART_OF_README.write(path, published_part(compared, records, folder))
    if not full_sections(compared):
        console.print("Nothing to publish: there is no full measurement among these records.")
    print_line(console, f"{path}: {'its table was renewed' if changed else 'its table says this already'}.")


class Shelved(NamedTuple):
    sections: list[Section]
    records: list[Record]
    refused: list[str]


def on_shelves(results: Results) -> Shelved:
    """What is in the folders below `results` that `--publish` has made, each with its own parity numbers."""
    found = Shelved([], [], [])
    for shelf in shelves(results.root):
        reading = read_records(sorted(shelf.records().rglob("*.json")))
        found.sections.extend(sections(reading.records, ParityGate(shelf).judge))
        found.records.extend(reading.records)
        found.refused.extend(reading.refused)
    return found


def _nothing(results: Results, reading: Reading, everything: Sequence[Section]) -> str:
    if not reading.records and (inside := shelves(results.root)):
        names = ", ".join(folder.root.name for folder in inside)
        first = inside[0].root
        as_typed = first.relative_to(Path.cwd()) if first.is_relative_to(Path.cwd()) else first
        return f"Holds results folders: {names}. --results {as_typed}"
    if not reading.records:
        return f"No records under {results.records()}. Measure first: {TRY}"
    there = sorted({f"{s.setup.device}: {s.setup.cell.benchmark}, {s.setup.cell.use_case}" for s in everything})
    return f"No record is of that GPU, benchmark and use case. There are: {'; '.join(there)}."


def _one_device_records(results: Results, plans: Sequence[JobPlan], console: "Console") -> list[Record]:
    """All that plans for several devices may be compared with, whatever the number of the use case it was made for."""
    benchmarks = {plan.cell.benchmark for plan in plans if plan.cell.devices > 1}
    cells = [cell for name in sorted(benchmarks) for cell in results.records().glob(f"*/{name}_*")]
    reading = read_records(path for cell in cells for path in sorted(cell.rglob("*.json")))
    _print_refused(reading.refused, console)
    return [record for record in reading.records if record.measurement.cell.devices == 1]


def _print_refused(refused: Sequence[str], console: "Console") -> None:
    for sentence in refused:
        print_line(console, f"Warning: {sentence}", style="yellow")


def _shortened(measurements: Sequence[Measurement]) -> str:
    names = [f"{NAMES[measurement.framework]} {measurement.key}" for measurement in measurements]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
