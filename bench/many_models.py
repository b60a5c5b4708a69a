"""The project's best torch formulation of N models against the plain loop and against one grouped Conv1d.

    python -m bench.many_models N

One dense layer, 256 to 512 features, batch 32 for each model, whole training steps. Same weights, same batches, checked
against models trained alone first. All take turns in one process; a ratio is the median over rounds of the other's time
over ours: above 1, ours is faster. Which formulation is ours is decided by rounds of its own, before those that count.
"""

import os
import sys
from time import perf_counter

from harness.channel import Channel
from harness.data import load
from harness.errors import Refused
from harness.gpu import open_gpu
from harness.paths import REPOSITORY
from harness.plan import Cell, Measurement, Variant
from harness.session import Session
from harness.settings import MeasurementSettings
from harness.statistics import median, median_interval
from torch_runner.device import Device
from torch_runner.use_cases.many_models import Problem, Training

OURS = ("batched", "batched_compiled", "batched_cuda_graphs", "vmap", "vmap_compiled", "vmap_cuda_graphs")
"""Without the compiled loop: 64 unrolled models compile for minutes."""
OTHERS = {"loop": "the plain loop", "grouped_conv1d": "one grouped Conv1d"}
CALLS = 10
"""Back to back for one time, so that the wait at the end is a small part of it."""
CHOOSING_ROUNDS = 5
ROUNDS = 21


def make_training(mode: str, models: int) -> Training:
    """Raises Refused where this machine cannot run the mode."""
    device = Device()
    device.set_up("fp32")
    options = {"models": models, "batches": "different", "learning_rates": "one"}
    measurement = Measurement(
        framework="torch",
        cell=Cell(gpu="any", benchmark="synthetic", use_case=6, use_case_name="many_models"),
        variant=Variant(model="linear", batch_size=32, precision="fp32", execution_mode=mode, options=options),
        replicate=0,
        settings={"learning_rate": 0.01, "momentum": 0.9, "in_features": 256, "out_features": 512},
        protocol=MeasurementSettings(),
        data="real",
        quick=False,
    )
    dataset = load("synthetic", "real", REPOSITORY / "data")
    nowhere = Channel(os.open(os.devnull, os.O_WRONLY))
    session = Session(measurement=measurement, dataset=dataset, gpu=open_gpu(), channel=nowhere, device=device)
    problem = Problem(session)
    training = Training(problem, mode)
    batch = problem.check_batch()
    training.take(batch)
    problem.check(training, batch)
    return training


def time_s(training: Training, device: Device) -> float:
    start = perf_counter()
    for _ in range(CALLS):
        training.step()
    device.wait(None)
    return perf_counter() - start


def main(models: int) -> int:
    device = Device()
    trainings: dict[str, Training] = {}
    for mode in (*OTHERS, *OURS):
        try:
            trainings[mode] = make_training(mode, models)
        except Refused as refused:
            print(f"many models, N = {models}: without {mode}: {refused}", file=sys.stderr)
            continue
        time_s(trainings[mode], device)

    candidates = [mode for mode in OURS if mode in trainings]
    tried: dict[str, list[float]] = {mode: [] for mode in candidates}
    for _ in range(CHOOSING_ROUNDS):
        for mode in candidates:
            tried[mode].append(time_s(trainings[mode], device))
    best = min(candidates, key=lambda mode: median(tried[mode]))

    ratios: dict[str, list[float]] = {other: [] for other in OTHERS}
    for _ in range(ROUNDS):
        for other, of_other in ratios.items():
            ours_s = time_s(trainings[best], device)
            theirs_s = time_s(trainings[other], device) + time_s(trainings[other], device)
            ours_s += time_s(trainings[best], device)
            of_other.append(theirs_s / ours_s)
    for other, of_other in ratios.items():
        interval = median_interval(of_other)
        print(
            f"many models, N = {models}: {best} is {median(of_other):.2f} times as fast as {OTHERS[other]} "
            f"(95 % interval {interval.low:.2f} to {interval.high:.2f})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
