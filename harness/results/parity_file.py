"""The file that a parity key leaves beside its records: arrays and a JSON entry about them, in one .npz."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import RecordError
from harness.files import in_words
from harness.paths import Results
from harness.results.environment import is_code_on_disk, is_same_code
from harness.results.npz import read_npz, write_npz
from harness.results.parity import (
    PARITY_SCHEMA_VERSION,
    QUANTITIES,
    ParityMetadata,
    ParityNumbers,
    kept_shape,
    key_of,
    quantity_of,
)
from harness.results.record import Record

METADATA = "metadata"
NUMBER = "number:"
LARGEST_BYTES = 2**30
"""Of large tensors only sketches are kept, so a file has megabytes."""


def write_parity(numbers: ParityNumbers, path: Path) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    arrays: dict[str, NDArray[np.generic]] = {METADATA: np.array(numbers.metadata.model_dump_json())}
    arrays |= {NUMBER + name: _shortest(value) for name, value in numbers.kept.items()}
    write_npz(path, arrays)


def read_parity(path: Path) -> ParityNumbers:
    """Raises RecordError that names the file and what is wrong: damaged, of another schema, or with other numbers."""
    try:
        arrays = read_npz(path, at_most=LARGEST_BYTES)
        if METADATA not in arrays:
            raise ValueError("says nothing about its numbers")
        metadata = _metadata(str(arrays[METADATA]))
        kept = {name.removeprefix(NUMBER): _numbers(arrays, name) for name in arrays if name.startswith(NUMBER)}
        _require_known(metadata, kept)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not a file of parity numbers: {in_words(error)}") from error
    return ParityNumbers(metadata=metadata, kept=kept)


class ParityFiles:
    """The numbers of many records, each file read once."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._found: dict[Path, ParityNumbers | RecordError] = {}

    def of(self, record: Record) -> ParityNumbers:
        """From the file that the record names, or those that were computed anew because it cannot be read. Raises
        RecordError."""
        named = self.path_of(record)
        if named not in self._found:
            try:
                self._found[named] = read_parity(named)
            except RecordError as error:
                self._found[named] = self._computed_anew(record, named) or RecordError(
                    f"{error}. Run the same command again: it computes them anew"
                )
        found = self._found[named]
        if isinstance(found, RecordError):
            raise found
        return found

    def path_of(self, record: Record) -> Path:
        measurement = record.measurement
        return self._results.records(measurement.cell, measurement.framework) / Path(str(record.parity)).name

    def can_be_repaired(self, record: Record, code: Mapping[str, str]) -> bool:
        """Whether its numbers cannot be read, and `code` (what lies on disk) would compute what the record needs."""
        if record.parity is None or not is_code_on_disk(record.environment.get("code"), code):
            return False
        try:
            self.of(record)
        except RecordError:
            return True
        return False

    def _computed_anew(self, record: Record, named: Path) -> ParityNumbers | None:
        """By the code of the record, the newest."""
        measurement = record.measurement
        digest = key_of(measurement).digest
        for path in reversed(self._results.parity_files(measurement.cell, measurement.framework, digest)):
            try:
                numbers = read_parity(path) if path != named else None
            except RecordError:
                continue
            if numbers is None or numbers.metadata.outcome != "ok":
                continue
            if is_same_code(numbers.metadata.environment.get("code"), record.environment.get("code")):
                return numbers
        return None


def _numbers(arrays: Mapping[str, NDArray[np.generic]], name: str) -> NDArray[np.float64]:
    if arrays[name].dtype.kind != "f":
        raise ValueError(f"{name!r} holds {arrays[name].dtype}")
    return arrays[name].astype(np.float64)


def _metadata(text: str) -> ParityMetadata:
    """Its version first: what else another version holds is not for this code to judge."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("its description is nested too deeply") from error
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
