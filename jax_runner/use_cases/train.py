"""Use cases 1 and 2: train a model on one GPU, or on several.

The data set lies on the device; a step gathers its batch there, by an order that numpy drew from the seed, so both
frameworks see the same batches.

Formulations:
    step    one jitted call per step, state donated
    scan    one jitted call per epoch: lax.scan over its steps

On several devices each takes its own part of every batch, and the gradients are averaged (several_devices.py).
BatchNorm's statistics are the device's own; the first device's are what the evaluation in the record uses.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from harness.measure.program import Session, Trains
from harness.measure.world import World
from harness.results.parity import PARITY_STEPS
from harness.work.use_cases.train import Settings
from harness.work.weights import batch_order, initial_weight
from jax_runner.compiler import step_peak_bytes
from jax_runner.device import Device, model_dtypes
from jax_runner.models import make_model
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
from jax_runner.task import Batch, make_task
from jax_runner.weights import (
    Neutral,
    Params,
    arrays_of,
    flattened_of,
    load_initial_weights,
    parameter_count,
    to_neutral,
)

EVALUATION_BATCH = 1000


class TrainState(NamedTuple):
    params: Params
    batch_stats: Params
    """Of several devices, each device's own: its arrays have a first axis of one entry per device."""
    opt_state: optax.OptState
    step: jax.Array
    """How many steps were made; the row of the order that comes next."""


class Data(NamedTuple):
    arrays: Batch
    """The training set."""
    order: Any
    """int32 [steps, batch]; of several devices, the batch is split"""


TrainStep = Callable[[TrainState, Data], tuple[TrainState, jax.Array]]


def build(session: Session[Device], *, joined: bool = True) -> "Training":
    require_several_devices(session)
    return Training(session, joined=joined)


class Training(Trains):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        """`joined`: average the gradients over the devices, where there are several."""
        measurement = session.measurement
        settings = Settings.model_validate(measurement.settings)
        self.session = session
        self.world = session.world
        self.seed = measurement.protocol.seed
        self.communicates = joined and not session.is_alone
        dtypes = model_dtypes(measurement.variant.precision)
        self.task = make_task(session, dtypes["param_dtype"])
        self.model = make_model(session, dtypes)
        self.graphdefs = {
            training: nnx.graphdef(nnx.view(self.model, use_running_average=not training, raise_if_not_found=False))
            for training in (True, False)
        }
        self.optimizer = optax.chain(
            optax.add_decayed_weights(settings.weight_decay),
            optax.sgd(settings.learning_rate, momentum=settings.momentum),
        )
        batch_size = measurement.variant.batch_size
        self.order = batch_order(self.seed, session.dataset.train_count, batch_size, settings.epochs)
        self.samples_per_step = batch_size
        self.steps_per_call = len(self.order) // settings.epochs if session.mode.formulation == "scan" else 1
        self.parameter_count = parameter_count(self.model)
        self.details = {} if session.is_alone else {"batch_norm": "local", **details_of(session)}
        self.compute = make_train_step(self, self.steps_per_call)
        self.data = place_data(Data(session.dataset.train, self.order), self.world)
        self.current = self.initial_state()

    def step(self) -> tuple[TrainState, jax.Array]:
        self.current, loss = self.compute(self.current, self.data)
        return self.current, loss

    def state(self) -> tuple[TrainState, Data]:
        return self.current, self.data

    def step_peak_bytes(self) -> int | None:
        on_gpu = self.session.device.on_gpu
        return step_peak_bytes(self.compute.lower(self.current, self.data).compile()) if on_gpu else None

    def reset(self) -> None:
        self.current = self.initial_state()

    def kept(self, outputs: tuple[TrainState, jax.Array]) -> jax.Array:
        return outputs[1]

    def losses(self, kept: list[jax.Array]) -> NDArray[np.floating[Any]]:
        """Of several devices of this process, their means."""
        of_calls = [np.atleast_1d(mean_of_own_devices(own_part(loss), self.world)) for loss in kept]
        return np.concatenate(of_calls)

    def evaluate(self) -> tuple[float, float]:
        """Every device does all of the test set."""
        test, state = self.session.dataset.test, self.own_state()
        count = self.session.dataset.test_count
        loss_sum = score_sum = 0.0
        for first in range(0, count, EVALUATION_BATCH):
            batch = {name: np.asarray(array[first : first + EVALUATION_BATCH]) for name, array in test.items()}
            losses, scores = self.evaluate_batch(state, batch)
            loss_sum += float(losses)
            score_sum += float(scores)
        return loss_sum / count, score_sum / count

    def parity(self) -> Neutral:
        """Of the first batch: outputs, mean loss, gradient, running statistics. Of the steps: losses, what they have
        added to the parameters, running statistics. Gradients and losses are means over the devices; statistics are
        rank 0's."""
        numbers = self.first_batch()
        steps_per_call = PARITY_STEPS if self.session.mode.formulation == "scan" else 1
        self.compute = make_train_step(self, steps_per_call)
        self.reset()
        kept = [self.kept(self.step()) for _ in range(PARITY_STEPS // steps_per_call)]
        state = self.own_state()
        numbers["losses_of_steps"] = self.session.device.mean_over_ranks(self.losses(kept))
        for name, value in to_neutral(state.params, flattened_of(self.model)).items():
            numbers[f"updates/{name}"] = value - initial_weight(self.seed, name, value.shape)
        for name, value in to_neutral(state.batch_stats, flattened_of(self.model)).items():
            numbers[f"statistics_after_steps/{name}"] = value
        return numbers

    def first_batch(self) -> Neutral:
        """By the functions that the step is made of."""

        @jax.jit
        def forward_and_backward(state: TrainState, batch: Batch) -> tuple[Any, ...]:
            outputs, _ = self.outputs(state.params, state.batch_stats, batch, training=True)
            gradient = jax.value_and_grad(self.loss, has_aux=True)
            (loss, batch_stats), grads = gradient(state.params, state.batch_stats, batch)
            return outputs, loss, grads, batch_stats

        session, train = self.session, self.session.dataset.train
        own_rows = self.order[0, self.world.rows(self.samples_per_step)]
        state = self.own_state()
        of_devices = [
            forward_and_backward(state, {name: array[rows] for name, array in train.items()})
            for rows in np.split(own_rows, self.world.devices_per_rank)
        ]
        outputs, losses, grads, batch_stats = zip(*of_devices, strict=True)
        numbers = {
            "outputs": session.of_all_ranks(np.concatenate(outputs)),
            "loss": session.device.mean_over_ranks(np.mean(losses, axis=0)),
        }
        neutral = [to_neutral(of_device, flattened_of(self.model)) for of_device in grads]
        for name in neutral[0]:
            value = np.mean([of_device[name] for of_device in neutral], axis=0)
            numbers[f"gradients/{name}"] = session.device.mean_over_ranks(value)
        for name, value in to_neutral(batch_stats[0], flattened_of(self.model)).items():
            numbers[f"statistics/{name}"] = value
        return numbers

    # What the step is made of: pure functions.

    def initial_state(self) -> TrainState:
        load_initial_weights(self.model, self.seed)
        own = arrays_of(self.model, nnx.Param), arrays_of(self.model, nnx.BatchStat)
        params, batch_stats = jax.tree.map(jnp.copy, own)  # the step donates them
        state = TrainState(params, batch_stats, self.optimizer.init(params), jnp.zeros((), jnp.int32))
        return state if self.session.is_alone else spread_state(state, self.world)

    def own_state(self) -> TrainState:
        """The weights, and the BatchNorm statistics of this process's first device."""
        return self.current if self.session.is_alone else without_device_axis(own_part(self.current))

    def outputs(self, params: Params, batch_stats: Params, batch: Batch, *, training: bool) -> tuple[jax.Array, Params]:
        model = nnx.merge(self.graphdefs[training], params, batch_stats, copy=True)  # it updates its own statistics
        outputs = model(self.task.inputs(batch))
        return outputs, arrays_of(model, nnx.BatchStat)

    def loss(self, params: Params, batch_stats: Params, batch: Batch) -> tuple[jax.Array, Params]:
        outputs, batch_stats = self.outputs(params, batch_stats, batch, training=True)
        return self.task.mean_loss(outputs, self.task.targets(batch)), batch_stats

    def optimizer_step(self, state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        """One step on the batch that the order has next; returns the new state and the batch's mean loss."""
        rows = data.order[state.step % len(data.order)]
        batch = {name: array[rows] for name, array in data.arrays.items()}
        gradient = jax.value_and_grad(self.loss, has_aux=True)
        (loss, batch_stats), grads = gradient(state.params, state.batch_stats, batch)
        if self.communicates:
            grads = jax.lax.pmean(grads, AXIS)  # leaf by leaf, which XLA may combine and overlap with the backward pass
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, batch_stats, opt_state, state.step + 1), loss

    @cached_property
    def evaluate_batch(self) -> Callable[[TrainState, Batch], tuple[jax.Array, jax.Array]]:
        """Sums of the losses and of the scores, jitted."""

        def sums(state: TrainState, batch: Batch) -> tuple[jax.Array, jax.Array]:
            outputs, _ = self.outputs(state.params, state.batch_stats, batch, training=False)
            targets = self.task.targets(batch)
            return self.task.losses(outputs, targets).sum(), self.task.scores(outputs, targets).sum()

        return jax.jit(sums)


def make_train_step(training: Training, steps_per_call: int) -> Any:
    """(state, data) -> (state, loss), jitted; the loss is [steps_per_call] where a call holds several steps.

    Of several devices, each has the loss of its own part of the batch: [devices] or [devices, steps_per_call].
    """

    def train_steps(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        if steps_per_call == 1:
            return training.optimizer_step(state, data)
        return jax.lax.scan(lambda carry, _: training.optimizer_step(carry, data), state, None, length=steps_per_call)

    function = train_steps if training.session.is_alone else on_all_parts(train_steps)
    return jax.jit(function, donate_argnums=0)


# The arrays' places, in the shape of the arrays.
STATE_SPECS: Any = TrainState(params=REPLICATED, batch_stats=SPLIT, opt_state=REPLICATED, step=REPLICATED)  # type: ignore[arg-type]
DATA_SPECS: Any = Data(arrays=REPLICATED, order=PartitionSpec(None, AXIS))  # type: ignore[arg-type]


def on_all_parts(train_steps: TrainStep) -> TrainStep:
    """Every device runs the steps on its own part of each batch."""

    def train_on_own_part(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        state, loss = train_steps(without_device_axis(state), data)
        return with_device_axis(state), loss[None]

    return on_every_device(train_on_own_part, in_specs=(STATE_SPECS, DATA_SPECS), out_specs=(STATE_SPECS, SPLIT))


def place_data(data: Data, world: World) -> Data:
    """On the device; of several, each gets all samples and its own part of the order."""
    if world.device_count == 1:
        return jax.device_put(Data({name: np.asarray(array) for name, array in data.arrays.items()}, data.order))
    own = data._replace(order=data.order[:, world.rows(data.order.shape[1])])
    return Data(*map(global_arrays, own, DATA_SPECS))


def spread_state(state: TrainState, world: World) -> TrainState:
    """What every process has drawn for itself as one state over all devices."""
    own = with_device_axis(state)
    statistics = jax.tree.map(lambda leaf: jnp.repeat(leaf, world.devices_per_rank, axis=0), own.batch_stats)
    return TrainState(*map(global_arrays, own._replace(batch_stats=statistics), STATE_SPECS))


def with_device_axis(state: TrainState) -> TrainState:
    return state._replace(batch_stats=jax.tree.map(lambda leaf: leaf[None], state.batch_stats))


def without_device_axis(state: TrainState) -> TrainState:
    return state._replace(batch_stats=jax.tree.map(lambda leaf: leaf[0], state.batch_stats))


def mean_of_own_devices(loss: NDArray[Any], world: World) -> NDArray[Any]:
    """Of several devices, a loss has one entry for each along its first axis."""
    return loss if world.device_count == 1 else loss.mean(0)
