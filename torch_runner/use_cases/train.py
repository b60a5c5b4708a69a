"""Use cases 1 and 2: train a model on one GPU, or on several.

The data set lies on the device; a step gathers its batch there, by an order that numpy drew from the seed, so both
frameworks see the same batches.

Formulations:
    step       one optimizer step; on several devices DistributedDataParallel averages the gradients
    unsplit    the same without Dynamo's cuts for DistributedDataParallel: one graph, and no overlap (several GPUs only)
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
The optimizer is PyTorch's fused SGD in all of them; the model is channels_last.

On several devices each takes its own part of every batch, and the gradients are averaged (several_devices.py).
BatchNorm's statistics are the device's own; rank 0's are what the evaluation in the record uses.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.errors import Refused
from harness.measure.program import Session, Trains
from harness.measure.world import World
from harness.results.parity import PARITY_STEPS
from harness.results.record import Check
from harness.work.use_cases.train import CHECK_STEPS, Course, Settings, check_first_losses, check_training
from harness.work.weights import RUNNING_STATISTICS, batch_order, initial_weight
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import Device, model_dtype
from torch_runner.models import make_model
from torch_runner.several_devices import average_gradients, with_averaged_gradients
from torch_runner.task import Batch, make_task, to_device
from torch_runner.weights import Neutral, load_initial_weights, parameter_count, to_neutral

EVALUATION_BATCH = 1000
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
        settings = Settings.model_validate(measurement.settings)
        self.session = session
        self.world = session.world
        self.device = session.device.device
        self.seed = measurement.protocol.seed
        self.communicates = joined and not session.is_alone
        self.objective = Objective(session).to(self.device)
        self.model = self.objective.model
        self.model.to(memory_format=torch.channels_last)
        count_no_batches(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        batch_size = measurement.variant.batch_size
        self.order = batch_order(self.seed, session.dataset.train_count, batch_size, settings.epochs)
        self.placed_order = place_order(self.order, self.world, self.device)
        self.samples_per_step = batch_size
        self.steps_per_call = steps_per_graph(len(self.order) // settings.epochs) if self.is_epoch else 1
        self.parameter_count = parameter_count(self.model)
        self.details = {**describe(session.mode), **self.details_of_devices()}
        self.replays = session.mode.graph != "none"
        self.steps_done = 0
        self.next_batch = torch.zeros(1, dtype=torch.int64, device=self.device)
        """The same for the device, modulo the length of the order. Not a scalar: indexing would read it on the host."""
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

    def reset(self) -> None:
        """In place: CUDA graphs keep pointing at weights and momenta. A momentum of zero is as good as none:
        v = momentum * 0 + g."""
        load_initial_weights(self.model, self.seed)
        self.objective.train()
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
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
        gradients = {name: value.copy() for name, value in to_neutral(self.momenta()).items()}
        kept += [self.kept(step()) for _ in range(CHECK_STEPS - 1)]
        weights = to_neutral(dict(self.model.named_parameters()))
        return Course(
            losses=self.session.device.mean_over_ranks(self.losses(kept)),
            gradients=gradients,
            updates={name: value - initial_weight(self.seed, name, value.shape) for name, value in weights.items()},
        )

    def momenta(self) -> dict[str, Tensor]:
        """After the first step they are its gradients."""
        state = self.optimizer.state
        return {name: state[parameter]["momentum_buffer"] for name, parameter in self.model.named_parameters()}

    def reference(self) -> Course:
        """In float64, operator by operator. Where the device has too little memory, on the CPU; not of several ranks,
        which must do this together."""
        try:
            return self.reference_on(self.device)
        except torch.OutOfMemoryError:
            if not self.session.is_alone:
                raise
        return self.reference_on(torch.device("cpu"))

    def reference_on(self, device: torch.device) -> Course:
        """Every device takes its own part of the batch."""
        measurement, mean_over_ranks = self.session.measurement, self.session.device.mean_over_ranks
        settings = Settings.model_validate(measurement.settings)
        model, task = make_model(self.session, torch.float64), make_task(self.session, torch.float64).to(device)
        load_initial_weights(model, self.seed)
        model.to(device)
        optimizer = torch.optim.SGD(
            model.parameters(), settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
        )
        losses: list[Any] = []
        gradients: Neutral = {}
        for rows in self.order[:CHECK_STEPS, self.world.rows(self.samples_per_step)]:
            batch = to_device({name: array[rows] for name, array in self.session.dataset.train.items()}, device)
            optimizer.zero_grad()
            loss = task.mean_loss(model(task.inputs(batch)), task.targets(batch))
            loss.backward()
            losses.append(mean_over_ranks(loss.detach().cpu().numpy()))
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                mean = mean_over_ranks(parameter.grad.cpu().numpy())
                parameter.grad.copy_(torch.from_numpy(mean))
                if len(losses) == 1:
                    gradients[name] = mean + settings.weight_decay * parameter.detach().cpu().numpy()
            optimizer.step()
        weights = to_neutral(dict(model.named_parameters()))
        updates = {name: value - initial_weight(self.seed, name, value.shape) for name, value in weights.items()}
        return Course(losses=np.array(losses), gradients=gradients, updates=updates)

    def witness(self) -> dict[str, Any]:
        return witness(self.compute, self.session.mode, self.device)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Every device does all of the test set."""
        test, task = self.session.dataset.test, self.objective.task
        count = self.session.dataset.test_count
        loss_sum = score_sum = 0.0
        self.objective.eval()
        for first in range(0, count, EVALUATION_BATCH):
            rows = {name: array[first : first + EVALUATION_BATCH] for name, array in test.items()}
            batch = to_device(rows, self.device)
            outputs, targets = self.objective.outputs(batch), task.targets(batch)
            loss_sum += float(task.losses(outputs, targets).sum())
            score_sum += float(task.scores(outputs, targets).sum())
        self.objective.train()
        return loss_sum / count, score_sum / count

    def parity(self) -> Neutral:
        """Of the first batch: outputs, mean loss, gradient, running statistics. Of the steps: losses, what they have
        added to the parameters, running statistics. Gradients and losses are means over the devices; statistics are
        rank 0's."""
        numbers = self.first_batch()
        self.reset()
        kept = []
        for _ in range(PARITY_STEPS):
            kept.append(self.kept(self.step()))
            if len(kept) == 1:
                numbers |= self.after_first_step()
        losses = self.session.device.mean_over_ranks(self.losses(kept))
        numbers["loss"], numbers["losses_of_steps"] = losses[0], losses
        for name, value in to_neutral(dict(self.model.named_parameters())).items():
            numbers[f"updates/{name}"] = value - initial_weight(self.seed, name, value.shape)
        for name, value in running_statistics(self.model).items():
            numbers[f"statistics_after_steps/{name}"] = value
        return numbers

    def first_batch(self) -> Neutral:
        """Leaves the running statistics changed."""
        own_rows = self.order[0, self.world.rows(self.samples_per_step)]
        batch = to_device({name: array[own_rows] for name, array in self.session.dataset.train.items()}, self.device)
        with torch.no_grad():
            outputs = self.objective.outputs(batch)
        return {"outputs": self.session.of_all_ranks(outputs.cpu().numpy())}

    def after_first_step(self) -> Neutral:
        """The gradient that the step took, averaged over the devices by the step itself; an optimizer leaves it as it
        was. Copied, as the next steps write into the same memory."""
        gradients: dict[str, Any] = {name: parameter.grad for name, parameter in self.model.named_parameters()}
        found = {f"gradients/{name}": value.copy() for name, value in to_neutral(gradients).items()}
        statistics = running_statistics(self.model)
        return found | {f"statistics/{name}": value.copy() for name, value in statistics.items()}


class Objective(nn.Module):
    """Mean loss of the batch that `rows` names. The data set is in buffers, so that a compiled graph does not copy
    it."""

    def __init__(self, session: Session[Device]) -> None:
        super().__init__()
        precision = session.measurement.variant.precision
        self.model = make_model(session, model_dtype(precision))
        self.task = make_task(session, model_dtype(precision))
        self.device_type = session.device.device.type
        self.bf16 = precision == "bf16"
        self.names = tuple(session.dataset.train)
        for name, tensor in to_device(session.dataset.train, torch.device("cpu")).items():
            self.register_buffer(name, tensor)

    def forward(self, rows: Tensor) -> Tensor:
        batch = {name: self.get_buffer(name)[rows] for name in self.names}
        return self.task.mean_loss(self.outputs(batch), self.task.targets(batch))

    def outputs(self, batch: Batch) -> Tensor:
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16):
            outputs: Tensor = self.model(self.task.inputs(batch))
        return outputs


class NextBatch(nn.Module):
    """Mean loss of the batch that comes next. The device counts which one that is, so that a CUDA graph of the step
    needs nothing from the host."""

    order: Tensor
    index: Tensor

    def __init__(self, objective: Objective, order: Tensor, index: Tensor) -> None:
        super().__init__()
        self.objective = objective
        self.register_buffer("order", order)
        self.register_buffer("index", index)

    def forward(self) -> Tensor:
        loss: Tensor = self.objective(self.order[self.index].squeeze(0))
        self.index.add_(1).remainder_(len(self.order))
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
    order = training.placed_order
    if training.communicates and mode.formulation != "flat":
        objective = with_averaged_gradients(objective, split=mode.formulation != "unsplit")

    def step() -> Tensor:
        if mode.graph == "parts":
            torch.compiler.cudagraph_mark_step_begin()
        loss = optimizer_step(training, objective, order[training.steps_done % len(order)])
        training.steps_done += 1
        return loss

    return step


def make_counting_step(training: Training) -> Callable[[], Tensor]:
    """The same for a CUDA graph, which takes nothing from the host."""
    next_batch = NextBatch(training.objective, training.placed_order, training.next_batch)
    next_batch = in_mode(next_batch, training.session.mode, training.device)
    return lambda: optimizer_step(training, next_batch)


def as_graph(training: Training) -> Callable[[], Tensor]:
    """The step as one CUDA graph, or `steps_per_call` of them."""

    def steps() -> Tensor:
        losses = [training.one_step().detach() for _ in range(training.steps_per_call)]
        return losses[0] if training.steps_per_call == 1 else torch.stack(losses)

    return captured(steps, lambda: training.optimizer.zero_grad(set_to_none=True))


def steps_per_graph(steps_per_epoch: int) -> int:
    """How many steps of an epoch one CUDA graph holds; an epoch is whole graphs."""
    return max(count for count in range(1, STEPS_PER_GRAPH + 1) if steps_per_epoch % count == 0)


def optimizer_step(training: Training, mean_loss: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The loss before the step. The optimizer is not compiled: fused it is one kernel, or a few, for all parameters."""
    training.optimizer.zero_grad(set_to_none=True)
    loss = mean_loss(*inputs)
    loss.backward()
    if training.communicates and training.session.mode.formulation == "flat":
        average_gradients(training.model)
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


def place_order(order: NDArray[np.int32], world: World, device: torch.device) -> Tensor:
    """On the device, int64, as other indices would be converted in every step; of several, each gets its own part of
    the order."""
    own = order[:, world.rows(order.shape[1])]
    return torch.from_numpy(own.astype(np.int64)).to(device)


def count_no_batches(model: nn.Module) -> None:
    """BatchNorm counts its batches for a momentum that changes with them, in a kernel of its own. Here it is fixed."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None


def running_statistics(model: nn.Module) -> Neutral:
    buffers = dict(model.named_buffers())
    return to_neutral({name: value for name, value in buffers.items() if name.endswith(RUNNING_STATISTICS)})
