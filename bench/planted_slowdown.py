"""Is a planted slowdown as large as it is called? Blocks with and without one, in turn, in one process.

    python -m bench.planted_slowdown jax|torch [RECORD.json]

`main.py calibrate` plants slowdowns in processes of their own, and processes differ by more than what is planted. Here
one process runs the training step of mnist (batch 256) with every slowdown in turn, in a new random order each round,
so what differs is the slowdown alone. Before each block that counts, one with the same slowdown does not. A round gives
one ratio for each slowdown, to the block without; printed is the mean of their logarithms with its standard error.
RECORD.json gets every round's times.
"""

import importlib
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from bench.training import training_session, write_rounds
from harness.measure import Steady, Step, Wait, time_block
from harness.planted_slowdown import PlantedSlowdown
from harness.session import Session
from harness.settings import Framework
from pipeline.calibration import BASES, CONDITIONS

MODES: dict[str, str] = {"jax": "jit", "torch": "eager"}
BLOCK_S = 0.2
WARM_UP_CALLS = 30
ROUNDS, MIN_ROUNDS = 60, 10
MAX_TIME_S = 150.0
"""Then the rounds end, if there are MIN_ROUNDS."""

Rounds = list[dict[str, float]]
"""Seconds of one block by condition."""


class Measured(BaseException):
    """Ends the use case; no Exception, as harness.session.ColdCallsDone."""

    def __init__(self, calls: int, rounds: Rounds) -> None:
        super().__init__()
        self.calls = calls
        self.rounds = rounds


@dataclass(frozen=True, kw_only=True)
class InterleavedSession(Session):
    """Instead of the steady state it measures blocks of every condition in turn."""

    def measure_steady(self, step: Step, wait: Wait, *, steps_per_call: int, samples_per_step: int) -> Steady:
        raise Measured(*interleaved(step, wait))


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


def make_session(framework: Framework) -> InterleavedSession:
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    mode = MODES[framework]
    return training_session(
        InterleavedSession, framework, device, benchmark="mnist", batch_size=256, execution_mode=mode
    )


def slowdowns(rounds: Rounds) -> dict[str, tuple[float, float]]:
    """By condition: mean of the logarithms of its times over those of the first base, and the standard error."""
    base = BASES[0]
    found = {}
    for name in CONDITIONS:
        if name != base:
            logs = [math.log(times_s[name] / times_s[base]) for times_s in rounds]
            found[name] = fmean(logs), stdev(logs) / math.sqrt(len(logs))
    return found


def main(framework: Framework, record: Path | None) -> int:
    session = make_session(framework)
    try:
        importlib.import_module(f"{framework}_runner.use_cases.train").run(session)
    except Measured as measured:
        calls, rounds = measured.calls, measured.rounds
    for name, (mean, error) in slowdowns(rounds).items():
        print(
            f"{framework}, {len(rounds)} rounds, planted {name}: log {math.log1p(CONDITIONS[name]):+.3f}; "
            f"found {mean:+.3f} ± {error:.3f}",
            flush=True,
        )
    if record:
        write_rounds(record, session, calls, rounds)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in MODES:
        sys.exit("usage: python -m bench.planted_slowdown jax|torch [RECORD.json]")
    sys.exit(main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None))  # type: ignore[arg-type]
