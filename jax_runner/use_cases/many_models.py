"""Use case 6: training steps of N models of one kind at once, on one GPU.

The models differ in their initial weights, and by option in their batches and in their learning rates. A batch size is
that of one model: a step does N times as many samples. The batch lies on the device, and each call uses it again.

Execution modes (formulations.py), for how the step of one model becomes that of N. Each is one jitted program for the
whole step, state donated:
    vmap            jax.vmap over stacked parameters
    side_by_side    the same with the models' axis beside the channels in images and kernels, where a grouped
                    convolution has it; for models with convolutions
    unrolled        a Python loop over the models, unrolled inside the jit
    map             jax.lax.map over stacked parameters: a loop in the program
Of the phases, each is a jitted program of its own; what the step fuses across them and keeps in place, they do not.
"""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp
from numpy.typing import NDArray

from harness.data import NoDataset
from harness.errors import Refused
from harness.many_models import (
    CHECK_STEPS,
    Batch,
    Course,
    check_course,
    dataset_batch,
    leading_axes,
    learning_rates,
    model_seed,
)
from harness.measure import Phase
from harness.parity import PARITY_STEPS
from harness.record import Check, Result
from harness.session import Session
from harness.synthetic import class_count, draw_batch, input_shape, sizes_of
from jax_runner.device import model_dtypes
from jax_runner.formulations import FOR_ALL, PER_MODEL, Arrays, draw, laid_out, over_models, place, stacked
from jax_runner.weights import Neutral, Params, arrays_of, load_initial_weights, parameter_count, to_neutral

EXECUTION_MODES = ("vmap", "side_by_side", "unrolled", "map")
ONE_DEVICE = True
OPTIONS = {"models": "positive integer", "batches": ("different", "same"), "learning_rates": ("one", "separate")}
SETTINGS = {
    "learning_rate": "positive number",
    "momentum": "fraction",
    "in_features": "positive integer",
    "hidden_features": "positive integer",
    "out_features": "positive integer",
    "channels": "positive integer",
    "image_size": "positive integer",
    "hidden_channels": "positive integer",
    "classes": "positive integer",
}
REFUSED_MODELS = {"resnet18": "BatchNorm's running statistics are no weights, and not every formulation can stack them"}


class ModelState(NamedTuple):
    params: Params
    opt_state: optax.OptState


def run(session: Session) -> Result:
    variant = session.measurement.variant
    problem = Problem(session)
    training = Training(problem, variant.execution_mode)
    batch = problem.check_batch()
    training.take(batch)
    training.reset()

    wait = session.device.wait
    wait((training.state, training.inputs, training.labels))  # copied before the clock starts
    cold_call_times_s = session.measure_cold(training.step, wait)
    checks = problem.check(training, batch)
    if problem.draws:
        wait(training.draw())
    steady = session.measure_steady(
        training.step, wait, steps_per_call=1, samples_per_step=problem.count * variant.batch_size
    )
    if session.device.on_gpu:
        session.device.set_step_peak(training.lower().compile())
    result = session.result(
        steady,
        cold_call_times_s,
        checks=checks,
        parameter_count=problem.count * parameter_count(problem.make_model()),
    )
    details = {"models": problem.count} | session.measure_phases(training.phases(), wait)
    return result.model_copy(update={"details": details})


def parity_numbers(session: Session) -> dict[str, NDArray]:
    """What both frameworks must agree on, by the step that is timed."""
    return numbers_of(Problem(session), session.measurement.variant.execution_mode)


def numbers_of(problem: "Problem", execution_mode: str) -> dict[str, NDArray]:
    """Outputs, losses and gradients of the first step, and weights after five; a first axis of models everywhere."""
    training = Training(problem, execution_mode)
    training.take(problem.check_batch())
    training.reset()
    outputs = training.over_models(problem.apply, (PER_MODEL, training.batch_axis))
    outputs = stacked(jax.jit(outputs)(training.params(), training.inputs), training.formulation)
    numbers = {"outputs": np.asarray(outputs, np.float64)}
    training.forward()
    gradients = problem.to_neutral(stacked(training.backward(), training.formulation))
    numbers |= {f"gradient/{name}": value for name, value in gradients.items()}
    numbers["loss"] = losses_of_models(training.step()[1])
    for _ in range(PARITY_STEPS - 1):
        training.step()
    weights = problem.to_neutral(stacked(training.params(), training.formulation))
    return numbers | {f"weights_after_{PARITY_STEPS}_steps/{name}": value for name, value in weights.items()}


class Problem:
    """N models, their initial weights, learning rates and batches."""

    def __init__(self, session: Session, dtype: Any = jnp.float32) -> None:
        measurement = session.measurement
        variant, settings = measurement.variant, measurement.settings
        self.variant, self.dtype = variant, dtype
        self.seed = measurement.protocol.seed
        self.dataset = session.dataset
        self.count = int(variant.options["models"])
        self.shared = variant.options["batches"] == "same"
        self.separate_rates = variant.options["learning_rates"] == "separate"
        self.lead = leading_axes(self.count, variant.batch_size, str(variant.options["batches"]))
        self.rates = learning_rates(
            float(settings["learning_rate"]), self.count, str(variant.options["learning_rates"])
        )
        self.momentum = float(settings["momentum"])
        self.benchmark = importlib.import_module(f"jax_runner.benchmarks.{measurement.cell.benchmark}")
        self.draws = isinstance(session.dataset, NoDataset)
        self.sizes = sizes_of(settings)
        self.graphdef = nnx.graphdef(self.make_model())

    def make_model(self, dtype: Any = None) -> nnx.Module:
        of_any_size = (self.sizes,) if self.draws else ()
        dtype = dtype or self.dtype
        dtypes = {"dtype": dtype, "param_dtype": dtype}
        if dtype == jnp.float32:
            dtypes = model_dtypes(self.variant.precision)
        return self.benchmark.make_model(self.variant.model, dtypes, *of_any_size)

    def has_convolutions(self) -> bool:
        return any(leaf.ndim == 4 for leaf in jax.tree.leaves(arrays_of(self.make_model())))

    def initial_weights(self, dtype: Any = None) -> Iterator[Params]:
        """Of one model after the other; those of model i are drawn as those of a model alone with its seed."""
        model = self.make_model(dtype)
        for index in range(self.count):
            load_initial_weights(model, model_seed(self.seed, index), self.benchmark.FLATTENED)
            yield jax.tree.map(jnp.copy, arrays_of(model))

    def check_batch(self) -> Batch:
        """The same numbers in both frameworks."""
        if not self.draws:
            return dataset_batch(self.dataset, self.lead)
        shape, classes = input_shape(self.variant.model, self.sizes), class_count(self.variant.model, self.sizes)
        return Batch(*draw_batch(self.seed, self.lead, shape, classes))

    def on_device(self, batch: Batch, dtype: Any = None) -> tuple[jax.Array, jax.Array]:
        """Inputs [models, batch, ...] and labels [models, batch], or one batch for all; images are NHWC."""
        inputs = batch.inputs
        is_image = inputs.ndim - batch.labels.ndim == 3
        inputs = np.moveaxis(inputs, -3, -1) if is_image else inputs
        return jnp.asarray(inputs, dtype or self.dtype), jnp.asarray(batch.labels)

    def apply(self, params: Params, inputs: jax.Array) -> jax.Array:
        return nnx.merge(self.graphdef, params)(inputs)

    def loss(self, params: Params, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Of one model: the mean over its batch."""
        logits = self.apply(params, inputs)
        if logits.dtype == jnp.bfloat16:
            logits = logits.astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def optimize(self, state: ModelState, gradient: Params, rate: jax.Array) -> ModelState:
        """Of one model."""
        optimizer = optax.sgd(rate, momentum=self.momentum)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        return ModelState(optax.apply_updates(state.params, updates), opt_state)

    def step(
        self, state: ModelState, rate: jax.Array, inputs: jax.Array, labels: jax.Array
    ) -> tuple[ModelState, jax.Array]:
        """Of one model: its new state and its loss before."""
        loss, gradient = jax.value_and_grad(self.loss)(state.params, inputs, labels)
        return self.optimize(state, gradient, rate), loss

    def initial_state(self, params: Params) -> ModelState:
        """Of one model; the learning rate has no part in it."""
        return ModelState(params, optax.sgd(1.0, momentum=self.momentum).init(params))

    def to_neutral(self, params: Params) -> Neutral:
        """[models, ...]"""
        return to_neutral(params, self.benchmark.FLATTENED, leading_axes=1)

    def check(self, training: "Training", batch: Batch) -> list[Check]:
        """Raises CheckFailed unless the step that will be timed does to every model what training it alone does."""
        training.reset()
        losses = [losses_of_models(training.step()[1]) for _ in range(CHECK_STEPS)]
        weights = self.to_neutral(stacked(training.params(), training.formulation))
        initial = self.to_neutral(stack_on_host(self.initial_weights()))
        updates = {name: weights[name] - initial[name] for name in initial}
        actual = Course(losses=np.stack(losses), updates=updates)
        return check_course(actual, self.alone(batch), self.variant.precision)

    def alone(self, batch: Batch) -> Course:
        """Every model by itself in float64, by a jitted step of one model; no two are on the device at once."""
        graphdef = self.graphdef
        losses, updates = [], []
        with jax.enable_x64(True):
            self.graphdef = nnx.graphdef(self.make_model(jnp.float64))
            step = jax.jit(self.step)
            for index, initial in enumerate(self.initial_weights(jnp.float64)):
                own = batch if self.shared else Batch(batch.inputs[index], batch.labels[index])
                inputs, labels = self.on_device(own, jnp.float64)
                state = self.initial_state(initial)
                of_steps = []
                for _ in range(CHECK_STEPS):
                    state, loss = step(state, self.rates[index], inputs, labels)
                    of_steps.append(float(loss))
                losses.append(of_steps)
                updates.append(jax.device_get(jax.tree.map(jnp.subtract, state.params, initial)))
        self.graphdef = graphdef
        return Course(losses=np.array(losses).T, updates=self.to_neutral(stack_on_host(updates)))


class Training:
    """The step that is timed, whole and in phases."""

    def __init__(self, problem: Problem, execution_mode: str) -> None:
        if execution_mode == "side_by_side" and not problem.has_convolutions():
            raise Refused("execution mode side_by_side is for models with convolutions; of dense layers it is vmap")
        self.problem = problem
        self.formulation = execution_mode
        self.batch_axis = FOR_ALL if problem.shared else PER_MODEL
        rate_axis = PER_MODEL if problem.separate_rates else FOR_ALL
        self.rates = jnp.asarray(problem.rates if problem.separate_rates else problem.rates[0], problem.dtype)
        step_axes = (PER_MODEL, rate_axis, self.batch_axis, self.batch_axis)
        self.compute_step = jax.jit(self.over_models(problem.step, step_axes), donate_argnums=0)
        forward_axes = (PER_MODEL, self.batch_axis, self.batch_axis)
        self.compute_forward = jax.jit(self.over_models(self._forward, forward_axes))
        self.compute_backward = jax.jit(self.over_models(self._backward, (PER_MODEL,)))
        self.compute_optimize = jax.jit(
            self.over_models(problem.optimize, (PER_MODEL, PER_MODEL, rate_axis)), donate_argnums=0
        )
        self.compute_draw = jax.jit(self._draw)
        self.key = jax.random.key(problem.seed)
        self.state: Arrays = None
        self.inputs: Arrays = None
        self.labels: Arrays = None
        self.pullback: Arrays = None
        self.gradient: Arrays = None

    def over_models(self, function: Any, axes: tuple[int | None, ...]) -> Any:
        return over_models(function, self.formulation, axes, self.problem.count)

    def take(self, batch: Batch) -> None:
        """Train on this batch from now on."""
        problem = self.problem
        self.inputs, self.labels = place(*problem.on_device(batch), self.formulation, shared=problem.shared)

    def draw(self) -> Arrays:
        """Train on a new random batch from now on, made on the device."""
        self.key, self.inputs, self.labels = self.compute_draw(self.key)
        return self.key, self.inputs, self.labels

    def _draw(self, key: jax.Array) -> tuple[jax.Array, Arrays, Arrays]:
        problem = self.problem
        channels_first = input_shape(problem.variant.model, problem.sizes)
        shape = (*channels_first[1:], channels_first[0])
        classes = class_count(problem.variant.model, problem.sizes)
        next_key, key = jax.random.split(key)
        return next_key, *draw(key, problem.lead, shape, classes, self.formulation, shared=problem.shared)

    def reset(self) -> None:
        """Initial weights, and an optimizer that has seen nothing."""
        of_models = [self.problem.initial_state(params) for params in self.problem.initial_weights()]
        self.state = laid_out(of_models, self.formulation)

    def params(self) -> Arrays:
        """In the formulation's layout."""
        if self.formulation == "unrolled":
            return tuple(state.params for state in self.state)
        return self.state.params

    def step(self) -> tuple[Arrays, Arrays]:
        """All of it in one program; the new state, and the losses of all models before the step."""
        outputs = self.compute_step(self.state, self.rates, self.inputs, self.labels)
        self.state, losses = zip(*outputs, strict=True) if self.formulation == "unrolled" else outputs
        return self.state, losses

    def lower(self) -> Any:
        return self.compute_step.lower(self.state, self.rates, self.inputs, self.labels)

    def _forward(self, params: Params, inputs: jax.Array, labels: jax.Array) -> tuple[jax.Array, Arrays]:
        """Of one model: the loss, and the function of the backward pass with all that it needs."""
        return jax.vjp(lambda params: self.problem.loss(params, inputs, labels), params)

    def _backward(self, pullback: Any) -> Params:
        return pullback(jnp.ones((), self.problem.dtype))[0]

    def forward(self) -> Arrays:
        outputs = self.compute_forward(self.params(), self.inputs, self.labels)
        of_models = zip(*outputs, strict=True) if self.formulation == "unrolled" else outputs
        losses, self.pullback = of_models
        return losses, self.pullback

    def backward(self) -> Arrays:
        self.gradient = self.compute_backward(self.pullback)
        return self.gradient

    def optimize(self) -> Arrays:
        self.state = self.compute_optimize(self.state, self.gradient, self.rates)
        return self.state

    def phases(self) -> list[Phase]:
        """In the order in which they depend on each other. Together they do what the step does, in more time."""
        data_generation: list[Phase] = [("data_generation", self.draw)] if self.problem.draws else []
        return [
            *data_generation,
            ("forward", self.forward),
            ("backward", self.backward),
            ("optimizer", self.optimize),
        ]


def losses_of_models(losses: Arrays) -> NDArray[np.float64]:
    """[models]"""
    return np.array([float(loss) for loss in losses])


def stack_on_host(of_models: Iterable[Params]) -> Params:
    """[models, ...], as numpy arrays: the device may have no room for them beside what is measured."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *[jax.device_get(params) for params in of_models])
