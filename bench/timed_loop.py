"""Does the clock's loop cost anything? Its time per step over that of a bare loop, on a step of about 1 ms.

    python -m bench.timed_loop jax|torch

Both loops run by turns; the ratio is the median over rounds, with its 95 % interval. On a CPU the step runs in one
thread: the barriers of several threads on a busy machine cost more than any loop.
"""

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from bench.turns import rounds_in_turn, with_interval
from harness.measure.clock import Wait, time_block
from harness.results.statistics import median

STEP_S = 1e-3
CALLS = 100
ROUNDS = 60

Work = Callable[[Any], Any]
"""From the state to the next one."""


def make_jax() -> tuple[Work, Wait, Callable[[int], Any]]:
    """Work, wait, and the first state of a size."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    from jax import numpy as jnp

    return jax.jit(lambda state: jnp.tanh(state @ state) * 0.5, donate_argnums=0), jax.block_until_ready, jnp.eye


def make_torch() -> tuple[Work, Wait, Callable[[int], Any]]:
    import torch

    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()

    def wait(_: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    return (
        lambda state: torch.tanh(state @ state) * 0.5,
        wait,
        lambda size: torch.eye(size, device="cuda" if on_gpu else "cpu"),
    )


def sized(work: Work, wait: Wait, make_state: Callable[[int], Any]) -> Any:
    """The state whose step takes about STEP_S, by the fastest of a few calls: noise only adds."""
    size = 64
    while True:
        times_s = []
        for _ in range(20):
            state = make_state(size)
            start = perf_counter()
            wait(work(state))
            times_s.append(perf_counter() - start)
        if min(times_s) >= STEP_S:
            return make_state(size)
        size = int(size * 1.1) + 1


def main(framework: str) -> int:
    work, wait, make_state = {"jax": make_jax, "torch": make_torch}[framework]()
    state = sized(work, wait, make_state)

    def step() -> Any:
        nonlocal state
        state = work(state)
        return state

    def bare() -> float:
        """As one would write it by hand."""
        nonlocal state
        start = perf_counter()
        for _ in range(CALLS):
            state = work(state)
        wait(state)
        return perf_counter() - start

    def ours() -> float:
        return time_block(step, wait, CALLS)

    bare()
    ours()
    rounds = rounds_in_turn(ours, bare, rounds=ROUNDS)
    step_s = median([bare_s for _, bare_s in rounds]) / 2 / CALLS
    print(
        f"timed loop, {framework}: {with_interval([ours_s / bare_s for ours_s, bare_s in rounds], digits=4)} of a bare "
        f"loop's time per step (step {step_s * 1e3:.2f} ms; goal 0.99 to 1.01)",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
