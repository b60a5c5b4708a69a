"""Relative errors and tolerances, by hand."""

import json
from typing import Any

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.paths import REPOSITORY
from harness.work.closeness import (
    OUTPUTS,
    TOLERANCES,
    WITH_BATCH_NORM,
    check_error,
    check_errors,
    errors_of_centred,
    errors_of_items,
    errors_of_tensors,
    relative_error,
    relative_error_of,
)


def test_errors_by_hand() -> None:
    expected = {"w": np.array([[3.0, 0.0], [0.0, 0.0]]), "b": np.array([4.0, 5.0])}  # two samples of norm 5
    actual = {"w": np.array([[3.3, 0.0], [0.0, 0.0]]), "b": np.array([4.4, 5.0])}
    # The first is off by 0.3 and 0.4, so by 0.5 of 5; of both together, of the root of 50.
    np.testing.assert_allclose(errors_of_items(actual, expected), [0.1, 0.0], rtol=1e-12)
    assert relative_error(actual, expected) == pytest.approx(0.5 / 50**0.5)
    # w is off by 0.3 of 3, b by 0.4 of the root of 41.
    np.testing.assert_allclose(errors_of_tensors(actual, expected), [0.1, 0.4 / 41**0.5], rtol=1e-12)


def test_errors_of_one_item_after_the_other_are_those_of_all_at_once() -> None:
    draw = np.random.RandomState(0)
    expected = 10 + draw.standard_normal((5, 3, 4))
    actual = expected + 0.1 * draw.standard_normal((5, 3, 4))
    whole = relative_error({"": actual}, {"": expected})
    assert relative_error_of(list(actual), list(expected)) == pytest.approx(whole, rel=1e-12)
    centred = errors_of_items({"": actual - actual.mean(0)}, {"": expected - expected.mean(0)})
    np.testing.assert_allclose(errors_of_centred(list(actual), list(expected)), centred, rtol=1e-9)
    for wrong in ([np.full_like(actual[0], np.inf), *actual[1:]], [item[:2] for item in actual]):
        assert relative_error_of(wrong, list(expected)) == errors_of_centred(wrong, list(expected))[0] == np.inf


def test_what_is_almost_nothing_is_compared_on_the_scale_of_the_rest() -> None:
    expected = {"w": np.array([0.0, 1e-9, 1.0, 1.0])}
    actual = {"w": np.array([1e-6, 2e-9, 1.0, 1.0])}
    # The root mean square is the root of 1 / 2; a hundredth of it is the scale of the first two.
    scale = 1e-2 / 2**0.5
    np.testing.assert_allclose(errors_of_items(actual, expected), [1e-6 / scale, 1e-9 / scale, 0, 0], rtol=1e-9)
    nothing = {"w": np.zeros(2)}
    assert errors_of_items(nothing, nothing).tolist() == [0, 0]
    assert errors_of_items({"w": np.array([0.0, 1.0])}, nothing).tolist() == [0, np.inf]
    assert errors_of_items({"v": np.zeros(2)}, nothing).tolist() == [np.inf]
    assert errors_of_tensors({"w": np.zeros(3)}, nothing).tolist() == [np.inf]
    assert errors_of_items({"w": np.array([np.nan, 1.0])}, {"w": np.ones(2)}).tolist() == [np.inf, 0]


def test_relative_error_of_what_cannot_be_compared_is_infinite_unless_nothing_is_expected() -> None:
    expected, nothing = {"w": np.ones(2)}, {"w": np.zeros(2)}
    of_other_names = ({"v": np.ones(2)}, {"w": np.ones((2, 1))}, {"w": np.ones(2), "b": np.ones(1)})
    for actual in (*of_other_names, {"w": np.array([1.0, np.nan])}):
        assert relative_error(actual, expected) == np.inf
    # A sample that the model gets exactly right has no gradient.
    assert (relative_error(nothing, nothing), relative_error(expected, nothing)) == (0.0, np.inf)


def test_the_median_and_the_worst_have_tolerances_of_their_own() -> None:
    """At both limits, then just beyond each."""
    typical, worst = tolerance = TOLERANCES["fp32"]
    checks = check_errors("x", np.array([0.0, typical, worst]), "model", tolerance)
    assert [(check.name, check.error, check.tolerance, check.passed) for check in checks] == [
        ("x, median over 3 models", typical, typical, True),
        ("x, worst model, which is number 2", worst, worst, True),
    ]
    with pytest.raises(CheckFailed, match="x, median over 3 models: relative error"):
        check_errors("x", np.array([0.0, 1.01 * typical, worst]), "model", tolerance)
    with pytest.raises(CheckFailed, match="x, worst model, which is number 1: relative error"):
        check_errors("x", np.array([0.0, 1.01 * worst, typical]), "model", tolerance)
    with pytest.raises(CheckFailed, match="x, all models together: relative error"):
        check_errors("x", np.zeros(3), "model", tolerance, worst=1.01 * worst)
    with pytest.raises(CheckFailed, match="relative error nan, tolerance 0.1. The result is wrong, so it is not timed"):
        check_error("x", float("nan"), 0.1)


ROUNDING = REPOSITORY / "results" / "published" / "statistics"


def cases(name: str) -> list[dict[str, Any]]:
    return list(json.loads((ROUNDING / name).read_text())["cases"])


def test_tolerances_are_twice_what_rounding_was_found_to_do() -> None:
    """Of gradients and of outputs. Of a batch of one only the largest: the samples of a batch have one median
    together."""
    for case in cases("rounding.json"):
        tolerance = (WITH_BATCH_NORM if case["model"] == "resnet18" else TOLERANCES)[case["precision"]]
        assert 2 * case["median"] < tolerance.typical and 2 * case["largest"] < tolerance.worst, case
    for case in cases("output_rounding.json"):
        tolerance = OUTPUTS[case["precision"]]
        assert 2 * case["all"] < tolerance.typical and 2 * case["worst_sample"] < tolerance.worst, case
