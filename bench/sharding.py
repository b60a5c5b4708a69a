"""JAX on several devices: shard_map, which the project uses, against jit with NamedSharding, on the training step.

    python -m bench.sharding mnist|cifar10 BATCH_SIZE [RECORD.json]

One process with two devices: two GPUs where there are two, else two devices that JAX makes of the CPU. Both start from
the same weights, see the same batches, and must agree before they are timed. They take turns in the order A B B A; the
ratio is the median over rounds of NamedSharding's time over shard_map's: above 1, shard_map is faster. RECORD.json gets
every round's times.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bench.training import training_session, write_rounds
from harness.measure import time_block
from harness.session import Session
from harness.statistics import median, median_interval
from harness.weights import batch_order
from harness.world import World
from jax_runner.device import Device
from jax_runner.several_devices import mesh, own_part
from jax_runner.use_cases.train import Data, Training, TrainState, make_train_step, place_data

WORLD = World(devices_per_rank=2)
BLOCK_S = 0.1
ROUNDS, MIN_ROUNDS = 40, 10
MAX_TIME_S = 90.0
"""Then the rounds end, if there are MIN_ROUNDS."""
STEPS_COMPARED = 5
AGREEMENT = 1e-4
"""Relative, of the losses and of the weights' norm after a few steps in float32: sums over half batches round."""

TrainStep = Callable[[TrainState, Data], tuple[TrainState, jax.Array]]


def make_session(benchmark: str, batch_size: int) -> Session:
    device = Device()
    device.join(WORLD)
    device.set_up("fp32")
    return training_session(
        Session, "jax", device, benchmark=benchmark, batch_size=batch_size, execution_mode="jit", world=WORLD
    )


def with_shard_map(training: Training) -> TrainStep:
    return make_train_step(training, 1)


def with_named_sharding(training: Training) -> TrainStep:
    """One program as for one device, on the whole batch; how the arrays lie tells XLA where to communicate."""
    training.averages = False
    replicated = NamedSharding(mesh(), PartitionSpec())

    def train_step(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        return training.step(state, data)

    return jax.jit(train_step, donate_argnums=0, out_shardings=replicated)


def compared(session: Session, train_step: TrainStep, training: Training, data: Data) -> np.ndarray:
    """Losses of the first steps, mean over the devices, and the weights' norm after them."""
    state = training.initial_state()
    losses = []
    for _ in range(STEPS_COMPARED):
        state, loss = train_step(state, data)
        losses.append(np.mean(own_part(loss)))
    norm = np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(own_part(state.params))))
    return np.array([*losses, norm])


def make_step(train_step: TrainStep, training: Training, data: Data) -> Callable[[], Any]:
    state = training.initial_state()

    def step() -> Any:
        nonlocal state
        state, loss = train_step(state, data)
        return state, loss

    return step


def main(benchmark: str, batch_size: int, record: Path | None) -> int:
    session = make_session(benchmark, batch_size)
    wait = session.device.wait
    dataset = session.dataset
    order = batch_order(0, len(dataset.train_labels), batch_size, 1)
    data = place_data(Data(dataset.train_images, dataset.train_labels, order), WORLD)
    steps, numbers = {}, {}
    for name, make in (("shard_map", with_shard_map), ("NamedSharding", with_named_sharding)):
        training = Training(session)
        train_step = make(training)
        numbers[name] = compared(session, train_step, training, data)
        steps[name] = make_step(train_step, training, data)
    difference = np.max(np.abs(numbers["shard_map"] / numbers["NamedSharding"] - 1))
    if not difference <= AGREEMENT:
        print(f"{benchmark}, batch {batch_size}: the two differ by {difference:.1e}", file=sys.stderr)
        return 1

    ours, theirs = steps["shard_map"], steps["NamedSharding"]
    calls = 2
    while time_block(ours, wait, calls) < BLOCK_S:
        calls *= 2
    time_block(theirs, wait, calls)
    rounds: list[dict[str, float]] = []
    start = perf_counter()
    while len(rounds) < MIN_ROUNDS or (len(rounds) < ROUNDS and perf_counter() - start < MAX_TIME_S):
        first, second, third, fourth = (time_block(step, wait, calls) for step in (ours, theirs, theirs, ours))
        rounds.append({"shard_map_s": first + fourth, "named_sharding_s": second + third})
    ratios = [times["named_sharding_s"] / times["shard_map_s"] for times in rounds]
    interval = median_interval(ratios)
    print(
        f"training step on 2 devices, {benchmark}, batch {batch_size}: shard_map is {median(ratios):.2f} times as fast "
        f"as jit with NamedSharding (95 % interval {interval.low:.2f} to {interval.high:.2f})",
        flush=True,
    )
    if record:
        write_rounds(record, session, calls, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
