"""Use cases 1 and 2: train a model on one GPU, or on several.

harness/measure/use_cases/train.py has what PyTorch does alike, harness/work/use_cases/train.py the formulations.

Arrays are NHWC, which decides nothing: XLA lays out a convolution's images as it sees fit for the GPU and the dtype
(before Hopper, NCHW for float32 and TF32), and transposes them where it must. `nchw` and `nhwc` force it. On a
GPU, weights and what the optimizer keeps of them lie as XLA wants them from the first step on (compiler.py). Nor does
XLA take convolutions and loops into CUDA graphs by itself, so the counterpart of PyTorch's captured step is
`jit_graph`, not `jit` (compiler.py).

On several devices the gradients are averaged (several_devices.py) after the backward pass, but in the run `overlap`.
Of sharded parameters XLA decides what it gathers and reduces when.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from harness.errors import Refused
from harness.measure.program import Session
from harness.measure.use_cases.train import TrainingBase
from harness.measure.world import World
from harness.results.parity import PARITY_STEPS
from harness.work.graphs import Given
from harness.work.optimizers import Vector, clip_factor, weight_decay_of
from harness.work.task_kinds import Batch, Inputs
from harness.work.use_cases.train import CHECK_STEPS, Course, Settings
from jax_runner.augment import augmented
from jax_runner.compiler import FREE, LaidOutByXla, details_of_compiler, jitted
from jax_runner.device import FLOAT64, Device, model_dtypes
from jax_runner.layers import keep_outputs_of_relu, write_as
from jax_runner.models import details_of, make_model
from jax_runner.optimizer import first_gradients, make_optimizer, moments
from jax_runner.several_devices import (
    AXIS,
    REPLICATED,
    SPLIT,
    details_of_devices,
    everywhere,
    gathered,
    global_arrays,
    loss_of_shards,
    mean_over_devices,
    on_every_device,
    own_part,
    sharded,
    sharding_of,
)
from jax_runner.task import make_task
from jax_runner.weights import (
    Neutral,
    Params,
    arrays_of,
    flattened_of,
    load_weights,
    parameter_count,
    to_neutral,
)


class TrainState(NamedTuple):
    params: Params
    batch_stats: Params
    """Of several devices, each device's own: its arrays have a first axis of one entry per device."""
    opt_state: optax.OptState
    step: jax.Array
    """How many steps were made; the row of the order that comes next."""


class Data(NamedTuple):
    arrays: Batch
    """The training set, or a chunk of it; of several devices, each then has its own samples."""
    order: Any
    """int32 [steps, batch], of the whole training or of a chunk; of several devices, the batch is split"""
    crops: Any
    """int32 [steps, batch, CROP_FIELDS] of the whole training, split as the order; None without augmentation"""
    shared: Batch
    """What the samples share, on every device."""


TrainStep = Callable[[TrainState, Data], tuple[TrainState, jax.Array]]


def build(session: Session[Device], *, joined: bool = True) -> "Training":
    return Training(session, joined=joined)


class Training(LaidOutByXla, TrainingBase):
    """See harness/measure/program.py."""

    LAID_OUT, POSITION = "current", 0
    SEVERAL_STEPS = "the scan that is timed"

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        is_scan = session.mode.formulation == "scan"
        super().__init__(session, joined=joined, steps_at_once=None if is_scan else 1)
        dtypes = model_dtypes(session.measurement.variant.precision)
        self.problem = Problem(session, dtypes, session.mode.formulation, self.given)
        self.model = self.problem.model
        self.optimizer = make_optimizer(self.settings, self.steps.rates)
        require_several_steps(self)
        self.parameter_count = parameter_count(self.model)
        self.units = self.problem.task.units
        self.details = details_of_compiler(session.mode, session.device) | details_of(self.model, self.problem.task)
        if not session.is_alone:
            self.details |= {"batch_norm": "local", **details_of_devices(session)}
        self.use(make_train_step(self, self.steps_per_call))
        self.data = place_data(*self.first_samples(), session.dataset.shared, self.world, chunked=not self.is_resident)
        self.current = self.initial_state()

    def step(self) -> tuple[TrainState, jax.Array]:
        self.current, loss = self.run(self.current, self.data)
        return self.current, loss

    def state(self) -> tuple[TrainState, Data]:
        return self.arguments()

    def arguments(self) -> tuple[TrainState, Data]:
        return self.current, self.data

    def bring(self, samples: dict[str, NDArray[Any]]) -> None:
        """The chunk before is let go first, so that the device holds one at a time."""
        self.data = self.data._replace(arrays={})
        self.data = self.data._replace(arrays=place_arrays(samples, self.world, SPLIT))

    def checked_course(self) -> tuple[Course, str]:
        if self.steps_per_call == 1:
            return self.course(self.compute, self.compute), "the step"
        scanned = make_train_step(self, CHECK_STEPS)
        course = self.course(make_train_step(self, 1), scanned, steps_per_call=CHECK_STEPS)
        return course, f"{CHECK_STEPS} scanned steps"

    def course(self, one_step: Any, compute: Any, steps_per_call: int = 1) -> Course:
        """CHECK_STEPS steps from the initial weights, as `compute` makes them; the gradient is that of `one_step`, by
        what its optimizer keeps."""
        with self.using(one_step):
            self.reset()
            after_one, _ = self.step()
            gradients = self.to_neutral(first_gradients(self.settings, self.on_host(after_one.opt_state)))
        with self.using(compute):
            self.reset()
            kept = [self.kept(self.step()) for _ in range(CHECK_STEPS // steps_per_call)]
        return Course(losses=self.mean_losses(kept), gradients=gradients, updates=self.updates())

    def reference_on(self, device: jax.Device) -> Course:
        with jax.enable_x64(True), jax.default_device(device):
            problem = Problem(self.session, FLOAT64, "step", self.given)
            load_weights(problem.model, self.starting_weight)
            params, statistics = arrays_of(problem.model, nnx.Param), arrays_of(problem.model, nnx.BatchStat)
            gradient = jax.jit(jax.value_and_grad(problem.loss, has_aux=True))
            initial, of_vector = ravel_pytree(params)
            decays = jax.tree.map(lambda leaf: np.full(leaf.shape, weight_decay_of(self.settings, leaf.ndim)), params)
            of_devices = [statistics] * self.world.devices_per_rank

            def gradient_and_loss(weights: Vector, step: int) -> Vector:
                found = []
                for index, batch in enumerate(self.own_batches(step)):
                    (loss, of_devices[index]), grads = gradient(
                        of_vector(jnp.asarray(weights)), of_devices[index], batch
                    )
                    found.append(np.append(np.asarray(ravel_pytree(grads)[0]), float(loss)))
                return self.session.device.mean_over_ranks(np.mean(found, axis=0))

            return self.plain_course(
                np.asarray(initial),
                np.asarray(ravel_pytree(decays)[0]),
                gradient_and_loss,
                lambda vector: self.to_neutral(of_vector(jnp.asarray(vector))),
            )

    def own_batches(self, step: int) -> list[Batch]:
        """Of one step: of each of this process's devices, on the host."""
        share = self.samples_per_step // self.world.device_count
        return [
            {name: array[first : first + share] for name, array in self.own_samples(step).items()} | self.shared
            for first in range(0, share * self.world.devices_per_rank, share)
        ]

    def to_neutral(self, params: Params) -> Neutral:
        return to_neutral(params, flattened_of(self.model))

    def weights(self) -> Neutral:
        return self.to_neutral(self.own_state().params)

    def statistics(self) -> Neutral:
        return self.to_neutral(self.own_state().batch_stats)

    def moments(self) -> dict[str, Neutral]:
        kept = moments(self.settings, self.own_state().opt_state)
        return {quantity: self.to_neutral(of_params) for quantity, of_params in kept.items()}

    def model_inputs(self) -> Inputs:
        problem = self.problem

        def inputs(batch: Batch) -> Inputs:
            return problem.task.inputs(augmented(batch, problem.image_size, problem.dtype))

        return jax.eval_shape(inputs, self.own_batches(0)[0])

    def reset(self) -> None:
        self.load(0)
        self.current = self.initial_state()
        self.place()

    def kept(self, outputs: tuple[TrainState, jax.Array]) -> jax.Array:
        return outputs[1]

    def losses(self, kept: list[jax.Array]) -> NDArray[np.floating[Any]]:
        """Of several devices of this process, their means."""
        of_calls = [np.atleast_1d(mean_of_own_devices(own_part(loss), self.world)) for loss in kept]
        return np.concatenate(of_calls)

    def evaluator(self) -> Callable[[dict[str, NDArray[Any]]], tuple[Any, NDArray[Any], NDArray[Any]]]:
        state = self.own_state()

        def evaluated(batch: dict[str, NDArray[Any]]) -> tuple[Any, NDArray[Any], NDArray[Any]]:
            sums, scores = self.evaluate_batch(state, batch | self.shared)
            return jax.device_get(sums), np.asarray(scores), np.asarray(self.problem.task.targets(batch))

        return evaluated

    @cached_property
    def shared(self) -> dict[str, jax.Array]:
        """What the samples share, for programs of one device."""
        whole = self.session.dataset.shared if self.world.device_count > 1 else self.data.shared
        return dict(jax.device_put(dict(whole)))

    def first_steps(self) -> tuple[Neutral, list[jax.Array]]:
        numbers = self.first_batch()
        steps_per_call = PARITY_STEPS if self.session.mode.formulation == "scan" else 1
        self.use(make_train_step(self, steps_per_call))
        self.reset()
        return numbers, [self.kept(self.step()) for _ in range(PARITY_STEPS // steps_per_call)]

    def first_batch(self) -> Neutral:
        """By the functions that the step is made of."""

        @jax.jit
        def forward_and_backward(state: TrainState, batch: Batch) -> tuple[Any, ...]:
            outputs, _ = self.problem.outputs(state.params, state.batch_stats, batch, training=True)
            gradient = jax.value_and_grad(self.problem.loss, has_aux=True)
            (loss, batch_stats), grads = gradient(state.params, state.batch_stats, batch)
            return outputs, loss, grads, batch_stats

        session, state = self.session, self.own_state()
        of_devices = [forward_and_backward(state, batch) for batch in self.own_batches(0)]
        outputs, losses, grads, batch_stats = zip(*of_devices, strict=True)
        numbers = {
            "outputs": session.of_all_ranks(np.concatenate(outputs)),
            "loss": session.device.mean_over_ranks(np.mean(losses, axis=0)),
        }
        neutral = [self.to_neutral(of_device) for of_device in grads]
        means = {
            name: session.device.mean_over_ranks(np.mean([of_device[name] for of_device in neutral], axis=0))
            for name in neutral[0]
        }
        norm = np.sqrt(sum(np.sum(mean**2) for mean in means.values()))
        factor = clip_factor(float(norm), self.settings.max_gradient_norm)
        numbers |= {f"gradients/{name}": factor * mean for name, mean in means.items()}
        for name, value in self.to_neutral(batch_stats[0]).items():
            numbers[f"statistics/{name}"] = value
        return numbers

    # What the step is made of: pure functions.

    def initial_state(self) -> TrainState:
        load_weights(self.model, self.starting_weight)
        own = arrays_of(self.model, nnx.Param), arrays_of(self.model, nnx.BatchStat)
        params, batch_stats = jax.tree.map(jnp.copy, own)  # the step donates them
        state = TrainState(params, batch_stats, self.optimizer.init(params), jnp.zeros((), jnp.int32))
        if self.is_sharded:
            return sharded(state)
        return state if self.session.is_alone else spread_state(state, self.world)

    def shapes_of_state(self) -> TrainState:
        params, batch_stats = arrays_of(self.model, nnx.Param), arrays_of(self.model, nnx.BatchStat)
        opt_state = jax.eval_shape(self.optimizer.init, params)
        return TrainState(params, batch_stats, opt_state, jnp.zeros((), jnp.int32))

    def own_state(self) -> TrainState:
        """The weights, and the BatchNorm statistics of this process's first device."""
        return self.current if self.session.is_alone else without_device_axis(self.on_host(self.current))

    def on_host(self, tree: Any) -> Any:
        return own_part(gathered(tree) if self.is_sharded else tree)

    def optimizer_step(self, state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        """One step on the batch that the order has next; returns the new state and the batch's mean loss."""
        take, loss_of = next_batch, self.problem.loss
        if self.is_sharded:
            specs = data_specs(self.is_resident)
            take = on_every_device(next_batch, in_specs=(REPLICATED, specs), out_specs=SPLIT)
            loss_of = loss_of_shards(loss_of)
        batch = {**take(state.step, data), **data.shared}
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, batch_stats), grads = gradient(state.params, state.batch_stats, batch)
        if self.is_sharded:
            grads = jax.lax.with_sharding_constraint(grads, jax.tree.map(sharding_of, grads))
        elif self.communicates:
            grads = mean_over_devices(grads)
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, batch_stats, opt_state, state.step + 1), loss

    @cached_property
    def evaluate_batch(self) -> Callable[[TrainState, Batch], Any]:
        """Sums of the losses and of the scores, and the scores, jitted."""

        def sums_and_scores(state: TrainState, batch: Batch) -> Any:
            outputs, _ = self.problem.outputs(state.params, state.batch_stats, batch, training=False)
            task = self.problem.task
            targets = task.targets(batch)
            losses, scores = task.losses(outputs, targets), task.scores(outputs, targets)
            return jax.tree.map(jnp.sum, (losses, scores, task.further_scores(outputs, targets))), scores

        return jax.jit(sums_and_scores)


def next_batch(step: jax.Array, data: Data) -> Batch:
    """The samples, and their crops, of a device's part of the batch that the order has for this step."""
    rows = data.order[step % len(data.order)]
    # The order has no row that is not there, and JAX need not look.
    batch = {name: array.at[rows].get(mode="promise_in_bounds") for name, array in data.arrays.items()}
    return batch if data.crops is None else batch | {"crops": data.crops[step % len(data.crops)]}


class Problem:
    """The model and its loss: pure functions."""

    def __init__(
        self, session: Session[Any], dtypes: dict[str, Any], formulation: str, given: Sequence[Given] = ()
    ) -> None:
        self.dtype = dtypes["param_dtype"]
        self.image_size = session.image_size
        self.label_smoothing = Settings.model_validate(session.measurement.settings).label_smoothing
        self.task = make_task(session, self.dtype, given)
        self.model = make_model(session, dtypes)
        write_as(self.model, formulation, on_gpu=session.device.on_gpu)
        keep_outputs_of_relu(self.model)
        self.graphdefs = {
            training: nnx.graphdef(nnx.view(self.model, use_running_average=not training, raise_if_not_found=False))
            for training in (True, False)
        }

    def outputs(self, params: Params, batch_stats: Params, batch: Batch, *, training: bool) -> tuple[jax.Array, Params]:
        model = nnx.merge(self.graphdefs[training], params, batch_stats, copy=True)  # it updates its own statistics
        outputs = model(self.task.inputs(augmented(batch, self.image_size, self.dtype)))
        return outputs, arrays_of(model, nnx.BatchStat)

    def loss(self, params: Params, batch_stats: Params, batch: Batch) -> tuple[jax.Array, Params]:
        """The mean over the batch, and the new statistics."""
        outputs, batch_stats = self.outputs(params, batch_stats, batch, training=True)
        return self.task.mean_loss(outputs, self.task.targets(batch), self.label_smoothing), batch_stats


def require_several_steps(training: Training) -> None:
    """Raises Refused where a scan would be a single step."""
    mode = training.session.mode
    if mode.formulation == "scan" and not training.is_resident and training.steps_per_call == 1:
        raise Refused(
            f"execution mode {mode.name} needs an epoch of steps that 2 to {training.chunks.steps} divide, as many as "
            f"a chunk of the training set holds; one step in a call is step.jit"
        )


def make_train_step(training: Training, steps_per_call: int) -> Any:
    """(state, data) -> (state, loss), jitted; the loss is [steps_per_call] where a call holds several steps.

    Of several devices, each has the loss of its own part of the batch: [devices] or [devices, steps_per_call]. Sharded
    parameters make one program of all devices: [1] or [1, steps_per_call].
    """

    def train_steps(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        if steps_per_call == 1:
            return training.optimizer_step(state, data)
        return jax.lax.scan(lambda carry, _: training.optimizer_step(carry, data), state, None, length=steps_per_call)

    def train_on_shards(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        state, loss = train_steps(state, data)
        return state, loss[None]  # that of the whole batch

    device = training.session.device
    function: TrainStep = train_steps
    of_state: Any = FREE if device.on_gpu else None
    of_loss = None
    if training.is_sharded:
        function, of_loss = train_on_shards, everywhere()
        of_state = jax.tree.map(sharding_of, training.shapes_of_state())
        if device.on_gpu:
            of_state = jax.tree.map(lambda sharding: Format(Layout.AUTO, sharding), of_state)
    elif not training.session.is_alone:
        function = on_all_parts(train_steps, data_specs(training.is_resident))
    layouts = {"in_shardings": (of_state, None), "out_shardings": (of_state, of_loss)} if of_state is not None else {}
    return jitted(function, training.session.mode, device, donate_argnums=0, **layouts)


# The arrays' places, in the shape of the arrays.
STATE_SPECS: Any = TrainState(params=REPLICATED, batch_stats=SPLIT, opt_state=REPLICATED, step=REPLICATED)  # type: ignore[arg-type]
OF_BATCH = PartitionSpec(None, AXIS)


def data_specs(is_resident: bool) -> Any:
    arrays: Any = REPLICATED if is_resident else SPLIT
    shared: Any = REPLICATED
    return Data(arrays=arrays, order=OF_BATCH, crops=OF_BATCH, shared=shared)


def on_all_parts(train_steps: TrainStep, of_data: Any) -> TrainStep:
    """Every device runs the steps on its own part of each batch."""

    def train_on_own_part(state: TrainState, data: Data) -> tuple[TrainState, jax.Array]:
        state, loss = train_steps(without_device_axis(state), data)
        return with_device_axis(state), loss[None]

    return on_every_device(train_on_own_part, in_specs=(STATE_SPECS, of_data), out_specs=(STATE_SPECS, SPLIT))


def place_data(samples: Any, order: Any, crops: Any, shared: Any, world: World, *, chunked: bool) -> Data:
    """On the device; of several, each gets its own part of the order and of the crops, and all samples or, of a chunk,
    its own ones. Given is what this process's devices get."""
    specs = data_specs(is_resident=not chunked)
    if world.device_count == 1:
        order, crops = jax.device_put((order, crops))
    else:
        order, crops = (global_arrays(array, OF_BATCH) for array in (order, crops))
    return Data(place_arrays(samples, world, specs.arrays), order, crops, place_arrays(shared, world, REPLICATED))


def place_arrays(arrays: Any, world: World, spec: PartitionSpec) -> Batch:
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    return jax.device_put(arrays) if world.device_count == 1 else global_arrays(arrays, spec)


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
