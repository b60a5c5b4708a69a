"""The environment of each record, grouped: what was the same for many is said once. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.results.installed import lock_words
from harness.results.record import Record
from pipeline.report.compare import NAMES, device_name
from pipeline.report.conditions import cpu_list

MOST_NAMED = 6
"""Of nodes, GPUs or jobs; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentGroup:
    """Records that ran in the same software on the same kind of machine."""

    title: str
    records: int
    facts: Mapping[str, str]
    """Name to value, in the order to be shown."""
    packages: Mapping[str, str]
    variables: Mapping[str, str]


def environment_groups(records: Iterable[Record]) -> list[EnvironmentGroup]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[_key(record)].append(record)
    return sorted((_group(same) for same in groups.values()), key=lambda group: (group.title, -group.records))


def _key(record: Record) -> str:
    environment = record.environment
    gpu = environment.get("gpu") or {}
    parts = [
        record.measurement.framework,
        device_name(record),
        *(environment.get(name) for name in ("python", "platform", "packages", "lock", "variables", "scheduler")),
        gpu.get("driver_version"),
        (environment.get("cpu") or {}).get("model"),
        (environment.get("git") or {}).get("commit"),
        (environment.get("git") or {}).get("clean"),
        environment.get("framework"),
    ]
    return json.dumps(parts, sort_keys=True, default=str)


def _group(records: Sequence[Record]) -> EnvironmentGroup:
    environment = records[0].environment
    framework = environment.get("framework") or {}
    gpu, cpu = environment.get("gpu") or {}, environment.get("cpu") or {}
    git = environment.get("git") or {}
    ends = sorted(record.ended_at for record in records)
    facts = {
        "measured": ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}",
        "nodes": _distinct(record.environment.get("node") for record in records),
        "GPUs": _distinct((record.environment.get("gpu") or {}).get("uuid") for record in records),
        "driver": gpu.get("driver_version"),
        "CUDA of the driver": gpu.get("cuda_driver_version"),
        "CPU": cpu.get("model"),
        "CPUs of the job": _distinct(_affinity(record) for record in records),
        "system": environment.get("platform"),
        "Python": environment.get("python"),
        "lock": lock_words(environment["lock"]) if environment.get("lock") else None,
        "scheduler": environment.get("scheduler"),
        "Slurm jobs": _distinct((record.environment.get("slurm") or {}).get("job_id") for record in records),
        "pairing": _distinct((record.environment.get("pairing") or {}).get("kind") for record in records),
        "code": _code(git),
        **{f"framework: {name}": value for name, value in framework.items() if name not in ("name", "version")},
    }
    name = NAMES[records[0].measurement.framework]
    version = framework.get("version") or "of unknown version"
    return EnvironmentGroup(
        title=f"{name} {version} on {device_name(records[0])}",
        records=len(records),
        facts={name: str(value) for name, value in facts.items() if value not in (None, "")},
        packages=environment.get("packages") or {},
        variables=environment.get("variables") or {},
    )


def _affinity(record: Record) -> str | None:
    affinity = (record.environment.get("cpu") or {}).get("affinity")
    return None if affinity is None else cpu_list(affinity)


def _code(git: Mapping[str, Any]) -> str | None:
    if not git.get("commit"):
        return None
    return f"commit {git['commit']}{'' if git.get('clean') else ', with uncommitted changes'}"


def _distinct(values: Iterable[Any]) -> str:
    found = sorted({str(value) for value in values if value is not None})
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more
