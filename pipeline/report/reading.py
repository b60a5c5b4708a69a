"""All records of a results folder, read with what must be said about those that cannot be."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.printable import printable
from harness.results.record import Record, read_record


@dataclass(frozen=True, kw_only=True)
class Reading:
    records: tuple[Record, ...]
    paths: tuple[Path, ...]
    """Of the records."""
    refused: tuple[str, ...]
    """One sentence for each file that is no record, or of another schema. It is left alone."""


def read_records(paths: Iterable[Path], *, planted: bool = False) -> Reading:
    """
    Args:
        planted: only records of `main.py calibrate`, which are about the machine and no results; else only the others.
    """
    records: list[Record] = []
    read: list[Path] = []
    refused: list[str] = []
    for path in paths:
        try:
            record = read_record(path)
        except RecordError as error:
            refused.append(printable(str(error)))
        else:
            if (record.measurement.variant.planted is not None) == planted:
                records.append(record)
                read.append(path)
    return Reading(records=tuple(records), paths=tuple(read), refused=tuple(refused))
