"""Use case 6: training steps of N models of one kind at once, on one GPU.

harness/measure/use_cases/many_models.py has what JAX does alike, harness/work/use_cases/many_models.py the
formulations.

Models and losses are what is compiled (compiler.py). A CUDA graph of a step has the optimizer inside, and no phases.
The optimizer is PyTorch's fused SGD. It knows no learning rate per model inside one tensor, so stacked models with
separate rates have one of their own, compiled where the model is.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from harness.measure.program import Phase, Session
from harness.measure.use_cases.many_models import ForwardOnlyBase, ManyModelsBase, ProblemBase
from harness.work.task_kinds import Inputs
from harness.work.use_cases.many_models import CHECK_STEPS, Options, model_seed
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import Device, model_dtype
from torch_runner.formulations import Formulation, StreamedModels, make_formulation, make_optimizer
from torch_runner.models import make_model
from torch_runner.task import in_float64, make_task, samples_of, to_device
from torch_runner.weights import Neutral, load_initial_weights, parameter_count, to_neutral

Tensors = dict[str, Tensor]


def build(session: Session[Device], *, joined: bool = True) -> "ManyModels":
    """One device only, so `joined` changes nothing."""
    options = Options.model_validate(session.measurement.variant.options)
    return ForwardOnly(session) if options.work == "forward" else ManyModels(session)


class ManyModels(ManyModelsBase):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device]) -> None:
        mode, problem = session.mode, Problem(session, model_dtype(session.measurement.variant.precision))
        super().__init__(session, problem)
        self.parameter_count = problem.count * parameter_count(problem.make_model())
        self.details = {"models": problem.count, **describe(mode), **problem.task.details}
        self.is_captured = mode.graph == "step"
        self.formulation = self.make_formulation()
        self.is_compiled = mode.run_as != "eager"
        self.compute_losses = in_mode(self._losses, mode, problem.device)
        self.optimizer = make_optimizer(self.formulation, problem, mode)
        self.ones = torch.ones(problem.count, dtype=problem.dtype, device=problem.device)
        self.generator = torch.Generator(problem.device).manual_seed(problem.seed)
        self.losses: Tensor | Sequence[Tensor] = ()
        self.inputs, self.targets = self.formulation.place(*problem.check_batch())
        self.compute = captured(self.one_step, self.zero_gradients) if self.is_captured else self.one_step
        self.reset()

    def make_formulation(self) -> Formulation:
        problem = self.problem
        return make_formulation(
            self.session.mode.formulation,
            problem.make_model,
            problem.task,
            problem.count,
            problem.shared,
            problem.device,
        )

    def step(self) -> Tensor | Sequence[Tensor]:
        """All of it; the losses of all models before the step."""
        return self.compute()

    def one_step(self) -> Tensor | Sequence[Tensor]:
        self.zero_gradients()
        self.forward()
        self.backward()
        self.optimize()
        losses, self.losses = self.losses, ()  # or they would keep autograd's graph of a warm-up
        return losses

    def state(self) -> Any:
        return self.formulation, self.inputs, self.targets

    def losses_of(self, outputs: Tensor | Sequence[Tensor]) -> NDArray[np.float64]:
        losses: NDArray[np.float64] = torch.stack([loss.detach() for loss in outputs]).double().cpu().numpy()
        return losses

    def weights(self) -> Neutral:
        return to_neutral(self.formulation.stacked(torch.Tensor.detach))

    def alone(self) -> list[tuple[list[float], Neutral]]:
        """By the plain module and PyTorch's plain SGD."""
        courses = []
        inputs, targets = self.problem.check_batch()
        problem = Problem(self.session, torch.float64)
        own_batches = zip(problem.of_models(in_float64(inputs)), problem.of_models(targets), strict=True)
        for index, (own, own_targets) in enumerate(own_batches):
            model, initial = problem.initial_model(index)
            optimizer = torch.optim.SGD(model.parameters(), float(problem.rates[index]), problem.momentum)
            of_steps = []
            for _ in range(CHECK_STEPS):
                optimizer.zero_grad()
                loss = problem.task.mean_loss(model(own), own_targets)
                loss.backward()
                optimizer.step()
                of_steps.append(loss.item())
            weights = model.state_dict()
            courses.append((of_steps, to_neutral({name: weights[name] - value for name, value in initial.items()})))
        return courses

    def model_inputs(self) -> Inputs:
        inputs, _ = self.problem.check_batch()
        return self.problem.of_models(inputs)[0]

    def witness(self) -> dict[str, Any]:
        return witness(self.compute, self.session.mode, self.problem.device)

    def construction(self) -> list[Phase]:
        return [("build", self.build)]

    def build(self) -> Formulation:
        """N models on the device, with the initial weights that are drawn already, and an optimizer that has seen
        nothing. Modules first draw weights of their own, as PyTorch's do."""
        formulation = self.make_formulation()
        formulation.load(self.problem.initial)
        make_optimizer(formulation, self.problem, self.session.mode)
        return formulation

    def phases(self) -> list[Phase]:
        return [] if self.is_captured else super().phases()

    def phases_of_step(self) -> list[Phase]:
        return [
            ("zero_gradients", self.zero_gradients),
            ("forward", self.forward),
            ("backward", self.backward),
            ("optimizer", self.optimize),
        ]

    def first_step(self) -> Neutral:
        with torch.no_grad():
            outputs = self.formulation.outputs(self.inputs)
        numbers = to_neutral({"outputs": torch.stack(list(outputs))})
        numbers["loss"] = self.losses_of(self.step())
        gradients = to_neutral(self.formulation.stacked(gradient_of))
        return numbers | {f"gradients/{name}": value for name, value in gradients.items()}

    def reset(self) -> None:
        """Initial weights, and an optimizer that has seen nothing, in place."""
        self.formulation.load(self.problem.initial)
        self.optimizer.forget()

    # The phases.

    def draw(self) -> Tensor | Sequence[Tensor]:
        """A CUDA graph reads it where the first was."""
        problem = self.problem
        inputs, targets = self.formulation.draw(
            problem.lead, problem.drawn_shape, problem.drawn_classes, self.generator
        )
        if self.is_captured:
            torch._foreach_copy_([*as_list(self.inputs), *as_list(self.targets)], [*as_list(inputs), *as_list(targets)])
        else:
            self.inputs, self.targets = inputs, targets
        return self.inputs

    def zero_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self) -> Tensor | Sequence[Tensor]:
        self.losses = self.compute_losses(self.inputs, self.targets)
        return self.losses

    def backward(self) -> None:
        """Of all models at once: no model's weights are in another one's loss."""
        with self.joined_streams():
            if isinstance(self.losses, Tensor):
                self.losses.backward(self.ones)
            else:
                torch.autograd.backward(self.losses)

    def joined_streams(self) -> AbstractContextManager[None]:
        """Where Inductor has left that out."""
        formulation = self.formulation
        return formulation.joined() if self.is_compiled and isinstance(formulation, StreamedModels) else nullcontext()

    def optimize(self) -> None:
        self.optimizer.step()

    def _losses(self, inputs: Any, targets: Any) -> Tensor | Sequence[Tensor]:
        with torch.autocast(self.problem.device.type, torch.bfloat16, enabled=self.problem.bf16):
            return self.formulation.losses(inputs, targets)


class ForwardOnly(ForwardOnlyBase, ManyModels):
    """See the base."""

    def __init__(self, session: Session[Device]) -> None:
        super().__init__(session)
        self.compute_outputs = in_mode(self._outputs, session.mode, self.problem.device)

    @torch.no_grad()
    def one_step(self) -> Tensor | Sequence[Tensor]:
        outputs: Tensor | Sequence[Tensor] = self.compute_outputs(self.inputs)
        return outputs

    def outputs(self) -> NDArray[np.float64]:
        return outputs_of_models(self.step())

    @torch.no_grad()
    def outputs_alone(self) -> NDArray[np.float64]:
        """By the plain module."""
        problem = Problem(self.session, torch.float64)
        inputs, _ = self.problem.check_batch()
        of_models = enumerate(problem.of_models(in_float64(inputs)))
        return outputs_of_models([problem.initial_model(index)[0](own) for index, own in of_models])

    def _outputs(self, inputs: Any) -> Tensor | Sequence[Tensor]:
        with torch.autocast(self.problem.device.type, torch.bfloat16, enabled=self.problem.bf16):
            return self.formulation.outputs(inputs)


class Problem(ProblemBase):
    """And their initial weights."""

    def __init__(self, session: Session[Device], dtype: torch.dtype) -> None:
        super().__init__(session)
        self.dtype = dtype
        self.device = session.device.device
        self.bf16 = session.measurement.variant.precision == "bf16"
        self.task = make_task(session, dtype, self.given).to(self.device)
        self.initial = self.initial_weights()

    def make_model(self) -> nn.Module:
        return make_model(self.session, self.dtype)

    def initial_weights(self) -> Tensors:
        """[models, ...]; those of model i are drawn as those of a model alone with the seed of model i."""
        model = self.make_model()
        drawn = []
        for index in range(self.count):
            load_initial_weights(model, model_seed(self.seed, index), self.session.model.initial_weight)
            drawn.append([parameter.detach().clone() for parameter in model.parameters()])
        names = [name for name, _ in model.named_parameters()]
        return {name: torch.stack(values) for name, values in zip(names, zip(*drawn, strict=True), strict=True)}

    def initial_model(self, index: int) -> tuple[nn.Module, Tensors]:
        """The plain module of one model, on the device, and its weights."""
        model = self.make_model().to(self.device)
        initial = {name: value[index].to(self.device) for name, value in self.initial.items()}
        model.load_state_dict(initial)
        return model, initial

    def of_models(self, batch: Inputs) -> list[Any]:
        """Of each model, its own part of inputs or targets, or all of what they share."""
        return [batch] * self.count if self.shared else samples_of(batch)

    def check_batch(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets."""
        on_device = to_device(self.check_arrays(), self.device)
        inputs = tree_map(lambda own: own.clone(memory_format=torch.contiguous_format), self.task.inputs(on_device))
        return inputs, self.task.targets(on_device)


def as_list(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """One tensor for all models is a list of one."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def outputs_of_models(outputs: Tensor | Sequence[Tensor]) -> NDArray[np.float64]:
    """[models, batch, ...]"""
    found: NDArray[np.float64] = torch.stack(list(outputs)).detach().double().cpu().numpy()
    return found
