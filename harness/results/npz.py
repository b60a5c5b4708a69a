"""Arrays in a .npz file. It is read as one that somebody else may have written: nothing in it is unpickled, and no more
memory is taken than the file says of itself and the caller allows."""

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.files import read_bytes, way_out, write_atomically

ENDING = ".npy"
LARGEST_HEADER_BYTES = 10_000


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], *, is_compressed: bool = True) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    content = io.BytesIO()
    save = np.savez_compressed if is_compressed else np.savez
    save(content, **arrays)  # type: ignore[arg-type]
    with way_out(path):
        write_atomically(path, content.getvalue(), replace=False)


def read_npz(path: Path, *, at_most: int) -> dict[str, NDArray[Any]]:
    """
    Args:
        at_most: bytes, of the file and of what it unpacks to.

    Raises:
        FileNotFoundError, OSError: it is not there or cannot be read.
        ValueError: it is not a .npz file of plain arrays, or damaged, or too large.
    """
    content = read_bytes(path, at_most=at_most)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if (size := sum(entry.file_size for entry in archive.infolist())) > at_most:
                raise ValueError(f"unpacks to {size / 1e6:.0f} MB")
            return {name.removesuffix(ENDING): _array(archive.read(name)) for name in archive.namelist()}
    except Exception as error:  # zipfile and NumPy raise what they come across: there is no list of it
        raise ValueError(f"damaged, or no .npz file ({type(error).__name__})") from error


def _array(content: bytes) -> NDArray[Any]:
    """Raises ValueError where the header does not fit what follows it."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream, max_header_size=LARGEST_HEADER_BYTES)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(stream, max_header_size=LARGEST_HEADER_BYTES)
    else:
        raise ValueError(f"version {version}")
    shape, is_fortran, dtype = header
    if dtype.hasobject:
        raise ValueError("Python objects")
    if stream.tell() + math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError("header and size do not fit")
    flat = np.frombuffer(content, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")
