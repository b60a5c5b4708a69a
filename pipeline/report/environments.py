"""The environment of each record, grouped: what was the same for many is said once. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from harness.plan import FRAMEWORKS
from harness.results.installed import lock_words
from harness.results.record import Record
from pipeline.report.compare import NAMES, device_name
from pipeline.report.conditions import cpu_list
from pipeline.report.table import Line, Table, group, texts

MOST_NAMED = 6
"""Of nodes, GPUs or jobs; the others are counted."""


def environments_table(records: Iterable[Record]) -> Table:
    """Below each title the facts of the records that ran in the same software on the same kind of machine."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        same = {"title": _title(record), **_facts(record)}
        same |= {name: record.environment.get(name) for name in ("packages", "variables")}
        groups[json.dumps(same, sort_keys=True, default=str)].append(record)
    lines: list[Line] = []
    for of_group in sorted(groups.values(), key=lambda group: (_title(group[0]), -len(group))):
        count = len(of_group)
        lines.append(group(f"{_title(of_group[0])}: {count} record{'' if count == 1 else 's'}"))
        lines += [Line([name, str(value)]) for name, value in _all_facts(of_group).items() if value not in (None, "")]
    return Table(name="environments", title="Environments", caption="", columns=texts("what", "value"), lines=lines)


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


def _all_facts(records: Sequence[Record]) -> dict[str, Any]:
    environments = [record.environment for record in records]
    ends = sorted(record.ended_at for record in records)
    affinities = [(one.get("cpu") or {}).get("affinity") for one in environments]
    packages, variables = (environments[0].get(name) or {} for name in ("packages", "variables"))
    return {
        "measured": ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}",
        "nodes": _distinct(one.get("node") for one in environments),
        "GPUs": _distinct((one.get("gpu") or {}).get("uuid") for one in environments),
        "CPUs of the job": _distinct(cpu_list(one) for one in affinities if one is not None),
        "Slurm jobs": _distinct((one.get("slurm") or {}).get("job_id") for one in environments),
        "pairing": _distinct((one.get("pairing") or {}).get("kind") for one in environments),
        **_facts(records[0]),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "variables": ", ".join(f"{name}={value}" for name, value in variables.items()),
    }


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
