"""Use cases 1 and 2: train a model on one GPU, or on several.

The data set lies on the device; a step gathers its batch there, by an order that numpy drew from the seed, so both
frameworks see the same batches.

How the step is run (harness/work/use_cases/train.py has the modes):
    eager                   model, loss and gather run operator by operator
    compiled                gather, model and loss are one torch.compile graph, forward and backward
    max_autotune            the same with mode="max-autotune-no-cudagraphs": Inductor tries several kernels for each
                            matrix product and convolution and takes the fastest, as XLA does by default (GPU only)
    compiled, graph: parts  compiled with mode="reduce-overhead": the graph's kernels are replayed as CUDA graphs; the
                            rest of the step stays in Python (one GPU only)
    compiled, graph: step   compiled, and the whole step is one CUDA graph: gather, forward, backward and optimizer. The
                            device counts the steps itself, and a call is one replay (one GPU only)
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
from harness.work.use_cases.train import Settings
from harness.work.weights import RUNNING_STATISTICS, batch_order, initial_weight
from torch_runner.compiler import captured, compile_options, require_gpu
from torch_runner.device import Device, model_dtype
from torch_runner.models import make_model
from torch_runner.several_devices import with_averaged_gradients
from torch_runner.task import Batch, make_task, to_device
from torch_runner.weights import Neutral, load_initial_weights, parameter_count, to_neutral

EVALUATION_BATCH = 1000


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
        self.parameter_count = parameter_count(self.model)
        self.details = {} if session.is_alone else {"batch_norm": "local", **self.world.describe()}
        self.replays = session.mode.graph != "none"
        self.steps_done = 0
        self.next_batch = torch.zeros(1, dtype=torch.int64, device=self.device)
        """The same for the device, modulo the length of the order. Not a scalar: indexing would read it on the host."""
        self.compute = make_step(self)
        self.reset()

    def step(self) -> Tensor:
        """One optimizer step on the batch that the order has next; the batch's mean loss before it."""
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
        losses: NDArray[np.floating[Any]] = torch.stack(kept).cpu().numpy()
        return losses

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

    Raises Refused for a mode that this machine cannot run.
    """
    order = training.placed_order
    if training.session.mode.graph == "step":
        require_one_gpu(training)
        return captured(make_counting_step(training), training.optimizer)
    train_step = make_train_step(training)

    def step() -> Tensor:
        loss = train_step(order[training.steps_done % len(order)])
        training.steps_done += 1
        return loss

    return step


def make_counting_step(training: Training) -> Callable[[], Tensor]:
    """The same for a CUDA graph."""
    next_batch = NextBatch(training.objective, training.placed_order, training.next_batch)
    next_batch.compile(**compile_options())
    return lambda: optimizer_step(training.optimizer, next_batch)


def make_train_step(training: Training) -> Callable[[Tensor], Tensor]:
    """rows [batch] -> mean loss of the batch, after one optimizer step.

    Of several devices, each takes the rows of its own part and has its own part's loss. Raises Refused for a mode that
    this machine cannot run.
    """
    mode, optimizer = training.session.mode, training.optimizer
    objective: nn.Module = training.objective
    if mode.graph == "parts":
        require_one_gpu(training)
        objective.compile(**compile_options("reduce-overhead"))
    elif mode.run_as == "max_autotune":
        require_gpu(mode.name, training.device)
        objective.compile(**compile_options("max-autotune-no-cudagraphs"))
    elif mode.run_as == "compiled":
        objective.compile(**compile_options())
    if training.communicates:
        objective = with_averaged_gradients(objective, training.device)

    def train_step(rows: Tensor) -> Tensor:
        if mode.graph == "parts":
            torch.compiler.cudagraph_mark_step_begin()
        return optimizer_step(optimizer, objective, rows)

    return train_step


def optimizer_step(optimizer: torch.optim.Optimizer, mean_loss: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The loss before the step. The optimizer is not compiled: on a CPU that took more host time than its fused step,
    with 8 parameters and with 62."""
    optimizer.zero_grad(set_to_none=True)
    loss = mean_loss(*inputs)
    loss.backward()
    optimizer.step()
    return loss


def require_one_gpu(training: Training) -> None:
    name = training.session.mode.name
    require_gpu(name, training.device)
    if not training.session.is_alone:
        raise Refused(f"execution mode {name} is for one GPU: this project has not tried it on several yet")


def place_order(order: NDArray[np.int32], world: World, device: torch.device) -> Tensor:
    """On the device, int64, as other indices would be converted in every step; of several, each gets its own part of
    the order."""
    own = order[:, world.rows(order.shape[1])]
    return torch.from_numpy(own.astype(np.int64)).to(device)


def running_statistics(model: nn.Module) -> Neutral:
    buffers = dict(model.named_buffers())
    return to_neutral({name: value for name, value in buffers.items() if name.endswith(RUNNING_STATISTICS)})
