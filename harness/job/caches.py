"""Folders for compilers' caches on a node's own disk: gone when the work is done.

A job that is killed cannot remove its own; the next one on that node does. Whoever uses a folder holds a lock on it, so
what is not locked is nobody's.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "compiler-caches-"
YOUNG_S = 60.0
"""One that was just made may not be locked yet."""


def new_name() -> Path:
    """Of a folder that is still to be made."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{secrets.token_hex(6)}"


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Raises OSError where there is no such folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks, whose leftovers stay
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers() -> list[Path]:
    """Of this user, on this node. Returns what it removed."""
    removed = []
    root = Path(tempfile.gettempdir())
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < YOUNG_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
            finally:
                os.close(descriptor)
    return removed
