"""JAX's training step on several devices: is shard_map faster than jit with NamedSharding? (docs/studies/sharding.md)

    python -m studies.sharding mnist|cifar10 BATCH_SIZE [RECORD.json]

One process with two devices: two GPUs if there are two, otherwise two devices that JAX makes of the CPU. Both ways
start from the same weights, get the same batches, and must agree before they are timed. They take turns in the order A
B B A. The ratio is NamedSharding's time over that of shard_map, as the median over rounds: above 1, shard_map is
faster. RECORD.json stores the times of every round.
"""

import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding

from bench.measurement import make_measurement
from bench.turns import rounds_in_turn, with_interval
from harness.measure.clock import time_block
from harness.measure.process import make_session
from harness.measure.world import World
from jax_runner.device import Device
from jax_runner.several_devices import REPLICATED, mesh, own_part
from jax_runner.use_cases.train import Training
from studies.published import write_rounds

WORLD = World(devices_per_rank=2)
BLOCK_S = 0.1
ROUNDS = 40
MAX_TIME_S = 90.0
STEPS_COMPARED = 5
AGREEMENT = 1e-4
"""Relative, of the losses and of the weights' norm after a few steps in float32: sums over half batches round."""


def with_named_sharding(program: Training) -> Training:
    """One program as for one device, on the whole batch; how the arrays lie tells XLA where to communicate."""
    replicated = NamedSharding(mesh(), REPLICATED)
    program.use(jax.jit(program.optimizer_step, donate_argnums=0, out_shardings=replicated))
    return program


def first_steps(program: Training) -> np.ndarray:
    """Losses of the first steps, mean over the devices, and the weights' norm after them."""
    losses = [np.mean(own_part(program.step()[1])) for _ in range(STEPS_COMPARED)]
    leaves = jax.tree.leaves(program.own_state().params)
    return np.array([*losses, np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in leaves))])


def main(benchmark: str, batch_size: int, record: Path | None) -> int:
    device = Device()
    device.join(WORLD)
    device.set_up("fp32")
    measurement = make_measurement(
        "jax", "train", benchmark=benchmark, batch_size=batch_size, execution_mode="step.jit", devices=2
    )
    session = make_session(measurement, device, world=WORLD)
    ours, theirs = Training(session), with_named_sharding(Training(session, joined=False))
    difference = np.max(np.abs(first_steps(ours) / first_steps(theirs) - 1))
    if not difference <= AGREEMENT:
        print(f"{benchmark}, batch {batch_size}: the two differ by {difference:.1e}", file=sys.stderr)
        return 1

    calls = 2
    while time_block(ours.step, device.wait, calls) < BLOCK_S:
        calls *= 2
    time_block(theirs.step, device.wait, calls)
    blocks = [partial(time_block, program.step, device.wait, calls) for program in (ours, theirs)]
    rounds = [
        {"shard_map_s": ours_s, "named_sharding_s": theirs_s}
        for ours_s, theirs_s in rounds_in_turn(*blocks, rounds=ROUNDS, max_time_s=MAX_TIME_S)
    ]
    ratios = [times["named_sharding_s"] / times["shard_map_s"] for times in rounds]
    print(
        f"training step on 2 devices, {benchmark}, batch {batch_size}: shard_map is {with_interval(ratios)} times as "
        f"fast as jit with NamedSharding",
        flush=True,
    )
    if record:
        write_rounds(record, measurement, device, calls, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
