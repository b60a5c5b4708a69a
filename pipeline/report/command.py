"""`main.py report`, and the comparison that `--wait` ends with: reads records, shows and writes what they say."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.files import write_atomically
from harness.paths import Results
from harness.plan import JobPlan, Measurement
from harness.record import Record
from pipeline.parity_gate import ParityGate
from pipeline.report.compare import NAMES, Judge, one_device, sections
from pipeline.report.reading import Reading, read_records
from pipeline.report.tables import csv_text
from pipeline.report.terminal import new_console, print_sections

if TYPE_CHECKING:
    from rich.console import Console


def print_summary(
    results: Results, plans: list[JobPlan], console: "Console | None" = None, judge: Judge | None = None
) -> None:
    """The comparison of what the plans measure, from the records that are there by now."""
    console = console or new_console()
    judge = judge or ParityGate(results).judge
    measurements = {measurement.id: measurement for plan in plans for measurement in plan.measurements()}
    reading = read_records(path for one in measurements.values() for path in results.record_files(one))
    _print_refused(reading, console)
    alone = one_device(sections(_one_device_records(results, plans, console), judge))
    print_sections(sections(reading.records, judge), console, alone)
    recorded = {record.measurement_id for record in reading.records}
    missing = [measurement for id_, measurement in measurements.items() if id_ not in recorded]
    if missing:
        console.print(f"Not measured yet: {len(missing)} of {len(measurements)} ({_shortened(missing)}).")


def report_command(
    results: Results, csv: Path | None, console: "Console | None" = None, judge: Judge | None = None
) -> int:
    """`main.py report`: the comparison of all records in the results folder. 1 if there is none, else 0."""
    console = console or new_console()
    judge = judge or ParityGate(results).judge
    reading = read_records(sorted(results.records().rglob("*.json")))
    _print_refused(reading, console)
    if not reading.records:
        console.print(
            f"No records under {results.records()}. Measure first: "
            f"python main.py --benchmark mnist --use_case 1 --data sample --quick --wait",
            soft_wrap=True,
        )
        return 1
    compared = sections(reading.records, judge)
    print_sections(compared, console, one_device(compared))
    if csv is not None:
        write_atomically(csv, csv_text(compared), replace=True)
        console.print(f"Written: {csv}", soft_wrap=True)
    return 0


def _one_device_records(results: Results, plans: Sequence[JobPlan], console: "Console") -> list[Record]:
    """All that plans for several devices may be compared with, whatever the number of the use case it was made for."""
    benchmarks = {plan.cell.benchmark for plan in plans if plan.cell.devices > 1}
    paths = [path for name in sorted(benchmarks) for path in results.records().glob(f"*/{name}_*/*/*.json")]
    reading = read_records(paths)
    _print_refused(reading, console)
    return [record for record in reading.records if record.measurement.cell.devices == 1]


def _print_refused(reading: Reading, console: "Console") -> None:
    for sentence in reading.refused:
        console.print(f"Warning: {sentence}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _shortened(measurements: Sequence[Measurement]) -> str:
    names = [f"{NAMES[measurement.framework]} {measurement.key}" for measurement in measurements]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
