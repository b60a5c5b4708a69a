"""The file that a parity key leaves beside its records: arrays and a JSON entry about them, in one .npz."""

import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from harness.errors import RecordError
from harness.files import write_atomically
from harness.parity import ParityMetadata, ParityNumbers

METADATA = "metadata"
NUMBER = "number:"


def write_parity(numbers: ParityNumbers, path: Path) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    arrays: dict[str, NDArray[np.generic]] = {METADATA: np.array(numbers.metadata.model_dump_json())}
    arrays |= {NUMBER + name: _shortest(value) for name, value in numbers.kept.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    try:
        write_atomically(path, content.getvalue(), replace=False)
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}. "
            f"Free space or choose another folder with --results DIR; nothing was overwritten."
        ) from error


def read_parity(path: Path) -> ParityNumbers:
    """Raises RecordError that names the file and what is wrong."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            metadata = ParityMetadata.model_validate_json(str(arrays[METADATA]))
            names = [name for name in arrays.files if name.startswith(NUMBER)]
            kept = {name.removeprefix(NUMBER): arrays[name].astype(np.float64) for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, ValidationError) as error:
        raise RecordError(f"{path}: not a file of parity numbers: {error}") from error
    return ParityNumbers(metadata=metadata, kept=kept)


def _shortest(value: NDArray[np.float64]) -> NDArray[np.floating]:
    """Half the size where nothing is lost: what was computed in fp32 and kept whole."""
    short = value.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), value) else value
