"""What training is held to, in numbers: finite losses, and the time until the target."""

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.results.record import EpochPoint
from harness.work.tasks import ACCURACY, PERPLEXITY
from harness.work.use_cases.train import require_finite, require_finite_evaluation, time_to_target_s


def points(*metrics: float) -> list[EpochPoint]:
    """Epoch n trains for n seconds."""
    return [
        EpochPoint(epoch=n, train_time_s=float(n), train_loss=1.0, test_loss=1.0, test_metric=metric)
        for n, metric in enumerate(metrics, start=1)
    ]


def test_time_to_target_ends_with_the_first_epoch_that_reaches_it() -> None:
    course = points(0.25, 0.5, 0.75, 0.5)
    assert time_to_target_s(course, ACCURACY, 0.5) == 1 + 2
    assert time_to_target_s(course, ACCURACY, 0.6) == 1 + 2 + 3
    assert time_to_target_s(course, ACCURACY, 0.76) is None
    assert time_to_target_s([], ACCURACY, 0.0) is None


def test_a_metric_of_which_less_is_better_must_fall_to_its_target() -> None:
    course = points(80.0, 40.0, 20.0)
    assert time_to_target_s(course, PERPLEXITY, 40.0) == 1 + 2
    assert time_to_target_s(course, PERPLEXITY, 100.0) == 1
    assert time_to_target_s(course, PERPLEXITY, 19.0) is None


def test_the_first_loss_that_is_not_finite_is_named() -> None:
    require_finite(np.array([2.0, 1.0]), epoch=1)
    with pytest.raises(CheckFailed, match=r"the loss of epoch 3, step 2 of 4, is inf: training diverged. Lower"):
        require_finite(np.array([2.0, np.inf, np.nan, 1.0]), epoch=3)
    require_finite_evaluation(2.5, epoch=1, step=7)
    with pytest.raises(CheckFailed, match=r"the test loss after epoch 3, step 7 of 7, is nan: training diverged"):
        require_finite_evaluation(float("nan"), epoch=3, step=7)
