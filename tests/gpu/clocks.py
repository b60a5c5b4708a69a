"""Do other clocks agree with ours? The time of a step of about 1 ms by each, in turn in one process.

    python -m tests.gpu.clocks jax|torch

PyTorch: harness/measure/clock.py's block of back-to-back calls against torch.utils.benchmark.Timer.blocked_autorange.
JAX has no timer of its own: our waited-for call against the loop that its documentation has, timeit around
block_until_ready (docs.jax.dev/en/latest/benchmarking.html). Ratios are medians over rounds. Status 1 where they are
further apart than the goal.
"""

import sys
import timeit
from collections.abc import Callable, Sequence
from typing import Any

from bench.timed_loop import CALLS, make_jax, make_torch, sized
from bench.turns import Timed, rounds_in_turn, with_interval
from harness.measure.clock import Step, Wait, time_block, time_call
from harness.plan import Framework
from harness.results.statistics import median

ROUNDS, MAX_TIME_S = 40, 20.0
WITHIN_ON_GPU, WITHIN_ON_CPU = 0.02, 0.10
"""How far the ratio may be from 1. A busy machine with two cores is no quieter than that."""


def waited_calls(step: Step, wait: Wait) -> Timed:
    """Of a call, on average."""
    return lambda: sum(time_call(step, wait) for _ in range(CALLS)) / CALLS


def back_to_back(step: Step, wait: Wait) -> Timed:
    return lambda: time_block(step, wait, CALLS) / CALLS


def torch_timer(step: Step) -> Timed:
    """Seconds of a call: the median of its blocks. On a GPU it waits at the ends of each."""
    from torch.utils.benchmark import Timer

    timer = Timer("step()", globals={"step": step})

    def timed() -> float:
        found: float = timer.blocked_autorange(min_run_time=0.1).median
        return found

    return timed


def jax_loop(step: Step, now: Callable[[], float] = timeit.default_timer) -> Timed:
    """Seconds of a call, on average."""
    timer = timeit.Timer("step().block_until_ready()", timer=now, globals={"step": step})
    return lambda: timer.timeit(CALLS) / CALLS


CLOCKS: dict[Framework, tuple[str, Callable[[Step, Wait], Timed], Callable[[Step], Timed]]] = {
    "jax": ("timeit of block_until_ready", waited_calls, jax_loop),
    "torch": ("torch.utils.benchmark.Timer", back_to_back, torch_timer),
}
"""Its name, our clock, and the other one."""


def ratios(framework: Framework, rounds: int = ROUNDS) -> tuple[list[float], float]:
    """Ours over the other clock's of each round, and the seconds of a step by the other one."""
    work, wait, make_state = {"jax": make_jax, "torch": make_torch}[framework]()
    state = sized(work, wait, make_state)

    def step() -> Any:
        nonlocal state
        state = work(state)
        return state

    _, own, other = CLOCKS[framework]
    ours, theirs = own(step, wait), other(step)
    ours()
    theirs()
    found = rounds_in_turn(ours, theirs, rounds=rounds, max_time_s=MAX_TIME_S)
    return [our_s / their_s for our_s, their_s in found], median([their_s for _, their_s in found]) / 2


def on_gpu(framework: Framework) -> bool:
    if framework == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import torch

    return torch.cuda.is_available()


def is_within(found: Sequence[float], within: float) -> bool:
    return 1 - within <= median(found) <= 1 + within


def main(framework: Framework) -> int:
    found, step_s = ratios(framework)
    within = WITHIN_ON_GPU if on_gpu(framework) else WITHIN_ON_CPU
    print(
        f"clocks, {framework}: {with_interval(found, digits=4)} of the time per step by {CLOCKS[framework][0]} "
        f"(step {step_s * 1e3:.2f} ms; goal {1 - within:.2f} to {1 + within:.2f})",
        flush=True,
    )
    return int(not is_within(found, within))


if __name__ == "__main__":
    sys.exit(main("jax" if sys.argv[1] == "jax" else "torch"))
