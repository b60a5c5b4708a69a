"""What tests/runners/one_rank.py does with JAX."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp

from harness.session import Session
from harness.weights import batch_order
from jax_runner.several_devices import own_part
from jax_runner.use_cases import per_sample_gradients, train
from jax_runner.weights import to_neutral
from tests.runners.one_rank import Numbers

FLOAT64 = {"dtype": jnp.float64, "param_dtype": jnp.float64}


@contextmanager
def in_float64() -> Iterator[None]:
    modules = (train, per_sample_gradients)
    with jax.enable_x64(True):
        patches = [mock.patch.object(module, "model_dtypes", lambda precision: FLOAT64) for module in modules]
        for patch in patches:
            patch.start()
        yield
        for patch in patches:
            patch.stop()


def training_steps(session: Session, *, steps: int) -> Numbers:
    """Losses (means over the ranks) and the weights after the steps."""
    training = train.Training(session)
    dtype = session.dataset.mean.dtype
    nnx.update(training.model, jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.state(training.model)))  # BatchNorm's
    measurement, dataset = session.measurement, session.dataset
    order = batch_order(measurement.protocol.seed, len(dataset.train_labels), measurement.variant.batch_size, 1)
    data = train.place_data(train.Data(dataset.train_images, dataset.train_labels, order), session.world)
    steps_per_call = steps if measurement.variant.execution_mode == "scan" else 1
    train_step = train.make_train_step(training, steps_per_call)
    state = training.initial_state()
    compiled = train_step.lower(state, data).compile()
    losses = []
    for _ in range(steps // steps_per_call):
        state, loss = compiled(state, data)
        losses.append(np.ravel(own_part(loss)))
    state = state if session.world.device_count == 1 else train.own_state(state)
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.batch_stats))} == {dtype}
    flattened = training.benchmark.FLATTENED
    weights = to_neutral(state.params, flattened) | to_neutral(state.batch_stats, flattened)
    return {
        "losses": session.device.mean_over_ranks(np.concatenate(losses)),
        "collectives": count_collectives(compiled.as_text()),
        **{f"weights/{name}": value for name, value in weights.items()},
    }


def gradients(session: Session, *, mode: str, output: str, clip_norm: float) -> Numbers:
    """What the timed function gives: this rank's part where the output is per sample."""
    problem = per_sample_gradients.Problem(session)
    compute = per_sample_gradients.make_function(problem, mode, output, clip_norm=clip_norm, chunk_size=3)
    arguments: tuple[Any, ...] = (
        problem.replicated(problem.params),
        *problem.own_batch(range(session.measurement.variant.batch_size)),
    )
    compiled = jax.jit(compute).lower(*arguments).compile()
    neutral = problem.to_neutral(own_part(compiled(*arguments)), output)
    return {
        "collectives": count_collectives(compiled.as_text()),
        **{f"gradients/{name}": value for name, value in neutral.items()},
    }


def agreements(session: Session) -> Numbers:
    """What the ranks agree on, and how many programs that compiles once it has been done."""
    device, rank = session.device, session.world.rank
    values = [device.agree(0.1 + rank), *device.mean_over_ranks(np.array([rank, 1 / 3]))]
    compiled_before = device.compilations()
    values.append(device.agree(2.0**40 + 1 / 3 - rank))
    return {"values": np.array(values), "compiled": np.array(device.compilations() - compiled_before)}


def count_collectives(hlo: str) -> np.ndarray:
    """All-reduces, and any other collectives, in a compiled program."""
    others = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
    operations = [line.partition(" = ")[2] for line in hlo.splitlines()]
    count = {
        name: sum(f" {name}(" in operation or f" {name}-start(" in operation for operation in operations)
        for name in ("all-reduce", *others)
    }
    return np.array([count["all-reduce"], sum(count[name] for name in others)])
