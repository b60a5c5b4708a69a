"""The check of per-sample gradients: its formulas by hand, and the mistakes that it must catch."""

import weakref
from collections.abc import Iterator
from itertools import product
from typing import get_args

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.plan import Precision
from harness.work.closeness import TOLERANCES
from harness.work.use_cases.per_sample_gradients import (
    PER_SAMPLE_OUTPUTS,
    Output,
    check_batch_rows,
    check_gradients,
    expected_output,
)

Gradients = dict[str, np.ndarray]
OUTPUTS = get_args(Output)

LOOP = [
    {"w": np.array([[3.0, 0.0]]), "b": np.array([4.0])},  # norm 5
    {"w": np.array([[0.0, 1.0]]), "b": np.array([0.0])},  # norm 1
]
"""Two samples, two parameters."""
MEAN = {"w": np.array([[1.5, 0.5]]), "b": np.array([2.0])}


def check(actual: Gradients, output: str, *, batch_size: int = 2, precision: Precision = "fp32", **changes: object):
    arguments = {"loop": LOOP, "batch_gradient": MEAN, "clip_norm": 2.0} | changes
    return check_gradients(actual=actual, output=output, batch_size=batch_size, precision=precision, **arguments)


def test_outputs_by_hand() -> None:
    def expected(output: str) -> Gradients:
        return expected_output(LOOP, output, batch_size=2, clip_norm=2.0).output

    np.testing.assert_array_equal(expected("norms")["norms"], [5, 1])
    np.testing.assert_array_equal(expected("full")["w"], [[[3, 0]], [[0, 1]]])
    np.testing.assert_array_equal(expected("full")["b"], [[4], [0]])
    # The first sample is shortened to norm 2, so by 2 / 5; the second, of norm 1, stays.
    np.testing.assert_allclose(expected("clipped_sum")["w"], [[1.2, 1.0]], rtol=1e-15)
    np.testing.assert_allclose(expected("clipped_sum")["b"], [1.6], rtol=1e-15)
    # One without a gradient is not clipped.
    alone = expected_output([{"w": np.array([0.0, 0.0])}], "clipped_sum", batch_size=1, clip_norm=1.0).output
    np.testing.assert_array_equal(alone["w"], [0.0, 0.0])
    np.testing.assert_array_equal(expected("batch_gradient")["w"], MEAN["w"])
    np.testing.assert_array_equal(expected("batch_gradient")["b"], MEAN["b"])


def test_no_sample_stays_in_memory_but_where_all_are_the_output() -> None:
    """Of a loop that computes them one by one, all but the sample at hand and the one that comes are gone."""
    alive: list[weakref.ref[np.ndarray]] = []

    def loop() -> Iterator[Gradients]:
        for sample in range(8):
            alive.append(weakref.ref(value := np.full(2, float(sample))))
            yield {"w": value}
            assert sum(reference() is not None for reference in alive) <= 2

    for output in ("norms", "clipped_sum", "batch_gradient"):
        alive.clear()
        np.testing.assert_allclose(expected_output(loop(), output, 8, clip_norm=2.0).mean["w"], [3.5, 3.5])


def test_repeated_samples_count_as_often_as_they_are_there() -> None:
    """Samples 1 2 3 4 5 6 7 8 and 1 2 again; those above 4 count as 4: 10 + 4 * 4 + 3 = 29. The sum is 39."""
    assert check_batch_rows(3).tolist() == [0, 1, 2]
    assert check_batch_rows(19).tolist() == [*range(8), *range(8), 0, 1, 2]
    loop = [{"w": np.array([float(sample + 1)])} for sample in range(8)]
    norms, clipped, mean = (
        expected_output(loop, output, 10, clip_norm=4.0).output for output in ("norms", "clipped_sum", "batch_gradient")
    )
    assert norms["norms"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert (clipped["w"], mean["w"]) == (pytest.approx(29), pytest.approx(3.9))


def test_one_path_that_rounding_opened_is_no_mistake() -> None:
    """As a ReLU may do whose input is almost zero: one sample of eight is off by 5 %, or one tensor of a sum by 1 %."""
    loop = [{"w": np.full(4, 1.0), "b": np.full(2, 2.0), "c": np.full(3, 3.0)} for _ in range(8)]
    for output, tensor, factor in (("full", 3, 1.05), ("norms", 3, 1.05), ("clipped_sum", ..., 1.01)):
        rounded = {name: value.copy() for name, value in expected_output(loop, output, 8, clip_norm=2.0).output.items()}
        rounded["norms" if output == "norms" else "w"][tensor] *= factor
        checks = check(rounded, output, batch_size=8, loop=loop, batch_gradient=loop[0])
        assert [one.passed for one in checks] == [True] * 3 and checks[1].error == 0
    wrong = expected_output(loop, "full", 8, clip_norm=2.0).output
    for value in wrong.values():
        value[3] *= 1.2
    with pytest.raises(CheckFailed, match="full against the float64 loop, worst sample, which is number 3: relative"):
        check(wrong, "full", batch_size=8, loop=loop, batch_gradient=loop[0])


@pytest.mark.parametrize("output", OUTPUTS)
def test_right_output_passes_and_a_wrong_factor_or_sign_is_caught(output: str) -> None:
    right = expected_output(LOOP, output, batch_size=2, clip_norm=2.0).output
    reference, typical, worst = check({name: value * (1 + 1e-6) for name, value in right.items()}, output)
    assert (reference.error, reference.passed) == (0.0, True)
    for measured, tolerance in ((typical, 2e-3), (worst, 1e-1)):
        assert measured.error == pytest.approx(1e-6, rel=1e-6)
        assert (measured.tolerance, measured.passed) == (tolerance, True)
    words = f"{output} against the float64 loop, median over 2 .*: relative error.*not timed"
    for precision, factor in product(TOLERANCES, (2.0, -1.0, 0.5, 0.0, float("nan"))):
        with pytest.raises(CheckFailed, match=words):
            check({name: value * factor for name, value in right.items()}, output, precision=precision)
    with pytest.raises(CheckFailed, match="mean of the float64 loop against the float64 batch gradient"):
        check(right, output, batch_gradient={name: 2 * value for name, value in MEAN.items()})


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("batch_size", [2, 256])
def test_missing_sample_is_caught(output: str, batch_size: int) -> None:
    """The last sample's gradient is zero, as if the loop over the batch ended one too early."""
    draw = np.random.default_rng(1)
    loop = [{"w": draw.normal(size=(4, 5)), "b": draw.normal(size=4)} for _ in range(min(8, batch_size))]
    mean = {name: np.mean([gradient[name] for gradient in loop], axis=0) for name in ("w", "b")}
    wrong = expected_output(loop, output, batch_size, clip_norm=2.0).output
    alone = expected_output(loop[-1:], output, 1, clip_norm=2.0).output
    for name, value in wrong.items():
        if output in PER_SAMPLE_OUTPUTS:
            value[-1] = 0
        else:
            value -= alone[name] / (batch_size if output == "batch_gradient" else 1)
    with pytest.raises(CheckFailed, match=f"{output} .*: relative error"):
        check(wrong, output, batch_size=batch_size, loop=loop, batch_gradient=mean)
