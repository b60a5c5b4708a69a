"""How long `main.py report` takes for a laboratory's results: 5,000 generated records, everything written."""

import io
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from harness.parity import Judgement
from harness.paths import Results
from harness.record import Record
from pipeline.report.command import ReportOptions, report_command
from tests.generated_records import write_records

RECORDS = 5000
GOAL_S = 20


def passed(jax: Record, torch: Record) -> Judgement:
    return Judgement(state="passed", sentence="")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Results(root=Path(folder))
        written = write_records(results, RECORDS)
        start = time.perf_counter()
        report_command(results, ReportOptions(), Console(file=io.StringIO(), width=80), passed)
        took_s = time.perf_counter() - start
    print(f"report of {written} records: {took_s:.1f} s (goal: under {GOAL_S} s)")
    return int(took_s >= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
