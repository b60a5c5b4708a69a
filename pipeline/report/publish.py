"""`main.py report --publish NAME`: the full records of a results folder, for everybody. They go to a folder below
`results/published` that git knows, without the names of machines, people, accounts, clusters and folders
(pipeline/report/owner.py). All files are made in memory first; nothing is written if one of them still has such a name.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ProjectError, RecordError
from harness.files import in_words, way_out, write_atomically
from harness.paths import PUBLISHED, Results
from harness.printable import shortened
from harness.results.device_peaks import DevicePeaksRecord, read_device_peaks
from harness.results.npz import npz_with_texts
from harness.results.parity_file import read_parity
from harness.results.record import Record
from pipeline.report.compare import device_name, device_of
from pipeline.report.owner import Found, Names, names_of, names_of_this_process
from pipeline.report.reading import read_records

FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
MOST_FOUND = 5
"""Names that a refusal lists."""


class Draft(NamedTuple):
    """A file that is to be published."""

    path: Path
    """In the folder of what is published."""
    content: bytes
    texts: Any
    """All texts in it, as JSON."""


def publish(results: Results, name: str, published: Path = PUBLISHED) -> Results:
    """Copy the records that are no quick runs, their parity numbers, and the peaks of their devices to a new results
    folder, which is returned. Logs, jobs and W&B's files stay.

    Raises:
        ProjectError: there is no such record, the folder is there already, or a name would be published.
        RecordError: a file of parity numbers is missing or damaged, one of device peaks is, or the disk is full.
    """
    if not FOLDER_NAME.fullmatch(name):
        raise ProjectError(f"--publish {name}: a folder's name, of letters, digits, `_`, `.` and `-`")
    target = Results(root=published / name)
    if target.root.exists():
        raise ProjectError(f"--publish {name}: {target.root} exists; choose another name, or remove it first")
    folder = results.records()
    reading = read_records(sorted(folder.rglob("*.json")))
    found = zip(reading.paths, reading.records, strict=True)
    records = {path.relative_to(folder): record for path, record in found if not record.measurement.quick}
    if not records:
        raise ProjectError(f"--publish: {folder} has no record of a full measurement")
    devices = {device_name(record) for record in records.values()}
    peaks = {path.name: read_device_peaks(path) for path in sorted(results.device_peaks.glob("*.json"))}
    peaks = {name: one for name, one in peaks.items() if device_of(one.environment) in devices}
    parity = sorted({path.parent / Path(record.parity).name for path, record in records.items() if record.parity})
    metadata = [read_parity(folder / path).metadata for path in parity]
    contents = [one.model_dump(mode="json") for one in (*records.values(), *peaks.values(), *metadata)]
    jobs = [record.job for record in records.values() if record.job]
    names = names_of(contents, names_of_this_process(), jobs)
    records_at, peaks_at = (folder.relative_to(target.root) for folder in (target.records(), target.device_peaks))
    drafts = [_draft_of_record(record, records_at / path, names) for path, record in records.items()]
    drafts += [_draft_of_arrays(folder / path, records_at / path, names) for path in parity]
    for file_name, of_device in peaks.items():
        content = names.cleaned(of_device.model_dump(mode="json"))
        drafts.append(_draft(DevicePeaksRecord.model_validate(content), peaks_at / file_name, names))
    _write(drafts, target.root, names, name)
    return target


def shelves(published: Path = PUBLISHED) -> list[Results]:
    """The folders that `publish` has made."""
    return [Results(root=path.parent) for path in sorted(published.glob("*/records"))]


def _draft_of_record(record: Record, path: Path, names: Names) -> Draft:
    """The measurement stays as it is, by whose content it has its id."""
    content = names.cleaned(record.model_dump(mode="json", exclude={"measurement", "parity"}))
    kept = {"measurement": record.measurement, "parity": record.parity and _renamed(Path(record.parity).name, names)}
    return _draft(Record.model_validate(content | kept), path, names)


def _draft(model: Record | DevicePeaksRecord, path: Path, names: Names) -> Draft:
    text = model.model_dump_json()
    return Draft(path=path.with_name(_renamed(path.name, names)), content=text.encode(), texts=json.loads(text))


def _draft_of_arrays(source: Path, path: Path, names: Names) -> Draft:
    """A .npz file without names in its texts; one that has none is copied as it is."""
    try:
        content, texts = npz_with_texts(source, name=names.replaced, texts=names.cleaned)
    except (OSError, ValueError) as error:
        raise RecordError(f"{source}: cannot be read: {in_words(error)}") from error
    return Draft(path=path.with_name(_renamed(path.name, names)), content=content, texts=texts)


def _renamed(file_name: str, names: Names) -> str:
    """The end stays, by which a file is found."""
    stem, dot, end = file_name.rpartition(".")
    return f"{names.replaced(stem)}{dot}{end}"


def _write(drafts: Sequence[Draft], folder: Path, names: Names, name: str = "") -> None:
    """Write all files, or none where one has a name that it must not have.

    Raises:
        ProjectError: it has, with the file and the field.
        RecordError: the disk is full.
    """
    found = [f"--publish {name}: {_words(one)}" for one in names.found_in(name)]
    for draft in drafts:
        found += [f"{draft.path}: {_words(one)}" for one in names.found_in(str(draft.path))]
        found += [f"{draft.path}: {one.field}: {_words(one)}" for one in names.found_in(draft.texts)]
    if found:
        more = f"\n  and {len(found) - MOST_FOUND} more" if len(found) > MOST_FOUND else ""
        raise ProjectError(
            "--publish: nothing is published, as names of machines, people or folders would be:\n"
            + "".join(f"  {one}\n" for one in found[:MOST_FOUND]).rstrip()
            + f"{more}\nA measurement is never changed: rename what experiments.yaml calls so, and measure again."
        )
    for draft in drafts:
        with way_out(folder / draft.path):
            write_atomically(folder / draft.path, draft.content, replace=False)


def _words(found: Found) -> str:
    return f"`{shortened(found.name)}` {found.kind}"
