"""Which software a record was made with, and which of JAX's belongs with which of PyTorch's. Pure.

An upgrade of a framework makes another row, and replaces nothing: records of two releases are never in one ratio.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from harness.plan import FRAMEWORKS, Framework
from harness.results.record import SETTLED, Record


class Software(NamedTuple):
    """Of one framework's process. Empty where its record does not say."""

    release: str
    cuda: str
    installed: str
    """The digest of a container's image, else of the lock that was installed."""


Arms = tuple[Software | None, Software | None]
"""JAX's and PyTorch's. None where there is no record of it, or none that says."""


def cluster_of(record: Record) -> str:
    """Return Slurm's name of the cluster, `local` for what was started by hand, or nothing where it is not recorded."""
    environment = record.environment
    return str((environment.get("slurm") or {}).get("cluster") or environment.get("scheduler") or "")


def software_of(record: Record) -> Software | None:
    """None where the record names no release; and of what failed, whose process may not have come so far."""
    environment = record.environment
    packages = environment.get("packages") or {}
    release = packages.get(record.measurement.framework) or (environment.get("framework") or {}).get("version")
    if not release or record.outcome not in SETTLED:
        return None
    container, lock = environment.get("container") or {}, environment.get("lock") or {}
    return Software(
        release=str(release).partition("+")[0],
        cuda=" and ".join(sorted(of for name, of in packages.items() if name.startswith("nvidia-cuda-runtime"))),
        installed=str(container.get("digest") or lock.get("sha256") or "").removeprefix("sha256:"),
    )


def run_of(record: Record) -> str | None:
    """What two records share that were measured together: the run of a pair, or the job."""
    found: str | None = (record.environment.get("pairing") or {}).get("pair") or record.job
    return found


def arms_of(records: Iterable[Record]) -> list[Arms]:
    """The pairs of software that were measured together; what was measured alone is with the other side's nearest in
    time. So after an upgrade of one framework, the other's records have two partners. The newest pair is last.

    Args:
        records: of one device and cell, the oldest first.
    """
    ended: dict[Framework, dict[Software, str]] = {framework: {} for framework in FRAMEWORKS}
    of_runs: dict[str, dict[Framework, set[Software]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        framework, software, run = record.measurement.framework, software_of(record), run_of(record)
        if software is not None:
            ended[framework][software] = record.ended_at
            if run and not record.measurement.is_screening:
                of_runs[run][framework].add(software)
    of_jax, of_torch = ended["jax"], ended["torch"]
    together = {(jax, torch) for run in of_runs.values() for jax in run["jax"] for torch in run["torch"]}
    found: set[Arms] = {*together}
    found |= {(one, _nearest(at, of_torch)) for one, at in of_jax.items() if all(one != jax for jax, _ in together)}
    found |= {(_nearest(at, of_jax), one) for one, at in of_torch.items() if all(one != torch for _, torch in together)}

    def age(arms: Arms) -> tuple[str, str, str]:
        times = [side[one] for one, side in zip(arms, (of_jax, of_torch), strict=True) if one is not None]
        return max(times), min(times), str(arms)

    return sorted(found, key=age) or [(None, None)]


def _nearest(ended_at: str, others: Mapping[Software, str]) -> Software | None:
    def seconds(one: Software) -> float:
        return abs((datetime.fromisoformat(others[one]) - datetime.fromisoformat(ended_at)).total_seconds())

    return min(others, key=seconds, default=None)


def words_apart(setups: Iterable[tuple[str, Arms]]) -> dict[tuple[str, Arms], str]:
    """Return what differs among clusters and software, such as `cluster A, torch 2.15.0`, in as few facts as tell them
    apart. Empty for one."""
    found = list(dict.fromkeys(setups))
    facts = [_facts(*one) for one in found]
    words = [""] * len(found)
    for kinds in LEVELS:
        for kind in kinds:
            if any(len({*of_side} - {""}) > 1 for of_side in zip(*(of_one[kind] for of_one in facts), strict=True)):
                words = [
                    ", ".join(filter(None, [before, _in_words(kind, of_one[kind])]))
                    for before, of_one in zip(words, facts, strict=True)
                ]
        if len(set(words)) == len(found):
            break
    return dict(zip(found, words, strict=True))


LEVELS = (("cluster", *FRAMEWORKS), ("CUDA",), ("environment",))
"""Kinds of facts; those of a level are named where the ones before do not tell all apart."""


def _facts(cluster: str, arms: Arms) -> dict[str, tuple[str, ...]]:
    jax, torch = (software or Software("", "", "") for software in arms)
    return {
        "cluster": (cluster,),
        "jax": (jax.release,),
        "torch": (torch.release,),
        "CUDA": (jax.cuda, torch.cuda),
        "environment": (jax.installed[:8], torch.installed[:8]),
    }


def _in_words(kind: str, values: Iterable[str]) -> str:
    """JAX's value before PyTorch's, or the one that both have."""
    known = list(dict.fromkeys(filter(None, values)))
    return f"{kind} {' / '.join(known)}" if known else ""
