"""Does harness/measure.py's loop cost anything? Its time per step over that of a bare loop, on a step of about 1 ms.

    python -m bench.timed_loop jax|torch

Both loops run by turns in the order A B B A; the ratio is the median over rounds, with its 95 % interval. On a CPU the
step runs in one thread: the barriers of several threads on a busy machine cost more than any loop.
"""

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from harness.measure import Step, Wait, time_block
from harness.statistics import median, median_interval

STEP_S = 1e-3
CALLS = 100
ROUNDS = 60

Loop = Callable[[int], float]


def make_jax() -> tuple[Step, Wait, Loop]:
    """The harness's step and wait, and a loop as one would write it by hand; the state is carried from call to call."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    from jax import numpy as jnp

    function = jax.jit(lambda state: jnp.tanh(state @ state) * 0.5, donate_argnums=0)
    size = sized(lambda size: function(jnp.eye(size)), jax.block_until_ready)
    state = jnp.eye(size)

    def step() -> Any:
        nonlocal state
        state = function(state)
        return state

    def bare(calls: int) -> float:
        nonlocal state
        start = perf_counter()
        for _ in range(calls):
            state = function(state)
        state.block_until_ready()
        return perf_counter() - start

    return step, jax.block_until_ready, bare


def make_torch() -> tuple[Step, Wait, Loop]:
    import torch

    torch.set_num_threads(1)

    def function(state: "torch.Tensor") -> "torch.Tensor":
        return torch.tanh(state @ state) * 0.5

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda *_: None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = sized(lambda size: function(torch.eye(size, device=device)), wait)
    state = torch.eye(size, device=device)

    def step() -> Any:
        nonlocal state
        state = function(state)
        return state

    def bare(calls: int) -> float:
        nonlocal state
        start = perf_counter()
        for _ in range(calls):
            state = function(state)
        wait()
        return perf_counter() - start

    return step, lambda _: wait(), bare


def sized(call: Callable[[int], Any], wait: Wait) -> int:
    """The matrix size whose call takes about STEP_S, by the fastest of a few calls: noise only adds."""
    size = 64
    while True:
        times_s = []
        for _ in range(20):
            start = perf_counter()
            wait(call(size))
            times_s.append(perf_counter() - start)
        if min(times_s) >= STEP_S:
            return size
        size = int(size * 1.1) + 1


def main(framework: str) -> int:
    step, wait, bare = {"jax": make_jax, "torch": make_torch}[framework]()
    bare(CALLS)
    time_block(step, wait, CALLS)
    ratios = []
    bare_times_s = []
    for _ in range(ROUNDS):
        ours_s = time_block(step, wait, CALLS)
        theirs_s = bare(CALLS) + bare(CALLS)
        ours_s += time_block(step, wait, CALLS)
        ratios.append(ours_s / theirs_s)
        bare_times_s.append(theirs_s / 2 / CALLS)
    interval = median_interval(ratios)
    print(
        f"timed loop, {framework}: {median(ratios):.4f} of a bare loop's time per step "
        f"(95 % interval {interval.low:.4f} to {interval.high:.4f}; step {median(bare_times_s) * 1e3:.2f} ms; "
        f"goal 0.99 to 1.01)",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
