"""What N models at once means, in numbers: rates, seeds, batches, and the check against models trained alone."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.plan import Precision
from harness.work.datasets import Dataset
from harness.work.use_cases.many_models import (
    Course,
    added_to_weights,
    check_course,
    drawn_batch,
    first_batch,
    leading_axes,
    learning_rates,
    model_seed,
)
from harness.work.weights import initial_weight


def test_every_model_has_a_seed_and_by_option_a_rate_and_a_batch() -> None:
    """Rates fall to a tenth in equal ratios; batches are the first samples of a data set, and begin again."""
    assert [model_seed(5, index) for index in range(3)] == [5, 6, 7]
    np.testing.assert_allclose(learning_rates(0.4, 3, "separate"), [0.4, 0.4 / 10**0.5, 0.04], rtol=1e-12)
    assert (learning_rates(0.4, 1, "separate").tolist(), learning_rates(0.4, 2, "one").tolist()) == ([0.4], [0.4, 0.4])
    assert (leading_axes(3, 8, "different"), leading_axes(3, 8, "same")) == ((3, 8), (8,))
    tokens = np.arange(10, dtype=np.int32).reshape(5, 2)
    dataset = Dataset(train={"tokens": tokens, "labels": np.arange(5)}, test={}, constants={})
    batch = first_batch(dataset, (2, 4))
    assert batch["labels"].tolist() == [[0, 1, 2, 3], [4, 0, 1, 2]]
    assert batch["tokens"][1].tolist() == [[8, 9], [0, 1], [2, 3], [4, 5]]


def test_synthetic_batches_are_normal_and_depend_on_the_seed() -> None:
    drawn, again, other = (drawn_batch(seed, (4, 500), (6,), 3) for seed in (0, 0, 1))
    inputs, labels = drawn["inputs"], drawn["labels"]
    assert (inputs.shape, inputs.dtype, labels.shape, labels.dtype) == ((4, 500, 6), np.float32, (4, 500), np.int32)
    assert abs(float(inputs.mean())) < 0.05 and abs(float(inputs.std()) - 1) < 0.05  # of 12,000: 0.01 and 0.006
    assert np.bincount(labels.ravel()).min() > 550  # of 667 each
    np.testing.assert_array_equal(again["inputs"], inputs)
    assert not np.array_equal(other["inputs"], inputs)


def course(*updates: list[float], losses: list[list[float]] = [[1.0] * 3, [0.5] * 3]) -> Course:  # noqa: B006
    return Course(losses=np.array(losses), updates={"w": np.array(updates)})


ONE, TWO = [3.0, 4.0], [6.0, 8.0]
RIGHT = course(ONE, TWO, ONE)


def test_the_check_takes_the_median_and_the_worst_model() -> None:
    """Model 1 is off by 0.01 of a length of 10: 1e-3. Models 0 and 2 are right, so the median is 0."""
    checks = check_course(course(ONE, [6.0, 8.01], ONE), RIGHT, "fp32")
    assert [check.error for check in checks] == [0, 0, pytest.approx(1e-3)]
    assert [check.name.partition("float64, ")[2] for check in checks] == [
        "worst model, which is number 0",
        "median over 3 models",
        "worst model, which is number 1",
    ]
    assert checks[2].name.startswith("weight updates of 2 steps against models trained alone in float64")
    assert [check.tolerance for check in checks] == [2e-3, 2e-3, 1e-1]


def test_two_models_are_judged_by_their_tensors() -> None:
    """One model is off by 5 % in one of three tensors, as by a ReLU at zero: the median over the tensors is 0."""

    def of(first: float) -> Course:
        tensors = {"a": np.array([[3.0], [first]]), "b": np.ones((2, 2)), "c": np.ones((2, 2))}
        return Course(losses=np.ones((2, 2)), updates=tensors)

    checks = check_course(of(3.15), of(3.0), "fp32")
    # Model 1 is off by 0.15 of the root of 9 + 2 + 2.
    assert [check.error for check in checks[1:]] == [0, pytest.approx(0.15 / 13**0.5)]
    with pytest.raises(CheckFailed, match=r"weight updates .*, all tensors together: relative error 2\.50e-01"):
        check_course(of(3.9), of(3.0), "fp32")


ALMOST_ONE, ALMOST_TWO = [3.03, 4.04], [6.06, 8.08]


@pytest.mark.parametrize(
    ("wrong", "precision", "words"),
    [
        (course(ALMOST_ONE, ALMOST_TWO, ONE), "fp32", "weight .*, median over 3 models: relative error 1\\.00e-02"),
        (course(ALMOST_ONE, ALMOST_TWO, ONE), "tf32", None),
        (course(ONE, TWO, [3.6, 4.8]), "fp32", "weight .*, worst model, which is number 2: relative error 2\\.0"),
        (course(ONE, TWO, [3.6, 4.8]), "tf32", None),
        (course(ONE, TWO, ONE, losses=[[1.0] * 3, [0.51, 0.5, 0.5]]), "fp32", "losses .*, worst .* number 0"),
        (course(ONE, TWO, [3.0, math.nan]), "bf16", "relative error inf"),
        *((course(TWO, ONE, ONE), precision, "weight updates") for precision in ("fp32", "tf32", "bf16")),  # exchanged
    ],
)
def test_a_wrong_update_and_a_wrong_loss_fail(wrong: Course, precision: Precision, words: str | None) -> None:
    with pytest.raises(CheckFailed, match=words) if words else nullcontext():
        check_course(wrong, RIGHT, precision)


def test_what_the_steps_have_added_to_each_model() -> None:
    weights = np.stack([initial_weight(seed, "fc.weight", (3, 2)) for seed in (7, 8)])
    added = added_to_weights({"fc.weight": weights + np.array([0.25, 0.5])[:, None, None]}, seed=7)["fc.weight"]
    np.testing.assert_allclose(added, np.stack([np.full((3, 2), 0.25), np.full((3, 2), 0.5)]))
