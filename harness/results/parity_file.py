"""The file that a parity key leaves beside its records: arrays and a JSON entry about them, in one .npz."""

import io
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import RecordError
from harness.files import way_out, write_atomically
from harness.results.parity import (
    PARITY_SCHEMA_VERSION,
    QUANTITIES,
    ParityMetadata,
    ParityNumbers,
    kept_shape,
    quantity_of,
)

METADATA = "metadata"
NUMBER = "number:"


def write_parity(numbers: ParityNumbers, path: Path) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    arrays: dict[str, NDArray[np.generic]] = {METADATA: np.array(numbers.metadata.model_dump_json())}
    arrays |= {NUMBER + name: _shortest(value) for name, value in numbers.kept.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    with way_out(path):
        write_atomically(path, content.getvalue(), replace=False)


def read_parity(path: Path) -> ParityNumbers:
    """Raises RecordError that names the file and what is wrong: damaged, of another schema, or with other numbers."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            metadata = _metadata(str(arrays[METADATA]))
            names = [name for name in arrays.files if name.startswith(NUMBER)]
            kept = {name.removeprefix(NUMBER): arrays[name].astype(np.float64) for name in names}
        _require_known(metadata, kept)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise RecordError(f"{path}: not a file of parity numbers: {error}") from error
    return ParityNumbers(metadata=metadata, kept=kept)


def _metadata(text: str) -> ParityMetadata:
    """Its version first: what else another version holds is not for this code to judge."""
    content = json.loads(text)
    version = content.get("schema_version", 1) if isinstance(content, dict) else None
    if version != PARITY_SCHEMA_VERSION:
        raise ValueError(f"schema version {version}; this code reads {PARITY_SCHEMA_VERSION}")
    return ParityMetadata.model_validate(content)


def _require_known(metadata: ParityMetadata, kept: dict[str, NDArray[np.float64]]) -> None:
    if kept.keys() != metadata.shapes.keys():
        odd = sorted(kept.keys() ^ metadata.shapes.keys())
        raise ValueError(f"number {odd[0]!r} has a shape and no values, or values and no shape")
    for name, value in kept.items():
        if quantity_of(name) not in QUANTITIES:
            raise ValueError(f"number {name!r}: no such quantity; known: {', '.join(QUANTITIES)}")
        expected = kept_shape(metadata.shapes[name])
        if value.shape != expected:
            raise ValueError(f"number {name!r} is kept as {list(value.shape)}; expected {list(expected)}")


def _shortest(value: NDArray[np.float64]) -> NDArray[np.floating]:
    """Half the size where nothing is lost: what was computed in fp32 and kept whole."""
    short = value.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), value) else value
