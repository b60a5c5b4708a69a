"""What "N models at once" means, whatever the framework: learning rates, batches, and the check against models trained
alone. Numbers only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.data import Dataset
from harness.gradient_check import TOLERANCES, check_errors, check_worst, errors_of_items, errors_of_tensors
from harness.parity import PARITY_STEPS
from harness.record import Check
from harness.settings import Precision
from harness.weights import initial_weight

MODELS_FOR_A_MEDIAN = 3
CHECK_STEPS = 2
"""The second step is the first that momentum has a part in."""


class Batch(NamedTuple):
    """Of all models: [models, batch, ...], or [batch, ...] where all models see the same one."""

    inputs: NDArray[np.float32]
    """A sample is features, or channels x height x width."""
    labels: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Course:
    """A few steps of training of N models."""

    losses: NDArray[np.float64]
    """[steps, models]; each before its step."""
    updates: Mapping[str, NDArray[np.float64]]
    """By neutral name, [models, ...]: the weights afterwards less the initial ones."""


def model_seed(seed: int, index: int) -> int:
    """Model `index` has the initial weights that a model alone has with this seed."""
    return seed + index


def learning_rates(base: float, models: int, spread: str) -> NDArray[np.float64]:
    """[models]. `separate`: from `base` down to a tenth of it, in equal ratios, as in a sweep; `one`: all `base`."""
    return base * (np.geomspace(1, 0.1, models) if spread == "separate" else np.ones(models))


def leading_axes(models: int, batch_size: int, batches: str) -> tuple[int, ...]:
    """`different`: every model has a batch of its own; `same`: one batch is for all."""
    return (models, batch_size) if batches == "different" else (batch_size,)


def dataset_batch(dataset: Dataset, lead: tuple[int, ...]) -> Batch:
    """The first images of the training set, normalised; from its start again where it is too short."""
    rows = np.arange(int(np.prod(lead))) % len(dataset.train_labels)
    normalised = (dataset.train_images[rows].astype(np.float32) / 255 - dataset.mean) / dataset.std
    images: NDArray[np.float32] = np.ascontiguousarray(normalised.transpose(0, 3, 1, 2), np.float32)
    return Batch(images.reshape(*lead, *images.shape[1:]), dataset.train_labels[rows].reshape(lead))


def check_course(actual: Course, alone: Course, precision: Precision) -> list[Check]:
    """The program that will be timed against every model trained alone in float64.

    The tolerances are those of gradient_check.py, for the reasons given there. Two models have no median that one of
    them alone could not move; that over all their tensors is taken there.

    Raises:
        CheckFailed: a model came out otherwise; the variant is then recorded as failed and never timed.
    """
    against = "against models trained alone in float64"
    losses = errors_of_items({"loss": actual.losses.T}, {"loss": alone.losses.T})
    # A loss is continuous: no path that rounding opens can move it by much.
    of_losses = check_worst(f"losses of the first steps {against}", losses, "model", TOLERANCES[precision].typical)
    name = f"weight updates of {CHECK_STEPS} steps {against}"
    of_models = errors_of_items(actual.updates, alone.updates)
    if len(of_models) >= MODELS_FOR_A_MEDIAN:
        return [of_losses, *check_errors(name, of_models, "model", precision)]
    of_tensors = errors_of_tensors(actual.updates, alone.updates)
    return [of_losses, *check_errors(name, of_tensors, "tensor", precision, worst=float(of_models.max()))]


def gate_numbers(numbers: Mapping[str, NDArray[np.float64]], seed: int) -> dict[str, NDArray[np.float64]]:
    """What a use case's `parity_numbers` found, under the names of harness/parity.py.

    Weights after the steps become what the steps have added to them: in the weights themselves a difference would
    drown.
    """
    names = {"outputs": "logits", "loss": "loss", "gradient": "gradients"}
    found = {}
    for name, value in numbers.items():
        kind, _, tensor = name.partition("/")
        if kind == f"weights_after_{PARITY_STEPS}_steps":
            initial = [initial_weight(model_seed(seed, index), tensor, value.shape[1:]) for index in range(len(value))]
            found[f"updates/{tensor}"] = value - np.stack(initial)
        else:
            found["/".join(filter(None, (names[kind], tensor)))] = value
    return found
