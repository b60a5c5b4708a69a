"""The records of a cell in one file, as `main.py pack` leaves them: a zip in the cell's folder, whose entries have the
names of the files that the records were (`jax/....json`).

A packed record keeps its path: `record_paths` lists it where its file was, and `record_text` reads it there. A file of
its own comes first for both, and is looked for first: whoever reads while a pack is made misses nothing, and a crash
between the pack and the removal of the files changes nothing.
"""

import io
import os
import re
import struct
import time
import zlib
from collections.abc import Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from harness.errors import RecordError
from harness.files import LARGEST_JSON_BYTES, read_bytes, read_json, way_out, write_atomically
from harness.printable import printable_json

NAME = "packed-records.zip"
LARGEST_BYTES = 2**30
ENTRY = re.compile(r"(?!\.\.?/)[^/]+/[^/]+\.json")
"""A framework's folder and a record's file; nothing else of a zip is a record."""
DAMAGED = (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError, IndexError)
"""What zipfile raises at content that is no zip, or was one."""


def record_paths(folder: Path, pattern: str = "*.json") -> list[Path]:
    """All records below a folder by the names of their files, sorted. A pack that cannot be read stands among them
    itself: whoever reads it gets the reason."""
    folders = [folder.parent]
    found = set()
    for where, inner, names in os.walk(folder):
        folders.append(Path(where))
        found |= {Path(where, name) for name in (*inner, *names) if fnmatchcase(name, pattern)}
    for within in folders:
        try:
            names = [name for name in _opened(within / NAME) if fnmatchcase(name.rpartition("/")[2], pattern)]
        except ValueError:
            found.add(within / NAME)
        else:
            found |= {path for name in names if (path := within / name).is_relative_to(folder)}
    return sorted(found)


def record_text(path: Path) -> str:
    """Of a record, in a file of its own or packed. Raises OSError and ValueError as read_json."""
    if path.name == NAME:
        raise ValueError(f"a pack of {len(_opened(path))} records, and no record")
    try:
        return read_json(path)
    except FileNotFoundError:
        pack, name = path.parent.parent / NAME, f"{path.parent.name}/{path.name}"
        if name not in (packed := _opened(pack)):
            raise
        return printable_json(_content(packed[name], name).decode())


def pack_up(folder: Path, names: Collection[str]) -> None:
    """Add files of a cell's folder to its pack, read the new pack back, and only then remove the files.

    Args:
        names: such as `jax/....json`.

    Raises:
        RecordError: the pack that is there is damaged, or has another record of that name; or the new one is not what
            was written. Nothing was removed.
        OSError: a file cannot be read or removed.
    """
    pack = folder / NAME
    try:
        packed = _contents(pack)
    except ValueError as error:
        raise RecordError(f"{pack}: {error}. Nothing was packed") from error
    files = {name: read_bytes(folder / name, at_most=LARGEST_JSON_BYTES) for name in names}
    for name, content in files.items():
        if packed.get(name, content) != content:
            raise RecordError(f"{folder / name}: {NAME} has another record of that name; remove one of the two")
    if not files.keys() <= packed.keys():
        _write(pack, packed | files)
    for name in files:
        (folder / name).unlink()


def _write(pack: Path, contents: dict[str, bytes]) -> None:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, content in sorted(contents.items()):
            info = ZipInfo(name, time.gmtime()[:6])
            info.compress_type, info.external_attr = ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, content)
    new = pack.with_name(f".{NAME}.new")
    with way_out(pack):
        write_atomically(new, buffer.getvalue(), replace=True)
        try:
            same = _contents(new) == contents
        except ValueError:
            same = False
        if not same:
            raise RecordError(f"{new}: read back, it is not what was written. No file was removed")
        new.replace(pack)
        with suppress(OSError):  # a file system that syncs no folders
            _sync(pack.parent)


def _sync(folder: Path) -> None:
    """So that no file is gone before the pack is there, also where the machine goes down."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _contents(pack: Path) -> dict[str, bytes]:
    return {name: _content(archive, name) for name, archive in _opened(pack).items()}


def _content(archive: ZipFile, name: str) -> bytes:
    """Raises ValueError that names the entry."""
    try:
        with archive.open(name) as entry:
            content = entry.read(LARGEST_JSON_BYTES + 1)  # to its end, where its checksum is compared
    except DAMAGED as error:
        raise ValueError(f"{NAME}, entry {name}: {error}") from error
    if len(content) > LARGEST_JSON_BYTES:
        raise ValueError(f"{NAME}, entry {name}: larger than {LARGEST_JSON_BYTES / 1e6:.0f} MB")
    return content


def _opened(pack: Path) -> dict[str, ZipFile]:
    """By the names of its records; empty where there is no pack. Raises ValueError for what is none."""
    try:
        found = pack.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ValueError(f"cannot be read: {error}") from error
    return _read(pack, (found.st_ino, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=8)
def _read(pack: Path, stamp: tuple[int, ...]) -> dict[str, ZipFile]:
    """In memory; anew when `stamp` has changed. Of a few cells only: a report reads one after the other."""
    try:
        archive = ZipFile(io.BytesIO(read_bytes(pack, at_most=LARGEST_BYTES)))
    except DAMAGED as error:
        raise ValueError(f"a damaged pack, whose records count as not measured: {error}") from error
    return {name: archive for name in archive.namelist() if ENTRY.fullmatch(name)}
