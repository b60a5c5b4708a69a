"""Arrays in a .npz file."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.files import way_out, write_atomically


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], *, is_compressed: bool = True) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    content = npz_bytes(arrays, is_compressed=is_compressed)
    with way_out(path):
        write_atomically(path, content, replace=False)


def npz_bytes(arrays: Mapping[str, NDArray[Any]], *, is_compressed: bool = True) -> bytes:
    """Return the content of a .npz file, the same for the same arrays."""
    content = io.BytesIO()
    save = np.savez_compressed if is_compressed else np.savez
    save(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Nothing in the file is unpickled.

    Raises:
        FileNotFoundError, OSError: it is not there or cannot be read.
        ValueError: it is not a .npz file of plain arrays, or damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except OSError:
        raise
    except Exception as error:  # zipfile and NumPy raise what they come across: there is no list of it
        raise ValueError(f"damaged, or no .npz file ({type(error).__name__})") from error
