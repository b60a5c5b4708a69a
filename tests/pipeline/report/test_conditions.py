"""What was equal on the two sides of a pair, and among records of one framework."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.plan import Framework
from harness.results.record import DataIdentity, Record
from pipeline.report.conditions import conditions, conditions_of_one_framework, side
from tests.made.report_records import CELL, CPU, H200, rank_result, record, with_result

TWO = CELL.model_copy(update={"use_case": 2, "devices": 2})
SAME: dict[str, Any] = {
    "gpu": {"name": "NVIDIA H200", "uuid": "GPU-1", "driver_version": "580.1"},
    "framework": {"platform": "gpu"},
    "node": "n1",
    "cpu": {"model": "Xeon", "affinity": [0, 1, 2, 3, 8]},
    "python": "3.12.1",
    "packages": {"numpy": "2.3", "jax": "0.10.2"},
    "variables": {"OMP_NUM_THREADS": "4"},
    "slurm": {"job_id": "12"},
    "git": {"commit": "a" * 40, "clean": True},
    "pairing": {"kind": "together", "position": 0, "pair": "12.0"},
    "data": DataIdentity(source="MNIST", kind="real", sha256="5e" * 32),
}


def of_both(name: str, jax: dict[str, Any], torch: dict[str, Any], compare: Callable[..., Any] = conditions) -> str:
    """The state of one condition, or what differs; empty where there is no such thing."""
    return next((one.detail or one.state for one in compare([(jax, torch)]) if one.name == name), "")


def test_all_conditions_of_replicates_of_which_one_differs() -> None:
    neighbour = SAME | {"pairing": {"kind": "together", "position": 1, "pair": "12.0"}}
    names = ["data", "GPU", "driver", "node", "CPUs", "libraries", "variables", "Slurm job", "code", "pairing"]
    assert [(one.name, one.state) for one in conditions([(SAME, neighbour)])] == [(name, "equal") for name in names]
    other = neighbour | {
        "gpu": SAME["gpu"] | {"uuid": "GPU-2"},
        "cpu": {"model": "Xeon", "affinity": "4-7"},
        "packages": {"numpy": "2.2", "torch": "2.15.0"},
        "git": {"commit": "a" * 40, "clean": False},
        "slurm": {"job_id": "13"},
    }
    del other["node"]
    found = conditions([(SAME, neighbour), (SAME, neighbour), (SAME, other)])
    assert {one.name: one.detail for one in found if one.state == "differs"} == {
        "GPU": "GPU-1 / GPU-2",
        "CPUs": "0-3,8 / 4-7",
        "libraries": "numpy 2.3 / 2.2",
        "Slurm job": "12 / 13",
        "code": "aaaaaaaaaa / aaaaaaaaaa with changes",
    }
    assert [one.name for one in found if one.state == "not recorded"] == ["node"]


def test_old_records_do_not_know_and_a_cpu_has_no_driver() -> None:
    found = {one.name: one.state for one in conditions([(CPU, CPU)])}
    assert "GPU" not in found and "driver" not in found and "Slurm job" not in found
    assert found["CPUs"] == found["pairing"] == found["code"] == "not recorded"


LOCK = {"name": "2026-11", "file": "cpu-py312-x86_64", "sha256": "2be1", "packages": 101, "matching": 101, "others": []}
OURS = "2026-11 cpu-py312-x86_64 (SHA-256 2be1)"


@pytest.mark.parametrize(
    ("jax", "torch", "expected"),
    [
        # Two environments, one for each framework, have other packages of the same lock.
        ({"lock": LOCK}, {"lock": LOCK | {"packages": 60, "matching": 60}}, "equal"),
        (
            {"lock": LOCK},
            {"lock": LOCK | {"name": "2026-12", "sha256": "77aa"}},
            f"{OURS} / 2026-12 cpu-py312-x86_64 (SHA-256 77aa)",
        ),
        (
            {"lock": LOCK},
            {"lock": LOCK | {"matching": 99}},
            f"{OURS} / 2026-11 cpu-py312-x86_64 (SHA-256 2be1, but 2 packages)",
        ),
        ({"lock": LOCK}, {"lock": None}, f"{OURS} / none"),
        ({"lock": None}, {"lock": None}, ""),
        ({}, {}, ""),
        ({"lock": LOCK}, {}, "not recorded"),
    ],
)
def test_records_of_different_locks_say_so(jax: Any, torch: Any, expected: str) -> None:
    assert of_both("lock", jax, torch) == expected


def code(commit: str, **modules: str) -> dict[str, Any]:
    found = {name.replace("_of_", "."): digest for name, digest in modules.items()}
    return {"code": found, "git": {"commit": commit * 40, "clean": True}}


JAX = code("a", harness_of_clock="h1", harness_of_ghost="g1", jax_runner_of_train="j1")
TORCH = code("b", harness_of_clock="h1", torch_runner_of_train="t1")
FOLDERS = code("a", harness="h1", runner="j1")
MANY = [code("a", **{f"harness_of_m{number}": digest for number in range(5)}) for digest in ("x", "y")]


@pytest.mark.parametrize(
    ("one", "other", "compare", "expected"),
    [
        # The runners are two, one has imported more, and the commits differ in a document.
        (JAX, TORCH, conditions, "equal"),
        (JAX, code("a", harness_of_clock="h2"), conditions, "harness.clock h1 / h2"),
        (
            JAX,
            code("b", harness_of_clock="h1", jax_runner_of_train="j1", jax_runner_of_trace="x"),
            conditions_of_one_framework,
            "equal",
        ),
        (
            JAX,
            code("a", harness_of_clock="h2", harness_of_ghost="g1", jax_runner_of_train="j2"),
            conditions_of_one_framework,
            "harness.clock h1 / h2, jax_runner.train j1 / j2",
        ),
        (*MANY, conditions, "harness.m0 x / y, harness.m1 x / y, harness.m2 x / y, and 2 more"),
        # Older records have digests of whole folders; those from before that, their commit.
        (FOLDERS, code("b", harness="h1", runner="t1"), conditions, "equal"),
        (FOLDERS, code("a", harness="h2", runner="j1"), conditions_of_one_framework, "harness h1 / h2"),
        (FOLDERS, TORCH, conditions, "aaaaaaaaaa / bbbbbbbbbb"),
        (JAX, {"git": {"commit": "a" * 40, "clean": False}}, conditions, "aaaaaaaaaa / aaaaaaaaaa with changes"),
    ],
)
def test_code_is_compared_by_its_contents_where_both_say_them(
    one: Any, other: Any, compare: Any, expected: str
) -> None:
    assert of_both("code", one, other, compare) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (26_010, 26_010, "equal"),
        (26_010, 1_026_010, "26,010 / 1,026,010"),
        (26_010, None, "not recorded"),
        (None, None, ""),
    ],
)
def test_parameters_are_counted_by_each_side_and_compared(ours: int | None, theirs: int | None, expected: str) -> None:
    def counted(framework: Framework, count: int | None) -> dict[str, Any]:
        return dict(side(with_result(record(framework, "step.jit"), parameter_count=count)))

    assert of_both("parameters", counted("jax", ours), counted("torch", theirs)) == expected


def on_ranks(*uuids: str) -> Record:
    ranks = [rank_result(rank, gpu_uuids=[uuid]) for rank, uuid in enumerate(uuids)]
    return record("jax", "step.jit", cell=TWO, environment=SAME, ranks=ranks)


def of_one_process(*uuids: str) -> Record:
    """For both GPUs, without ranks."""
    environment = SAME | {"gpu": {"name": "NVIDIA H200", "uuid": uuids[0], "uuids": list(uuids)}}
    return record("jax", "step.process_per_node", cell=TWO, environment=environment)


@pytest.mark.parametrize(
    ("jax", "torch", "expected"),
    [
        (on_ranks("GPU-1", "GPU-2"), on_ranks("GPU-2", "GPU-1"), "equal"),
        (on_ranks("GPU-1", "GPU-2"), on_ranks("GPU-1", "GPU-3"), "GPU-1 GPU-2 / GPU-1 GPU-3"),
        (of_one_process("GPU-2", "GPU-1"), on_ranks("GPU-1", "GPU-2"), "equal"),
        (of_one_process("GPU-1", "GPU-3"), on_ranks("GPU-1", "GPU-2"), "GPU-1 GPU-3 / GPU-1 GPU-2"),
        # An old record of one process for each of two nodes has the first UUID of each only.
        (on_ranks("GPU-1"), on_ranks("GPU-1", "GPU-2"), "not recorded"),
    ],
)
def test_every_rank_has_its_gpu(jax: Record, torch: Record, expected: str) -> None:
    assert of_both("GPU", dict(side(jax)), dict(side(torch))) == expected
    assert of_both("node", dict(side(jax)), dict(side(torch))) == "equal"


@pytest.mark.parametrize(
    ("jax", "torch", "expected"),
    [
        (("together", None, "12.0"), ("together", None, "12.0"), "equal"),
        (("together", None, "12.0"), ("together", None, "12.1"), "run 12.0 / run 12.1"),
        (("together", 3, "12.0"), ("together", 2, "12.0"), "equal"),
        (("together", 0, "12.0"), ("together", 5, "12.0"), "position 0 / position 5"),
        (("together", 0, None), ("together", 1, None), "not recorded"),  # a record from before
        (("separate", None, None), ("separate", None, None), "separate"),
        (("together", 0, "12.0"), ("by hand", None, None), "together / by hand"),
        (("interleaved", 2, "12.0", "t1"), ("interleaved", 2, "12.0", "t1"), "equal"),
        (("interleaved", 2, "12.0", "t1"), ("interleaved", 2, "12.0", "t2"), "interleaved, but not with each other"),
        (("interleaved", 2, "12.0", "t1"), ("together", 2, "12.0"), "interleaved / together"),
    ],
)
def test_equal_pairing_is_neighbours_in_one_run(jax: Any, torch: Any, expected: str) -> None:
    sides = [{"pairing": dict(zip(("kind", "position", "pair", "turns"), one, strict=False))} for one in (jax, torch)]
    assert of_both("pairing", *sides) == expected


@pytest.mark.parametrize(
    ("environment", "jax", "torch", "expected"),
    [
        (H200, {"nvidia-cudnn-cu12": "9.10"}, {"nvidia-cudnn-cu13": "9.26"}, "nvidia-cudnn 9.10 / 9.26"),
        (H200, {"nvidia-cudnn-cu12": "9.10"}, {"nvidia-cudnn": "9.10"}, "equal"),
        (H200, {"nvidia-cublas": "13.4", "jax": "0.10.2"}, {"torch": "2.15.0"}, "nvidia-cublas 13.4 / absent"),
        (H200, {"jax-cuda13-plugin": "0.10.2"}, {"triton": "3.9", "nvidia-cusparselt-cu13": "0.8"}, "equal"),
        (CPU, {}, {"nvidia-cublas": "13.4"}, "equal"),  # means nothing there
    ],
)
def test_libraries_are_compared_by_what_they_are(environment: Any, jax: Any, torch: Any, expected: str) -> None:
    sides = [environment | {"python": "3.12", "packages": packages} for packages in (jax, torch)]
    assert of_both("libraries", *sides) == expected


@pytest.mark.parametrize(
    ("jax", "torch", "expected"),
    [
        ({"OMP_NUM_THREADS": "4"}, {}, "OMP_NUM_THREADS 4 / unset"),
        ({}, {"LD_LIBRARY_PATH": "/opt/cuda"}, "LD_LIBRARY_PATH unset / /opt/cuda"),
        ({}, {"NVIDIA_TF32_OVERRIDE": "0"}, "NVIDIA_TF32_OVERRIDE unset / 0"),
        ({"XLA_FLAGS": "x", "JAX_PLATFORMS": "cuda"}, {"TORCH_LOGS": "x", "PYTORCH_ALLOC_CONF": "x"}, "equal"),
        ({"CUDA_CACHE_PATH": "/tmp/1"}, {"CUDA_CACHE_PATH": "/tmp/2"}, "equal"),
        ({}, {"CUDA_MODULE_LOADING": "LAZY"}, "equal"),
        ({}, {"CUDA_MODULE_LOADING": "EAGER"}, "CUDA_MODULE_LOADING LAZY / EAGER"),
    ],
)
def test_variables_of_one_side_that_change_that_side(jax: Any, torch: Any, expected: str) -> None:
    assert of_both("variables", {"variables": jax}, {"variables": torch}) == expected
