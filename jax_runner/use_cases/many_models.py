"""Use case 6: training steps of N models of one kind at once, on one GPU.

The models differ in their initial weights, and by option in their batches and in their learning rates. A batch size is
that of one model: a step does N times as many samples. The batch lies on the device, and each call uses it again.

Formulations (formulations.py), for how the step of one model becomes that of N. Each is one jitted program for the
whole step, state donated:
    vmap            jax.vmap over stacked parameters
    side_by_side    the same with the models' axis beside the channels in images and kernels, where a grouped
                    convolution has it; for models with convolutions
    grad_of_vmap, grad_of_side_by_side
                    the same, and the gradient is that of the losses' sum, which is each model's own
    patches         vmap of a model whose convolutions are products of matrices
    unrolled        a Python loop over the models, unrolled inside the jit; each has its slice of stacked parameters
    map             jax.lax.map over stacked parameters: a loop in the program
Of the phases, each is a jitted program of its own; what the step fuses across them and keeps in place, they do not.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp
from numpy.typing import NDArray

from harness.errors import Refused
from harness.measure.program import Phase, Program, Session
from harness.results.parity import PARITY_STEPS
from harness.results.record import Check
from harness.work.use_cases.many_models import (
    CHECK_STEPS,
    Course,
    Options,
    Settings,
    added_to_weights,
    check_course,
    check_forward,
    drawn_batch,
    first_batch,
    given_batches,
    leading_axes,
    learning_rates,
    model_seed,
)
from jax_runner.compiler import OneProgram, details_of_compiler, jitted
from jax_runner.device import FLOAT64, Device, model_dtypes
from jax_runner.formulations import (
    FOR_ALL,
    LAYOUTS,
    PER_MODEL,
    TOGETHER,
    Arrays,
    draw,
    forward_and_pullback,
    gradients_of,
    laid_out,
    over_models,
    place,
    stacked,
)
from jax_runner.layers import write_as
from jax_runner.models import make_model
from jax_runner.task import Inputs, in_float64, make_task, samples_of
from jax_runner.weights import (
    Neutral,
    Params,
    arrays_of,
    flattened_of,
    load_initial_weights,
    parameter_count,
    to_neutral,
)


class ModelState(NamedTuple):
    params: Params
    opt_state: optax.OptState


def build(session: Session[Device], *, joined: bool = True) -> "ManyModels":
    """One device only, so `joined` changes nothing."""
    options = Options.model_validate(session.measurement.variant.options)
    return ForwardOnly(session) if options.work == "forward" else ManyModels(session)


class ManyModels(OneProgram, Program):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device]) -> None:
        variant = session.measurement.variant
        self.session = session
        self.problem = problem = Problem(session, model_dtypes(variant.precision), session.mode.formulation)
        self.together = session.mode.formulation in TOGETHER
        self.formulation = LAYOUTS.get(session.mode.formulation, session.mode.formulation)
        if self.formulation == "side_by_side" and not problem.has_convolutions():
            raise Refused("execution mode side_by_side is for models with convolutions; of dense layers it is vmap")
        self.samples_per_step = problem.count * variant.batch_size
        self.model_count = problem.count
        self.parameter_count = problem.count * parameter_count(problem.model)
        of_compiler = details_of_compiler(session.mode, session.device)
        self.units = problem.task.units
        self.details = {"models": problem.count, **of_compiler, **problem.task.details}
        self.batch_axis = FOR_ALL if problem.shared else PER_MODEL
        self.rates = jnp.asarray(problem.rates if problem.separate_rates else problem.rates[0], problem.dtype)
        rate_axis = PER_MODEL if problem.separate_rates else FOR_ALL
        self.optimize_all = self.over_models(problem.optimize, (PER_MODEL, PER_MODEL, rate_axis))
        self.forward_all = forward_and_pullback(
            problem.loss,
            self.formulation,
            (PER_MODEL, self.batch_axis, self.batch_axis),
            problem.count,
            together=self.together,
        )
        one_by_one = self.over_models(problem.step, (PER_MODEL, rate_axis, self.batch_axis, self.batch_axis))
        step = self._step_together if self.together else one_by_one
        self.compute_step = jitted(step, session.mode, session.device, donate_argnums=0)
        self.compute_forward = jitted(self.forward_all, session.mode, session.device)
        self.compute_backward = jitted(self._backward, session.mode, session.device)
        self.compute_optimize = jitted(self.optimize_all, session.mode, session.device, donate_argnums=0)
        self.compute_draw = jax.jit(self._draw)
        self.key = jax.random.key(problem.seed)
        self.pullback: Arrays = None
        self.gradient: Arrays = None
        self.inputs, self.targets = place(*problem.check_batch(), self.formulation, shared=problem.shared)
        self.models: Arrays = None
        self.reset()

    def step(self) -> tuple[Arrays, Arrays]:
        """All of it in one program; the new state, and the losses of all models before the step."""
        self.models, losses = self.compute_step(self.models, self.rates, self.inputs, self.targets)
        return self.models, losses

    def state(self) -> Arrays:
        return self.models, self.inputs, self.targets

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the step that is timed does to every model what training it alone does."""
        self.reset()
        losses = [losses_of_models(self.step()[1]) for _ in range(CHECK_STEPS)]
        weights = self.problem.to_neutral(stacked(self.params(), self.formulation))
        initial = self.problem.to_neutral(stack_on_host(self.problem.initial_weights()))
        updates = {name: weights[name] - initial[name] for name in initial}
        actual = Course(losses=np.stack(losses), updates=updates)
        return check_course(actual, self.alone(), self.session.measurement.variant.precision)

    def alone(self) -> Course:
        """Every model by itself in float64, by a jitted step of one model; no two are on the device at once."""
        losses, updates = [], []
        inputs, targets = self.problem.check_batch()
        with jax.enable_x64(True):
            problem = Problem(self.session, FLOAT64)
            inputs = in_float64(inputs)
            inputs_of_models = [inputs] * problem.count if problem.shared else samples_of(inputs)
            step = jax.jit(problem.step)
            for index, initial in enumerate(problem.initial_weights()):
                own = inputs_of_models[index], targets if problem.shared else targets[index]
                state = problem.initial_state(initial)
                of_steps = []
                for _ in range(CHECK_STEPS):
                    state, loss = step(state, problem.rates[index], *own)
                    of_steps.append(float(loss))
                losses.append(of_steps)
                updates.append(jax.device_get(jax.tree.map(jnp.subtract, state.params, initial)))
            return Course(losses=np.array(losses).T, updates=problem.to_neutral(stack_on_host(updates)))

    def settle(self) -> None:
        """Where inputs are drawn, those that are timed come from the framework's own generator."""
        if self.problem.drawn:
            self.session.device.wait(self.draw())

    def construction(self) -> list[Phase]:
        initial = [jax.device_get(params) for params in self.problem.initial_weights()]
        return [("build", partial(self.build, initial))]

    def build(self, initial: Iterable[Params]) -> Arrays:
        """N models on the device, with initial weights that are drawn already, and an optimizer that has seen nothing.
        The module is one for all, and without values of its own."""
        make_model(self.session, model_dtypes(self.session.measurement.variant.precision))
        on_device = (jax.tree.map(jnp.asarray, params) for params in initial)
        return laid_out([self.problem.initial_state(params) for params in on_device], self.formulation)

    def phases(self) -> list[Phase]:
        """Together they do what the step does, in more time."""
        data_generation: list[Phase] = [("data_generation", self.draw)] if self.problem.drawn else []
        return [
            *data_generation,
            ("forward", self.forward),
            ("backward", self.backward),
            ("optimizer", self.optimize),
        ]

    def model_inputs(self) -> Inputs:
        inputs = jax.eval_shape(lambda: self.problem.check_batch()[0])
        return inputs if self.problem.shared else jax.eval_shape(lambda stacked: samples_of(stacked)[0], inputs)

    def lowered(self) -> jax.stages.Lowered:
        lowered: jax.stages.Lowered = self.compute_step.lower(self.models, self.rates, self.inputs, self.targets)
        return lowered

    def parity(self) -> Neutral:
        """Outputs, losses and gradients of the first step, and what five steps add to the weights; a first axis of
        models everywhere."""
        problem = self.problem
        compute_outputs = jax.jit(self.over_models(problem.apply, (PER_MODEL, self.batch_axis)))
        outputs = stacked(compute_outputs(self.params(), self.inputs), self.formulation)
        numbers: Neutral = {"outputs": np.asarray(outputs, np.float64)}
        self.forward()
        gradients = problem.to_neutral(stacked(self.backward(), self.formulation))
        numbers |= {f"gradients/{name}": value for name, value in gradients.items()}
        numbers["loss"] = losses_of_models(self.step()[1])
        for _ in range(PARITY_STEPS - 1):
            self.step()
        weights = problem.to_neutral(stacked(self.params(), self.formulation))
        added = added_to_weights(weights, problem.seed, self.session.model.initial_weight)
        return numbers | {f"updates/{name}": value for name, value in added.items()}

    def reset(self) -> None:
        """Initial weights, and an optimizer that has seen nothing."""
        of_models = [self.problem.initial_state(params) for params in self.problem.initial_weights()]
        self.models = laid_out(of_models, self.formulation)

    def params(self) -> Arrays:
        """In the formulation's layout."""
        return self.models.params

    def over_models(self, function: Any, axes: tuple[int | None, ...]) -> Any:
        return over_models(function, self.formulation, axes, self.problem.count)

    # The phases.

    def draw(self) -> Arrays:
        """Train on a new random batch from now on, made on the device."""
        self.key, self.inputs, self.targets = self.compute_draw(self.key)
        return self.key, self.inputs, self.targets

    def forward(self) -> Arrays:
        losses, self.pullback = self.compute_forward(self.params(), self.inputs, self.targets)
        return losses, self.pullback

    def backward(self) -> Arrays:
        self.gradient = self.compute_backward(self.pullback)
        return self.gradient

    def optimize(self) -> Arrays:
        self.models = self.compute_optimize(self.models, self.gradient, self.rates)
        return self.models

    def _draw(self, key: jax.Array) -> tuple[jax.Array, Arrays, Arrays]:
        problem = self.problem
        channels_first = problem.drawn_shape
        shape = (*channels_first[1:], channels_first[0])
        next_key, key = jax.random.split(key)
        return next_key, *draw(key, problem.lead, shape, problem.drawn_classes, self.formulation, shared=problem.shared)

    def _step_together(
        self, models: Arrays, rates: jax.Array, inputs: jax.Array, targets: jax.Array
    ) -> tuple[Arrays, jax.Array]:
        losses, pullback = self.forward_all(models.params, inputs, targets)
        return self.optimize_all(models, self._backward(pullback), rates), losses

    def _backward(self, pullback: Any) -> Params:
        count, dtype = self.problem.count, self.problem.dtype
        gradients: Params = gradients_of(pullback, self.formulation, count, dtype, together=self.together)
        return gradients


class ForwardOnly(ManyModels):
    """The outputs of all models on their batches; nothing is kept for a gradient."""

    def __init__(self, session: Session[Device]) -> None:
        super().__init__(session)
        self.count = jnp.zeros((), jnp.int32)
        self.outputs_of_all = self.over_models(self.problem.apply, (PER_MODEL, self.batch_axis))
        self.compute = jitted(self._counted, session.mode, session.device)

    def step(self) -> tuple[Arrays, Arrays]:
        """A counter that keeps calls in order, and the outputs."""
        self.count, outputs = self.compute(self.count, self.params(), self.inputs)
        return self.count, outputs

    def state(self) -> Arrays:
        return self.count, self.models, self.inputs

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the step that is timed gives what every model alone gives."""
        return check_forward(self.outputs(), self.outputs_alone(), self.session.measurement.variant.precision)

    def outputs(self) -> NDArray[np.float64]:
        """[models, batch, ...], by the step that is timed."""
        return np.asarray(stacked(self.step()[1], self.formulation), np.float64)

    def outputs_alone(self) -> NDArray[np.float64]:
        """[models, batch, ...], in float64, by a jitted model."""
        inputs, _ = self.problem.check_batch()
        with jax.enable_x64(True):
            problem = Problem(self.session, FLOAT64)
            inputs = in_float64(inputs)
            inputs_of_models = [inputs] * problem.count if problem.shared else samples_of(inputs)
            apply = jax.jit(problem.apply)
            outputs = [
                np.asarray(apply(params, own), np.float64)
                for params, own in zip(problem.initial_weights(), inputs_of_models, strict=True)
            ]
        return np.stack(outputs)

    def construction(self) -> list[Phase]:
        return []

    def phases(self) -> list[Phase]:
        return []

    def lowered(self) -> jax.stages.Lowered:
        lowered: jax.stages.Lowered = self.compute.lower(self.count, self.params(), self.inputs)
        return lowered

    def parity(self) -> Neutral:
        return {"outputs": self.outputs()}

    def reset(self) -> None:
        """Initial weights, and no optimizer."""
        self.models = laid_out(list(self.problem.initial_weights()), self.formulation)

    def params(self) -> Arrays:
        return self.models

    def _counted(self, count: jax.Array, params: Arrays, inputs: Arrays) -> tuple[jax.Array, Arrays]:
        return count + 1, self.outputs_of_all(params, inputs)


class Problem:
    """N models, their initial weights, learning rates and batches."""

    def __init__(self, session: Session[Any], dtypes: dict[str, Any], formulation: str = "") -> None:
        """`formulation`: how the model's layers are written down, if not plainly."""
        measurement, benchmark = session.measurement, session.benchmark
        options = Options.model_validate(measurement.variant.options)
        settings = Settings.model_validate(measurement.settings)
        self.session = session
        self.dtype = dtypes["param_dtype"]
        self.seed = measurement.protocol.seed
        self.count = options.models
        self.shared = options.batches == "same"
        self.separate_rates = options.learning_rates == "separate"
        self.lead = leading_axes(self.count, measurement.variant.batch_size, options.batches)
        self.rates = learning_rates(settings.learning_rate, self.count, options.learning_rates)
        self.momentum = settings.momentum
        given = [] if benchmark.drawn else given_batches(session.dataset, self.lead)
        self.task = make_task(session, self.dtype, given)
        self.model = make_model(session, dtypes)
        write_as(self.model, formulation, on_gpu=session.device.on_gpu)
        self.graphdef = nnx.graphdef(self.model)
        self.drawn = benchmark.drawn
        if self.drawn:
            sizes = benchmark.sizes.model_validate(measurement.sizes)
            self.drawn_shape = self.drawn.shape(measurement.variant.model, sizes)
            self.drawn_classes = self.drawn.classes(measurement.variant.model, sizes)

    def has_convolutions(self) -> bool:
        return any(leaf.ndim == 4 for leaf in jax.tree.leaves(arrays_of(self.model)))

    def initial_weights(self) -> Iterator[Params]:
        """Of one model after the other; those of model i are drawn as those of a model alone with its seed."""
        for index in range(self.count):
            load_initial_weights(self.model, model_seed(self.seed, index), self.session.model.initial_weight)
            yield jax.tree.map(jnp.copy, arrays_of(self.model))

    def check_batch(self) -> tuple[Inputs, jax.Array]:
        """Inputs [models, batch, ...] and targets [models, batch, ...], or one batch for all: the same numbers in both
        frameworks."""
        if self.drawn:
            batch = drawn_batch(self.seed, self.lead, self.drawn_shape, self.drawn_classes)
        else:
            batch = first_batch(self.session.dataset, self.lead)
        on_device = {name: jnp.asarray(array) for name, array in {**batch, **self.session.dataset.shared}.items()}
        return self.task.inputs(on_device), self.task.targets(on_device)

    def apply(self, params: Params, inputs: jax.Array) -> jax.Array:
        return nnx.merge(self.graphdef, params)(inputs)

    def loss(self, params: Params, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Of one model: the mean over its batch."""
        return self.task.mean_loss(self.apply(params, inputs), targets)

    def optimize(self, state: ModelState, gradient: Params, rate: jax.Array) -> ModelState:
        """Of one model."""
        optimizer = optax.sgd(rate, momentum=self.momentum)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        return ModelState(optax.apply_updates(state.params, updates), opt_state)

    def step(
        self, state: ModelState, rate: jax.Array, inputs: jax.Array, targets: jax.Array
    ) -> tuple[ModelState, jax.Array]:
        """Of one model: its new state and its loss before."""
        loss, gradient = jax.value_and_grad(self.loss)(state.params, inputs, targets)
        return self.optimize(state, gradient, rate), loss

    def initial_state(self, params: Params) -> ModelState:
        """Of one model; the learning rate has no part in it."""
        return ModelState(params, optax.sgd(1.0, momentum=self.momentum).init(params))

    def to_neutral(self, params: Params) -> Neutral:
        """[models, ...]"""
        return to_neutral(params, flattened_of(self.model), leading_axes=1)


def losses_of_models(losses: Arrays) -> NDArray[np.float64]:
    """[models]"""
    return np.array([float(loss) for loss in losses])


def stack_on_host(of_models: Iterable[Params]) -> Params:
    """[models, ...], as numpy arrays: the device may have no room for them beside what is measured."""
    stacked_models: Params = jax.tree.map(
        lambda *leaves: np.stack(leaves), *[jax.device_get(params) for params in of_models]
    )
    return stacked_models
