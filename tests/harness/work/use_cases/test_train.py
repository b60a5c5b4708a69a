"""What training is held to, in numbers: the first steps in float64, finite losses, and the time until the target."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.plan import Precision
from harness.work.tasks import ACCURACY, PERPLEXITY, Metric
from harness.work.use_cases.train import (
    Course,
    Settings,
    check_first_losses,
    check_training,
    steps_of,
    time_to_target_s,
)
from tests.made.records import epoch


def test_time_to_target_ends_with_the_first_epoch_that_reaches_it() -> None:
    """Epoch n trains for n seconds; of perplexity less is better."""

    def found(metric: Metric, target: float, *values: float) -> float | None:
        epochs = [epoch(n, train_time_s=n, test_metric=value) for n, value in enumerate(values, start=1)]
        return time_to_target_s(epochs, metric, target)

    assert [found(ACCURACY, target, 0.25, 0.5, 0.75, 0.5) for target in (0.5, 0.76)] == [1 + 2, None]
    assert [found(PERPLEXITY, target, 80.0, 40.0, 20.0) for target in (40.0, 19.0)] == [1 + 2, None]


def course(losses: tuple[float, ...] = (2.0, 1.0), gradient: float = 1.0, update: float = 1.0) -> Course:
    """Three parameters; the numbers are those of the first one, the others are ones."""
    ones = {"b": np.ones(2), "c": np.ones(2)}
    return Course(
        losses=np.array(losses),
        gradients={"a": np.array([gradient, 1.0]), **ones},
        updates={"a": np.array([update, 1.0]), **ones},
    )


def test_training_as_the_reference_does_passes_with_its_errors() -> None:
    checks = check_training(course((2.0, 1.0002), gradient=1.01), course(), "fp32")
    assert [check.name for check in checks] == [
        "gradients of the step against float64, median over 3 tensors",
        "gradients of the step against float64, all tensors together",
        "updates of 2 steps of the step against float64, median over 3 tensors",
        "updates of 2 steps of the step against float64, all tensors together",
        "losses of 2 steps of the step against float64",
    ]
    # The one wrong number of six is off by 0.01; of all, 0.01 / sqrt(6).
    assert [check.error for check in checks] == pytest.approx([0, 0.01 / 6**0.5, 0, 0, 2e-4])
    # Of a program of many steps the first losses are compared.
    (check,) = check_first_losses(np.array([2.0, 1.0, 77.0]), np.array([2.0, 1.0]), "fp32", "the scan")
    assert (check.name, check.error) == ("losses of 2 steps of the scan against float64", 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (course(gradient=1.3), "gradients of the step against float64, all tensors together"),
        (course(update=-1.0), "updates of 2 steps of the step against float64, all tensors together"),
        (course((2.0, 1.001)), "losses of 2 steps of the step against float64"),
        (course((2.0, float("nan"))), "the loss of epoch 1, step 2 of 2, is nan: training diverged"),
    ],
)
def test_training_that_does_something_else_is_caught(wrong: Course, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_training(wrong, course(), "fp32")


@pytest.mark.parametrize(
    ("error", "precision", "batch_norm", "passes"),
    [(0.3, "bf16", False, False), (0.3, "bf16", True, True), (0.9, "bf16", True, False), (0.06, "fp32", True, False)],
)
def test_batch_norm_makes_more_of_rounding_and_less_of_nothing_else(
    error: float, precision: Precision, batch_norm: bool, passes: bool
) -> None:
    exact = course()
    off = replace(exact, gradients={name: value + error for name, value in exact.gradients.items()})
    with nullcontext() if passes else pytest.raises(CheckFailed, match="gradients of the step"):
        check_training(off, exact, precision, batch_norm=batch_norm)


# What the steps get


def test_rates_and_crops_are_those_of_the_steps_and_what_is_left_out_changes_nothing() -> None:
    """Neither the settings of a record, and so the id of a measurement, nor the arrays of the steps."""
    plain = {"epochs": 2, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0, "target_metric": 0.5}
    settings = Settings.model_validate(plain)
    assert (settings.schedule, settings.warmup_epochs, settings.label_smoothing) == ("constant", 0, 0)
    assert (settings.augmentation, settings.weights) == ("none", "drawn")
    images = {"images": np.zeros((10, 6, 4, 3), np.uint8)}
    steps = steps_of(settings, 0, images, 4)
    assert (steps.order.shape, steps.rates, steps.crops, steps.rate(7)) == ((4, 4), None, None, 0.1)
    settings = Settings.model_validate(plain | {"schedule": "cosine", "augmentation": "crop_and_flip"})
    steps = steps_of(settings, 0, images, 4)
    assert [steps.rate(step) for step in (0, 2, 4)] == pytest.approx([0.1, 0.05, 0.1])
    top, left, height, width, _ = np.moveaxis(steps.crops, -1, 0)
    assert top.shape == (4, 4) and (top + height).max() <= 6 and (left + width).max() <= 4
