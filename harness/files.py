"""Files that are never half written and never overwritten by accident."""

import os
import secrets
from pathlib import Path


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
