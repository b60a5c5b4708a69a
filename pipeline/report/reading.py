"""All records of a results folder, read with what must be said about those that cannot be."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.results.record import Record, read_record


@dataclass(frozen=True, kw_only=True)
class Reading:
    records: tuple[Record, ...]
    refused: tuple[str, ...]
    """One sentence for each file that is no record, or of another schema. It is left alone."""


def read_records(
    paths: Iterable[Path], advance: Callable[[], None] = lambda: None, *, planted: bool = False
) -> Reading:
    """
    Args:
        advance: called after each file.
        planted: only records of `main.py calibrate`, which are about the machine and no results; else only the others.
    """
    records: list[Record] = []
    refused: list[str] = []
    for path in paths:
        try:
            record = read_record(path)
        except RecordError as error:
            refused.append(str(error))
        else:
            if (record.measurement.variant.planted is not None) == planted:
                records.append(record)
        advance()
    return Reading(records=tuple(records), refused=tuple(refused))


@contextmanager
def without_collector() -> Iterator[None]:
    """For the short life of a report: all records are kept, so Python's collector of cycles walks over them again and
    again and finds nothing. With thousands of records that is most of the time of reading."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
