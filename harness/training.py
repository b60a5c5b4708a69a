"""What training means, whatever the framework: losses must be finite, and how long the target took."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import CheckFailed
from harness.record import EpochPoint


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


def time_to_target_s(points: Sequence[EpochPoint], target_accuracy: float) -> float | None:
    """Training time, evaluation excluded, until the end of the first epoch whose test accuracy reaches the target."""
    total_s = 0.0
    for point in points:
        total_s += point.train_time_s
        if point.test_accuracy >= target_accuracy:
            return total_s
    return None
