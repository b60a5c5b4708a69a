"""The environment of each record, grouped: what was the same for many is said once. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plan import FRAMEWORKS
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
        same = {"title": _title(record), **_facts(record)}
        same |= {name: record.environment.get(name) for name in ("packages", "variables")}
        groups[json.dumps(same, sort_keys=True, default=str)].append(record)
    return sorted((_group(same) for same in groups.values()), key=lambda group: (group.title, -group.records))


def _title(record: Record) -> str:
    version = (record.environment.get("framework") or {}).get("version") or "of unknown version"
    return f"{NAMES[record.measurement.framework]} {version} on {device_name(record)}"


def _facts(record: Record) -> dict[str, Any]:
    """In which the records of a group are alike."""
    environment = record.environment
    gpu, cpu = environment.get("gpu") or {}, environment.get("cpu") or {}
    git, framework = environment.get("git") or {}, environment.get("framework") or {}
    changes = "" if git.get("clean") else ", with uncommitted changes"
    return {
        "driver": gpu.get("driver_version"),
        "CUDA of the driver": gpu.get("cuda_driver_version"),
        "CPU": cpu.get("model"),
        "system": environment.get("platform"),
        "Python": environment.get("python"),
        "lock": lock_words(environment["lock"]) if environment.get("lock") else None,
        "scheduler": environment.get("scheduler"),
        "code": f"commit {git['commit']}{changes}" if git.get("commit") else None,
        **{f"framework: {name}": value for name, value in framework.items() if name not in ("name", "version")},
    }


def _group(records: Sequence[Record]) -> EnvironmentGroup:
    environments = [record.environment for record in records]
    ends = sorted(record.ended_at for record in records)
    affinities = [(one.get("cpu") or {}).get("affinity") for one in environments]
    facts = {
        "measured": ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}",
        "nodes": _distinct(one.get("node") for one in environments),
        "GPUs": _distinct((one.get("gpu") or {}).get("uuid") for one in environments),
        "CPUs of the job": _distinct(cpu_list(one) for one in affinities if one is not None),
        "Slurm jobs": _distinct((one.get("slurm") or {}).get("job_id") for one in environments),
        "pairing": _distinct((one.get("pairing") or {}).get("kind") for one in environments),
        **_facts(records[0]),
    }
    return EnvironmentGroup(
        title=_title(records[0]),
        records=len(records),
        facts={name: str(value) for name, value in facts.items() if value not in (None, "")},
        packages=environments[0].get("packages") or {},
        variables=environments[0].get("variables") or {},
    )


def _distinct(values: Iterable[Any]) -> str:
    found = sorted({str(value) for value in values if value is not None})
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def versions_and_days(records: Iterable[Record]) -> tuple[str, str]:
    """`JAX 0.10.2 and PyTorch 2.14.1`, of those that have a number, and `2026-11-21 to 2026-11-23`."""
    records = list(records)
    versions: dict[str, set[str]] = {framework: set() for framework in FRAMEWORKS}
    for record in records:
        if record.outcome == "ok":
            version = (record.environment.get("framework") or {}).get("version")
            versions[record.measurement.framework].add(str(version or "of unknown version"))
    days = sorted({record.ended_at[:10] for record in records})
    words = [f"{NAMES[one]} {', '.join(sorted(versions[one]))}" for one in FRAMEWORKS if versions[one]]
    return " and ".join(words), " to ".join(dict.fromkeys(days[:1] + days[-1:]))
