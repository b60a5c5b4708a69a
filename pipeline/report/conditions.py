"""What was equal on the two sides of a pair: device, node, driver, CPUs, libraries, job, code. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.record import Record

Environment = Mapping[str, Any]
OF_ALL_RANKS = "ranks"
"""Beside a record's own environment: node and GPU's UUID of each of several ranks."""
State = Literal["equal", "differs", "not recorded"]


@dataclass(frozen=True, kw_only=True)
class Condition:
    name: str
    state: State
    """Over all replicates: one that differs is enough."""
    detail: str
    """Of the first replicate that differs, JAX's value before PyTorch's; else empty."""


def side(record: Record) -> Environment:
    """What is compared of a record: its environment, and where each of several ranks ran."""
    if not record.ranks:
        return record.environment
    return record.environment | {OF_ALL_RANKS: [(rank.node, rank.gpu_uuid) for rank in record.ranks]}


def conditions(pairs: Sequence[tuple[Environment, Environment]]) -> tuple[Condition, ...]:
    """Of `side` of JAX's and of PyTorch's records, replicate by replicate."""
    found = []
    for name, differences in CONDITIONS.items():
        states = [differences(jax, torch) for jax, torch in pairs]
        relevant = [state for state in states if state is not NOT_RELEVANT]
        if relevant:
            found.append(_condition(name, relevant))
    return tuple(found)


def _condition(name: str, found: Sequence[str | None]) -> Condition:
    differing = [difference for difference in found if difference]
    if differing:
        return Condition(name=name, state="differs", detail=differing[0])
    return Condition(name=name, state="not recorded" if None in found else "equal", detail="")


NOT_RELEVANT = "not relevant"
"""There is no such thing on either side, such as a driver without a GPU."""
EQUAL = ""


def _compare(jax: Any, torch: Any) -> str | None:
    """EQUAL, the two values, or None where one side is not known."""
    if jax is None or torch is None:
        return None
    return EQUAL if jax == torch else f"{_text(jax)} / {_text(torch)}"


def _gpu(key: str) -> Callable[[Environment, Environment], str | None]:
    def compare(jax: Environment, torch: Environment) -> str | None:
        if not any(_uses_gpu(environment) for environment in (jax, torch)):
            return NOT_RELEVANT
        ours, theirs = ((environment.get("gpu") or {}).get(key) for environment in (jax, torch))
        return _compare(ours, theirs)

    return compare


def _uses_gpu(environment: Environment) -> bool:
    platform = (environment.get("framework") or {}).get("platform")
    return bool((environment.get("gpu") or {}).get("name")) and platform != "cpu"


def _gpu_uuids(jax: Environment, torch: Environment) -> str | None:
    """Of all ranks, where there are several."""
    if OF_ALL_RANKS in jax and OF_ALL_RANKS in torch:
        ours, theirs = (sorted({uuid for _, uuid in one[OF_ALL_RANKS]}, key=str) for one in (jax, torch))
        return None if None in ours or None in theirs else _compare(" ".join(ours), " ".join(theirs))
    return _gpu("uuid")(jax, torch)


def _node(jax: Environment, torch: Environment) -> str | None:
    if OF_ALL_RANKS in jax and OF_ALL_RANKS in torch:
        ours, theirs = (" ".join(sorted({node for node, _ in one[OF_ALL_RANKS]})) for one in (jax, torch))
        return _compare(ours, theirs)
    return _compare(jax.get("node"), torch.get("node"))


def _cpus(jax: Environment, torch: Environment) -> str | None:
    def of(environment: Environment) -> str | None:
        cpu = environment.get("cpu") or {}
        affinity = cpu.get("affinity")
        return None if affinity is None else cpu_list(affinity)

    return _compare(of(jax), of(torch))


def _libraries(jax: Environment, torch: Environment) -> str | None:
    """Those that both sides have: Python and the packages."""

    def versions(environment: Environment) -> dict[str, str] | None:
        packages = environment.get("packages")
        return None if packages is None else {"Python": str(environment.get("python")), **packages}

    ours, theirs = versions(jax), versions(torch)
    if ours is None or theirs is None:
        return None
    return _differing(ours, theirs)


def _variables(jax: Environment, torch: Environment) -> str | None:
    """Environment variables that both sides have; those of one framework only are its own matter."""
    ours, theirs = jax.get("variables"), torch.get("variables")
    if ours is None or theirs is None:
        return None
    return _differing(ours, theirs)


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    return ", ".join(f"{name} {ours[name]} / {theirs[name]}" for name in differing)


def _slurm_job(jax: Environment, torch: Environment) -> str | None:
    ours, theirs = jax.get("slurm"), torch.get("slurm")
    if ours is None and theirs is None:
        return NOT_RELEVANT
    return _compare((ours or {}).get("job_id"), (theirs or {}).get("job_id"))


def _code(jax: Environment, torch: Environment) -> str | None:
    def of(environment: Environment) -> str | None:
        git = environment.get("git") or {}
        commit = git.get("commit")
        return None if commit is None else f"{commit[:10]}{'' if git.get('clean') else ' with changes'}"

    return _compare(of(jax), of(torch))


def _pairing(jax: Environment, torch: Environment) -> str | None:
    """Equal is only `together`, one allocation with the two sides in turn. Older records say nothing about it."""

    def kind(environment: Environment) -> str | None:
        return (environment.get("pairing") or {}).get("kind")

    ours, theirs = kind(jax), kind(torch)
    if ours is None or theirs is None:
        return None
    if ours == theirs == "together":
        return EQUAL
    return str(ours) if ours == theirs else f"{ours} / {theirs}"


CONDITIONS: dict[str, Callable[[Environment, Environment], str | None]] = {
    "GPU": _gpu_uuids,
    "driver": _gpu("driver_version"),
    "node": _node,
    "CPUs": _cpus,
    "libraries": _libraries,
    "variables": _variables,
    "Slurm job": _slurm_job,
    "code": _code,
    "pairing": _pairing,
}


def cpu_list(affinity: Sequence[int] | str) -> str:
    """`0-3,8`, as Linux writes it; a text is one already."""
    if isinstance(affinity, str):
        return affinity
    ranges: list[list[int]] = []
    for number in sorted(affinity):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
