"""What the parity gate compares of use cases 1 and 2: one batch through the model, and a few steps of the program that
is timed."""

from typing import Any

import jax
import numpy as np

from harness.parity import PARITY_STEPS
from harness.session import Session
from harness.weights import batch_order, initial_weight
from harness.world import World
from jax_runner.several_devices import own_part
from jax_runner.use_cases import train
from jax_runner.weights import Neutral, to_neutral


def parity_numbers(session: Session) -> Neutral:
    """Of the first batch: logits, mean loss, gradient, running statistics. Of the steps: losses, what they have added
    to the parameters, running statistics. Gradients and losses are means over the devices; statistics are rank 0's."""
    jax.clear_caches()
    measurement, dataset, world = session.measurement, session.dataset, session.world
    seed, batch_size = measurement.protocol.seed, measurement.variant.batch_size
    training = train.Training(session)
    order = batch_order(seed, len(dataset.train_labels), batch_size, epochs=1)[:PARITY_STEPS]
    steps_per_call = PARITY_STEPS if measurement.variant.execution_mode == "scan" else 1

    numbers = first_batch(session, training, order[0, world.rows(batch_size)])
    data = train.place_data(train.Data(dataset.train_images, dataset.train_labels, order), world)
    train_step = train.make_train_step(training, steps_per_call)
    state = training.initial_state()
    losses = []
    for _ in range(PARITY_STEPS // steps_per_call):
        state, loss = train_step(state, data)
        losses.append(np.atleast_1d(mean_of_own_devices(own_part(loss), world)))
    state = own_state(training, state)
    flattened = training.benchmark.FLATTENED
    numbers["losses_of_steps"] = session.device.mean_over_ranks(np.concatenate(losses))
    for name, value in to_neutral(state.params, flattened).items():
        numbers[f"updates/{name}"] = value - initial_weight(seed, name, value.shape)
    for name, value in to_neutral(state.batch_stats, flattened).items():
        numbers[f"statistics_after_steps/{name}"] = value
    return numbers


def first_batch(session: Session, training: Any, own_rows: np.ndarray) -> Neutral:
    """By the functions that the step is made of."""

    @jax.jit
    def forward_and_backward(state: train.TrainState, images: jax.Array, labels: jax.Array) -> tuple:
        logits, _ = training.logits(state.params, state.batch_stats, images, training=True)
        gradient = jax.value_and_grad(training.loss, has_aux=True)
        (loss, batch_stats), grads = gradient(state.params, state.batch_stats, images, labels)
        return logits, loss, grads, batch_stats

    state = own_state(training, training.initial_state())
    dataset, flattened = session.dataset, training.benchmark.FLATTENED
    of_devices = [
        forward_and_backward(state, dataset.train_images[rows], dataset.train_labels[rows])
        for rows in np.split(own_rows, session.world.devices_per_rank)
    ]
    logits, losses, grads, batch_stats = zip(*of_devices, strict=True)
    numbers = {
        "logits": session.of_all_ranks(np.concatenate(logits)),
        "loss": session.device.mean_over_ranks(np.mean(losses, axis=0)),
    }
    neutral = [to_neutral(of_device, flattened) for of_device in grads]
    for name in neutral[0]:
        value = np.mean([of_device[name] for of_device in neutral], axis=0)
        numbers[f"gradients/{name}"] = session.device.mean_over_ranks(value)
    for name, value in to_neutral(batch_stats[0], flattened).items():
        numbers[f"statistics/{name}"] = value
    return numbers


def own_state(training: Any, state: train.TrainState) -> train.TrainState:
    return state if training.world.device_count == 1 else train.own_state(state)


def mean_of_own_devices(loss: np.ndarray, world: World) -> np.ndarray:
    """Of several devices, a loss has one entry for each along its first axis."""
    return loss if world.device_count == 1 else loss.mean(0)
