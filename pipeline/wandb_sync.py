"""`main.py wandb sync`: uploads the runs that were kept offline, several at a time, and goes on where it was ended.

Each run is uploaded by a `wandb sync` of its own, with all folders that the run has, in the order of their time. That
command marks a folder by a file `....wandb.synced` when W&B has it, and only the mark counts here.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.paths import Results

if TYPE_CHECKING:
    from rich.console import Console

IS_WRITTEN_S = 1800.0
"""A run without an end whose file is no older than the longest measurement (`timeout_s`) may still go on."""
TIMEOUT_S = 1800.0
"""Of the upload of one run."""


def sync(
    results: Results, *, jobs: int, options: Sequence[str] = (), dry_run: bool = False, console: "Console | None" = None
) -> int:
    """The exit status: 1 where a run was not uploaded.

    Args:
        jobs: how many runs at a time.
        options: of `wandb sync`, for all runs.
    """
    from rich.console import Console

    console = console or Console()
    folder = results.wandb / "wandb"
    waiting = to_upload(folder)
    show = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    show(f"{len(waiting)} run{'' if len(waiting) == 1 else 's'} to upload from {folder}")
    if dry_run:
        for name in waiting:
            show(f"  {name}")
        return 0
    failed = {}
    with ThreadPoolExecutor(jobs) as pool:
        uploads = {pool.submit(_upload, parts, options): name for name, parts in waiting.items()}
        try:
            for done, upload in enumerate(as_completed(uploads), 1):
                name, reason = uploads[upload], upload.result()
                if reason is not None:
                    failed[name] = reason
                show(f"[{done}/{len(waiting)}] {name}: {reason or 'uploaded'}")
        except BaseException:  # Ctrl-C: no further one is begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for name, reason in failed.items() if len(waiting) > 1 else ():
        show(f"not uploaded: {name}: {reason}")
    if failed:
        show(f"{len(failed)} of {len(waiting)} runs were not uploaded: the same command tries them again")
    return 1 if failed else 0


def to_upload(folder: Path) -> dict[str, list[Path]]:
    """By the run's id, its folders, oldest first: kept offline, or left by a client that could not end its upload.

    A job removes a run's `logs` when all has been dealt with (harness/job/wandb_process.py).
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*run-*-*"), key=lambda path: path.name.removeprefix("offline-")):
        for log in _not_uploaded(path):
            found.setdefault(log.stem.removeprefix("run-"), []).append(path)
    return found


def _not_uploaded(path: Path) -> Iterator[Path]:
    for log in path.glob("run-*.wandb"):
        has_ended = not (path / "logs").is_dir()
        is_online = path.name.startswith("run-")
        is_old = time.time() - log.stat().st_mtime > IS_WRITTEN_S
        if not log.with_suffix(".wandb.synced").exists() and (is_old if not has_ended else not is_online):
            yield log


def _upload(folders: list[Path], options: Sequence[str]) -> str | None:
    """Why not; None where W&B has all of them."""
    command = [sys.executable, "-m", "wandb", "sync", "--include-online", *options, *map(str, folders)]
    try:
        done = subprocess.run(
            command,
            cwd=folders[0].parent.parent,  # the client makes a folder `wandb` where it runs
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {TIMEOUT_S:g} s"
    if not any(log for folder in folders for log in _not_uploaded(folder)):
        return None
    words = " ".join((done.stderr + done.stdout).split())
    return words[-300:] or f"wandb sync ended with status {done.returncode}"
