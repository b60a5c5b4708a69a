"""Use case 6: training steps of N models of one kind at once, on one GPU.

harness/measure/use_cases/many_models.py has what PyTorch does alike, harness/work/use_cases/many_models.py the
formulations. Each is one jitted program for the whole step, state donated.

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

from harness.measure.program import Phase, Session
from harness.measure.use_cases.many_models import ForwardOnlyBase, ManyModelsBase, ProblemBase
from harness.work.applies import require_layers
from harness.work.task_kinds import Inputs
from harness.work.use_cases.many_models import CHECK_STEPS, Options, model_seed
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
from jax_runner.layers import convolutions_of, write_as
from jax_runner.models import make_model
from jax_runner.task import in_float64, make_task, samples_of
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


class ManyModels(OneProgram, ManyModelsBase):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device]) -> None:
        dtypes = model_dtypes(session.measurement.variant.precision)
        problem = Problem(session, dtypes, session.mode.formulation)
        super().__init__(session, problem)
        self.together = session.mode.formulation in TOGETHER
        self.formulation = LAYOUTS.get(session.mode.formulation, session.mode.formulation)
        if self.formulation == "side_by_side":
            require_layers(session.mode.formulation, len(convolutions_of(problem.model)))
        self.parameter_count = problem.count * parameter_count(problem.model)
        of_compiler = details_of_compiler(session.mode, session.device)
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
        self.compute = jitted(step, session.mode, session.device, donate_argnums=0)
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
        self.models, losses = self.compute(self.models, self.rates, self.inputs, self.targets)
        return self.models, losses

    def state(self) -> Arrays:
        return self.models, self.inputs, self.targets

    def losses_of(self, outputs: tuple[Arrays, Arrays]) -> NDArray[np.float64]:
        return np.array([float(loss) for loss in outputs[1]])

    def weights(self) -> Neutral:
        return self.problem.to_neutral(stacked(self.params(), self.formulation))

    def alone(self) -> list[tuple[list[float], Neutral]]:
        """By a jitted step of one model."""
        courses = []
        inputs, targets = self.problem.check_batch()
        with jax.enable_x64(True):
            problem = Problem(self.session, FLOAT64)
            own_batches = zip(problem.of_models(in_float64(inputs)), problem.of_models(targets), strict=True)
            step = jax.jit(problem.step)
            for initial, rate, own in zip(problem.initial_weights(), problem.rates, own_batches, strict=True):
                state = problem.initial_state(initial)
                of_steps = []
                for _ in range(CHECK_STEPS):
                    state, loss = step(state, rate, *own)
                    of_steps.append(float(loss))
                updates = jax.tree.map(jnp.subtract, state.params, initial)
                courses.append((of_steps, to_neutral(updates, flattened_of(problem.model))))
        return courses

    def construction(self) -> list[Phase]:
        initial = [jax.device_get(params) for params in self.problem.initial_weights()]
        return [("build", partial(self.build, initial))]

    def build(self, initial: Iterable[Params]) -> Arrays:
        """N models on the device, with initial weights that are drawn already, and an optimizer that has seen nothing.
        The module is one for all, and without values of its own."""
        make_model(self.session, model_dtypes(self.session.measurement.variant.precision))
        on_device = (jax.tree.map(jnp.asarray, params) for params in initial)
        return laid_out([self.problem.initial_state(params) for params in on_device], self.formulation)

    def phases_of_step(self) -> list[Phase]:
        return [("forward", self.forward), ("backward", self.backward), ("optimizer", self.optimize)]

    def model_inputs(self) -> Inputs:
        return jax.eval_shape(lambda: self.problem.of_models(self.problem.check_batch()[0])[0])

    def arguments(self) -> tuple[Arrays, ...]:
        return self.models, self.rates, self.inputs, self.targets

    def first_step(self) -> Neutral:
        problem = self.problem
        compute_outputs = jax.jit(self.over_models(problem.apply, (PER_MODEL, self.batch_axis)))
        outputs = stacked(compute_outputs(self.params(), self.inputs), self.formulation)
        numbers: Neutral = {"outputs": np.asarray(outputs, np.float64)}
        self.forward()
        gradients = problem.to_neutral(stacked(self.backward(), self.formulation))
        numbers |= {f"gradients/{name}": value for name, value in gradients.items()}
        return numbers | {"loss": self.losses_of(self.step())}

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


class ForwardOnly(ForwardOnlyBase, ManyModels):
    """See the base."""

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

    def outputs(self) -> NDArray[np.float64]:
        return np.asarray(stacked(self.step()[1], self.formulation), np.float64)

    def outputs_alone(self) -> NDArray[np.float64]:
        """By a jitted model."""
        inputs, _ = self.problem.check_batch()
        with jax.enable_x64(True):
            problem = Problem(self.session, FLOAT64)
            apply = jax.jit(problem.apply)
            outputs = [
                np.asarray(apply(params, own), np.float64)
                for params, own in zip(problem.initial_weights(), problem.of_models(in_float64(inputs)), strict=True)
            ]
        return np.stack(outputs)

    def arguments(self) -> tuple[Arrays, ...]:
        return self.count, self.params(), self.inputs

    def reset(self) -> None:
        """Initial weights, and no optimizer."""
        self.models = laid_out(list(self.problem.initial_weights()), self.formulation)

    def params(self) -> Arrays:
        return self.models

    def _counted(self, count: jax.Array, params: Arrays, inputs: Arrays) -> tuple[jax.Array, Arrays]:
        return count + 1, self.outputs_of_all(params, inputs)


class Problem(ProblemBase):
    """And the step of one model."""

    def __init__(self, session: Session[Any], dtypes: dict[str, Any], formulation: str = "") -> None:
        """`formulation`: how the model's layers are written down, if not plainly."""
        super().__init__(session)
        self.dtype = dtypes["param_dtype"]
        self.task = make_task(session, self.dtype, self.given)
        self.model = make_model(session, dtypes)
        write_as(self.model, formulation, on_gpu=session.device.on_gpu)
        self.graphdef = nnx.graphdef(self.model)

    def initial_weights(self) -> Iterator[Params]:
        """Of one model after the other; those of model i are drawn as those of a model alone with its seed."""
        for index in range(self.count):
            load_initial_weights(self.model, model_seed(self.seed, index), self.session.model.initial_weight)
            yield jax.tree.map(jnp.copy, arrays_of(self.model))

    def of_models(self, batch: Inputs) -> list[Any]:
        """Of each model, its own part of inputs or targets, or all of what they share."""
        return [batch] * self.count if self.shared else samples_of(batch)

    def check_batch(self) -> tuple[Inputs, jax.Array]:
        """Inputs and targets."""
        on_device = {name: jnp.asarray(array) for name, array in self.check_arrays().items()}
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
