"""Faults that tests make, and what must hold after them."""

import os
import signal
import subprocess
from collections.abc import Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path

from harness.results.record import Record
from tests.made.processes import processes_in, words_of
from tests.made.project import BehavingProject


def programs(folder: Path, **scripts: str) -> None:
    """Shell scripts in place of Slurm's programs. `$here` is their folder."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\nhere={folder}\n{script}\n")
        (folder / name).chmod(0o755)


def overlaps(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Pairs of measurements that ran at the same time."""
    times = [
        (record.measurement.key, datetime.fromisoformat(record.started_at), datetime.fromisoformat(record.ended_at))
        for record in records
    ]
    return [
        (a, b)
        for (a, start_a, end_a), (b, start_b, end_b) in combinations(times, 2)
        if start_a < end_b and start_b < end_a
    ]


def run_of(project: BehavingProject, folder_name: str) -> int:
    """The process of the job."""
    lines = {pid: "\0".join(words_of(pid)) for pid in processes_in(project.root)}
    [pid] = [pid for pid, line in lines.items() if folder_name in line and ("run.py" in line or "harness.job" in line)]
    return pid


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


class SmallDisk:
    """A file system of its own at a folder, which can be filled up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, size: str = "256k") -> bool:
        """False without the right to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(self.folder)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def fill(self) -> None:
        try:
            (self.folder / "ballast").write_bytes(bytes(1 << 24))
        except OSError:
            return
        raise AssertionError(f"{self.folder} is not small")

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
