"""What was equal on the two sides of a pair, and among records of one framework."""

from typing import Any

import pytest

from harness.plan import Framework
from pipeline.report.conditions import conditions, side
from tests.made.report_records import CELL, CPU, H200, rank_result, record, with_result

TWO = CELL.model_copy(update={"use_case": 2, "devices": 2})
SAME: dict[str, Any] = {"gpu": {"name": "NVIDIA H200"}, "framework": {"platform": "gpu"}, "node": "n1"}


def of_both(name: str, jax: dict[str, Any], torch: dict[str, Any]) -> str:
    """The state of one condition, or what differs; empty where there is no such thing."""
    return next((one.detail or one.state for one in conditions([(jax, torch)]) if one.name == name), "")


LOCK = {"name": "2026-11", "file": "cpu-py312-x86_64", "sha256": "2be1", "packages": 101, "matching": 101, "others": []}
OURS = "2026-11 cpu-py312-x86_64 (SHA-256 2be1)"


def lock(**changes: Any) -> dict[str, Any]:
    return {"lock": LOCK | changes}


def code(commit: str, **digests: str) -> dict[str, Any]:
    return {"code": digests, "git": {"commit": commit * 40, "clean": True}}


JAX = code("a", harness="h1", jax_runner="j1")
TORCH = code("b", harness="h1", torch_runner="t1")


def counted(framework: Framework, count: int | None) -> dict[str, Any]:
    return dict(side(with_result(record(framework, "step.jit"), parameter_count=count)))


def on_ranks(*uuids: str) -> dict[str, Any]:
    ranks = [rank_result(rank, gpu_uuids=[uuid]) for rank, uuid in enumerate(uuids)]
    return dict(side(record("jax", "step.jit", cell=TWO, environment=SAME, ranks=ranks)))


def of_one_process(*uuids: str) -> dict[str, Any]:
    """For both GPUs, without ranks."""
    environment = SAME | {"gpu": {"name": "NVIDIA H200", "uuid": uuids[0], "uuids": list(uuids)}}
    return dict(side(record("jax", "step.process_per_node", cell=TWO, environment=environment)))


def paired(kind: str, pair: str | None = None, **turns: str) -> dict[str, Any]:
    return {"pairing": {"kind": kind, "pair": pair, **turns}}


TURNS = paired("interleaved", "12.0", turns="t1")


@pytest.mark.parametrize(
    ("name", "jax", "torch", "expected"),
    [
        # Two environments, one for each framework, have other packages of the same lock.
        ("lock", lock(), lock(packages=60, matching=60), "equal"),
        ("lock", lock(), lock(name="2026-12", sha256="77aa"), f"{OURS} / 2026-12 cpu-py312-x86_64 (SHA-256 77aa)"),
        ("lock", lock(), lock(matching=99), f"{OURS} / 2026-11 cpu-py312-x86_64 (SHA-256 2be1, but 2 packages)"),
        ("lock", lock(), {"lock": None}, f"{OURS} / none"),
        ("lock", {"lock": None}, {"lock": None}, ""),
        ("lock", lock(), {}, "not recorded"),
        # Code, by its contents: the runners are two, and the commits differ in a document.
        ("code", JAX, TORCH, "equal"),
        ("code", JAX, code("a", harness="h2", torch_runner="t1"), "harness h1 / h2"),
        # Each side counts its own parameters.
        ("parameters", counted("jax", 26_010), counted("torch", 26_010), "equal"),
        ("parameters", counted("jax", 26_010), counted("torch", 1_026_010), "26,010 / 1,026,010"),
        ("parameters", counted("jax", 26_010), counted("torch", None), "not recorded"),
        ("parameters", counted("jax", None), counted("torch", None), ""),
        *((name, CPU, CPU, "") for name in ("GPU", "driver", "Slurm job")),
        *((name, CPU, CPU, "not recorded") for name in ("CPUs", "pairing", "code")),
        # Every rank has its GPU.
        ("GPU", on_ranks("GPU-1", "GPU-2"), on_ranks("GPU-2", "GPU-1"), "equal"),
        ("GPU", on_ranks("GPU-1", "GPU-2"), on_ranks("GPU-1", "GPU-3"), "GPU-1 GPU-2 / GPU-1 GPU-3"),
        ("node", on_ranks("GPU-1", "GPU-2"), on_ranks("GPU-1", "GPU-3"), "equal"),
        ("GPU", of_one_process("GPU-2", "GPU-1"), on_ranks("GPU-1", "GPU-2"), "equal"),
        ("GPU", of_one_process("GPU-1", "GPU-3"), on_ranks("GPU-1", "GPU-2"), "GPU-1 GPU-3 / GPU-1 GPU-2"),
        # An old record of one process for each of two nodes has the first UUID of each only.
        ("GPU", on_ranks("GPU-1"), on_ranks("GPU-1", "GPU-2"), "not recorded"),
        # Equal pairing is neighbours in one run.
        ("pairing", paired("together", "12.0"), paired("together", "12.0"), "equal"),
        ("pairing", paired("together", "12.0"), paired("together", "12.1"), "run 12.0 / run 12.1"),
        ("pairing", paired("together"), paired("together"), "not recorded"),
        ("pairing", paired("separate"), paired("separate"), "separate"),
        ("pairing", paired("together", "12.0"), paired("by hand"), "together / by hand"),
        ("pairing", TURNS, TURNS, "equal"),
        ("pairing", TURNS, paired("interleaved", "12.0", turns="t2"), "interleaved, but not with each other"),
        ("pairing", TURNS, paired("together", "12.0"), "interleaved / together"),
    ],
)
def test_what_is_equal_on_both_sides(name: str, jax: Any, torch: Any, expected: str) -> None:
    assert of_both(name, jax, torch) == expected


@pytest.mark.parametrize(
    ("on", "jax", "torch", "expected"),
    [
        (H200, {"nvidia-cudnn-cu12": "9.10"}, {"nvidia-cudnn-cu13": "9.26"}, "nvidia-cudnn 9.10 / 9.26"),
        (H200, {"nvidia-cudnn-cu12": "9.10"}, {"nvidia-cudnn": "9.10"}, "equal"),
        (H200, {"nvidia-cublas": "13.4", "jax": "0.10.2"}, {"torch": "2.15.0"}, "nvidia-cublas 13.4 / absent"),
        (H200, {"jax-cuda13-plugin": "0.10.2"}, {"triton": "3.9", "nvidia-cusparselt-cu13": "0.8"}, "equal"),
        (CPU, {}, {"nvidia-cublas": "13.4"}, "equal"),  # means nothing there
    ],
)
def test_libraries_are_compared_by_what_they_are(on: Any, jax: Any, torch: Any, expected: str) -> None:
    ours, theirs = (on | {"python": "3.12", "packages": packages} for packages in (jax, torch))
    assert of_both("libraries", ours, theirs) == expected


@pytest.mark.parametrize(
    ("jax", "torch", "expected"),
    [
        ({"OMP_PROC_BIND": "true"}, {}, "OMP_PROC_BIND true / unset, OMP_PROC_BIND=true (read by PyTorch only)"),
        # Both have it, and it steers one.
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS=1 (read by PyTorch only)"),
        ({"OMP_NUM_THREADS": "2", "NPROC": "2"}, {"OMP_NUM_THREADS": "2", "NPROC": "2"}, "equal"),
        ({"XLA_FLAGS": "--xla_a=1"}, {"XLA_FLAGS": "--xla_a=1"}, "XLA_FLAGS=--xla_a=1 (read by JAX only)"),
        ({}, {"LD_LIBRARY_PATH": "/opt/cuda"}, "LD_LIBRARY_PATH unset / /opt/cuda"),
        ({}, {"NVIDIA_TF32_OVERRIDE": "0"}, "NVIDIA_TF32_OVERRIDE unset / 0"),
        ({"JAX_PLATFORMS": "cuda"}, {"PYTORCH_ALLOC_CONF": "x"}, "equal"),
        ({"CUDA_CACHE_PATH": "/tmp/1"}, {"CUDA_CACHE_PATH": "/tmp/2"}, "equal"),
        ({}, {"CUDA_MODULE_LOADING": "LAZY"}, "equal"),
        ({}, {"CUDA_MODULE_LOADING": "EAGER"}, "CUDA_MODULE_LOADING LAZY / EAGER"),
    ],
)
def test_variables_of_one_side_that_change_that_side(jax: Any, torch: Any, expected: str) -> None:
    assert of_both("variables", {"variables": jax}, {"variables": torch}) == expected


@pytest.mark.parametrize(
    ("jax", "torch", "cpus", "threads"),
    [
        # A framework that pins itself has fewer CPUs than its job had.
        ({"affinity": [0, 1], "threads": 2}, {"affinity": [0], "threads": 1}, "0-1 / 0", "2 / 1"),
        ({"affinity": [0], "threads": 1, "quota": 1.5}, {"affinity": [0], "threads": 1}, "0 (quota 1.5) / 0", "equal"),
        ({"affinity": [0], "threads": None}, {"affinity": [0], "threads": 1}, "equal", "not recorded"),
    ],
)
def test_cpus_and_threads_once_both_are_imported(jax: Any, torch: Any, cpus: str, threads: str) -> None:
    ours, theirs = ({"cpu": {"affinity": [0, 1]}, "process": process} for process in (jax, torch))
    assert (of_both("CPUs", ours, theirs), of_both("threads", ours, theirs)) == (cpus, threads)
