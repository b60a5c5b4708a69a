"""What the parity gate compares of use cases 1 and 2: one batch through the model, and a few steps of the program that
is timed."""

from typing import Any

import numpy as np
import torch

from harness.parity import PARITY_STEPS
from harness.session import Session
from harness.weights import RUNNING_STATISTICS, batch_order, initial_weight
from torch_runner.use_cases import train
from torch_runner.weights import Neutral, to_neutral


def parity_numbers(session: Session) -> Neutral:
    """Of the first batch: logits, mean loss, gradient, running statistics. Of the steps: losses, what they have added
    to the parameters, running statistics. Gradients and losses are means over the devices; statistics are rank 0's."""
    torch.compiler.reset()
    measurement, dataset, world = session.measurement, session.dataset, session.world
    seed, batch_size = measurement.protocol.seed, measurement.variant.batch_size
    training = train.Training(session)
    order = batch_order(seed, len(dataset.train_labels), batch_size, epochs=1)[:PARITY_STEPS]

    numbers = first_batch(session, training, order[0, world.rows(batch_size)])
    data = train.place_order(order, world, training.device)
    step = train.make_step(training, data, measurement.variant.execution_mode)
    training.reset()
    losses = []
    for _ in data:
        losses.append(training.keep(step()).cpu().numpy())
        if len(losses) == 1:
            numbers |= after_first_step(training)
    model = training.objective.model
    losses_of_steps = session.device.mean_over_ranks(np.stack(losses))
    numbers["loss"], numbers["losses_of_steps"] = losses_of_steps[0], losses_of_steps
    for name, value in to_neutral(dict(model.named_parameters())).items():
        numbers[f"updates/{name}"] = value - initial_weight(seed, name, value.shape)
    for name, value in running_statistics(model).items():
        numbers[f"statistics_after_steps/{name}"] = value
    return numbers


def first_batch(session: Session, training: Any, own_rows: np.ndarray) -> Neutral:
    """Leaves the running statistics changed."""
    training.reset()
    images = torch.from_numpy(session.dataset.train_images[own_rows]).to(training.device)
    with torch.no_grad():
        logits = training.objective.logits(images)
    return {"logits": session.of_all_ranks(logits.cpu().numpy())}


def after_first_step(training: Any) -> Neutral:
    """The gradient that the step took, averaged over the devices by the step itself; an optimizer leaves it as it
    was. Copied, as the next steps write into the same memory."""
    model = training.objective.model
    gradients = to_neutral({name: parameter.grad for name, parameter in model.named_parameters()})
    statistics = running_statistics(model)
    return {f"gradients/{name}": value.copy() for name, value in gradients.items()} | {
        f"statistics/{name}": value.copy() for name, value in statistics.items()
    }


def running_statistics(model: torch.nn.Module) -> Neutral:
    buffers = dict(model.named_buffers())
    return to_neutral({name: value for name, value in buffers.items() if name.endswith(RUNNING_STATISTICS)})
