"""Use case 6: training steps of N models of one kind at once, on one GPU.

The models differ in their initial weights, and by option in their batches and in their learning rates. A batch size is
that of one model: a step does N times as many samples. The batch lies on the device, and each call uses it again.

Execution modes (formulations.py), the first word for how N models become one program:
    loop             N modules, one after the other
    conv1d_loop      the same with dense layers as Conv1d of kernel 1
    streams          the loop, each model's work in a CUDA stream of its own (GPU only)
    grouped_conv1d   dense layers of all models as one Conv1d of kernel 1 with N groups
    batched          dense layers as one batched product (baddbmm), convolutions as one with N groups
    vmap             torch.func: stack_module_state and vmap
and a second one for how it is run:
    (none)           eager, operator by operator
    _compiled        models and losses are one torch.compile graph, forward and backward
    _cuda_graphs     the same with mode="reduce-overhead": its kernels are replayed as CUDA graphs (GPU only)
The optimizer is PyTorch's fused SGD. It knows no learning rate per model inside one tensor, so stacked models with
separate rates have one of their own, compiled where the model is.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.data import NoDataset
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
from torch_runner.compiler import compile_options, keep_in_place, require_gpu
from torch_runner.formulations import Formulation, make_formulation, make_optimizer, mean_loss
from torch_runner.weights import load_initial_weights, parameter_count, to_neutral

EXECUTION_MODES = (
    "loop",
    "loop_compiled",
    "loop_cuda_graphs",
    "conv1d_loop",
    "conv1d_loop_compiled",
    "streams",
    "grouped_conv1d",
    "grouped_conv1d_compiled",
    "batched",
    "batched_compiled",
    "batched_cuda_graphs",
    "vmap",
    "vmap_compiled",
    "vmap_cuda_graphs",
)
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

Tensors = dict[str, Tensor]


def run(session: Session) -> Result:
    variant = session.measurement.variant
    problem = Problem(session)
    training = Training(problem, variant.execution_mode)
    batch = problem.check_batch()
    training.take(batch)
    training.reset()

    wait = session.device.wait
    wait(training)  # copied before the clock starts
    cold_call_times_s = session.measure_cold(training.step, wait)
    checks = problem.check(training, batch)
    if problem.draws:
        training.draw()
    steady = session.measure_steady(
        training.step, wait, steps_per_call=1, samples_per_step=problem.count * variant.batch_size
    )
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
    with torch.no_grad():
        outputs = training.formulation.outputs(training.inputs)
    numbers = {"outputs": to_neutral({"outputs": torch.stack(list(outputs))})["outputs"]}
    numbers["loss"] = losses_of_models(training.step())
    gradients = training.formulation.stacked(lambda parameter: parameter.grad)
    numbers |= {f"gradient/{name}": value for name, value in to_neutral(gradients).items()}
    for _ in range(PARITY_STEPS - 1):
        training.step()
    weights = to_neutral(training.formulation.stacked(torch.Tensor.detach))
    return numbers | {f"weights_after_{PARITY_STEPS}_steps/{name}": value for name, value in weights.items()}


class Problem:
    """N models, their initial weights, learning rates and batches."""

    def __init__(self, session: Session, dtype: torch.dtype = torch.float32) -> None:
        measurement = session.measurement
        variant, settings = measurement.variant, measurement.settings
        self.variant, self.dtype = variant, dtype
        self.seed = measurement.protocol.seed
        self.dataset = session.dataset
        self.device = session.device.device
        self.bf16 = variant.precision == "bf16"
        self.count = int(variant.options["models"])
        self.shared = variant.options["batches"] == "same"
        self.separate_rates = variant.options["learning_rates"] == "separate"
        self.lead = leading_axes(self.count, variant.batch_size, str(variant.options["batches"]))
        self.rates = learning_rates(
            float(settings["learning_rate"]), self.count, str(variant.options["learning_rates"])
        ).tolist()
        self.momentum = float(settings["momentum"])
        self.benchmark = importlib.import_module(f"torch_runner.benchmarks.{measurement.cell.benchmark}")
        self.draws = isinstance(session.dataset, NoDataset)
        self.sizes = sizes_of(settings)
        self.initial = self.initial_weights()

    def make_model(self) -> nn.Module:
        of_any_size = (self.sizes,) if self.draws else ()
        return self.benchmark.make_model(self.variant.model, *of_any_size).to(self.dtype)

    def initial_weights(self) -> Tensors:
        """[models, ...]; those of model i are drawn as those of a model alone with the seed of model i."""
        model = self.make_model()
        drawn = []
        for index in range(self.count):
            load_initial_weights(model, model_seed(self.seed, index))
            drawn.append([parameter.detach().clone() for parameter in model.parameters()])
        names = [name for name, _ in model.named_parameters()]
        return {name: torch.stack(values) for name, values in zip(names, zip(*drawn, strict=True), strict=True)}

    def check_batch(self) -> Batch:
        """The same numbers in both frameworks."""
        if not self.draws:
            return dataset_batch(self.dataset, self.lead)
        shape, classes = input_shape(self.variant.model, self.sizes), class_count(self.variant.model, self.sizes)
        return Batch(*draw_batch(self.seed, self.lead, shape, classes))

    def on_device(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Inputs [models, batch, ...] and labels [models, batch], or one batch for all."""
        inputs = torch.from_numpy(batch.inputs).to(self.device, self.dtype)
        return inputs, torch.from_numpy(batch.labels).long().to(self.device)

    def check(self, training: "Training", batch: Batch) -> list[Check]:
        """Raises CheckFailed unless the step that will be timed does to every model what training it alone does."""
        training.reset()
        losses = [losses_of_models(training.step()) for _ in range(CHECK_STEPS)]
        weights = to_neutral(training.formulation.stacked(torch.Tensor.detach))
        initial = to_neutral(self.initial)
        updates = {name: weights[name] - initial[name] for name in initial}
        actual = Course(losses=np.stack(losses), updates=updates)
        return check_course(actual, self.alone(batch), self.variant.precision)

    def alone(self, batch: Batch) -> Course:
        """Every model by itself in float64, by the plain module and PyTorch's plain SGD; no two are on the device at
        once."""
        losses, updates = [], []
        for index in range(self.count):
            model = self.make_model().to(self.device, torch.float64)
            initial = {name: value[index].to(self.device, torch.float64) for name, value in self.initial.items()}
            model.load_state_dict(initial)
            optimizer = torch.optim.SGD(model.parameters(), self.rates[index], self.momentum)
            own = batch if self.shared else Batch(batch.inputs[index], batch.labels[index])
            inputs, labels = self.on_device(own)
            of_steps = []
            for _ in range(CHECK_STEPS):
                optimizer.zero_grad()
                loss = mean_loss(model(inputs.double()), labels)
                loss.backward()
                optimizer.step()
                of_steps.append(loss.item())
            losses.append(of_steps)
            weights = model.state_dict()
            updates.append(to_neutral({name: weights[name] - value for name, value in initial.items()}))
        stacked = {name: np.stack([update[name] for update in updates]) for name in updates[0]}
        return Course(losses=np.array(losses).T, updates=stacked)


class Training:
    """The step that is timed, whole and in phases."""

    def __init__(self, problem: Problem, execution_mode: str) -> None:
        self.problem = problem
        name, self.how = split_mode(execution_mode)
        device = problem.device
        if self.how == "cuda_graphs":
            require_gpu(execution_mode, device)
        self.formulation: Formulation = make_formulation(
            name, problem.make_model, problem.count, shared=problem.shared, device=device
        )
        self.formulation.load(problem.initial)
        self.compute_losses = compiled(self._losses, self.how)
        self.optimizer = make_optimizer(
            self.formulation,
            problem.rates,
            problem.momentum,
            separate=problem.separate_rates,
            compiled=self.how != "eager",
        )
        self.ones = torch.ones(problem.count, dtype=problem.dtype, device=device)
        self.generator = torch.Generator(device).manual_seed(problem.seed)
        self.inputs: Sequence[Tensor] = ()
        self.labels: Sequence[Tensor] = ()
        self.losses: Sequence[Tensor] = ()

    def _losses(self, inputs: Sequence[Tensor], labels: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.autocast(self.problem.device.type, torch.bfloat16, enabled=self.problem.bf16):
            return self.formulation.losses(inputs, labels)

    def take(self, batch: Batch) -> None:
        """Train on this batch from now on."""
        self.inputs, self.labels = self.formulation.place(*self.problem.on_device(batch))
        if self.how == "cuda_graphs":
            keep_in_place([*as_list(self.inputs), *as_list(self.labels)])

    def draw(self) -> Sequence[Tensor]:
        """Train on a new random batch from now on, made on the device. CUDA graphs read it where the first one lay."""
        problem = self.problem
        shape = input_shape(problem.variant.model, problem.sizes)
        classes = class_count(problem.variant.model, problem.sizes)
        inputs, labels = self.formulation.draw(shape, classes, problem.variant.batch_size, self.generator)
        if self.how == "cuda_graphs":
            torch._foreach_copy_([*as_list(self.inputs), *as_list(self.labels)], [*as_list(inputs), *as_list(labels)])
        else:
            self.inputs, self.labels = inputs, labels
        return self.inputs

    def reset(self) -> None:
        """Initial weights, and an optimizer that has seen nothing, in place."""
        self.formulation.load(self.problem.initial)
        self.optimizer.forget()

    def step(self) -> Sequence[Tensor]:
        """All of it; the losses of all models before the step."""
        self.zero_gradients()
        losses = self.forward()
        self.backward()
        self.optimize()
        return losses

    def zero_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self) -> Sequence[Tensor]:
        if self.how == "cuda_graphs":
            torch.compiler.cudagraph_mark_step_begin()
        self.losses = self.compute_losses(self.inputs, self.labels)
        return self.losses

    def backward(self) -> None:
        """Of all models at once: no model's weights are in another one's loss."""
        if isinstance(self.losses, Tensor):
            self.losses.backward(self.ones)
        else:
            torch.autograd.backward(self.losses)

    def optimize(self) -> None:
        self.optimizer.step()

    def phases(self) -> list[Phase]:
        """In the order in which they depend on each other. Together they are the step."""
        data_generation: list[Phase] = [("data_generation", self.draw)] if self.problem.draws else []
        return [
            *data_generation,
            ("zero_gradients", self.zero_gradients),
            ("forward", self.forward),
            ("backward", self.backward),
            ("optimizer", self.optimize),
        ]


def split_mode(execution_mode: str) -> tuple[str, str]:
    """`batched_compiled` -> `batched`, `compiled`; `batched` -> `batched`, `eager`."""
    for how in ("compiled", "cuda_graphs"):
        if execution_mode.endswith(f"_{how}"):
            return execution_mode.removesuffix(f"_{how}"), how
    return execution_mode, "eager"


def compiled(function: Callable[..., Any], how: str) -> Callable[..., Any]:
    """`function` itself in the eager modes."""
    if how == "compiled":
        return torch.compile(function, **compile_options())
    if how == "cuda_graphs":
        return torch.compile(function, **compile_options("reduce-overhead"))
    return function


def as_list(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One tensor for all models is a list of one."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def losses_of_models(losses: Sequence[Tensor]) -> NDArray[np.float64]:
    """[models]"""
    return torch.stack([loss.detach() for loss in losses]).double().cpu().numpy()
