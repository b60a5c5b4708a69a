"""Use cases 2 and 4: two devices compute what one computes, on both sides. Two processes of the CPU, gloo between them.

In float64, so that only a mistake can make a difference. A process does all of its tasks, as starting one costs more
than any of them; what one device of PyTorch finds, which has the numbers of one of JAX, is computed in this process.
"""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from harness.errors import Refused
from harness.measure.world import World
from harness.plan import FRAMEWORKS
from harness.results.parity import QUANTITIES, quantity_of
from tests.made.numbers import TOLERANCE, Numbers, error_of, require_same
from tests.made.processes import run_python
from tests.made.sessions import build, make_session
from tests.made.shallow import LAYERS_OF_BATCH_NORM
from tests.runners import one_rank
from torch_runner.several_devices import with_averaged_gradients

pytestmark = pytest.mark.takes(50)

PLAIN_MODE = {"jax": "vmap.jit", "torch": "vmap.eager"}
PROCESS_PER_NODE = {"train": "step.process_per_node", "per_sample_gradients": "vmap.process_per_node"}
CLIP_NORM = 80.0
"""Among the norms of the first samples, which are 11 to 148: some are clipped, some are not."""

RECIPE = {"schedule": "cosine", "warmup_epochs": 0.01, "label_smoothing": 0.1, "augmentation": "crop_and_flip"}
"""The warm-up is two steps long."""

ADAMW = {"optimizer": "adamw", "max_gradient_norm": 0.1, "epsilon": 1e-4}
"""The gradients' norm is above 1, so all are clipped; after the average, or the two ranks' norms would differ."""

ON_CPU = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # of programs that run a few times
}

Task = dict[str, Any]
Tasks = dict[str, Task]


def train(what: str, **session: Any) -> Task:
    """Of a model of dense layers, unless another is named: JAX has no fast convolution in float64 on a CPU."""
    model = {"benchmark": "text", "model": "mlp", "batch_size": 8, "weight_decay": 0.1}
    return {"what": what, "session": {"use_case": "train"} | model | session}


def gradients(what: str, mode: str, output: str) -> Task:
    """The first rank's part holds 6 of the check's 8 distinct samples, the second's the other 2 and 4 again."""
    session = {"use_case": "per_sample_gradients", "batch_size": 12, "clip_norm": CLIP_NORM, "chunk_size": 5}
    return {"what": what, "session": session | {"execution_mode": mode, "options": {"output": output}}}


def tasks_of(framework: str) -> Tasks:
    """By names that say what they are compared with."""
    tasks = {
        "train": train("parity"),
        "train-apart": train("parity_apart"),
        "train-whole": train("whole", batch_size=16),
        "train-whole_step": train("parity", execution_mode={"jax": "scan.jit", "torch": "step.compiled"}[framework]),
        "batch_norm": train(
            "parity", benchmark="cifar10", model="resnet18", learning_rate=1e-4, precision="fp32", batch_size=8
        ),
        "agreements": train("agreements"),
        "adamw": train("parity", **ADAMW),
    }
    tasks |= {name: gradients("parity", mode, output) for name, mode, output in per_sample_tasks(framework)}
    tasks["clipped_sum-apart"] = gradients("parity_apart", PLAIN_MODE[framework], "clipped_sum")
    if framework == "jax":
        tasks["train-collectives"] = train("collectives")
        for name, mode, output in per_sample_tasks(framework):
            tasks[f"{name}-collectives"] = gradients("collectives", mode, output)
    else:
        tasks["unchecked"] = train("check_of_the_control")
        tasks["recipe"] = train("losses", benchmark="mnist", model="cnn", **RECIPE) | {"in_chunks": True}
        tasks["adamw-flat"] = train("parity", execution_mode="flat.eager", **ADAMW)
        tasks["train-flat"] = train("parity", execution_mode="flat.eager")
        network = {"benchmark": "cifar10", "model": "cnn", "batch_size": 2, "precision": "fp32"}
        tasks["graphs"] = train("graphs_in_step", execution_mode="step.compiled", **network)
        for output in ("full", "clipped_sum"):
            tasks[f"{output}-whole"] = gradients("whole", PLAIN_MODE[framework], output)
    return tasks


def per_sample_tasks(framework: str) -> list[tuple[str, str, str]]:
    """Name, mode and output. What joins the parts is the same for all modes, so few stand for them."""
    if framework == "jax":  # XLA takes a second or more for each
        return [(f"{output}-plain", PLAIN_MODE[framework], output) for output in ("full", "clipped_sum")]
    return [
        *((f"{output}-plain", PLAIN_MODE[framework], output) for output in ("norms", "full", "clipped_sum")),
        ("batch_gradient-plain", "batch.eager", "batch_gradient"),
        ("full-outer_product", "outer_product.eager", "full"),
        ("clipped_sum-chunked", "chunked.eager", "clipped_sum"),
    ]


def tasks_of_one_process() -> Tasks:
    """JAX with both devices in one process."""
    names = [
        "train",
        "clipped_sum-plain",
        *(f"{one}-collectives" for one in ("train", "full-plain", "clipped_sum-plain")),
    ]
    tasks = {name: tasks_of("jax")[name] for name in names}
    for task in tasks.values():
        task["session"]["execution_mode"] = PROCESS_PER_NODE[task["session"]["use_case"]]
    return tasks


@cache
def alone(name: str) -> Numbers:
    """What one device of PyTorch finds, with the whole training set on it."""
    return one_rank.do("torch", tasks_of("torch")[name] | {"in_chunks": False})


Found = Callable[[str, str], list[Numbers]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """(framework, task) -> what each of two ranks found."""
    return found_by_ranks(tasks_of, tmp_path_factory)


def found_by_ranks(tasks_of: Callable[[Any], Tasks], folders: pytest.TempPathFactory) -> Found:
    """At the first question for one of a framework, all of them."""

    @cache
    def done(framework: str) -> Callable[[str], list[Numbers]]:
        return ranks_of(framework, tasks_of(framework), folders.mktemp(framework))

    return lambda framework, name: done(framework)(name)


def ranks_of(framework: str, tasks: Tasks, folder: Path) -> Callable[[str], list[Numbers]]:
    """Task -> what each of two ranks found."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{listener.getsockname()[1]}"
    world = World(size=2, coordinator=coordinator)
    run_ranks(framework, tasks, [world.of_local_rank(rank) for rank in range(2)], folder)
    return lambda name: [dict(np.load(folder / f"{name}.{rank}.npz")) for rank in range(2)]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Numbers]:
    """Task -> what JAX found with one process for two devices."""
    folder = tmp_path_factory.mktemp("one-process")
    run_ranks("jax", tasks_of_one_process(), [World(devices_per_rank=2)], folder)
    return lambda name: dict(np.load(folder / f"{name}.0.npz"))


def run_ranks(framework: str, tasks: Tasks, worlds: list[World], folder: Path) -> None:
    (folder / "tasks.json").write_text(json.dumps(tasks))

    def run(world: World) -> "subprocess.CompletedProcess[str]":
        given = (framework, world.model_dump_json(), str(folder))
        return run_python("-m", "tests.runners.one_rank", *given, env=os.environ | ON_CPU, quiet_s=200)

    with ThreadPoolExecutor(len(worlds)) as pool:
        ended = list(pool.map(run, worlds))
    for world, process in zip(worlds, ended, strict=True):
        assert process.returncode == 0, f"rank {world.rank}:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"


def require_alike(actual: Numbers, expected: Numbers) -> None:
    """In fp32, as the parity gate judges it: a dozen layers of convolution and BatchNorm take JAX long in float64."""
    assert actual.keys() == expected.keys()
    for name in expected:
        tolerance = QUANTITIES[quantity_of(name)].tolerance
        assert error_of(name, actual, expected) < tolerance, name


@pytest.mark.parametrize(
    ("framework", "task", "of_one"),
    [
        *((framework, "train", "train") for framework in FRAMEWORKS),
        ("jax", "train-whole_step", "train"),  # a scan
        ("torch", "train-whole_step", "train"),  # the module compiled inside DistributedDataParallel
        ("torch", "train-flat", "train"),  # averaged as one vector, which a CUDA graph takes
        *((framework, "adamw", "adamw") for framework in FRAMEWORKS),
        ("torch", "adamw-flat", "adamw"),
        ("torch", "recipe", "recipe"),
        *(
            (framework, name, f"{output}-plain")
            for framework in FRAMEWORKS
            for name, _, output in per_sample_tasks(framework)
        ),
    ],
)
def test_two_devices_compute_what_one_does(found: Found, framework: str, task: str, of_one: str) -> None:
    """From the same global batches, also in the clip by one norm of the averaged gradient; what is of samples, in
    order. In chunks each rank gets the samples of its own part of each batch, and its rates and crops."""
    first, second = found(framework, task)
    require_same(first, alone(of_one))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_what_the_clip_and_the_steps_show() -> None:
    """A clip before the average would give another norm, and steps on one batch the same loss."""
    norm = np.sqrt(sum(np.sum(value**2) for name, value in alone("adamw").items() if name.startswith("gradients/")))
    assert norm == pytest.approx(0.1)
    assert len(set(alone("train")["losses_of_steps"])) == 5
    assert len(set(alone("recipe")["losses"])) == 14


def test_control_is_the_very_code_that_was_timed(found: Found) -> None:
    """Dynamo cuts a compiled module where a bucket of gradients ends. What the control takes less must be
    communication, so it has the same cuts: it finds them in Dynamo's cache, and nothing is compiled for it."""
    for rank in found("torch", "graphs"):
        assert {name: int(rank[name]) for name in ("joined", "apart")} == {"joined": 2, "apart": 0}


@pytest.mark.parametrize("task", ["train", "clipped_sum"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_control_moves_no_gradients(found: Found, framework: str, task: str) -> None:
    """Each rank goes its own way: from the same weights, by the gradients of its own part."""
    first, second = found(framework, f"{task}-apart")
    joined, _ = found(framework, {"clipped_sum": "clipped_sum-plain"}.get(task, task))
    require_same({"outputs": first["outputs"]}, {"outputs": joined["outputs"]})
    for name in first:
        if name.startswith(("updates/", "clipped_sum/")):
            assert error_of(name, first, second) > 1e-3, name
            assert error_of(name, first, joined) > 1e-3, name


def test_check_finds_gradients_that_are_not_averaged(found: Found) -> None:
    for rank in found("torch", "unchecked"):
        assert "gradients of the step against float64" in str(rank["failed"])


def test_no_step_waits_for_statistics() -> None:
    """PyTorch would take them in the first ten steps and in the hundredth, and then says in which it last has."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        averaged: Any = with_averaged_gradients(torch.nn.Linear(1, 1), split=False)
        for _ in range(101):
            averaged(torch.ones(1, 1)).sum().backward()
        assert averaged._get_ddp_logging_data()["iteration"] == 10
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("task", "most"),
    [("train", 5), *((name, int(output == "clipped_sum")) for name, _, output in per_sample_tasks("jax"))],
)
def test_what_moves_in_jax(found: Found, one_process: Callable[[str], Numbers], task: str, most: int) -> None:
    """Nothing but gradients: at most one all-reduce for each of the 5 parameters, one for a sum, and none for what is
    of samples or for the control. The same with one process for both devices."""
    ranks = found("jax", f"{task}-collectives")
    for rank in [*ranks, one_process(f"{task}-collectives")]:
        reductions, others = rank["joined"]
        assert min(most, 1) <= reductions <= most
        assert others == 0
        assert rank["apart"].tolist() == [0, 0]


def test_batch_norm_is_local_on_both_sides(found: Found) -> None:
    """The ranks' running statistics differ, each from its own part of the batch, and agree between the sides."""
    ours, theirs = (found(framework, "batch_norm") for framework in FRAMEWORKS)
    for jax_rank, torch_rank in zip(ours, theirs, strict=True):
        require_alike(jax_rank, torch_rank)
    for first, second in (ours, theirs):
        assert sum(name.startswith("statistics/") for name in first) == 2 * LAYERS_OF_BATCH_NORM  # mean and variance
        for name in first:
            same = np.array_equal(first[name], second[name])
            assert same == (not name.startswith("statistics")), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranks_agree(found: Found, framework: str) -> None:
    """In float64; nothing is compiled once it has been done."""
    for rank in found(framework, "agreements"):
        assert rank["values"].tolist() == [1.1, 0.5, 1 / 3, 2.0**40 + 1 / 3]
        assert rank["compiled"] == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whole_training(found: Found, framework: str) -> None:
    """As a measurement runs it: both ranks make the same calls and report the mean losses of the one-device run."""
    expected, ranks = alone("train-whole"), found(framework, "train-whole")
    assert len(expected["blocks_alone"]) == 0
    for rank in ranks:
        for name in ("train_loss", "test_loss"):
            np.testing.assert_allclose(rank[name], expected[name], rtol=TOLERANCE)
        np.testing.assert_array_equal(rank["calls"], ranks[0]["calls"])
        assert json.loads(str(rank["details"])) == {"batch_norm": "local", "processes": 2, "devices_per_process": 1}
        assert (rank["samples_per_step"], len(rank["blocks_alone"]), rank["recompiles"]) == (16, 3, 0)


@pytest.mark.parametrize(("output", "blocks_alone"), [("full", 0), ("clipped_sum", 3)])
def test_whole_per_sample_gradients(found: Found, output: str, blocks_alone: int) -> None:
    """Each rank's output passes the check against the float64 loop before it is timed. Errors: of the reference, and of
    the measured output the typical and the worst."""
    ranks = found("torch", f"{output}-whole")
    for rank in ranks:
        assert len(rank["errors"]) == 3 and (rank["errors"] < TOLERANCE).all()
        assert (rank["errors"] > 0).all()  # nothing was compared with itself
        assert (len(rank["blocks_alone"]), rank["recompiles"]) == (blocks_alone, 0)
        np.testing.assert_array_equal(rank["calls"], ranks[0]["calls"])


# One process with both devices


@pytest.mark.parametrize("name", ["train", "clipped_sum-plain"])
def test_one_process_computes_what_two_do(found: Found, one_process: Callable[[str], Numbers], name: str) -> None:
    require_same(one_process(name), found("jax", name)[0])


def test_one_process_per_node_is_refused_on_one_device() -> None:
    two_nodes = World(size=2, coordinator="127.0.0.1:1")  # of one device each
    for world, words in ((World(), "is for several devices"), (two_nodes, "is for nodes with several")):
        with pytest.raises(Refused, match=words):
            build(make_session("jax", "train", execution_mode=PROCESS_PER_NODE["train"], world=world))
