"""Python as a process of its own; and what runs on this machine, by proc(5).

A process may end at any moment: between two readings, and also between the opening of one of its files and the reading
of it, which then fails with ESRCH (ProcessLookupError).
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.paths import REPOSITORY
from tests.made.patience import patience


def run_python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
    input: str | None = None,
    quiet_s: float = 100.0,
) -> "subprocess.CompletedProcess[str]":
    """Args: quiet_s: what it takes at most on a quiet machine."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=env,
        input=input,
        capture_output=True,
        text=True,
        timeout=patience(quiet_s),
    )


def output_of(*arguments: str, **more: Any) -> str:
    """On stdout. Raises AssertionError where the process fails."""
    done = run_python(*arguments, **more)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def is_alive(pid: int) -> bool:
    """A zombie, which only waits for somebody to read its exit status, is not."""
    return _state_and_parent(pid)[0] not in ("Z", "")


def words_of(pid: int) -> list[str]:
    """Its command line; empty where it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def processes_in(folder: Path) -> list[int]:
    """Those whose working folder it is."""
    found = [cwd for cwd in Path("/proc").glob("[0-9]*/cwd") if os.path.realpath(cwd) == str(folder.resolve())]
    return [int(cwd.parent.name) for cwd in found]


def _state_and_parent(pid: int) -> tuple[str, str]:
    """Empty where it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "", ""
    return state, parent
