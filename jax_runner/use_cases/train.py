"""Use cases 1 and 2: train a model on one GPU, or on several.

The data set lies on the device as uint8; a step gathers its batch there, by an order that numpy drew from the seed,
so both frameworks see the same batches. First the step's speed is measured; then the weights are drawn anew and the
model trains for the configured epochs, evaluated after each, outside the clock.

Execution modes:
    jit                    one jitted call per step, state donated
    scan                   one jitted call per epoch: lax.scan over its steps
    jit_process_per_node   jit, with one process for all devices of a node instead of one process for each device

On several devices each takes its own part of every batch, and the gradients are averaged (several_devices.py).
BatchNorm's statistics are the device's own; the first device's are what the evaluation in the record uses.
"""

import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from harness.measure import Step
from harness.record import EpochPoint, Result
from harness.session import Session
from harness.training import require_finite, require_finite_evaluation, time_to_target_s
from harness.weights import batch_order
from harness.world import World
from jax_runner.device import model_dtypes
from jax_runner.several_devices import (
    AXIS,
    REPLICATED,
    SPLIT,
    details_of,
    global_arrays,
    on_every_device,
    own_part,
    require_several_devices,
)
from jax_runner.weights import Params, arrays_of, load_initial_weights, parameter_count

EXECUTION_MODES = ("jit", "scan", "jit_process_per_node")
PROCESS_PER_NODE = ("jit_process_per_node",)
OPTIONS = {}
SETTINGS = {
    "epochs": "positive integer",
    "learning_rate": "positive number",
    "momentum": "fraction",
    "weight_decay": "non-negative number",
    "target_accuracy": "fraction",
}
REFUSED_MODELS = {}

EVALUATION_BATCH = 1000


class TrainState(NamedTuple):
    params: Params
    batch_stats: Params
    """Of several devices, each device's own: its arrays have a first axis of one entry per device."""
    opt_state: optax.OptState
    step: jax.Array
    """How many steps were made; the row of the order that comes next."""


class Data(NamedTuple):
    images: jax.Array
    """uint8 [samples, height, width, channels]"""
    labels: jax.Array
    order: jax.Array
    """int32 [steps, batch]; of several devices, the batch is split"""


TrainStep = Callable[[TrainState, Data], tuple[TrainState, jax.Array]]


def run(session: Session) -> Result:
    measurement = session.measurement
    variant, epochs = measurement.variant, int(measurement.settings["epochs"])
    order = batch_order(measurement.protocol.seed, len(session.dataset.train_labels), variant.batch_size, epochs)
    steps_per_call = len(order) // epochs if variant.execution_mode == "scan" else 1
    if variant.execution_mode in PROCESS_PER_NODE:
        require_several_devices(session.world)
    result = measure(session, order, steps_per_call)
    if session.world.device_count == 1:
        return result
    return session.add_control(result, lambda: make_control(session, order, steps_per_call))


def measure(session: Session, order: NDArray[np.int32], steps_per_call: int) -> Result:
    """All but the control of several devices."""
    variant, settings = session.measurement.variant, session.measurement.settings
    epochs = int(settings["epochs"])
    steps_per_epoch = len(order) // epochs
    training = Training(session)
    data = place_data(Data(session.dataset.train_images, session.dataset.train_labels, order), session.world)
    train_step = make_train_step(training, steps_per_call)
    state = training.initial_state()

    def step() -> tuple[TrainState, jax.Array]:
        nonlocal state
        state, loss = train_step(state, data)
        return state, loss

    wait = session.device.wait
    wait((state, data))  # copied before the clock starts
    cold_call_times_s = session.measure_cold(step, wait)
    steady = session.measure_steady(step, wait, steps_per_call=steps_per_call, samples_per_step=variant.batch_size)

    state = training.initial_state()
    points: list[EpochPoint] = []
    for epoch in range(1, epochs + 1):
        wait(state)
        session.agree(epoch)  # evaluation ends earlier on one device than on another
        start = perf_counter()
        outputs = [step()[1] for _ in range(steps_per_epoch // steps_per_call)]
        wait((state, outputs))
        train_time_s = session.agree(perf_counter() - start)
        losses = session.device.mean_over_ranks(np.concatenate([np.ravel(own_part(loss)) for loss in outputs]))
        require_finite(losses, epoch)
        test_loss, test_accuracy = training.evaluate(state)
        require_finite_evaluation(test_loss, epoch, losses.size)
        points.append(
            EpochPoint(
                epoch=epoch,
                train_time_s=train_time_s,
                train_loss=float(losses.mean()),
                test_loss=test_loss,
                test_accuracy=test_accuracy,
            )
        )
        session.report_epoch(points[-1], epochs)

    if session.device.on_gpu:
        session.device.set_step_peak(train_step.lower(state, data).compile())
    return session.result(
        steady,
        cold_call_times_s,
        epochs=points,
        time_to_target_s=time_to_target_s(points, float(settings["target_accuracy"])),
        parameter_count=parameter_count(training.model),
        details={"batch_norm": "local", **details_of(session, PROCESS_PER_NODE)} if training.averages else {},
    )


class Training:
    """The model, its loss and its optimizer, as pure functions of a TrainState."""

    def __init__(self, session: Session) -> None:
        measurement = session.measurement
        settings = measurement.settings
        self.dataset = session.dataset
        self.world = session.world
        self.averages = session.world.device_count > 1
        """Whether a step averages the gradients over the devices."""
        self.seed = measurement.protocol.seed
        self.benchmark = importlib.import_module(f"jax_runner.benchmarks.{measurement.cell.benchmark}")
        self.model = self.benchmark.make_model(measurement.variant.model, model_dtypes(measurement.variant.precision))
        self.graphdefs = {
            training: nnx.graphdef(nnx.view(self.model, use_running_average=not training, raise_if_not_found=False))
            for training in (True, False)
        }
        self.optimizer = optax.chain(
            optax.add_decayed_weights(float(settings["weight_decay"])),
            optax.sgd(float(settings["learning_rate"]), momentum=float(settings["momentum"])),
        )
        self._evaluate_batch = jax.jit(self.evaluate_batch)

    def initial_state(self) -> TrainState:
        load_initial_weights(self.model, self.seed, self.benchmark.FLATTENED)
        own = arrays_of(self.model, nnx.Param), arrays_of(self.model, nnx.BatchStat)
        params, batch_stats = jax.tree.map(jnp.copy, own)  # the step donates them
        state = TrainState(params, batch_stats, self.optimizer.init(params), jnp.zeros((), jnp.int32))
        return state if self.world.device_count == 1 else spread_state(state, self.world)

    def normalise(self, images: jax.Array) -> jax.Array:
        """uint8 [batch, height, width, channels] to float32 of mean 0 and standard deviation 1 per channel."""
        return (images.astype(self.dataset.mean.dtype) / 255 - self.dataset.mean) / self.dataset.std

    def logits(
        self, params: Params, batch_stats: Params, images: jax.Array, *, training: bool
    ) -> tuple[jax.Array, Params]:
        model = nnx.merge(self.graphdefs[training], params, batch_stats, copy=True)  # it updates its own statistics
        logits = model(self.normalise(images))
        if logits.dtype == jnp.bfloat16:
            logits = logits.astype(jnp.float32)
        return logits, arrays_of(model, nnx.BatchStat)

    def loss(
        self, params: Params, batch_stats: Params, images: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, Params]:
        logits, batch_stats = self.logits(params, batch_stats, images, training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), batch_stats

    def step(self, state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        """One optimizer step on the batch that the order has next; returns the new state and the batch's mean loss."""
        rows = data.order[state.step % len(data.order)]
        gradient = jax.value_and_grad(self.loss, has_aux=True)
        (loss, batch_stats), grads = gradient(state.params, state.batch_stats, data.images[rows], data.labels[rows])
        if self.averages:
            grads = jax.lax.pmean(grads, AXIS)  # leaf by leaf, which XLA may combine and overlap with the backward pass
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, batch_stats, opt_state, state.step + 1), loss

    def evaluate_batch(self, state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sum of the losses and number of right answers."""
        logits, _ = self.logits(state.params, state.batch_stats, images, training=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.sum(), (logits.argmax(1) == labels).sum()

    def evaluate(self, state: TrainState) -> tuple[float, float]:
        """Mean loss and accuracy over the test set; every device does all of it."""
        state = state if self.world.device_count == 1 else own_state(state)
        count = len(self.dataset.test_labels)
        loss_sum = right = 0.0
        for first in range(0, count, EVALUATION_BATCH):
            batch = slice(first, first + EVALUATION_BATCH)
            batch_loss, batch_right = self._evaluate_batch(
                state, self.dataset.test_images[batch], self.dataset.test_labels[batch]
            )
            loss_sum += float(batch_loss)
            right += float(batch_right)
        return loss_sum / count, right / count


def make_train_step(training: Training, steps_per_call: int) -> Any:
    """(state, data) -> (state, loss), jitted; the loss is [steps_per_call] where a call holds several steps.

    Of several devices, each has the loss of its own part of the batch: [devices] or [devices, steps_per_call].
    """

    def train_steps(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        if steps_per_call == 1:
            return training.step(state, data)
        return jax.lax.scan(lambda carry, _: training.step(carry, data), state, None, length=steps_per_call)

    function = train_steps if training.world.device_count == 1 else on_all_parts(train_steps)
    return jax.jit(function, donate_argnums=0)


STATE_SPECS = TrainState(params=REPLICATED, batch_stats=SPLIT, opt_state=REPLICATED, step=REPLICATED)
DATA_SPECS = Data(images=REPLICATED, labels=REPLICATED, order=PartitionSpec(None, AXIS))


def on_all_parts(train_steps: TrainStep) -> TrainStep:
    """Every device runs the steps on its own part of each batch."""

    def train_on_own_part(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        state, loss = train_steps(without_device_axis(state), data)
        return with_device_axis(state), loss[None]

    return on_every_device(train_on_own_part, in_specs=(STATE_SPECS, DATA_SPECS), out_specs=(STATE_SPECS, SPLIT))


def place_data(data: Data, world: World) -> Data:
    """On the device; of several, each gets all samples and its own part of the order."""
    if world.device_count == 1:
        return jax.device_put(data)
    own = data._replace(order=data.order[:, world.rows(data.order.shape[1])])
    return Data(*map(global_arrays, own, DATA_SPECS))


def spread_state(state: TrainState, world: World) -> TrainState:
    """What every process has drawn for itself as one state over all devices."""
    own = with_device_axis(state)
    statistics = jax.tree.map(lambda leaf: jnp.repeat(leaf, world.devices_per_rank, axis=0), own.batch_stats)
    return TrainState(*map(global_arrays, own._replace(batch_stats=statistics), STATE_SPECS))


def own_state(state: TrainState) -> TrainState:
    """The other way: the weights, and the BatchNorm statistics of this process's first device."""
    return without_device_axis(own_part(state))


def make_control(session: Session, order: NDArray[np.int32], steps_per_call: int) -> Step:
    """The step without the average of the gradients."""
    training = Training(session)
    training.averages = False
    data = place_data(Data(session.dataset.train_images, session.dataset.train_labels, order), session.world)
    train_step = make_train_step(training, steps_per_call)
    state = training.initial_state()

    def step() -> tuple[TrainState, jax.Array]:
        nonlocal state
        state, loss = train_step(state, data)
        return state, loss

    return step


def with_device_axis(state: TrainState) -> TrainState:
    return state._replace(batch_stats=jax.tree.map(lambda leaf: leaf[None], state.batch_stats))


def without_device_axis(state: TrainState) -> TrainState:
    return state._replace(batch_stats=jax.tree.map(lambda leaf: leaf[0], state.batch_stats))
