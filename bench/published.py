"""A simulation with a record: `python -m bench.NAME` prints its table, and `--publish` also writes the record."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.files import write_atomically
from harness.paths import REPOSITORY

PUBLISHED = REPOSITORY / "results" / "published" / "statistics"

Simulated = dict[str, Any]
"""What json can hold."""


def run_simulation(
    arguments: Sequence[str],
    *,
    about: str,
    record: Path,
    simulate: Callable[[], Simulated],
    table: Callable[[Simulated], str],
) -> int:
    """`about`: the module's docstring, whose first line `--help` shows."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{record.stem}", description=about.partition("\n")[0])
    parser.add_argument("--publish", action="store_true", help=f"write {record.relative_to(REPOSITORY)}")
    parsed = parser.parse_args(arguments)
    simulated = simulate()
    print(table(simulated))
    if parsed.publish:
        write_atomically(record, json.dumps(simulated, indent=1) + "\n", replace=True)
    return 0
