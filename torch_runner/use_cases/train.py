"""Use cases 1 and 2: train a model on one GPU, or on several.

harness/measure/use_cases/train.py has what JAX does alike, harness/work/use_cases/train.py the formulations.

Gather, model and loss are what is compiled (compiler.py). The optimizer is PyTorch's fused one in all modes, and is not
compiled (optimizer.py); a CUDA graph of a step has it inside, and there the device counts the steps itself. The model
is channels_last.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.errors import Refused
from harness.measure.program import Means, Session
from harness.measure.use_cases.train import TrainingBase
from harness.results.parity import PARITY_STEPS
from harness.work.chunks import Arrays
from harness.work.graphs import Given
from harness.work.optimizers import Vector, weight_decay_of
from harness.work.task_kinds import Batch, Inputs
from harness.work.use_cases.train import CHECK_STEPS, Course, Settings
from harness.work.weights import RUNNING_STATISTICS
from torch_runner.augment import augmented
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import Device, model_dtype
from torch_runner.graphs import use_sorted_sums
from torch_runner.models import details_of, make_model, with_attention, write_out_attention
from torch_runner.optimizer import clip_gradients, first_gradients, make_optimizer, moments, reset_optimizer
from torch_runner.several_devices import average_gradients, shard, with_averaged_gradients
from torch_runner.task import make_task, to_device
from torch_runner.weights import Neutral, load_weights, parameter_count, to_neutral

STEPS_PER_GRAPH = 16
"""At most, of the formulation epoch. A replay costs some 10 us, which 16 steps make small; a graph of a whole epoch
would have tens of thousands of kernels."""


def build(session: Session[Device], *, joined: bool = True) -> "Training":
    return Training(session, joined=joined)


class Training(TrainingBase):
    """See harness/measure/program.py."""

    SEVERAL_STEPS = "the graph"

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        is_epoch = session.mode.formulation == "epoch"
        super().__init__(session, joined=joined, steps_at_once=STEPS_PER_GRAPH if is_epoch else 1)
        self.device = session.device.device
        samples, order, crops = self.first_samples()
        self.placed_order = torch.from_numpy(order.astype(np.int64)).to(self.device)
        """int64, as other indices would be converted in every step."""
        self.placed_crops = None if crops is None else torch.from_numpy(crops.copy()).to(self.device)
        self.problem = Problem(session, samples, self.given).to(self.device)
        self.model = self.problem.model
        if self.is_sharded:
            shard(self.model)
        else:
            self.model.to(memory_format=torch.channels_last)
        count_no_batches(self.model)
        self.rates = None if self.steps.rates is None else torch.from_numpy(self.steps.rates).to(self.device)
        self.rate = torch.zeros(1, device=self.device)
        """Of the step at hand where there is a schedule, on the device: a CUDA graph takes nothing from the host."""
        self.optimizer = make_optimizer(
            self.settings,
            self.model,
            self.settings.learning_rate if self.rates is None or self.is_sharded else self.rate,
            in_graph=session.mode.graph == "step",
            fused=not self.is_sharded or self.settings.optimizer != "sgd",  # which DTensor has not
        )
        self.parameter_count = parameter_count(self.model)
        self.units = self.problem.task.units
        of_devices = {} if session.is_alone else {"batch_norm": "local", **self.world.describe()}
        self.details = describe(session.mode) | details_of(self.model, self.problem.task, session) | of_devices
        self.replays = session.mode.graph != "none"
        self.is_flat = session.mode.formulation == "flat"
        self.steps_done = 0
        self.next_batch = torch.zeros(1, dtype=torch.int64, device=self.device)
        """The same for the device, modulo all steps. Not a scalar: indexing would read it on the host."""
        require_several_steps(self)
        self.one_step = make_step(self)
        self.compute = as_graph(self) if session.mode.graph == "step" else self.one_step
        self.reset()

    def step(self) -> Tensor:
        """One optimizer step on the batch that the order has next; the batch's mean loss before it. Of several steps
        in one call, all losses."""
        return self.compute()

    def state(self) -> nn.Module:
        return self.problem

    def bring(self, samples: Arrays) -> None:
        """In place: CUDA graphs keep pointing at the samples."""
        for name, placed in to_device(samples, self.session.device.cpu).items():
            self.problem.get_buffer(name).copy_(placed)

    def reset(self) -> None:
        """In place: CUDA graphs keep pointing at the weights and at what the optimizer keeps."""
        self.load(0)
        load_weights(self.model, self.starting_weight)
        self.problem.train()
        reset_optimizer(self.optimizer)
        self.steps_done = 0
        self.next_batch.zero_()

    def kept(self, outputs: Tensor) -> Tensor:
        """A replayed CUDA graph overwrites the loss of the step before."""
        return outputs.detach().clone() if self.replays else outputs.detach()

    def losses(self, kept: list[Tensor]) -> NDArray[np.floating[Any]]:
        losses: NDArray[np.floating[Any]] = torch.stack(kept).flatten().cpu().numpy()
        return losses

    def checked_course(self) -> tuple[Course, str]:
        alone = self.steps_per_call == 1
        return self.course(self.compute if alone else self.one_step), "the step" if alone else "one step of the graph"

    def course(self, step: Callable[[], Tensor]) -> Course:
        """Of the first steps from the initial weights."""
        self.reset()
        kept = [self.kept(step())]
        held = first_gradients(self.settings, self.optimizer, self.model)
        gradients = {name: value.copy() for name, value in to_neutral(held).items()}
        kept += [self.kept(step()) for _ in range(CHECK_STEPS - 1)]
        return Course(losses=self.mean_losses(kept), gradients=gradients, updates=self.updates())

    def weights(self) -> Neutral:
        return to_neutral(dict(self.model.named_parameters()))

    def statistics(self) -> Neutral:
        buffers = dict(self.model.named_buffers())
        return to_neutral({name: value for name, value in buffers.items() if name.endswith(RUNNING_STATISTICS)})

    def moments(self) -> dict[str, Neutral]:
        kept = moments(self.settings, self.optimizer, self.model)
        return {quantity: to_neutral(of_parameters) for quantity, of_parameters in kept.items()}

    def reference_on(self, device: torch.device) -> Course:
        model, task = make_model(self.session, torch.float64), make_task(self.session, torch.float64, self.given)
        task.to(device)
        load_weights(model, self.starting_weight)
        model.to(device)
        parameters = dict(model.named_parameters())
        like, mean_over_ranks = to_neutral(parameters), self.session.device.mean_over_ranks
        decays = [np.full(one.numel(), weight_decay_of(self.settings, one.ndim)) for one in parameters.values()]

        def gradient_and_loss(weights: Vector, step: int) -> Vector:
            for name, value in of_vector(weights, like).items():
                parameters[name].detach().copy_(torch.from_numpy(value))
            batch = augmented(self.own_batch(step, device), self.session.image_size, torch.float64)
            model.zero_grad()
            loss = task.mean_loss(model(task.inputs(batch)), task.targets(batch), self.settings.label_smoothing)
            loss.backward()
            gradients = {name: one.grad for name, one in parameters.items() if one.grad is not None}
            means = {name: mean_over_ranks(value) for name, value in to_neutral(gradients).items()}
            return np.append(as_vector(means), mean_over_ranks(np.array(loss.item())))

        named = lambda vector: of_vector(vector, like)  # noqa: E731
        return self.plain_course(as_vector(like), np.concatenate(decays), gradient_and_loss, named)

    def own_batch(self, step: int, device: torch.device) -> Batch:
        return to_device({**self.own_samples(step), **self.session.dataset.shared}, device)

    def model_inputs(self) -> Inputs:
        batch = augmented(self.own_batch(0, self.device), self.session.image_size, self.problem.input_dtype)
        return self.problem.task.inputs(batch)

    def witness(self) -> dict[str, Any]:
        return witness(self.compute, self.session.mode, self.device)

    @torch.no_grad()
    def evaluate(self) -> Means:
        self.problem.eval()
        means = super().evaluate()
        self.problem.train()
        return means

    def evaluator(self) -> Callable[[dict[str, NDArray[Any]]], tuple[Any, NDArray[Any], NDArray[Any]]]:
        task = self.problem.task

        def evaluated(arrays: dict[str, NDArray[Any]]) -> tuple[Any, NDArray[Any], NDArray[Any]]:
            batch = to_device(arrays, self.device)
            outputs, targets = self.problem.outputs(batch | self.problem.shared()), task.targets(batch)
            further = {name: float(scores.sum()) for name, scores in task.further_scores(outputs, targets).items()}
            losses, scores = task.losses(outputs, targets), task.scores(outputs, targets)
            return (float(losses.sum()), float(scores.sum()), further), scores.cpu().numpy(), targets.cpu().numpy()

        return evaluated

    def first_steps(self) -> tuple[Neutral, list[Tensor]]:
        numbers = self.first_batch()
        self.reset()
        kept = [self.kept(self.step())]
        numbers |= self.after_first_step()
        return numbers, kept + [self.kept(self.step()) for _ in range(PARITY_STEPS - 1)]

    def first_batch(self) -> Neutral:
        """Leaves the running statistics changed."""
        with torch.no_grad():
            outputs = self.problem.outputs(self.own_batch(0, self.device))
        return {"outputs": self.session.of_all_ranks(outputs.cpu().numpy())}

    def after_first_step(self) -> Neutral:
        """The gradient that the step took, averaged over the devices and clipped by the step itself; an optimizer
        leaves it as it was. Copied, as the next steps write into the same memory."""
        gradients: dict[str, Any] = {name: parameter.grad for name, parameter in self.model.named_parameters()}
        found = {f"gradients/{name}": value.copy() for name, value in to_neutral(gradients).items()}
        return found | {f"statistics/{name}": value.copy() for name, value in self.statistics().items()}


class Problem(nn.Module):
    """Mean loss of the batch that `rows` names, its images cut by `crops` where there are any. The samples are in
    buffers, so that a compiled graph does not copy them, and so is what they share."""

    def __init__(self, session: Session[Device], samples: Arrays, given: Sequence[Given] = ()) -> None:
        super().__init__()
        precision = session.measurement.variant.precision
        self.model = make_model(session, model_dtype(precision))
        if session.mode.formulation == "sorted_sums":
            use_sorted_sums(self.model)
        if session.mode.formulation == "plain_attention":
            write_out_attention(self.model)
        self.task = make_task(session, model_dtype(precision), given)
        self.device_type = session.device.device.type
        self.bf16 = precision == "bf16"
        self.formulation = str(session.mode.formulation)  # plain, as Dynamo reads it
        self.image_size = session.image_size
        self.input_dtype = model_dtype(precision)
        self.label_smoothing = Settings.model_validate(session.measurement.settings).label_smoothing
        self.names, self.shared_names = tuple(samples), tuple(session.dataset.shared)
        for name, tensor in to_device({**samples, **session.dataset.shared}, torch.device("cpu")).items():
            self.register_buffer(name, tensor)

    def forward(self, rows: Tensor, crops: Tensor | None = None) -> Tensor:
        batch = {name: self.get_buffer(name)[rows] for name in self.names} | self.shared()
        if crops is not None:
            batch["crops"] = crops
        return self.task.mean_loss(self.outputs(batch), self.task.targets(batch), self.label_smoothing)

    def shared(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(name) for name in self.shared_names}

    def outputs(self, batch: Batch) -> Tensor:
        autocast = torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16)
        with autocast, with_attention(self.formulation):
            inputs = self.task.inputs(augmented(batch, self.image_size, self.input_dtype))
            outputs: Tensor = self.model(inputs)
        return outputs


class NextBatch(nn.Module):
    """Mean loss of the batch that comes next. The device counts which one that is, so that a CUDA graph of the step
    needs nothing from the host."""

    order: Tensor
    index: Tensor
    crops: Tensor | None

    def __init__(self, training: "Training") -> None:
        super().__init__()
        self.problem = training.problem
        self.step_count = len(training.order)
        self.register_buffer("order", training.placed_order)
        self.register_buffer("index", training.next_batch)
        self.register_buffer("crops", training.placed_crops)

    def forward(self) -> Tensor:
        slot = self.index if len(self.order) == self.step_count else self.index % len(self.order)
        inputs = [self.order[slot].squeeze(0)]
        if self.crops is not None:
            inputs.append(self.crops[self.index].squeeze(0))
        loss: Tensor = self.problem(*inputs)
        self.index.add_(1).remainder_(self.step_count)
        return loss


def make_step(training: Training) -> Callable[[], Tensor]:
    """One optimizer step on the batch that the order has next; returns the batch's mean loss.

    Of several devices, each takes its own part of the batch and has that part's loss. Raises Refused for a mode that
    this machine cannot run.
    """
    mode = training.session.mode
    if mode.graph == "step":
        return make_counting_step(training)
    objective: nn.Module = in_mode(training.problem, mode, training.device, whole=not training.is_sharded)
    order, crops, rates = training.placed_order, training.placed_crops, training.rates
    has_graphs_of_parts = mode.graph == "parts"
    if training.communicates and not training.is_sharded and not training.is_flat:
        objective = with_averaged_gradients(objective, split=mode.formulation != "unsplit")

    def step() -> Tensor:
        if has_graphs_of_parts:
            torch.compiler.cudagraph_mark_step_begin()
        step_number = training.steps_done % len(training.order)
        inputs = [order[step_number % len(order)]]
        if crops is not None:
            inputs.append(crops[step_number])
        if rates is not None and training.is_sharded:
            for group in training.optimizer.param_groups:
                group["lr"] = training.steps.rate(step_number)
        elif rates is not None:
            training.rate.copy_(rates[step_number])
        loss = optimizer_step(training, objective, *inputs)
        training.steps_done += 1
        return loss

    return step


def make_counting_step(training: Training) -> Callable[[], Tensor]:
    """The same for a CUDA graph, which takes nothing from the host."""
    next_batch = in_mode(NextBatch(training), training.session.mode, training.device)
    rates = training.rates

    def step() -> Tensor:
        if rates is not None:
            training.rate.copy_(rates[training.next_batch])
        return optimizer_step(training, next_batch)

    return step


def as_graph(training: Training) -> Callable[[], Tensor]:
    """The step as one CUDA graph, or `steps_per_call` of them."""

    def steps() -> Tensor:
        losses = [training.one_step().detach() for _ in range(training.steps_per_call)]
        return losses[0] if training.steps_per_call == 1 else torch.stack(losses)

    return captured(steps, lambda: training.optimizer.zero_grad(set_to_none=True))


def optimizer_step(training: Training, mean_loss: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The loss before the step. The optimizer is not compiled: fused it is one kernel, or a few, for all parameters."""
    training.optimizer.zero_grad(set_to_none=True)
    loss = mean_loss(*inputs)
    loss.backward()
    if training.communicates and training.is_flat:
        average_gradients(training.model)
    if training.settings.max_gradient_norm:
        clip_gradients(training.model, training.settings.max_gradient_norm)
    training.optimizer.step()
    return loss


def require_several_steps(training: Training) -> None:
    """Raises Refused where a graph of several steps would be one of a single step."""
    mode = training.session.mode
    if mode.formulation == "epoch" and training.steps_per_call == 1:
        raise Refused(
            f"execution mode {mode.name} needs an epoch of steps that 2 to {STEPS_PER_GRAPH} divide; this one has "
            f"{len(training.order)} in all epochs, and one step in a graph is step.compiled_graph"
        )


def as_vector(tensors: Neutral) -> NDArray[np.float64]:
    return np.concatenate([tensor.ravel() for tensor in tensors.values()])


def of_vector(vector: NDArray[np.float64], like: Neutral) -> Neutral:
    """The other way, to the names and shapes of `like`."""
    parts = np.split(vector, np.cumsum([tensor.size for tensor in like.values()])[:-1])
    return {name: part.reshape(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}


def count_no_batches(model: nn.Module) -> None:
    """BatchNorm counts its batches for a momentum that changes with them, in a kernel of its own. Here it is fixed."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None
