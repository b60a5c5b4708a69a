"""The file that a parity key leaves beside its records: arrays and a JSON entry about them, in one .npz."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import RecordError
from harness.files import in_words
from harness.paths import Results
from harness.results.npz import read_npz, write_npz
from harness.results.parity import ParityMetadata, ParityNumbers
from harness.results.record import Record

METADATA = "metadata"
NUMBER = "number:"


def write_parity(numbers: ParityNumbers, path: Path) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    arrays: dict[str, NDArray[np.generic]] = {METADATA: np.array(numbers.metadata.model_dump_json())}
    arrays |= {NUMBER + name: _shortest(value) for name, value in numbers.kept.items()}
    write_npz(path, arrays)


def read_parity(path: Path) -> ParityNumbers:
    """Raises RecordError that names the file and what is wrong: damaged, or of another schema."""
    try:
        arrays = read_npz(path)
        metadata = ParityMetadata.model_validate_json(str(arrays.pop(METADATA)))
        kept = {name.removeprefix(NUMBER): value.astype(np.float64) for name, value in arrays.items()}
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"{path}: not a file of parity numbers: {in_words(error)}") from error
    return ParityNumbers(metadata=metadata, kept=kept)


class ParityFiles:
    """The numbers of many records, each file read once."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._found: dict[Path, ParityNumbers | RecordError] = {}

    def of(self, record: Record) -> ParityNumbers:
        """From the file that the record names. Raises RecordError with the way out where it cannot be read."""
        named = self.path_of(record)
        if named not in self._found:
            try:
                self._found[named] = read_parity(named)
            except RecordError as error:
                self._found[named] = RecordError(f"{error}. Measure again, with --force")
        found = self._found[named]
        if isinstance(found, RecordError):
            raise found
        return found

    def path_of(self, record: Record) -> Path:
        measurement = record.measurement
        return self._results.records(measurement.cell, measurement.framework) / Path(str(record.parity)).name


def _shortest(value: NDArray[np.float64]) -> NDArray[np.floating]:
    """Half the size where nothing is lost: what was computed in fp32 and kept whole."""
    short = value.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), value) else value
