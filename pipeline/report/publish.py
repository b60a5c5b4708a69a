"""`main.py report --publish NAME`: the full records of a results folder, for everybody. They go to a folder below
`results/published` that git knows, without what says whose machine it was.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from harness.errors import ProjectError
from harness.files import way_out, write_atomically
from harness.paths import PUBLISHED, Results
from harness.results.ceilings import read_ceilings, write_ceilings
from harness.results.fake_gpu import HEADLINE
from harness.results.parity_file import read_parity, write_parity
from harness.results.record import Record, write_record
from pipeline.report.compare import device_name, device_of
from pipeline.report.reading import read_records

PATH = re.compile(r"(?<![\w.:/-])~?/(?:[\w.+@-]+/)+[\w.+@-]*")
"""An absolute path of two parts or more, in a longer text too. A URL is none."""
FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
INSTEAD_OF_PATH = "(path)"
OF_THE_OWNER = ("hostname", "interpreter", "account", "cluster", "qos", "nodelist", "job_name")
"""Keys of a record's environment. What nobody's report compares is left out, and nobody else's business."""


def publish(results: Results, name: str, published: Path = PUBLISHED) -> Results:
    """The results folder that was made: of the records that are no quick runs, their parity numbers and timelines, and
    the ceilings of their devices. Logs, jobs and W&B's files stay.

    Raises:
        ProjectError: there is no such record, the folder is there already, or all was made on a fake GPU.
        RecordError: a file of parity numbers is missing or damaged, one of ceilings is damaged, or the disk is full.
    """
    if not FOLDER_NAME.fullmatch(name):
        raise ProjectError(f"--publish {name}: a folder's name, of letters, digits, `_`, `.` and `-`")
    target = Results(root=published / name)
    if target.root.exists():
        raise ProjectError(f"--publish {name}: {target.root} exists; choose another name, or remove it first")
    records = _full_records(results, results.records(), "measurement")
    devices = {device_name(record) for record in records.values()}
    ceilings = {path.name: read_ceilings(path) for path in sorted(results.ceilings.glob("*.json"))}
    ceilings = {name: found for name, found in ceilings.items() if device_of(found.environment) in devices}
    nodes = _renamed(records.values(), (found.environment for found in ceilings.values()))
    for path, record in records.items():
        write_record(_for_everybody(record, nodes), target.records() / path)
    parity = {path.parent / Path(record.parity).name for path, record in records.items() if record.parity}
    for path in sorted(parity):
        numbers = read_parity(results.records() / path)
        environment = without_owner(numbers.metadata.environment, nodes)
        metadata = numbers.metadata.model_copy(update={"environment": environment})
        write_parity(numbers.model_copy(update={"metadata": metadata}), target.records() / path)
    for path, record in records.items():
        _copy_timeline(record, results.records() / path.parent, target.records() / path.parent)
    for name, of_device in ceilings.items():
        environment = _environment_for_everybody(of_device.environment, nodes)
        write_ceilings(of_device.model_copy(update={"environment": environment}), target.ceilings / name)
    return target


def publish_calibrations(results: Results, published: Path = PUBLISHED) -> int:
    """The same of calibrations, which all lie in one folder: how many records were copied. What is there already stays.

    Raises:
        ProjectError: there is no record of a full calibration, or all was made on a fake GPU.
        RecordError: the disk is full.
    """
    records = _full_records(results, results.calibration, "calibration")
    target = Results(root=published).calibration
    nodes = _renamed(records.values())
    there = set(target.rglob("*.json"))
    new = {path: record for path, record in records.items() if target / path not in there}
    for path, record in new.items():
        write_record(_for_everybody(record, nodes), target / path)
    return len(new)


def _full_records(results: Results, folder: Path, kind: Literal["measurement", "calibration"]) -> dict[Path, Record]:
    """By their paths in the folder."""
    if results.fake_gpu.is_file():
        raise ProjectError(f"--publish: {results.root} was {HEADLINE}")
    reading = read_records(sorted(folder.rglob("*.json")), planted=kind == "calibration")
    found = zip(reading.paths, reading.records, strict=True)
    records = {path.relative_to(folder): record for path, record in found if not record.measurement.quick}
    if not records:
        raise ProjectError(f"--publish: {folder} has no record of a full {kind}")
    return records


def _copy_timeline(record: Record, folder: Path, target: Path) -> None:
    """Kernels, operators and times: of their machine it knows nothing. It may have been removed since."""
    explanation = record.result and record.result.explanation
    if not explanation or explanation.timeline is None:
        return
    name = Path(explanation.timeline).name
    if (folder / name).is_file():
        with way_out(target / name):
            write_atomically(target / name, (folder / name).read_bytes(), replace=False)


def shelves(published: Path = PUBLISHED) -> list[Results]:
    """The folders that `publish` has made."""
    return [Results(root=path.parent) for path in sorted(published.glob("*/records"))]


def _renamed(records: Iterable[Record], environments: Iterable[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Another name for each node."""
    records = list(records)
    found = {one.node for record in records for one in record.ranks}
    nodes = [one.get("node") for one in (*(record.environment for record in records), *environments)]
    found |= {node for node in nodes if isinstance(node, str)}
    return {node: f"node-{number}" for number, node in enumerate(sorted(found), start=1)}


def _for_everybody(record: Record, nodes: Mapping[str, str]) -> Record:
    """Its measurement stays as it is, by whose content it has its id."""
    content = without_owner(record.model_dump(mode="json", exclude={"measurement", "parity"}), nodes)
    content["environment"] = _environment_for_everybody(record.environment, nodes)
    kept = {"measurement": record.measurement, "parity": record.parity and Path(record.parity).name}
    return Record.model_validate(content | kept)


def _environment_for_everybody(whole: dict[str, Any], nodes: Mapping[str, str]) -> dict[str, Any]:
    """Of the kernel, `5.15.0-91-chair` is `5.15.0`, also in the platform: what follows is whoever built it."""
    environment: dict[str, Any] = without_owner(whole, nodes)
    kernel = environment.get("kernel")
    if not isinstance(kernel, str) or (numbers := re.match(r"\d[\d.]*", kernel)) is None:
        return environment
    changed = {name: environment.get(name) for name in ("kernel", "platform")}
    return environment | {
        name: value.replace(kernel, numbers[0].rstrip(".")) for name, value in changed.items() if isinstance(value, str)
    }


def without_owner(content: Any, nodes: Mapping[str, str]) -> Any:
    """JSON, with another name under each `node`, without paths, and without OF_THE_OWNER."""
    if isinstance(content, dict):
        return {
            key: nodes.get(value, value) if key == "node" else without_owner(value, nodes)
            for key, value in content.items()
            if key not in OF_THE_OWNER
        }
    if isinstance(content, list):
        return [without_owner(value, nodes) for value in content]
    if isinstance(content, str):
        return PATH.sub(INSTEAD_OF_PATH, content)
    return content
