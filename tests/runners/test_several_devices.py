"""Use cases 2 and 4: two devices compute what one computes, on both sides. Two processes of the CPU, gloo between them.

Float64 wherever two runs are compared, so that only a mistake can make a difference. A process does all of TASKS, as
starting one costs more than any of them.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import ProjectError, Refused
from harness.gradient_check import relative_error
from harness.paths import REPOSITORY
from harness.world import World

Numbers = dict[str, np.ndarray]

FRAMEWORKS = ["jax", "torch"]
PLAIN_MODE = {"jax": "jit", "torch": "eager"}
TRAIN_MODES = {"jax": ("scan",), "torch": ()}
PER_SAMPLE_MODES = {"jax": ("jit", "outer_product", "chunked"), "torch": ("eager", "outer_product", "chunked")}
TOLERANCE = 1e-9
"""Of float64, in which sums round at 1e-16."""
TOLERANCES = {"outer_product": 1e-6}
"""This mode returns float32, whatever it computes in."""
FLOAT32_TOLERANCE = 1e-4
"""Relative; sums over half batches round at 1e-7, and a few steps let that grow."""
TIMEOUT_S = 600
STEPS = 5
CLIP_NORM = 80.0
"""Among the norms of the first samples, which are 11 to 148: some are clipped, some are not."""


def train_task(*, float64: bool = True, steps: int = STEPS, **session: Any) -> dict[str, Any]:
    session = {"batch_size": 8, "momentum": 0.9, "weight_decay": 0.1} | session
    return {
        "use_case": "train",
        "function": "training_steps",
        "arguments": {"steps": steps},
        "float64": float64,
        "session": session,
    }


def gradients_task(mode: str, output: str) -> dict[str, Any]:
    return {
        "use_case": "per_sample_gradients",
        "function": "gradients",
        "arguments": {"mode": mode, "output": output, "clip_norm": CLIP_NORM},
        "float64": True,
        "session": {"batch_size": 8},
    }


def whole_task(use_case: str, **session: Any) -> dict[str, Any]:
    return {
        "use_case": use_case,
        "function": "whole_use_case",
        "arguments": {},
        "float64": False,
        "session": session,
    }


def parity_task(use_case: str, **session: Any) -> dict[str, Any]:
    return {
        "use_case": use_case,
        "function": "parity_numbers",
        "arguments": {},
        "float64": True,
        "session": {"batch_size": 16} | session,
    }


def tasks_of(framework: str, size: int) -> dict[str, dict[str, Any]]:
    plain = PLAIN_MODE[framework]
    tasks = {
        "train": train_task(execution_mode=plain),
        "train-float32": train_task(execution_mode=plain, float64=False),
        "whole-train": whole_task("train", batch_size=256),
        "norms": gradients_task(plain, "norms"),
        "batch_gradient": gradients_task(plain, "batch_gradient"),
    }
    for mode in PER_SAMPLE_MODES[framework]:
        for output in ("full", "clipped_sum"):
            tasks[f"{output}-{mode}"] = gradients_task(mode, output)
    tasks["parity-train"] = parity_task("train", weight_decay=0.1)
    for output in ("full", "clipped_sum"):
        tasks[f"parity-{output}"] = parity_task("per_sample_gradients", clip_norm=CLIP_NORM, options={"output": output})
    if size > 1:
        tasks["agreements"] = train_task() | {"function": "agreements", "arguments": {}, "float64": False}
        tasks["resnet18"] = train_task(
            steps=1, benchmark="cifar10", model="resnet18", learning_rate=1.0, momentum=0.0, weight_decay=0.0
        )
        for mode in TRAIN_MODES[framework]:
            tasks[f"train-{mode}"] = train_task(execution_mode=mode)
        for output in ("norms", "full", "clipped_sum", "batch_gradient"):
            # The first rank's part holds 6 of the check's 8 distinct samples, the second's the other 2 and 4 again.
            tasks[f"whole-{output}"] = whole_task("per_sample_gradients", batch_size=12, options={"output": output})
    return tasks


def tasks_of_one_process() -> dict[str, dict[str, Any]]:
    """JAX with both devices in one process."""
    tasks = {"train": train_task(), "resnet18": tasks_of("jax", 2)["resnet18"]}
    tasks["whole-train"] = whole_task("train", batch_size=256, execution_mode="jit_process_per_node")
    tasks["parity-train"] = tasks_of("jax", 2)["parity-train"]
    tasks["parity-full"] = tasks_of("jax", 2)["parity-full"]
    for output in ("full", "clipped_sum"):
        tasks[output] = gradients_task("jit", output)
        whole = whole_task(
            "per_sample_gradients",
            batch_size=12,
            execution_mode="jit_process_per_node",
            options={"output": output},
        )
        tasks[f"whole-{output}"] = whole
    return tasks


Found = Callable[[str, int, str], list[Numbers]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """(framework, number of ranks, task) -> what each rank found."""

    @cache
    def done(framework: str, size: int) -> Path:
        folder = tmp_path_factory.mktemp(f"{framework}-{size}")
        run_ranks(framework, size, tasks_of(framework, size), folder)
        return folder

    def look(framework: str, size: int, task: str) -> list[Numbers]:
        folder = done(framework, size)
        return [dict(np.load(folder / f"{task}.{rank}.npz")) for rank in range(size)]

    return look


def run_ranks(framework: str, size: int, tasks: dict[str, dict[str, Any]], folder: Path) -> None:
    (folder / "tasks.json").write_text(json.dumps(tasks))
    coordinator = f"127.0.0.1:{free_port()}" if size > 1 else None
    run_worlds(
        framework,
        [World(rank=rank, size=size, local_rank=rank, coordinator=coordinator) for rank in range(size)],
        folder,
    )


def run_worlds(framework: str, worlds: list[World], folder: Path) -> None:
    with ThreadPoolExecutor(len(worlds)) as pool:
        ended = list(pool.map(lambda world: run_rank(framework, world, folder), worlds))
    for world, process in zip(worlds, ended, strict=True):
        assert process.returncode == 0, f"rank {world.rank}:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"


def run_rank(framework: str, world: World, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.runners.one_rank", framework, world.model_dump_json(), str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def of_kind(numbers: Numbers, kind: str) -> Numbers:
    return {name: value for name, value in numbers.items() if name.startswith(f"{kind}/")}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_devices_train_as_one(found: Found, framework: str) -> None:
    """The same losses and weights from the same global batches, in float64; both ranks end with the same weights."""
    (alone,) = found(framework, 1, "train")
    first, second = found(framework, 2, "train")
    assert len(set(alone["losses"])) == STEPS
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=TOLERANCE)
    assert relative_error(of_kind(first, "weights"), of_kind(alone, "weights")) < TOLERANCE
    for name, value in of_kind(first, "weights").items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_devices_train_as_one_in_float32(found: Found, framework: str) -> None:
    (alone,), (first, _) = (found(framework, size, "train-float32") for size in (1, 2))
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=FLOAT32_TOLERANCE)
    assert relative_error(of_kind(first, "weights"), of_kind(alone, "weights")) < FLOAT32_TOLERANCE


def test_two_devices_train_the_same_on_both_sides(found: Found) -> None:
    ours, theirs = (found(framework, 2, "train")[0] for framework in FRAMEWORKS)
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=TOLERANCE)
    assert relative_error(of_kind(ours, "weights"), of_kind(theirs, "weights")) < TOLERANCE


def test_scan_on_two_devices(found: Found) -> None:
    (alone,), (first, _) = found("jax", 1, "train"), found("jax", 2, "train-scan")
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=TOLERANCE)
    assert relative_error(of_kind(first, "weights"), of_kind(alone, "weights")) < TOLERANCE


def test_compiled_on_two_devices(found: Found, tmp_path: Path) -> None:
    """PyTorch compiles the module inside DistributedDataParallel, which takes a while: float32 is what it is for."""
    (alone,) = found("torch", 1, "train-float32")
    run_ranks("torch", 2, {"compiled": train_task(execution_mode="compiled", float64=False)}, tmp_path)
    first = dict(np.load(tmp_path / "compiled.0.npz"))
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=FLOAT32_TOLERANCE)
    assert relative_error(of_kind(first, "weights"), of_kind(alone, "weights")) < FLOAT32_TOLERANCE


def test_training_moves_only_gradients(found: Found) -> None:
    """JAX's programs: none for one device, and for two at most one all-reduce for each of the 8 parameters."""
    assert found("jax", 1, "train")[0]["collectives"].tolist() == [0, 0]
    reductions, others = found("jax", 2, "train")[0]["collectives"]
    assert 1 <= reductions <= 8
    assert others == 0


def test_batch_norm_is_local_on_both_sides(found: Found) -> None:
    """One plain step of the network with BatchNorm, in float64: weights move by the averaged gradient.

    The ranks' running statistics differ, each from its own part of the batch, and agree between the sides.
    """
    ours, theirs = (found(framework, 2, "resnet18") for framework in FRAMEWORKS)
    for jax_rank, torch_rank in zip(ours, theirs, strict=True):
        assert relative_error(of_kind(jax_rank, "weights"), of_kind(torch_rank, "weights")) < TOLERANCE
    names = of_kind(ours[0], "weights")
    running = [name for name in names if "running" in name]
    assert len(running) == 40  # mean and variance of 20 layers
    for name in names:
        same = np.array_equal(ours[0][name], ours[1][name])
        assert same == (name not in running), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_per_sample_gradients_in_order_and_without_a_collective(found: Found, framework: str) -> None:
    modes = PER_SAMPLE_MODES[framework]
    for mode, task in ((PLAIN_MODE[framework], "norms"), *((mode, f"full-{mode}") for mode in modes)):
        tolerance = TOLERANCES.get(mode, TOLERANCE)
        (alone,), ranks = found(framework, 1, task), found(framework, 2, task)
        in_order = {name: np.concatenate([rank[name] for rank in ranks]) for name in of_kind(ranks[0], "gradients")}
        assert all(len(value) == 8 for value in in_order.values())
        assert relative_error(in_order, of_kind(alone, "gradients")) < tolerance, task
        for rank in ranks:
            assert rank["collectives"].tolist() == [0, 0], task


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sums_are_one_all_reduce(found: Found, framework: str) -> None:
    modes = PER_SAMPLE_MODES[framework]
    for mode, task in ((PLAIN_MODE[framework], "batch_gradient"), *((mode, f"clipped_sum-{mode}") for mode in modes)):
        tolerance = TOLERANCES.get(mode, TOLERANCE)
        (alone,), ranks = found(framework, 1, task), found(framework, 2, task)
        for rank in ranks:
            assert relative_error(of_kind(rank, "gradients"), of_kind(alone, "gradients")) < tolerance, task
            assert rank["collectives"].tolist() == [1, 0], task


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranks_agree(found: Found, framework: str) -> None:
    """In float64, although JAX computes in float32; nothing is compiled once it has been done."""
    for rank in found(framework, 2, "agreements"):
        assert rank["values"].tolist() == [1.1, 0.5, 1 / 3, 2.0**40 + 1 / 3]
        assert rank["compiled"] == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whole_training(found: Found, framework: str) -> None:
    """As a measurement runs it: both ranks make the same calls and report the mean losses of the one-device run."""
    (alone,), ranks = (found(framework, size, "whole-train") for size in (1, 2))
    assert json.loads(str(alone["details"])) == {}
    for rank in ranks:
        np.testing.assert_allclose(rank["train_loss"], alone["train_loss"], rtol=FLOAT32_TOLERANCE)
        np.testing.assert_allclose(rank["test_loss"], alone["test_loss"], rtol=FLOAT32_TOLERANCE)
        np.testing.assert_array_equal(rank["calls"], ranks[0]["calls"])
        assert json.loads(str(rank["details"])) == {"batch_norm": "local", "processes": 2, "devices_per_process": 1}
        assert len(rank["blocks_alone"]) == 3
        assert rank["samples_per_step"] == 256
        assert rank["recompiles"] == 0


@pytest.mark.parametrize("output", ["norms", "full", "clipped_sum", "batch_gradient"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whole_per_sample_gradients(found: Found, framework: str, output: str) -> None:
    """Each rank's output passes the check against the float64 loop before it is timed."""
    ranks = found(framework, 2, f"whole-{output}")
    for rank in ranks:
        reference, typical, worst = rank["errors"]
        assert reference < 1e-9
        assert 0 < typical < 2e-3
        assert 0 < worst < 2e-3
        assert len(rank["blocks_alone"]) == (3 if output in ("clipped_sum", "batch_gradient") else 0)
        np.testing.assert_array_equal(rank["calls"], ranks[0]["calls"])
        assert rank["recompiles"] == 0


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Numbers]:
    """Task -> what JAX found with one process for two devices."""
    folder = tmp_path_factory.mktemp("one-process")
    (folder / "tasks.json").write_text(json.dumps(tasks_of_one_process()))
    run_worlds("jax", [World(devices_per_rank=2)], folder)
    return lambda task: dict(np.load(folder / f"{task}.0.npz"))


def test_one_process_with_two_devices_trains_as_two_processes(found: Found, one_process) -> None:
    """The losses of the devices, which lie in one process here, are in the order of the ranks' means."""
    numbers, (first, _) = one_process("train"), found("jax", 2, "train")
    losses = numbers["losses"].reshape(STEPS, 2).mean(1)
    np.testing.assert_allclose(losses, first["losses"], rtol=TOLERANCE)
    assert relative_error(of_kind(numbers, "weights"), of_kind(first, "weights")) < TOLERANCE
    assert 1 <= numbers["collectives"][0] <= 8
    assert numbers["collectives"][1] == 0


@pytest.mark.parametrize("task", ["parity-train", "parity-full"])
def test_parity_numbers_of_one_process_are_those_of_two(task: str, found: Found, one_process) -> None:
    (of_rank, _), numbers = found("jax", 2, task), one_process(task)
    assert numbers.keys() == of_rank.keys()
    for name, value in of_rank.items():
        assert numbers[name].shape == value.shape, name
        assert relative_error({name: numbers[name]}, {name: value}) < TOLERANCE, name


def test_one_process_keeps_batch_norm_local(found: Found, one_process) -> None:
    (first, _) = found("jax", 2, "resnet18")
    assert relative_error(of_kind(one_process("resnet18"), "weights"), of_kind(first, "weights")) < TOLERANCE


def test_one_process_gives_all_per_sample_gradients_in_order(found: Found, one_process) -> None:
    (alone,) = found("jax", 1, "full-jit")
    full, total = one_process("full"), one_process("clipped_sum")
    assert relative_error(of_kind(full, "gradients"), of_kind(alone, "gradients")) < TOLERANCE
    assert full["collectives"].tolist() == [0, 0]
    (alone,) = found("jax", 1, "clipped_sum-jit")
    assert relative_error(of_kind(total, "gradients"), of_kind(alone, "gradients")) < TOLERANCE
    assert total["collectives"].tolist() == [1, 0]


def test_whole_use_cases_in_one_process(found: Found, one_process) -> None:
    (alone,) = found("jax", 1, "whole-train")
    training = one_process("whole-train")
    np.testing.assert_allclose(training["train_loss"], alone["train_loss"], rtol=FLOAT32_TOLERANCE)
    np.testing.assert_allclose(training["test_loss"], alone["test_loss"], rtol=FLOAT32_TOLERANCE)
    assert json.loads(str(training["details"])) == {
        "batch_norm": "local",
        "processes": 1,
        "devices_per_process": 2,
        "one_device_mode": "jit",
    }
    for name in ("whole-train", "whole-full", "whole-clipped_sum"):
        numbers = one_process(name)
        assert len(numbers["blocks_alone"]) == (0 if name == "whole-full" else 3)
        assert numbers["recompiles"] == 0
    for name in ("whole-full", "whole-clipped_sum"):
        assert 0 < one_process(name)["errors"][1] < 2e-3


def test_one_process_per_node_is_refused_on_one_device() -> None:
    from jax_runner.several_devices import require_several_devices

    for world in (World(), World(size=2, coordinator="127.0.0.1:1")):  # the second has two nodes with one device each
        with pytest.raises(Refused, match="on one it would be jit"):
            require_several_devices(world)
    require_several_devices(World(devices_per_rank=2))


@pytest.mark.parametrize(
    ("visible", "world", "refused"),
    [
        ("0", World(rank=1, size=2, local_rank=1), "sees 1 GPU(s), and rank 1 of this node needs the one numbered 1."),
        ("0", World(devices_per_rank=2), "sees 1 GPU(s), and rank 0 of this node needs the one numbered 1."),
        ("MIG-a,MIG-b", World(rank=1, size=2, local_rank=1), "sees 1 GPU(s), and rank 1"),
        ("0,1", World(rank=1, size=2, local_rank=1), None),
        ("2", World(rank=1, size=2, local_rank=0), None),
        ("", World(rank=1, size=2, local_rank=1), None),
    ],
)
def test_gpu_that_a_task_does_not_see_is_named(
    visible: str, world: World, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax_runner import device

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(device, "uses_cuda", lambda: True)
    if refused is None:
        device.require_visible_gpus(world)
        return
    with pytest.raises(ProjectError, match=re.escape(refused)):
        device.Device().join(world)
    monkeypatch.setattr(device, "uses_cuda", lambda: False)  # a CPU has as many as are asked for
    device.require_visible_gpus(world)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("task", ["parity-train", "parity-full", "parity-clipped_sum"])
def test_parity_numbers_of_two_devices_are_those_of_one(framework: str, task: str, found: Found) -> None:
    """Of a model without BatchNorm, whose statistics would be each device's own."""
    (alone,) = found(framework, 1, task)
    for of_rank in found(framework, 2, task):
        assert of_rank.keys() == alone.keys()
        for name, value in alone.items():
            assert of_rank[name].shape == value.shape, name
            assert relative_error({name: of_rank[name]}, {name: value}) < TOLERANCE, name
