"""Arrays on disk: the same file as numpy's, digests of blocks by hashlib, and every block that can be wrong."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.work import array_files
from harness.work.array_files import Pieces, block_digests, first_changed_block, gather, open_array, write_pieces
from tests.made.image_folders import flip

VALUES = np.arange(7 * 5 * 3, dtype=np.int16).reshape(7, 5, 3)  # 210 bytes, 30 in a row
IN_PIECES = Pieces(shape=VALUES.shape, dtype=VALUES.dtype, pieces=[VALUES[:1], VALUES[1:1], VALUES[1:6], VALUES[6:]])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "BLOCK_BYTES", 64)  # which is no whole number of rows


@pytest.mark.parametrize("array", [VALUES, IN_PIECES, VALUES[:, ::2], VALUES[:0]])
def test_what_is_written_is_what_numpy_reads(array: NDArray[Any] | Pieces, tmp_path: Path) -> None:
    values = VALUES if isinstance(array, Pieces) else array
    advanced: list[int] = []
    temporary, digests = write_pieces(array, tmp_path / "a.npy", advanced.append)
    assert list(tmp_path.iterdir()) == [temporary] and temporary.name.startswith(".a.npy.")
    np.testing.assert_array_equal(np.load(temporary), values)
    content = values.tobytes()
    expected = [hashlib.sha256(content[first : first + 64]).hexdigest() for first in range(0, len(content), 64)]
    assert digests == tuple(expected) == block_digests(values)
    assert sum(advanced) == values.nbytes == array.nbytes
    if len(values):
        assert open_array(temporary).dtype == values.dtype


def test_pieces_of_another_array_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    for piece, complaint in (
        (VALUES[:6], r"its pieces have 180 bytes, \(7, 5, 3\) takes 210"),
        (VALUES.astype(np.int32), r"a piece of int32 \(7, 5, 3\) in int16 \(7, 5, 3\)"),
    ):
        pieces = Pieces(shape=VALUES.shape, dtype=VALUES.dtype, pieces=[piece])
        with pytest.raises(ValueError, match=complaint):
            write_pieces(pieces, tmp_path / "a.npy", lambda _: None)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("byte", "block", "rest"), [(63, 0, 146), (64, 1, 146), (209, 3, 192)])
def test_one_changed_bit_changes_its_block_and_no_other(byte: int, block: int, rest: int, tmp_path: Path) -> None:
    path, digests = write_pieces(VALUES, tmp_path / "a.npy", lambda _: None)
    array = open_array(path)
    advanced: list[int] = []

    def changed(numbers: Iterable[int] = range(4)) -> int | None:
        advanced.clear()
        return first_changed_block(array, path, digests, numbers, advanced.append)

    assert changed() is None
    flip(path, array.offset + byte)
    assert changed() == block
    assert changed({0, 1, 2, 3} - {block}) is None and sum(advanced) == rest
    os.truncate(path, array.offset + 200)
    with pytest.raises(EOFError, match="became shorter"):
        changed([3])


def test_rows_are_gathered_in_their_order_from_a_map_and_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_files, "GATHERED_AT_ONCE_BYTES", 70)  # two rows
    path, _ = write_pieces(VALUES, tmp_path / "a.npy", lambda _: None)
    rows = np.array([6, 0, 0, 3, 5])
    for array in (VALUES, open_array(path), open_array(path)[:]):
        gathered = gather(array, rows)
        np.testing.assert_array_equal(gathered, VALUES[[6, 0, 0, 3, 5]])
        assert type(gathered) is np.ndarray and gathered.flags.writeable
