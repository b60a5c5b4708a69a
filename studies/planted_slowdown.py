"""Is a planted slowdown as large as intended? Blocks in turn in one process (docs/studies/planted_slowdown.md).

    python -m studies.planted_slowdown jax|torch [RECORD.json]

`main.py calibrate` plants slowdowns in separate processes, and two equal processes differ by more than the slowdown.
Here one process runs the training step of mnist (batch 256) with every slowdown in turn, in a new random order in each
round, so that the slowdown is the only difference. Before each measured block, an unmeasured one runs with the same
slowdown. A round gives one ratio for each slowdown, to the block without one. The output is the mean of their
logarithms with its standard error. RECORD.json stores the times of every round.
"""

import importlib
import math
import random
import sys
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from bench.measurement import make_measurement
from harness.measure.clock import Step, Wait, time_block
from harness.measure.process import builder, make_session
from harness.measure.slowdown import PlantedSlowdown
from harness.plan import SLOWDOWNS, Framework
from pipeline.report.calibration import in_percent
from studies.published import write_rounds

MODES: dict[str, str] = {"jax": "step.jit", "torch": "step.eager"}
CONDITIONS = {"A": 0.0, "A'": 0.0} | {in_percent(name): fraction for name, fraction in SLOWDOWNS.items()}
BLOCK_S = 0.2
WARM_UP_CALLS = 30
ROUNDS, MIN_ROUNDS = 60, 10
MAX_TIME_S = 150.0
"""Then the rounds end, if there are MIN_ROUNDS."""

Rounds = list[dict[str, float]]
"""Seconds of one block by condition."""


def interleaved(step: Step, wait: Wait) -> tuple[int, Rounds]:
    """Calls in a block, and the rounds."""
    planted = {name: PlantedSlowdown(fraction, step, wait) for name, fraction in CONDITIONS.items()}
    outputs: Any = None
    for _ in range(WARM_UP_CALLS):
        outputs = step()
    wait(outputs)
    calls = math.ceil(BLOCK_S / time_block(step, wait, 1))
    order, chance = list(planted), random.Random(0)
    rounds: Rounds = []
    start = perf_counter()
    while len(rounds) < MIN_ROUNDS or (len(rounds) < ROUNDS and perf_counter() - start < MAX_TIME_S):
        chance.shuffle(order)
        times_s = {}
        for name in order:
            slowed = planted[name]
            time_block(slowed.step, slowed.wait, calls)
            times_s[name] = time_block(slowed.step, slowed.wait, calls)
        rounds.append(times_s)
    return calls, rounds


def slowdowns(rounds: Rounds) -> dict[str, tuple[float, float]]:
    """By condition: mean of the logarithms of its times over those of the first base, and the standard error."""
    base = "A"
    found = {}
    for name in CONDITIONS:
        if name != base:
            logs = [math.log(times_s[name] / times_s[base]) for times_s in rounds]
            found[name] = fmean(logs), stdev(logs) / math.sqrt(len(logs))
    return found


def main(framework: Framework, record: Path | None) -> int:
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    measurement = make_measurement(
        framework, "train", benchmark="mnist", batch_size=256, execution_mode=MODES[framework]
    )
    program = builder(measurement)(make_session(measurement, device))
    calls, rounds = interleaved(program.step, device.wait)
    for name, (mean, error) in slowdowns(rounds).items():
        print(
            f"{framework}, {len(rounds)} rounds, planted {name}: log {math.log1p(CONDITIONS[name]):+.3f}; "
            f"found {mean:+.3f} ± {error:.3f}",
            flush=True,
        )
    if record:
        write_rounds(record, measurement, device, calls, rounds)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in MODES:
        sys.exit("usage: python -m studies.planted_slowdown jax|torch [RECORD.json]")
    sys.exit(main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None))  # type: ignore[arg-type]
