"""What was equal on the two sides of a pair: data, device, node, driver, CPUs, libraries, job, code. Pure.

And, by stricter rules, what was equal among records of one framework.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.results.code_digest import common_code
from harness.results.environment_variables import one_sided
from harness.results.record import Record

Environment = Mapping[str, Any]
NODES, GPU_UUIDS = "nodes", "gpu_uuids"
"""Beside a record's own environment: of all ranks together, None where one is not known."""
DATA, PARAMETERS = "data", "parameters"
"""Beside it too: what the record says of its data, and how many its side has counted in its model, if it has."""
GPU_PLATFORMS = frozenset({"gpu", "cuda"})
"""What JAX and PyTorch call one."""
ABSENT = "absent"
"""Instead of the version of a library that is not there."""
UNSET = "unset"

SHARED_LIBRARIES = frozenset(
    f"nvidia-{name}"
    for name in ("cublas", "cuda-runtime", "cudnn", "cufft", "cusolver", "cusparse", "nccl", "nvjitlink")
)
"""Both frameworks compute with these on a GPU: where one side has it from elsewhere, it is not known to be the same."""
SHARED_VARIABLES = re.compile(
    r"(G?OMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|MALLOC)_\w+|NPROC|MEASUREMENT_THREADS"
    r"|GLIBC_TUNABLES|LD_LIBRARY_PATH|LD_PRELOAD"
)
"""Of threads, the loader and the libraries that both use, NCCL included: set on one side only, they change that side
alone. XLA_*, JAX_*, TORCH* and PYTORCH_* mean nothing to the other framework, so one side may well have its own."""
OWN_FOLDER = re.compile(r"\w*CACHE_(DIR|PATH)")
"""Each measurement's caches are in a folder of its own."""
MEANING_OF_UNSET = {"CUDA_MODULE_LOADING": "LAZY"}
"""PyTorch sets CUDA's own default (since 12.2)."""
OF_ONE_RUN = re.compile(r"CUDA_VISIBLE_DEVICES|WANDB_MODE")
"""May differ among replicates of one framework, as the GPU that the scheduler gives does."""

State = Literal["equal", "differs", "not recorded"]


@dataclass(frozen=True, kw_only=True)
class Condition:
    name: str
    state: State
    """Over all replicates: one that differs is enough."""
    detail: str
    """Of the first replicate that differs, JAX's value before PyTorch's; else empty."""


def side(record: Record) -> Environment:
    """What is compared of a record: its environment, its data, and where each of several devices was."""
    devices = record.measurement.cell.devices
    environment = record.environment | {DATA: record.data}
    if record.result is not None and record.result.parameter_count is not None:
        environment |= {PARAMETERS: record.result.parameter_count}
    if devices == 1:
        return environment
    gpu = record.environment.get("gpu") or {}
    of_ranks = [uuid for rank in record.ranks for uuid in rank.gpu_uuids]
    uuids = of_ranks if record.ranks else gpu.get("uuids", [])
    nodes: set[Any] = {rank.node for rank in record.ranks} or {record.environment.get("node")}
    return environment | {
        GPU_UUIDS: sorted(uuids) if len(uuids) == devices and None not in uuids else None,
        NODES: None if None in nodes else sorted(nodes),
    }


def conditions(pairs: Sequence[tuple[Environment, Environment]]) -> tuple[Condition, ...]:
    """Of `side` of JAX's and of PyTorch's records, replicate by replicate."""
    return _conditions(CONDITIONS, pairs)


def conditions_of_one_framework(pairs: Sequence[tuple[Environment, Environment]]) -> tuple[Condition, ...]:
    """Of records of one framework that were made at different times, maybe on different machines: what both should
    share all the same. Values in the order of each pair."""
    return _conditions(CONDITIONS_OF_ONE_FRAMEWORK, pairs)


def differing_names(old: Record, new: Record) -> list[str]:
    """What is not the same in two records of one framework that were made at different times; the place, too."""
    found = _conditions(PLACE | CONDITIONS_OF_ONE_FRAMEWORK, [(side(old), side(new))])
    return [one.name for one in found if one.state == "differs"]


def uses_gpu(environment: Environment) -> bool:
    """By what the framework says; NVML may be missing. A JAX for the CPU beside a GPU uses the CPU."""
    platform = (environment.get("framework") or {}).get("platform")
    return platform in GPU_PLATFORMS or (platform != "cpu" and bool((environment.get("gpu") or {}).get("name")))


Compare = Callable[[Environment, Environment], str | None]
"""EQUAL, the two values, NOT_RELEVANT, or None where one side is not known."""
NOT_RELEVANT = "not relevant"
"""There is no such thing on either side, such as a driver without a GPU."""
EQUAL = ""


def _conditions(
    compare: Mapping[str, Compare], pairs: Sequence[tuple[Environment, Environment]]
) -> tuple[Condition, ...]:
    conditions = []
    for name, differences in compare.items():
        found = [state for one, other in pairs if (state := differences(one, other)) is not NOT_RELEVANT]
        differing = [difference for difference in found if difference]
        if differing:
            conditions.append(Condition(name=name, state="differs", detail=differing[0]))
        elif found:
            conditions.append(Condition(name=name, state="not recorded" if None in found else "equal", detail=""))
    return tuple(conditions)


def _values(one: Any, other: Any) -> str | None:
    """EQUAL, the two values, or None where one side is not known."""
    if one is None or other is None:
        return None
    if one == other:
        return EQUAL
    return " / ".join(value if isinstance(value, str) else json.dumps(value) for value in (one, other))


def _by(of: Callable[[Environment], Any], *, on_gpu: bool = False) -> Compare:
    """
    Args:
        of: the value that is compared; None where it is not known.
        on_gpu: relevant there only.
    """

    def compare(one: Environment, other: Environment) -> str | None:
        if on_gpu and not (uses_gpu(one) or uses_gpu(other)):
            return NOT_RELEVANT
        return _values(of(one), of(other))

    return compare


def _gpu_uuids(environment: Environment) -> str | None:
    """Of all devices, where there are several."""
    if GPU_UUIDS not in environment:
        uuid: str | None = (environment.get("gpu") or {}).get("uuid")
        return uuid
    uuids = environment[GPU_UUIDS]
    return None if uuids is None else " ".join(uuids)


def _node(environment: Environment) -> str | None:
    nodes = environment.get(NODES, environment.get("node"))
    return " ".join(nodes) if isinstance(nodes, list) else nodes


def _cluster(environment: Environment) -> str | None:
    """By Slurm's name for it; what was started by hand is `local`."""
    return (environment.get("slurm") or {}).get("cluster") or environment.get("scheduler")


def _cpus(environment: Environment) -> str | None:
    """Return the CPUs that the process had once its framework was imported, and its quota; those of the job in older
    records."""
    process, cpu = environment.get("process") or {}, environment.get("cpu") or {}
    affinity, quota = process.get("affinity") or cpu.get("affinity"), process.get("quota")
    if affinity is None:
        return None
    return cpu_list(affinity) if quota is None else f"{cpu_list(affinity)} (quota {quota:.3g})"


def _threads(jax: Environment, torch: Environment) -> str | None:
    """Compare the threads that compute on the CPU, as each side counted them once its framework was imported."""
    counts = [(environment.get("process") or {}).get("threads") for environment in (jax, torch)]
    if counts == [None, None] or (None in counts and (uses_gpu(jax) or uses_gpu(torch))):
        return NOT_RELEVANT
    return _values(*counts)


def _data(environment: Environment) -> str | None:
    """By their content, and by their source where they are drawn on the device. The kind is one of the section's."""
    data = environment.get(DATA)
    return None if data is None else f"{data.source} (SHA-256 {data.sha256})" if data.sha256 else data.source


def _libraries(jax: Environment, torch: Environment) -> str | None:
    """Those that both sides have, Python among them; and on a GPU the CUDA libraries that both should have."""
    return _differing_versions(jax, torch, SHARED_LIBRARIES if uses_gpu(jax) or uses_gpu(torch) else frozenset())


def _differing_versions(one: Environment, other: Environment, shared: frozenset[str] | None = None) -> str | None:
    """
    Args:
        shared: what should be on both; None of all.
    """
    if one.get("packages") is not None and all(one.get(name) == other.get(name) for name in ("packages", "python")):
        return EQUAL  # the common case among thousands of records
    versions = _versions(one), _versions(other)
    return _differing(*versions, ABSENT, lambda name: shared is None or name in shared)


def _versions(environment: Environment) -> dict[str, str] | None:
    """By name without the CUDA version: `nvidia-cudnn-cu12` and `nvidia-cudnn-cu13` are one library."""
    packages = environment.get("packages")
    if packages is None:
        return None
    versions = defaultdict(list, {"Python": [str(environment.get("python"))]})
    for name, version in sorted(packages.items()):
        versions[re.sub(r"^(nvidia-.+)-cu\d+$", r"\1", name)].append(version)
    return {name: " and ".join(of_name) for name, of_name in versions.items()}


def _lock(one: Environment, other: Environment) -> str | None:
    """What was installed, as a whole. Of two without a lock the libraries are compared."""

    def of(environment: Environment) -> str | None:
        if "lock" not in environment:
            return None
        lock = environment["lock"]
        if lock is None:
            return "none"
        others = lock["packages"] - lock["matching"]
        return f"{lock['name']} {lock['file']} (SHA-256 {lock['sha256']}{f', but {others} packages' if others else ''})"

    words = of(one), of(other)
    return NOT_RELEVANT if words in ((None, None), ("none", "none")) else _values(*words)


def _variables(jax: Environment, torch: Environment) -> str | None:
    """Compare the variables that both sides have, and on one side those that both libraries and loaders read. What
    steers one side alone is no equal condition, even where both have it."""
    ours, theirs = jax.get("variables"), torch.get("variables")
    differing = _differing(ours, theirs, UNSET, lambda name: bool(SHARED_VARIABLES.fullmatch(name)))
    on_one_side = dict.fromkeys([*one_sided(ours or {}), *one_sided(theirs or {})])
    return ", ".join([differing, *on_one_side] if differing else on_one_side) or differing


def _all_variables(one: Environment, other: Environment) -> str | None:
    ours, theirs = (
        values and {name: value for name, value in values.items() if not OF_ONE_RUN.fullmatch(name)}
        for values in (one.get("variables"), other.get("variables"))
    )
    return _differing(ours, theirs, UNSET, lambda name: True)


def _differing(
    ours: Mapping[str, str] | None,
    theirs: Mapping[str, str] | None,
    nothing: str,
    must_be_on_both: Callable[[str], bool],
) -> str | None:
    """
    Args:
        nothing: stands for the value on the side that has none.
        must_be_on_both: of a name that one side has, whether the other's lack of it is a difference.
    """
    if ours is None or theirs is None:
        return None
    if ours == theirs:
        return EQUAL
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        if OWN_FOLDER.fullmatch(name) or ((name not in ours or name not in theirs) and not must_be_on_both(name)):
            continue
        missing = MEANING_OF_UNSET.get(name, nothing)
        pair = ours.get(name, missing), theirs.get(name, missing)
        if pair[0] != pair[1]:
            found.append(f"{name} {pair[0]} / {pair[1]}")
    return ", ".join(found)


def _slurm_job(jax: Environment, torch: Environment) -> str | None:
    ours, theirs = jax.get("slurm"), torch.get("slurm")
    if ours is None and theirs is None:
        return NOT_RELEVANT
    return _values((ours or {}).get("job_id"), (theirs or {}).get("job_id"))


def _code(one: Environment, other: Environment) -> str | None:
    """Compare what both sides name of their code by its contents, whatever the commit."""
    common = common_code(one.get("code") or {}, other.get("code") or {})
    if not common:
        return None
    return ", ".join(f"{name} {ours} / {theirs}" for name, (ours, theirs) in common.items() if ours != theirs)


def _code_of_harness(jax: Environment, torch: Environment) -> str | None:
    """Of that which both sides run. The runners are two."""

    def of(environment: Environment) -> Environment:
        code = environment.get("code") or {}
        return {**environment, "code": {name: code[name] for name in code if name.split(".")[0] == "harness"}}

    return _code(of(jax), of(torch))


def _pairing(jax: Environment, torch: Environment) -> str | None:
    """Equal is only: two processes that took turns with each other, or neighbours in one run of a pair, in one
    allocation or on one machine."""
    ours, theirs = ((environment.get("pairing") or {}) for environment in (jax, torch))
    kinds = ours.get("kind"), theirs.get("kind")
    if None in kinds:
        return None
    if kinds == ("interleaved", "interleaved"):
        return EQUAL if ours["turns"] == theirs["turns"] else "interleaved, but not with each other"
    if set(kinds) != {"together"}:
        return str(kinds[0]) if kinds[0] == kinds[1] else f"{kinds[0]} / {kinds[1]}"
    return _values(*(None if run is None else f"run {run}" for run in (ours.get("pair"), theirs.get("pair"))))


def _parameters(one: Environment, other: Environment) -> str | None:
    """As each side has counted them."""
    counts = one.get(PARAMETERS), other.get(PARAMETERS)
    if counts == (None, None):
        return NOT_RELEVANT
    return _values(*(None if count is None else f"{count:,}" for count in counts))


DRIVER = _by(lambda environment: (environment.get("gpu") or {}).get("driver_version"), on_gpu=True)
CONDITIONS: dict[str, Compare] = {
    "data": _by(_data),
    "parameters": _parameters,
    "GPU": _by(_gpu_uuids, on_gpu=True),
    "driver": DRIVER,
    "node": _by(_node),
    "CPUs": _by(_cpus),
    "threads": _threads,
    "libraries": _libraries,
    "lock": _lock,
    "variables": _variables,
    "Slurm job": _slurm_job,
    "code": _code_of_harness,
    "pairing": _pairing,
}
PLACE: dict[str, Compare] = {"cluster": _by(_cluster), "node": _by(_node)}
CONDITIONS_OF_ONE_FRAMEWORK: dict[str, Compare] = {
    "data": _by(_data),
    "CPU": _by(lambda environment: (environment.get("cpu") or {}).get("model")),
    "driver": DRIVER,
    "libraries": _differing_versions,
    "lock": _lock,
    "variables": _all_variables,
    "code": _code,
}


def cpu_list(affinity: Sequence[int]) -> str:
    """`0-3,8`, as Linux writes it."""
    ranges: list[list[int]] = []
    for number in sorted(affinity):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
