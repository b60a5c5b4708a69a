"""Arrays as .npy files, however large: written piece by piece and checked block by block, with a SHA-256 of each block.

Neither holds more of an array than one piece or one block.
"""

import hashlib
import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 2**26
"""Of an array's content, in C order; the last block may be shorter."""
GATHERED_AT_ONCE_BYTES = 2**24
"""Of a mapped array. The system brings in more of the file around each row, often several times as much."""

Advance = Callable[[int], object]
"""Is told after each piece of work how many bytes it was."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """An array that is larger than memory, on its way to the disk."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Iterable[NDArray[Any]]
    """Along the first axis, in order; made while they are written."""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class BlockDigests:
    """The SHA-256 of each block of the bytes that pass by, in hex digits."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._current = hashlib.sha256()
        self._room = BLOCK_BYTES

    def update(self, content: memoryview) -> None:
        """`content`: of bytes"""
        while content:
            part, content = content[: self._room], content[self._room :]
            self._current.update(part)
            self._room -= len(part)
            if not self._room:
                self._next_block()

    def all(self) -> tuple[str, ...]:
        """No byte comes any more."""
        if self._room < BLOCK_BYTES:
            self._next_block()
        return tuple(self._done)

    def _next_block(self) -> None:
        self._done.append(self._current.hexdigest())
        self._current, self._room = hashlib.sha256(), BLOCK_BYTES


def block_digests(array: NDArray[Any]) -> tuple[str, ...]:
    digests = BlockDigests()
    for piece in _pieces_of(array):
        digests.update(_bytes_of(piece))
    return digests.all()


def write_pieces(array: NDArray[Any] | Pieces, path: Path, advance: Advance) -> tuple[Path, tuple[str, ...]]:
    """Write it beside its place and sync it. Returns that file, which the caller renames to `path`, and the digests of
    its blocks.

    Raises:
        OSError: the disk is full, the folder is not writable, ...; nothing is left behind.
        ValueError: the pieces do not make an array of this shape and type.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    digests, written = BlockDigests(), 0
    try:
        with temporary.open("xb") as file:
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in _pieces_of(array):
                if piece.dtype != array.dtype or piece.shape[1:] != array.shape[1:]:
                    raise ValueError(
                        f"{path.name}: a piece of {piece.dtype} {piece.shape} in {array.dtype} {array.shape}"
                    )
                content = _bytes_of(piece)
                file.write(content)
                digests.update(content)
                written += len(content)
                advance(len(content))
            if written != array.nbytes:
                raise ValueError(f"{path.name}: its pieces have {written} bytes, {array.shape} takes {array.nbytes}")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary, digests.all()


def open_array(path: Path) -> np.memmap[Any, Any]:
    """Mapped, and not read.

    Raises:
        OSError, ValueError, EOFError: it is not there, or not a whole .npy file and nothing else.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (SyntaxError, TokenError, RecursionError, MemoryError, OverflowError, TypeError) as error:
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error
    expected = array.offset + array.nbytes
    if (size := path.stat().st_size) != expected:
        raise ValueError(f"{size} bytes instead of {expected}")
    mapped: np.memmap[Any, Any] = array
    return mapped


def first_changed_block(
    array: np.memmap[Any, Any], path: Path, digests: Sequence[str], numbers: Iterable[int], advance: Advance
) -> int | None:
    """The first of these blocks of the file that has another digest; None where all are right.

    Read from the file and not through the map, whose pages would count as memory of this process.
    """
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    with path.open("rb", buffering=0) as file:
        for number in numbers:
            start = number * BLOCK_BYTES
            block = buffer[: min(BLOCK_BYTES, array.nbytes - start)]
            file.seek(array.offset + start)
            _fill(block.data, file.readinto)
            if hashlib.sha256(block.data).hexdigest() != digests[number]:
                return number
            advance(len(block))
    return None


def gather(array: NDArray[Any], rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """A copy of these rows, [rows, ...]. Of a mapped array, what was read for it does not stay in this process's
    memory, as it would with `array[rows]`."""
    mapping = getattr(array, "_mmap", None)
    if mapping is None:
        copied: NDArray[Any] = array[rows]
        return copied
    gathered = np.empty((len(rows), *array.shape[1:]), array.dtype)
    at_once = max(1, GATHERED_AT_ONCE_BYTES // max(1, array[:1].nbytes))
    for first in range(0, len(rows), at_once):
        gathered[first : first + at_once] = array[rows[first : first + at_once]]
        mapping.madvise(mmap.MADV_DONTNEED)
    return gathered


def _fill(block: memoryview, readinto: Callable[[memoryview], int | None]) -> None:
    while block:
        count = readinto(block)
        if not count:
            raise EOFError("the file became shorter while it was read")
        block = block[count:]


def _pieces_of(array: NDArray[Any] | Pieces) -> Iterator[NDArray[Any]]:
    if isinstance(array, Pieces):
        yield from array.pieces
        return
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    for first in range(0, len(array), rows):
        yield array[first : first + rows]


def _bytes_of(piece: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
