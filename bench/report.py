"""How long `main.py report` takes for a laboratory's results: 5,000 generated records with their parity files,
everything written."""

import io
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.generated_records import write_records
from harness.paths import Results
from pipeline.report.command import ReportOptions, report_command

RECORDS = 5000
GOAL_S = 15


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Results(root=Path(folder))
        written = write_records(results, RECORDS, with_parity=True)
        files = len(list(results.records().rglob("parity-*.npz")))
        start = time.perf_counter()
        report_command(results, ReportOptions(), Console(file=io.StringIO(), width=80))
        took_s = time.perf_counter() - start
    print(f"report of {written} records and {files} parity files: {took_s:.1f} s (goal: under {GOAL_S} s)")
    return int(took_s >= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
