"""All records of a results folder, read with what must be said about those that cannot be."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import ProjectError, RecordError
from harness.paths import Results
from harness.printable import printable
from harness.results.record import Record, read_record
from pipeline.report.compact import Compactor
from pipeline.report.software import RESULTS_FOLDER


@dataclass(frozen=True, kw_only=True)
class Reading:
    records: tuple[Record, ...]
    paths: tuple[Path, ...]
    """Of the records."""
    refused: tuple[str, ...]
    """One sentence for each file that is no record, or of another schema. It is left alone."""


def read_records(
    paths: Iterable[Path], advance: Callable[[], None] = lambda: None, *, planted: bool = False, compact: bool = False
) -> Reading:
    """
    Args:
        advance: called after each file.
        compact: small in memory, and not to be written again.
        planted: only records of `main.py calibrate`, which are about the machine and no results; else only the others.
    """
    records: list[Record] = []
    read: list[Path] = []
    refused: list[str] = []
    compactor = Compactor() if compact else None
    for path in paths:
        try:
            record = read_record(path)
        except RecordError as error:
            refused.append(printable(str(error)))
        else:
            if (record.measurement.variant.planted is not None) == planted:
                records.append(compactor.compact(record) if compactor else record)
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
    found = [(name, read_records(of_folder, advance, compact=True)) for name, of_folder in paths.items()]
    return Reading(
        records=tuple(
            one.model_copy(update={"environment": {**one.environment, RESULTS_FOLDER: name}}) if name else one
            for name, reading in found
            for one in reading.records
        ),
        paths=sum((reading.paths for _, reading in found), ()),
        refused=sum((reading.refused for _, reading in found), ()),
    )


def without_odd_ones(reading: Reading, work: Callable[[Sequence[Record]], object]) -> Reading:
    """Without the records for which `work` raises, each named among the refused: what is odd about them was not
    foreseen, and none of them shall cost the others their report.

    Raises:
        Exception: as `work` does where it fails for every record, or for none alone, which then is not theirs.
    """
    left_out: dict[int, Exception] = {}

    def search(numbers: Sequence[int]) -> None:
        try:
            work([reading.records[number] for number in numbers])
        except (ProjectError, OSError):
            raise
        except Exception as error:
            if len(numbers) == 1:
                left_out[numbers[0]] = error
                return
            before = len(left_out)
            for half in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
                search(half)
            if len(left_out) == before:
                raise

    search(range(len(reading.records)))
    if left_out and len(left_out) == len(reading.records):
        raise left_out[0]
    good = [number for number in range(len(reading.records)) if number not in left_out]
    sentences = [
        f"{reading.paths[number]}: no report can be made with it ({type(why).__name__}: {why}). It is left alone."
        for number, why in sorted(left_out.items())
    ]
    return replace(
        reading,
        records=tuple(reading.records[number] for number in good),
        paths=tuple(reading.paths[number] for number in good),
        refused=(*reading.refused, *map(printable, sentences)),
    )
