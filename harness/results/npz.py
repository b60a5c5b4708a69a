"""Arrays in a .npz file."""

import io
import json
from collections.abc import Callable, Mapping
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


def npz_with_texts(
    path: Path, *, name: Callable[[str], str], texts: Callable[[Any], Any]
) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a .npz file with changed names of arrays and changed texts, and these texts as JSON by the
    new names; None stands for an array of numbers. Where nothing changes, the content is that of the file.

    Args:
        texts: changes JSON, or a plain text.

    Raises:
        OSError, ValueError: see read_npz.
    """
    arrays = read_npz(path)
    before = {old: _texts_of(array) for old, array in arrays.items()}
    after = {name(old): texts(found) for old, found in before.items()}
    if after == before:
        return path.read_bytes(), after
    if len(after) < len(before):
        raise ValueError("two of its arrays would have one name")
    changed = {
        new: array if after[new] == before[old] else _array_of(after[new])
        for (old, array), new in zip(arrays.items(), after, strict=True)
    }
    return npz_bytes(changed), after


def _texts_of(array: NDArray[Any]) -> Any:
    if array.dtype.kind not in "US":
        return None
    if array.ndim:
        return array.astype(str).tolist()
    text = str(array)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _array_of(texts: Any) -> NDArray[Any]:
    """JSON as pydantic writes it."""
    is_json = isinstance(texts, dict)
    return np.array(json.dumps(texts, separators=(",", ":"), ensure_ascii=False) if is_json else texts)
