"""A copy of the repository in which use cases 2 and 4 have one variant each, and the command that measures them."""

import re
import subprocess
import sys
from pathlib import Path

from harness.results.record import Record, read_record
from tests.made.patience import patience
from tests.made.project import copy_repository

USE_CASE_2 = """\
    2:
      batch_sizes: [64]
      precisions: [fp32]
      formulations: {jax: [step: [jit]], torch: [step: [eager]]}
      settings: {epochs: 1}
"""
USE_CASE_4 = """\
    4:
      batch_sizes: [64]
      precisions: [fp32]
      formulations: {jax: [vmap: [jit]], torch: [vmap: [eager]]}
      options: {output: [clipped_sum]}
"""


def copy_for_two_devices(root: Path, *, nodes: int = 1, batch_sizes: str = "[64]") -> None:
    """Two devices on `nodes` nodes, and one CPU for each task."""
    copy_repository(root)
    config = root / "experiments.yaml"
    text = config.read_text()
    quick = text.index("\nquick:")
    two, three, four, five = (text.index(f"    {number}:\n", quick) for number in range(2, 6))
    text = text[:two] + USE_CASE_2.replace("[64]", batch_sizes) + text[three:four] + USE_CASE_4 + text[five:]
    text = text.replace("      settings: {epochs: 3}\n", "      settings: {epochs: 1}\n")  # of use case 1 as well
    text, places = re.subn(r"(\n    devices: 2\b.*)", rf"\g<1>\n    nodes: {nodes}", text)
    assert places == 2
    config.write_text(text.replace("cpus_per_task: 4 ", "cpus_per_task: 1 "))


def run_main(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    selection = ["--benchmark", "mnist", "--data", "sample", "--quick", "--wait", *arguments]
    command = [sys.executable, "main.py", *selection]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=patience(200))


def require_all_good(root: Path, done: "subprocess.CompletedProcess[str]") -> list[Record]:
    records = [read_record(path) for path in (root / "results" / "records").rglob("*.json")]
    said = done.stdout + done.stderr + "".join(f"\n{record.reason}" for record in records)
    assert done.returncode == 0, said
    assert {record.outcome for record in records} == {"ok"}, said
    return records
