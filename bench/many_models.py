"""The project's best torch formulation of N models against the plain loop and against one grouped Conv1d.

    python -m bench.many_models N

One dense layer, 256 to 512 features, batch 32 for each model, whole training steps. Same weights, same batches, checked
against models trained alone first. All take turns in one process; a ratio is the median over rounds of the other's time
over ours: above 1, ours is faster. Which formulation is ours is decided by rounds of its own, before those that count.
"""

import sys
from functools import partial

from bench.measurement import make_measurement
from bench.turns import Timed, rounds_in_turn, with_interval
from harness.errors import Refused
from harness.measure.clock import time_block
from harness.measure.process import builder, make_session
from harness.results.statistics import median
from torch_runner.device import Device

OURS = tuple(
    f"{formulation}.{run}" for formulation in ("batched", "vmap") for run in ("eager", "compiled", "compiled_graph")
)
"""Without the compiled loop: 64 unrolled models compile for minutes."""
OTHERS = {"loop.eager": "the plain loop", "grouped_conv1d.eager": "one grouped Conv1d"}
CALLS = 10
"""Back to back for one time, so that the wait at the end is a small part of it."""
CHOOSING_ROUNDS = 5
ROUNDS = 21


def make_timed(mode: str, models: int, device: Device) -> Timed:
    """Raises Refused where this machine cannot run the mode."""
    measurement = make_measurement(
        "torch",
        "many_models",
        benchmark="synthetic",
        model="linear",
        batch_size=32,
        execution_mode=mode,
        options={"models": models, "batches": "different", "learning_rates": "one"},
    )
    program = builder(measurement)(make_session(measurement, device))
    program.check()
    return partial(time_block, program.step, device.wait, CALLS)


def main(models: int) -> int:
    device = Device()
    device.set_up("fp32")
    timed: dict[str, Timed] = {}
    for mode in (*OTHERS, *OURS):
        try:
            timed[mode] = make_timed(mode, models, device)
        except Refused as refused:
            print(f"many models, N = {models}: without {mode}: {refused}", file=sys.stderr)
            continue
        timed[mode]()

    tried: dict[str, list[float]] = {mode: [] for mode in OURS if mode in timed}
    for _ in range(CHOOSING_ROUNDS):
        for mode, times_s in tried.items():
            times_s.append(timed[mode]())
    best = min(tried, key=lambda mode: median(tried[mode]))

    for other, in_words in OTHERS.items():
        rounds = rounds_in_turn(timed[best], timed[other], rounds=ROUNDS)
        ratios = [theirs_s / ours_s for ours_s, theirs_s in rounds]
        print(f"many models, N = {models}: {best} is {with_interval(ratios)} times as fast as {in_words}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
