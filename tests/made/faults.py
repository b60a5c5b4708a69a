"""Faults that tests make, and what must hold after them."""

import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from harness.results.record import Record


def programs(folder: Path, **scripts: str) -> None:
    """Shell scripts in place of Slurm's programs. `$here` is their folder."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\nhere={folder}\n{script}\n")
        (folder / name).chmod(0o755)


def overlaps(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The end of a measurement, and the earlier start of the next."""
    times = sorted((record.started_at, record.ended_at) for record in records)
    return [(end, start) for (_, end), (start, _) in pairwise(times) if start < end]


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
