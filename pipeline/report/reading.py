"""All records of a results folder, read with what must be said about those that cannot be."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.record import Record, read_record


@dataclass(frozen=True, kw_only=True)
class Reading:
    records: tuple[Record, ...]
    refused: tuple[str, ...]
    """One sentence for each file that is no record, or of another schema. It is left alone."""


def read_records(paths: Iterable[Path], advance: Callable[[], None] = lambda: None) -> Reading:
    """`advance` is called after each file."""
    records: list[Record] = []
    refused: list[str] = []
    for path in paths:
        try:
            records.append(read_record(path))
        except RecordError as error:
            refused.append(str(error))
        advance()
    return Reading(records=tuple(records), refused=tuple(refused))


def together(readings: Sequence[Reading]) -> Reading:
    return Reading(
        records=tuple(record for reading in readings for record in reading.records),
        refused=tuple(sentence for reading in readings for sentence in reading.refused),
    )
