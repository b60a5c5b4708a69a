"""The project's best torch execution mode for `full` per-sample gradients against Opacus' hooks.

    python -m bench.opacus mnist|cifar10 BATCH_SIZE

Same weights, same batch, same outputs (compared first). All take turns; the ratio is the median over rounds of
Opacus' time over ours: above 1, ours is faster.
"""

import copy
import sys
import warnings
from collections.abc import Callable

from torch import Tensor

from bench.measurement import make_measurement
from bench.turns import with_interval
from harness.measure.clock import time_call
from harness.measure.process import builder, make_session
from harness.results.statistics import median
from harness.work.closeness import TOLERANCES
from torch_runner.device import Device
from torch_runner.use_cases.per_sample_gradients import PerSampleGradients

MODES = ("vmap.eager", "vmap.compiled", "outer_product.compiled")
ROUNDS = 15
AGREEMENT = TOLERANCES["fp32"].typical
"""Relative L2, over all parameters."""


def make_program(mode: str, benchmark: str, batch_size: int, device: Device) -> PerSampleGradients:
    measurement = make_measurement(
        "torch",
        "per_sample_gradients",
        benchmark=benchmark,
        batch_size=batch_size,
        execution_mode=mode,
        options={"output": "full"},
    )
    program = builder(measurement)(make_session(measurement, device))
    assert isinstance(program, PerSampleGradients)
    program.settle()
    return program


def make_opacus(program: PerSampleGradients) -> Callable[[], dict[str, Tensor]]:
    """On a model of its own with the same weights: Opacus puts hooks on it."""
    from opacus import GradSampleModule

    module = GradSampleModule(copy.deepcopy(program.problem.model), loss_reduction="sum")
    inputs, targets = program.batch

    def compute() -> dict[str, Tensor]:
        module.zero_grad(set_to_none=True)
        for parameter in module.parameters():
            parameter.grad_sample = None
        program.problem.task.losses(module(inputs), targets).sum().backward()
        return {name.removeprefix("_module."): p.grad_sample for name, p in module.named_parameters()}

    return compute


def relative_difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    difference = sum(float((actual[name] - expected[name]).square().sum()) for name in expected)
    return (difference / sum(float(value.square().sum()) for value in expected.values())) ** 0.5


def main(benchmark: str, batch_size: int) -> int:
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # the images need no gradient
    device = Device()
    device.set_up("fp32")
    programs = {mode: make_program(mode, benchmark, batch_size, device) for mode in MODES}
    steps = {mode: program.step for mode, program in programs.items()}
    opacus = make_opacus(programs["vmap.eager"])  # the hooks of outer_product.compiled are on a model of its own

    expected = opacus()
    for mode, step in steps.items():
        difference = relative_difference(step(), expected)
        if difference > AGREEMENT:
            print(f"{benchmark}, batch {batch_size}, {mode}: differs from Opacus by {difference:.1e}", file=sys.stderr)
            return 1
    del expected
    ratios: dict[str, list[float]] = {mode: [] for mode in steps}
    for _ in range(ROUNDS):
        for mode, step in steps.items():
            opacus_s = time_call(opacus, device.wait)
            ratios[mode].append(opacus_s / time_call(step, device.wait))
    best = max(ratios, key=lambda mode: median(ratios[mode]))
    others = ", ".join(f"{mode} {median(values):.2f}" for mode, values in ratios.items() if mode != best)
    print(
        f"per-sample gradients, {benchmark}, batch {batch_size}: {best} is {with_interval(ratios[best])} times as fast "
        f"as Opacus' hooks (goal at least 1.00; {others})",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
