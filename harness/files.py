"""Files that are never half written and never overwritten by accident."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import RecordError


def write_atomically(path: Path, content: str | bytes, *, replace: bool) -> None:
    """Write to a temporary file beside `path`, sync, then rename: readers see the old file or the whole new one.

    Safe with many nodes on one shared file system. With `replace=False` an existing file is kept.

    Raises:
        FileExistsError: `path` exists and `replace` is false.
        OSError: the disk is full, the folder is not writable, ...; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        if not replace and path.exists():
            raise FileExistsError(f"{path} exists already; a record is never overwritten")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def compact_json(content: Any) -> str:
    """On one line, without blanks: for files that programs read."""
    return json.dumps(content, separators=(",", ":")) + "\n"


@contextmanager
def way_out(path: Path) -> Iterator[None]:
    """Around the writing of a result: an OSError becomes a RecordError that says which file, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}. "
            f"Free space or choose another folder with --results DIR; nothing was overwritten."
        ) from error
