"""Use cases 1 and 2: train a model on one GPU, or on several. What both frameworks share."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.errors import CheckFailed
from harness.plan import Frozen
from harness.results.record import EpochPoint
from harness.work.declared import Benchmark, Mode, Model, UseCase
from harness.work.tasks import Metric


class Settings(Frozen):
    """SGD; the schedule is the same in both frameworks."""

    epochs: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    momentum: float = Field(ge=0, le=1)
    weight_decay: float = Field(ge=0)
    target_metric: float = Field(ge=0)
    """Time to target is the training time until the task's metric reaches this on the test set."""


def refuses(benchmark: Benchmark, _model: Model) -> str | None:
    return None if benchmark.data else f"{benchmark.name} has no data set to train and to test on"


USE_CASE = UseCase(
    name="train",
    settings=Settings,
    refuses=refuses,
    modes={
        "jax": (
            Mode(name="jit", formulation="step"),
            Mode(name="scan", formulation="scan"),
            Mode(name="jit_process_per_node", formulation="step", process_per_node=True),
        ),
        "torch": (
            Mode(name="eager", formulation="step", run_as="eager"),
            Mode(name="compiled", formulation="step"),
            Mode(name="compiled_max_autotune", formulation="step", run_as="max_autotune"),
            Mode(name="cuda_graphs", formulation="step", graph="parts"),
            Mode(name="cuda_graph_step", formulation="step", graph="step"),
        ),
    },
)


def require_finite(losses: NDArray[np.floating], epoch: int) -> None:
    """Losses of an epoch's steps, [steps]. Raises CheckFailed that names the first step that is not finite."""
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
        step = int(bad[0])
        raise CheckFailed(
            f"the loss of epoch {epoch}, step {step + 1} of {losses.size}, is {losses[step]}: training diverged. "
            f"Lower settings.learning_rate in experiments.yaml."
        )


def require_finite_evaluation(test_loss: float, epoch: int, step: int) -> None:
    """Raises CheckFailed that names the step; the last update of an epoch shows in no training loss."""
    if not math.isfinite(test_loss):
        raise CheckFailed(
            f"the test loss after epoch {epoch}, step {step} of {step}, is {test_loss}: training diverged. "
            f"Lower settings.learning_rate in experiments.yaml."
        )


def time_to_target_s(points: Sequence[EpochPoint], metric: Metric, target: float) -> float | None:
    """Training time, evaluation excluded, until the end of the first epoch in which the metric reaches the target."""
    total_s = 0.0
    for point in points:
        total_s += point.train_time_s
        if metric.reaches(point.test_metric, target):
            return total_s
    return None
