"""Use cases 1 and 2: train a model on one GPU, or on several.

The data set lies on the device, or a chunk of it; a step gathers its batch there, by an order that numpy drew from the
seed, so both frameworks see the same batches. A schedule of rates and the crops of an augmentation are arrays as well.

Formulations:
    step       one optimizer step; on several devices DistributedDataParallel averages the gradients
    unsplit    the same without Dynamo's cuts for DistributedDataParallel: one graph, and no overlap (several GPUs only)
    flash_attention, cudnn_attention, efficient_attention, plain_attention
               as step; attention by that kernel of PyTorch's scaled_dot_product_attention, and not by the one that it
               would choose
    sorted_sums
               as step; of graphs, sums over sorted rows are segment_reduce's, and not index_add's (graphs.py)
    flat       gradients are averaged by one all-reduce after the backward pass (several GPUs only)
    epoch      several steps in one CUDA graph, the counterpart of JAX's scan: as many as divide an epoch, 16 at most
How a step is run (torch_runner/compiler.py):
    eager           model, loss and gather run operator by operator
    compiled        gather, model and loss are one torch.compile graph, forward and backward
    max_autotune    the same, and Inductor tries several kernels for matrix products, for 1 x 1 convolutions and for the
                    others forward (not before release 2.13), and takes the fastest; cuDNN's are always tried
    graph: step     the whole step is one CUDA graph: gather, forward, backward and optimizer. The device counts the
                    steps itself, and a call is one replay
    graph: parts    mode="reduce-overhead": what is compiled is replayed as CUDA graphs; the rest of the step stays in
                    Python
The optimizer is PyTorch's fused one in all of them, and is not compiled (optimizer.py); the model is channels_last.

On several devices each takes its own part of every batch, and the gradients are averaged (several_devices.py).
BatchNorm's statistics are the device's own; rank 0's are what the evaluation in the record uses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.errors import Refused
from harness.measure.program import Means, Session, Trains
from harness.measure.world import World
from harness.results.parity import PARITY_STEPS
from harness.results.record import Check
from harness.work.array_files import gather
from harness.work.chunks import Arrays, Chunks, is_resident, steps_in_call, steps_in_chunk
from harness.work.graphs import Given
from harness.work.optimizers import Reference, weight_decay_of
from harness.work.use_cases.train import (
    CHECK_STEPS,
    Course,
    Settings,
    check_first_losses,
    check_training,
    evaluation_count,
    evaluation_rows,
    steps_of,
)
from harness.work.weights import RUNNING_STATISTICS
from torch_runner.augment import augmented
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import Device, compute_dtype, model_dtype
from torch_runner.graphs import use_sorted_sums
from torch_runner.models import aggregation_of, attention_of, make_model, with_attention, write_out_attention
from torch_runner.optimizer import clip_gradients, first_gradients, make_optimizer, moments, reset_optimizer
from torch_runner.several_devices import average_gradients, with_averaged_gradients
from torch_runner.task import Batch, Inputs, make_task, to_device
from torch_runner.weights import Neutral, load_weights, parameter_count, to_neutral

STEPS_PER_GRAPH = 16
"""At most, of the formulation epoch. A replay costs some 10 us, which 16 steps make small; a graph of a whole epoch
would have tens of thousands of kernels."""


def build(session: Session[Device], *, joined: bool = True) -> "Training":
    return Training(session, joined=joined)


class Training(Trains):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        """`joined`: average the gradients over the devices, where there are several."""
        measurement = session.measurement
        self.settings = settings = Settings.model_validate(measurement.settings)
        self.session = session
        self.world = session.world
        self.device = session.device.device
        self.seed = measurement.protocol.seed
        self.communicates = joined and not session.is_alone
        self.starting_weight = session.weights_of(settings.weights, session.model.initial_weight)
        batch_size = measurement.variant.batch_size
        balanced_by = session.benchmark.task.balanced_by
        self.steps = steps_of(settings, self.seed, session.dataset.train, batch_size, balanced_by)
        self.order = self.steps.order
        self.samples_per_step = batch_size
        own_order = self.order[:, self.world.rows(batch_size)]
        loaded_steps = steps_in_chunk(session.dataset.train, own_order)
        self.is_resident = is_resident(session.dataset.train)
        steps_per_epoch = len(self.order) // settings.epochs
        self.steps_per_call = steps_in_call(steps_per_epoch, min(STEPS_PER_GRAPH, loaded_steps)) if self.is_epoch else 1
        self.chunks = Chunks(
            arrays=session.dataset.train,
            order=own_order,
            steps=loaded_steps // self.steps_per_call * self.steps_per_call,
        )
        self.chunk_there = 0
        samples = session.dataset.train if self.is_resident else self.chunks.gathered(0)
        self.given = batches_given(session, settings, self.order)
        self.objective = Objective(session, samples, self.given).to(self.device)
        self.model = self.objective.model
        self.model.to(memory_format=torch.channels_last)
        count_no_batches(self.model)
        self.rates = None if self.steps.rates is None else torch.from_numpy(self.steps.rates).to(self.device)
        self.rate = torch.zeros(1, device=self.device)
        """Of the step at hand where there is a schedule, on the device: a CUDA graph takes nothing from the host."""
        self.optimizer = make_optimizer(
            settings,
            self.model,
            settings.learning_rate if self.rates is None else self.rate,
            in_graph=session.mode.graph == "step",
        )
        self.placed_order = place_order(own_order if self.is_resident else self.chunks.slots, self.device)
        self.placed_crops = place_crops(self.steps.crops, self.world, self.device)
        self.parameter_count = parameter_count(self.model)
        self.units = self.objective.task.units
        self.details = {**describe(session.mode), **self.objective.task.details, **self.details_of_devices()}
        self.details |= aggregation_of(self.model)
        self.details |= attention_of(
            self.model, session.mode.formulation, compute_dtype(measurement.variant.precision), self.device
        )
        self.replays = session.mode.graph != "none"
        self.steps_done = 0
        self.next_batch = torch.zeros(1, dtype=torch.int64, device=self.device)
        """The same for the device, modulo all steps. Not a scalar: indexing would read it on the host."""
        self.one_step = make_step(self)
        self.compute = as_graph(self) if session.mode.graph == "step" else self.one_step
        self.reset()

    @property
    def is_epoch(self) -> bool:
        return self.session.mode.formulation == "epoch"

    def details_of_devices(self) -> dict[str, Any]:
        return {} if self.session.is_alone else {"batch_norm": "local", **self.world.describe()}

    def step(self) -> Tensor:
        """One optimizer step on the batch that the order has next; the batch's mean loss before it. Of several steps
        in one call, all losses."""
        return self.compute()

    def state(self) -> nn.Module:
        return self.objective

    def load(self, first_step: int) -> int:
        """In place: CUDA graphs keep pointing at the samples."""
        if self.is_resident:
            return len(self.order) - first_step
        number = self.chunks.number_of(first_step)
        if number != self.chunk_there:
            for name, samples in to_device(self.chunks.gathered(number), torch.device("cpu")).items():
                self.objective.get_buffer(name).copy_(samples)
            self.chunk_there = number
        return self.chunks.steps_left(first_step)

    def reset(self) -> None:
        """In place: CUDA graphs keep pointing at the weights and at what the optimizer keeps."""
        self.load(0)
        load_weights(self.model, self.starting_weight)
        self.objective.train()
        reset_optimizer(self.optimizer)
        self.steps_done = 0
        self.next_batch.zero_()

    def kept(self, outputs: Tensor) -> Tensor:
        """A replayed CUDA graph overwrites the loss of the step before."""
        return outputs.detach().clone() if self.replays else outputs.detach()

    def losses(self, kept: list[Tensor]) -> NDArray[np.floating[Any]]:
        losses: NDArray[np.floating[Any]] = torch.stack(kept).flatten().cpu().numpy()
        return losses

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the step that is timed trains as plain training in float64 does. Of several steps
        in one graph, that is checked of one step by itself, and the graph's own first losses are."""
        precision, reference = self.session.measurement.variant.precision, self.reference()
        batch_norm = self.session.model.has_batch_norm
        if self.steps_per_call == 1:
            checks = check_training(self.course(self.compute), reference, precision, batch_norm=batch_norm)
        else:
            of_one = self.course(self.one_step)
            checks = check_training(of_one, reference, precision, "one step of the graph", batch_norm=batch_norm)
            self.reset()
            losses = self.session.device.mean_over_ranks(self.losses([self.kept(self.step())]))
            checks += check_first_losses(losses, reference.losses, precision, "the graph")
        self.reset()
        return checks

    def course(self, step: Callable[[], Tensor]) -> Course:
        """Of the first steps from the initial weights."""
        self.reset()
        kept = [self.kept(step())]
        held = first_gradients(self.settings, self.optimizer, self.model)
        gradients = {name: value.copy() for name, value in to_neutral(held).items()}
        kept += [self.kept(step()) for _ in range(CHECK_STEPS - 1)]
        weights = to_neutral(dict(self.model.named_parameters()))
        return Course(
            losses=self.session.device.mean_over_ranks(self.losses(kept)),
            gradients=gradients,
            updates={name: value - self.starting_weight(name, value.shape) for name, value in weights.items()},
        )

    def reference(self) -> Course:
        """In float64, operator by operator, by the optimizer as it is written down. Where the device has too little
        memory, on the CPU; not of several ranks, which must do this together."""
        try:
            return self.reference_on(self.device)
        except torch.OutOfMemoryError:
            if not self.session.is_alone:
                raise
        return self.reference_on(torch.device("cpu"))

    def reference_on(self, device: torch.device) -> Course:
        """Every device takes its own part of the batch."""
        settings, mean_over_ranks = self.settings, self.session.device.mean_over_ranks
        model, task = make_model(self.session, torch.float64), make_task(self.session, torch.float64, self.given)
        task.to(device)
        load_weights(model, self.starting_weight)
        model.to(device)
        parameters = dict(model.named_parameters())
        optimizer = Reference(
            settings,
            as_vector(to_neutral(parameters)),
            np.concatenate([np.full(one.numel(), weight_decay_of(settings, one.ndim)) for one in parameters.values()]),
        )
        losses: list[Any] = []
        gradients: Neutral = {}
        for step in range(CHECK_STEPS):
            batch = augmented(self.own_batch(step, device), self.session.image_size, torch.float64)
            model.zero_grad()
            loss = task.mean_loss(model(task.inputs(batch)), task.targets(batch), settings.label_smoothing)
            loss.backward()
            losses.append(mean_over_ranks(loss.detach().cpu().numpy()))
            found = {name: one.grad for name, one in parameters.items() if one.grad is not None}
            means = {name: mean_over_ranks(value) for name, value in to_neutral(found).items()}
            optimizer.step(as_vector(means), self.steps.rate(step))
            gradients = of_vector(optimizer.first_gradient(), means) if step == 0 else gradients
            for name, value in of_vector(optimizer.weights, means).items():
                parameters[name].detach().copy_(torch.from_numpy(value))
        weights = to_neutral(parameters)
        updates = {name: value - self.starting_weight(name, value.shape) for name, value in weights.items()}
        return Course(losses=np.array(losses), gradients=gradients, updates=updates)

    def own_batch(self, step: int, device: torch.device) -> Batch:
        """Of one step, from the host's samples."""
        step, own = step % len(self.order), self.world.rows(self.samples_per_step)
        rows = self.order[step, own]
        batch = {name: gather(array, rows) for name, array in self.session.dataset.train.items()}
        if self.steps.crops is not None:
            batch["crops"] = self.steps.crops[step, own]
        return to_device({**batch, **self.session.dataset.shared}, device)

    def model_inputs(self) -> Inputs:
        batch = augmented(self.own_batch(0, self.device), self.session.image_size, self.objective.input_dtype)
        return self.objective.task.inputs(batch)

    def witness(self) -> dict[str, Any]:
        return witness(self.compute, self.session.mode, self.device)

    @torch.no_grad()
    def evaluate(self) -> Means:
        """Every device does all that is evaluated of the test set."""
        test, task, metric = self.session.dataset.test, self.objective.task, self.session.benchmark.task.metric
        count = evaluation_count(self.settings, self.session.dataset.test_count)
        sums, said = [], []
        self.objective.eval()
        for rows in evaluation_rows(self.settings, test, self.session.outputs_of_sample):
            batch = to_device({name: array[rows[0] : rows[-1] + 1] for name, array in test.items()}, self.device)
            outputs, targets = self.objective.outputs(batch | self.objective.shared()), task.targets(batch)
            further = {name: float(scores.sum()) for name, scores in task.further_scores(outputs, targets).items()}
            losses, scores = task.losses(outputs, targets), task.scores(outputs, targets)
            sums.append((float(losses.sum()), float(scores.sum()), further))
            if metric.of == "test_set":
                said.append((scores.cpu().numpy(), targets.cpu().numpy()))
        self.objective.train()
        return Means.of_sums(sums, count, metric.of_test_set(said))

    def parity(self) -> Neutral:
        """Of the first batch: outputs, mean loss, gradient (clipped, where it is), running statistics. Of the steps:
        losses, what they have added to the parameters, running statistics. Gradients and losses are means over the
        devices; statistics are rank 0's."""
        numbers = self.first_batch()
        self.reset()
        kept = []
        for _ in range(PARITY_STEPS):
            kept.append(self.kept(self.step()))
            if len(kept) == 1:
                numbers |= self.after_first_step()
        losses = self.session.device.mean_over_ranks(self.losses(kept))
        numbers["loss"], numbers["losses_of_steps"] = losses[0], losses
        for quantity, kept_moments in moments(self.settings, self.optimizer, self.model).items():
            numbers |= {f"{quantity}/{name}": value for name, value in to_neutral(kept_moments).items()}
        for name, value in to_neutral(dict(self.model.named_parameters())).items():
            numbers[f"updates/{name}"] = value - self.starting_weight(name, value.shape)
        for name, value in running_statistics(self.model).items():
            numbers[f"statistics_after_steps/{name}"] = value
        return numbers

    def first_batch(self) -> Neutral:
        """Leaves the running statistics changed."""
        with torch.no_grad():
            outputs = self.objective.outputs(self.own_batch(0, self.device))
        return {"outputs": self.session.of_all_ranks(outputs.cpu().numpy())}

    def after_first_step(self) -> Neutral:
        """The gradient that the step took, averaged over the devices and clipped by the step itself; an optimizer
        leaves it as it was. Copied, as the next steps write into the same memory."""
        gradients: dict[str, Any] = {name: parameter.grad for name, parameter in self.model.named_parameters()}
        found = {f"gradients/{name}": value.copy() for name, value in to_neutral(gradients).items()}
        statistics = running_statistics(self.model)
        return found | {f"statistics/{name}": value.copy() for name, value in statistics.items()}


class Objective(nn.Module):
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
        self.formulation = session.mode.formulation
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
        self.objective = training.objective
        self.step_count = len(training.order)
        self.register_buffer("order", training.placed_order)
        self.register_buffer("index", training.next_batch)
        self.register_buffer("crops", training.placed_crops)

    def forward(self) -> Tensor:
        slot = self.index if len(self.order) == self.step_count else self.index % len(self.order)
        inputs = [self.order[slot].squeeze(0)]
        if self.crops is not None:
            inputs.append(self.crops[self.index].squeeze(0))
        loss: Tensor = self.objective(*inputs)
        self.index.add_(1).remainder_(self.step_count)
        return loss


def make_step(training: Training) -> Callable[[], Tensor]:
    """One optimizer step on the batch that the order has next; returns the batch's mean loss.

    Of several devices, each takes its own part of the batch and has that part's loss. Raises Refused for a mode that
    this machine cannot run.
    """
    mode = training.session.mode
    require_devices(training)
    if mode.graph == "step":
        return make_counting_step(training)
    objective: nn.Module = in_mode(training.objective, mode, training.device)
    order, crops, rates = training.placed_order, training.placed_crops, training.rates
    if training.communicates and mode.formulation != "flat":
        objective = with_averaged_gradients(objective, split=mode.formulation != "unsplit")

    def step() -> Tensor:
        if mode.graph == "parts":
            torch.compiler.cudagraph_mark_step_begin()
        step_number = training.steps_done % len(training.order)
        inputs = [order[step_number % len(order)]]
        if crops is not None:
            inputs.append(crops[step_number])
        if rates is not None:
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
    if training.communicates and training.session.mode.formulation == "flat":
        average_gradients(training.model)
    if training.settings.max_gradient_norm:
        clip_gradients(training.model, training.settings.max_gradient_norm)
    training.optimizer.step()
    return loss


def require_devices(training: Training) -> None:
    """Raises Refused where a mode would be another one on as many devices."""
    mode, alone = training.session.mode, training.session.is_alone
    if alone and mode.formulation in ("unsplit", "flat"):
        raise Refused(f"execution mode {mode.name} is for several devices; on one it would be {mode.run_as}")
    if not alone and mode.graph != "none" and mode.formulation != "flat":
        raise Refused(
            f"execution mode {mode.name} is for one GPU: a CUDA graph does not take DistributedDataParallel. "
            f"For several there is flat_{mode.run_as}_graph"
        )
    if mode.formulation == "epoch" and training.steps_per_call == 1:
        raise Refused(
            f"execution mode {mode.name} needs an epoch of steps that 2 to {STEPS_PER_GRAPH} divide; this one has "
            f"{len(training.order)} in all epochs, and one step in a graph is compiled_graph"
        )


def as_vector(tensors: Neutral) -> NDArray[np.float64]:
    return np.concatenate([tensor.ravel() for tensor in tensors.values()])


def of_vector(vector: NDArray[np.float64], like: Neutral) -> Neutral:
    """The other way, to the names and shapes of `like`."""
    parts = np.split(vector, np.cumsum([tensor.size for tensor in like.values()])[:-1])
    return {name: part.reshape(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}


def batches_given(session: Session[Device], settings: Settings, order: NDArray[np.int32]) -> list[Given]:
    """Of each device and step, and of the evaluation."""
    own_size = order.shape[1] // session.world.device_count
    train, test = session.dataset.train, session.dataset.test
    return [
        Given(arrays=train, batches=order.reshape(-1, own_size)),
        Given(arrays=test, batches=evaluation_rows(settings, test, session.outputs_of_sample)),
    ]


def place_order(own_order: NDArray[np.int32], device: torch.device) -> Tensor:
    """On the device, int64, as other indices would be converted in every step."""
    return torch.from_numpy(own_order.astype(np.int64)).to(device)


def place_crops(crops: NDArray[np.int32] | None, world: World, device: torch.device) -> Tensor | None:
    """Of this rank's part of each batch."""
    return None if crops is None else torch.from_numpy(crops[:, world.rows(crops.shape[1])].copy()).to(device)


def count_no_batches(model: nn.Module) -> None:
    """BatchNorm counts its batches for a momentum that changes with them, in a kernel of its own. Here it is fixed."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None


def running_statistics(model: nn.Module) -> Neutral:
    buffers = dict(model.named_buffers())
    return to_neutral({name: value for name, value in buffers.items() if name.endswith(RUNNING_STATISTICS)})
