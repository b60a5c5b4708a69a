"""The records of the studies.

A simulation: `python -m studies.NAME` prints its table, and `--publish` also writes its record. A study that takes
times writes them to the path that it is given.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.files import compact_json, write_atomically
from harness.measure.program import Device
from harness.paths import REPOSITORY
from harness.plan import Measurement
from harness.results.environment import describe_environment

PUBLISHED = REPOSITORY / "results" / "published" / "statistics"

Simulated = dict[str, Any]
"""What json can hold."""
RECORDED = ("python", "platform", "cpu", "load_average", "packages", "git")
"""Of the environment: what may matter to a reader, and nothing of where it lies."""


def run_simulation(
    arguments: Sequence[str],
    *,
    about: str,
    record: Path,
    simulate: Callable[[], Simulated],
    table: Callable[[Simulated], str],
) -> int:
    """`about`: the module's docstring, whose first line `--help` shows."""
    parser = argparse.ArgumentParser(prog=f"python -m studies.{record.stem}", description=about.partition("\n")[0])
    parser.add_argument("--publish", action="store_true", help=f"write {record.relative_to(REPOSITORY)}")
    parsed = parser.parse_args(arguments)
    simulated = simulate()
    print(table(simulated))
    if parsed.publish:
        write_atomically(record, compact_json(simulated), replace=True)
    return 0


def write_rounds(
    record: Path, measurement: Measurement, device: Device, calls_per_block: int, rounds: Sequence[dict[str, float]]
) -> None:
    whole = describe_environment()
    content = {
        "framework": measurement.framework,
        "benchmark": measurement.cell.benchmark,
        "batch_size": measurement.variant.batch_size,
        "calls_per_block": calls_per_block,
        "rounds": rounds,
        "environment": {name: whole[name] for name in RECORDED} | {"framework": device.describe()},
    }
    write_atomically(record, compact_json(content), replace=True)
