"""All records of a results folder, read with what must be said about those that cannot be."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ProjectError, RecordError
from harness.paths import Results
from harness.printable import printable
from harness.results.record import Record, read_record
from pipeline.report.software import RESULTS_FOLDER


@dataclass(frozen=True, kw_only=True)
class Reading:
    records: tuple[Record, ...]
    paths: tuple[Path, ...]
    """Of the records."""
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
        advance()
    return Reading(records=tuple(records), paths=tuple(read), refused=tuple(refused))


def folder_names(folders: Sequence[Results]) -> dict[str, Results]:
    """By the last parts of their paths, as many as tell them apart: `east` and `west`, or `east/results` and
    `west/results`. One alone has no name."""
    if len(folders) == 1:
        return {"": folders[0]}
    parts = [one.root.resolve().parts for one in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return dict(zip(names, folders, strict=True))
    raise ProjectError(f"--results {folders[0].root}: is named twice; name each folder once")


def read_folders(paths: Mapping[str, Sequence[Path]], advance: Callable[[], None]) -> Reading:
    """Of results folders, by their names: each record of several says in which it lies, so that none of one meets one
    of another."""
    found = [(name, read_records(of_folder, advance)) for name, of_folder in paths.items()]
    return Reading(
        records=tuple(
            one.model_copy(update={"environment": {**one.environment, RESULTS_FOLDER: name}}) if name else one
            for name, reading in found
            for one in reading.records
        ),
        paths=sum((reading.paths for _, reading in found), ()),
        refused=sum((reading.refused for _, reading in found), ()),
    )
