"""Use cases 1 and 2: train a model on one GPU, or on several.

The data set lies on the device as uint8; a step gathers its batch there, by an order that numpy drew from the seed,
so both frameworks see the same batches. First the step's speed is measured; then the weights are drawn anew and the
model trains for the configured epochs, evaluated after each, outside the clock.

Execution modes:
    eager                   model, loss and gather run operator by operator
    compiled                gather, model and loss are one torch.compile graph, forward and backward
    compiled_max_autotune   the same with mode="max-autotune-no-cudagraphs": Inductor tries several kernels for each
                            matrix product and convolution and takes the fastest, as XLA does by default (GPU only)
    cuda_graphs             compiled with mode="reduce-overhead": the graph's kernels are replayed as CUDA graphs; the
                            rest of the step stays in Python (one GPU only)
    cuda_graph_step         compiled, and the whole step is one CUDA graph: gather, forward, backward and optimizer. The
                            device counts the steps itself, and a call is one replay (one GPU only)
The optimizer is PyTorch's fused SGD in all of them; the model is channels_last.

On several devices each takes its own part of every batch, and the gradients are averaged (several_devices.py).
BatchNorm's statistics are the device's own; rank 0's are what the evaluation in the record uses.
"""

import importlib
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from harness.errors import Refused
from harness.measure import Step
from harness.record import EpochPoint, Result
from harness.session import Session
from harness.training import require_finite, require_finite_evaluation, time_to_target_s
from harness.weights import batch_order
from harness.world import World
from torch_runner.compiler import captured, compile_options, require_gpu
from torch_runner.several_devices import with_averaged_gradients
from torch_runner.weights import load_initial_weights, parameter_count

EXECUTION_MODES = ("eager", "compiled", "compiled_max_autotune", "cuda_graphs", "cuda_graph_step")
OPTIONS = {}
SETTINGS = {
    "epochs": "positive integer",
    "learning_rate": "positive number",
    "momentum": "fraction",
    "weight_decay": "non-negative number",
    "target_accuracy": "fraction",
}
REFUSED_MODELS = {}

EVALUATION_BATCH = 1000


def run(session: Session) -> Result:
    measurement = session.measurement
    batch_size, epochs = measurement.variant.batch_size, int(measurement.settings["epochs"])
    order = batch_order(measurement.protocol.seed, len(session.dataset.train_labels), batch_size, epochs)
    placed_order = place_order(order, session.world, session.device.device)
    result = measure(session, placed_order)
    if session.world.device_count == 1:
        return result
    return session.add_control(result, lambda: make_control(session, placed_order))


def measure(session: Session, order: Tensor) -> Result:
    """All but the control of several devices."""
    variant, settings = session.measurement.variant, session.measurement.settings
    epochs = int(settings["epochs"])
    steps_per_epoch = len(order) // epochs
    training = Training(session)
    step = make_step(training, order, variant.execution_mode)
    training.reset()

    wait = session.device.wait
    wait(training)  # copied before the clock starts
    cold_call_times_s = session.measure_cold(step, wait)
    steady = session.measure_steady(step, wait, steps_per_call=1, samples_per_step=variant.batch_size)

    training.reset()
    points: list[EpochPoint] = []
    for epoch in range(1, epochs + 1):
        wait(None)
        session.agree(epoch)  # evaluation ends earlier on one device than on another
        start = perf_counter()
        outputs = [training.keep(step()) for _ in range(steps_per_epoch)]
        wait(outputs)
        train_time_s = session.agree(perf_counter() - start)
        losses = session.device.mean_over_ranks(torch.stack(outputs).cpu().numpy())
        require_finite(losses, epoch)
        test_loss, test_accuracy = training.evaluate()
        require_finite_evaluation(test_loss, epoch, losses.size)
        points.append(
            EpochPoint(
                epoch=epoch,
                train_time_s=train_time_s,
                train_loss=float(losses.mean()),
                test_loss=test_loss,
                test_accuracy=test_accuracy,
            )
        )
        session.report_epoch(points[-1], epochs)

    return session.result(
        steady,
        cold_call_times_s,
        epochs=points,
        time_to_target_s=time_to_target_s(points, float(settings["target_accuracy"])),
        parameter_count=parameter_count(training.objective.model),
        details={"batch_norm": "local", **session.world.describe()} if training.averages else {},
    )


class Objective(nn.Module):
    """Mean loss of the batch that `rows` names. The data set is a buffer, so that a compiled graph does not copy it."""

    def __init__(self, session: Session, model: nn.Module) -> None:
        super().__init__()
        dataset = session.dataset
        self.model = model
        self.device_type = session.device.device.type
        self.bf16 = session.measurement.variant.precision == "bf16"
        self.register_buffer("images", torch.from_numpy(dataset.train_images))
        self.register_buffer("labels", torch.from_numpy(dataset.train_labels).long())
        self.register_buffer("mean", torch.from_numpy(dataset.mean))
        self.register_buffer("std", torch.from_numpy(dataset.std))

    def forward(self, rows: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(self.images[rows]), self.labels[rows])

    def logits(self, images: Tensor) -> Tensor:
        """uint8 [batch, height, width, channels] to float32 [batch, classes]."""
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16):
            logits = self.model(self.normalise(images))
        return logits.float() if self.bf16 else logits

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 [batch, height, width, channels] to float32 of mean 0 and standard deviation 1 per channel,
        channels_last."""
        return ((images.to(self.mean.dtype) / 255 - self.mean) / self.std).permute(0, 3, 1, 2)


class NextBatch(nn.Module):
    """Mean loss of the batch that comes next. The device counts which one that is, so that a CUDA graph of the step
    needs nothing from the host."""

    def __init__(self, objective: Objective, order: Tensor, index: Tensor) -> None:
        super().__init__()
        self.objective = objective
        self.register_buffer("order", order)
        self.register_buffer("index", index)

    def forward(self) -> Tensor:
        loss = self.objective(self.order[self.index].squeeze(0))
        self.index.add_(1).remainder_(len(self.order))
        return loss


class Training:
    """The model, its loss and its optimizer, with their state."""

    def __init__(self, session: Session) -> None:
        measurement = session.measurement
        settings = measurement.settings
        self.dataset = session.dataset
        self.averages = session.world.device_count > 1
        """Whether a step averages the gradients over the devices."""
        self.seed = measurement.protocol.seed
        self.device = session.device.device
        benchmark = importlib.import_module(f"torch_runner.benchmarks.{measurement.cell.benchmark}")
        model = benchmark.make_model(measurement.variant.model)
        self.objective = Objective(session, model).to(self.device)
        model.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            lr=float(settings["learning_rate"]),
            momentum=float(settings["momentum"]),
            weight_decay=float(settings["weight_decay"]),
            fused=True,
        )
        self.replays = measurement.variant.execution_mode in ("cuda_graphs", "cuda_graph_step")
        self.steps_done = 0
        self.next_batch = torch.zeros(1, dtype=torch.int64, device=self.device)
        """The same for the device, modulo the length of the order. Not a scalar: indexing would read it on the host."""

    def keep(self, loss: Tensor) -> Tensor:
        """The loss for the end of the epoch; a replayed CUDA graph overwrites that of the step before."""
        return loss.detach().clone() if self.replays else loss.detach()

    def reset(self) -> None:
        """Initial weights, an optimizer that has seen nothing, and the first batch, in place: CUDA graphs keep pointing
        at them. A momentum of zero is as good as none: v = momentum * 0 + g."""
        load_initial_weights(self.objective.model, self.seed)
        self.objective.train()
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
        self.steps_done = 0
        self.next_batch.zero_()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy over the test set; every device does all of it."""
        self.objective.eval()
        count = len(self.dataset.test_labels)
        loss_sum = right = 0.0
        for first in range(0, count, EVALUATION_BATCH):
            batch = slice(first, first + EVALUATION_BATCH)
            images = torch.from_numpy(self.dataset.test_images[batch]).to(self.device)
            labels = torch.from_numpy(self.dataset.test_labels[batch]).long().to(self.device)
            logits = self.objective.logits(images)
            loss_sum += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(1) == labels).sum())
        self.objective.train()
        return loss_sum / count, right / count


def make_step(training: Training, order: Tensor, execution_mode: str) -> Callable[[], Tensor]:
    """One optimizer step on the batch that `order` [steps, batch] has next; returns the batch's mean loss.

    Raises Refused for a mode that this machine cannot run.
    """
    if execution_mode == "cuda_graph_step":
        require_one_gpu(training, execution_mode)
        return captured(make_counting_step(training, order), training.optimizer)
    train_step = make_train_step(training, execution_mode)

    def step() -> Tensor:
        loss = train_step(order[training.steps_done % len(order)])
        training.steps_done += 1
        return loss

    return step


def make_counting_step(training: Training, order: Tensor) -> Callable[[], Tensor]:
    """The same for a CUDA graph."""
    next_batch = NextBatch(training.objective, order, training.next_batch)
    next_batch.compile(**compile_options())
    return lambda: optimizer_step(training.optimizer, next_batch)


def make_train_step(training: Training, execution_mode: str) -> Callable[[Tensor], Tensor]:
    """rows [batch] -> mean loss of the batch, after one optimizer step.

    Of several devices, each takes the rows of its own part and has its own part's loss. Raises Refused for a mode that
    this machine cannot run.
    """
    objective, optimizer = training.objective, training.optimizer
    if execution_mode == "compiled":
        objective.compile(**compile_options())
    elif execution_mode == "compiled_max_autotune":
        require_gpu(execution_mode, training.device)
        objective.compile(**compile_options("max-autotune-no-cudagraphs"))
    elif execution_mode == "cuda_graphs":
        require_one_gpu(training, execution_mode)
        objective.compile(**compile_options("reduce-overhead"))
    if training.averages:
        objective = with_averaged_gradients(objective, training.device)

    def train_step(rows: Tensor) -> Tensor:
        if execution_mode == "cuda_graphs":
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


def require_one_gpu(training: Training, execution_mode: str) -> None:
    require_gpu(execution_mode, training.device)
    if training.averages:
        raise Refused(f"execution mode {execution_mode} is for one GPU: this project has not tried it on several yet")


def place_order(order: NDArray[np.int32], world: World, device: torch.device) -> Tensor:
    """On the device, int64, as other indices would be converted in every step; of several, each gets its own part of
    the order."""
    own = order[:, world.rows(order.shape[1])]
    return torch.from_numpy(own.astype(np.int64)).to(device)


def make_control(session: Session, order: Tensor) -> Step:
    """The step without the average of the gradients."""
    training = Training(session)
    training.averages = False
    step = make_step(training, order, session.measurement.variant.execution_mode)
    training.reset()
    return step
