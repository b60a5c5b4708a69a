"""The project's best torch execution mode for `full` per-sample gradients against Opacus' hooks.

    python -m bench.opacus_comparison mnist|cifar10 BATCH_SIZE

Same weights, same batch, same outputs (compared first). All take turns; the ratio is the median over rounds of
Opacus' time over ours: above 1, ours is faster.
"""

import copy
import os
import sys
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.channel import Channel
from harness.data import load
from harness.gpu import open_gpu
from harness.gradient_check import TOLERANCES
from harness.paths import REPOSITORY
from harness.plan import Cell, Measurement, Variant
from harness.session import Session
from harness.settings import MeasurementSettings
from harness.statistics import median, median_interval
from torch_runner.device import Device
from torch_runner.use_cases.per_sample_gradients import Problem, make_function

MODES = ("eager", "compiled", "outer_product")
ROUNDS = 15
AGREEMENT = TOLERANCES["fp32"].typical
"""Relative L2, over all parameters."""


def make_problem(benchmark: str, batch_size: int) -> Problem:
    device = Device()
    device.set_up("fp32")
    measurement = Measurement(
        framework="torch",
        cell=Cell(gpu="any", benchmark=benchmark, use_case=3, use_case_name="per_sample_gradients"),
        variant=Variant(
            model="cnn", batch_size=batch_size, precision="fp32", execution_mode="eager", options={"output": "full"}
        ),
        replicate=0,
        settings={"chunk_size": 32, "clip_norm": 1.0},
        protocol=MeasurementSettings(),
        data="sample",
        quick=False,
    )
    dataset = load(benchmark, "sample", REPOSITORY / "data")
    nowhere = Channel(os.open(os.devnull, os.O_WRONLY))
    return Problem(Session(measurement=measurement, dataset=dataset, gpu=open_gpu(), channel=nowhere, device=device))


def make_opacus(problem: Problem, images: Tensor, labels: Tensor) -> Callable[[], dict[str, Tensor]]:
    from opacus import GradSampleModule

    module = GradSampleModule(make_problem_model(problem), loss_reduction="sum")

    def compute() -> dict[str, Tensor]:
        module.zero_grad(set_to_none=True)
        for parameter in module.parameters():
            parameter.grad_sample = None
        F.cross_entropy(module(images), labels, reduction="sum").backward()
        return {name.removeprefix("_module."): p.grad_sample for name, p in module.named_parameters()}

    return compute


def make_problem_model(problem: Problem) -> torch.nn.Module:
    """A model of its own with the same weights: Opacus puts hooks on it."""
    model = copy.deepcopy(problem.model)
    model.requires_grad_(True)
    return model


def relative_difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    difference = sum(float((actual[name] - expected[name]).square().sum()) for name in expected)
    return (difference / sum(float(value.square().sum()) for value in expected.values())) ** 0.5


def time_s(compute: Callable[[], Any], wait: Callable[[Any], None]) -> float:
    start = perf_counter()
    wait(compute())
    return perf_counter() - start


def main(benchmark: str, batch_size: int) -> int:
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # the images need no gradient
    problem = make_problem(benchmark, batch_size)
    images, labels = problem.batch(range(batch_size))
    opacus = make_opacus(problem, images, labels)  # before outer_product puts hooks on the model
    contenders: dict[str, Callable[[], dict[str, Tensor]]] = {}
    for mode in MODES:
        function = make_function(make_problem(benchmark, batch_size), mode, "full", clip_norm=1.0, chunk_size=32)
        contenders[mode] = lambda function=function: function(images, labels)  # type: ignore[misc]

    wait = Device().wait
    expected = opacus()
    for mode, compute in contenders.items():
        difference = relative_difference(compute(), expected)
        if difference > AGREEMENT:
            print(f"{benchmark}, batch {batch_size}, {mode}: differs from Opacus by {difference:.1e}", file=sys.stderr)
            return 1
        time_s(compute, wait)
    del expected
    ratios: dict[str, list[float]] = {mode: [] for mode in contenders}
    for _ in range(ROUNDS):
        for mode, compute in contenders.items():
            opacus_s = time_s(opacus, wait)
            ratios[mode].append(opacus_s / time_s(compute, wait))
    best = max(ratios, key=lambda mode: median(ratios[mode]))
    interval = median_interval(ratios[best])
    others = ", ".join(f"{mode} {median(values):.2f}" for mode, values in ratios.items() if mode != best)
    print(
        f"per-sample gradients, {benchmark}, batch {batch_size}: {best} is {median(ratios[best]):.2f} times as fast as "
        f"Opacus' hooks (95 % interval {interval.low:.2f} to {interval.high:.2f}; {others}; goal at least 1.00)",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
