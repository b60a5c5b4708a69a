"""Files that are never half written and never overwritten by accident."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from harness.errors import RecordError
from harness.printable import printable_json

LARGEST_JSON_BYTES = 2**26
"""A plan of 100,000 measurements has a tenth of it."""
NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""Errors of a file system that has no hard links, such as exFAT or some of FUSE."""


def write_atomically(path: Path, content: str | bytes, *, replace: bool) -> None:
    """Write to a temporary file beside `path`, sync, then rename: readers see the old file or the whole new one.

    Safe with many nodes on one shared file system. With `replace=False` an existing file is kept, and of two writers
    at once the second is refused.

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
        if replace:
            temporary.replace(path)
        else:
            _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(source: Path, path: Path) -> None:
    """Give the file at `source` the name `path` as well, in one step that fails if the name is taken.

    A file system without hard links gets a look and a rename instead, between which another writer may come.
    """
    try:
        os.link(source, path)
    except FileExistsError as error:
        # NFS repeats a request whose answer was lost, and then finds the name that it has just made.
        if not source.samefile(path):
            raise FileExistsError(f"{path} exists already; a record is never overwritten") from error
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        if path.exists():
            raise FileExistsError(f"{path} exists already; a record is never overwritten") from error
        source.replace(path)


def read_json(path: Path) -> str:
    """The text of a JSON file, without what a terminal would obey. It never waits, as it would for a pipe.

    Raises:
        OSError: there is none, it cannot be read, or it is no regular file.
        ValueError: it is too large, or not UTF-8.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        content = file.read(LARGEST_JSON_BYTES + 1)
    if len(content) > LARGEST_JSON_BYTES:
        raise ValueError(f"larger than {LARGEST_JSON_BYTES / 1e6:.0f} MB")
    return printable_json(content.decode())


def in_words(error: Exception) -> str:
    """Why a file cannot be read, on one line. Of pydantic's errors the first: where, and what."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
    return (str(error).splitlines() or [type(error).__name__])[0]


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
