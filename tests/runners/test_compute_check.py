"""What `main.py doctor --compute` computes in each framework, against sums that are written out here; the whole way
with JAX, in a process as the doctor starts it."""

import sys
from collections.abc import Callable

import numpy as np
import pytest

from harness.work import compute_check
from harness.work.compute_check import TOLERANCE, Array, Check, drawn_inputs, relative_error, tell
from jax_runner import compute_check as of_jax
from pipeline.compute_checks import compute, judge_compute, read_lines
from torch_runner import compute_check as of_torch

INPUTS = drawn_inputs()


def test_numpys_convolution_is_the_sum_that_it_is_by_definition() -> None:
    found = compute_check.convolution(INPUTS)
    sample, out, row, column = 3, 31, 15, 2
    by_hand = sum(
        float(INPUTS.images[sample, channel, row + i, column + j]) * float(INPUTS.kernels[out, channel, i, j])
        for channel in range(16)
        for i in range(3)
        for j in range(3)
    )
    assert found.shape == (4, 32, 16, 16)
    assert found[sample, out, row, column] == pytest.approx(by_hand, rel=1e-12)


def test_numpys_gradient_is_the_difference_quotient() -> None:
    def loss(right: Array) -> float:
        return float(np.sin(INPUTS.left.astype(np.float64) @ right / 16).sum())

    right, step = INPUTS.right.astype(np.float64), np.zeros((256, 32))
    step[200, 7] = 1e-5
    quotient = (loss(right + step) - loss(right - step)) / 2e-5
    assert compute_check.gradient(INPUTS)[200, 7] == pytest.approx(quotient, rel=1e-6)


@pytest.mark.parametrize("runner", [of_jax, of_torch], ids=["jax", "torch"])
@pytest.mark.parametrize("name", ["product", "convolution", "gradient"])
def test_the_frameworks_compute_the_same(runner: object, name: str) -> None:
    own: Callable[..., Array] = getattr(runner, name)
    expected = getattr(compute_check, name)(INPUTS)
    assert relative_error(own(INPUTS), expected) < TOLERANCE / 10
    with pytest.raises(ValueError, match="shape"):
        relative_error(own(INPUTS)[1:], expected)


def test_both_runners_check_the_same_and_torch_its_compiler_too() -> None:
    of_one = [check.name for check in of_jax.checks(INPUTS)]
    assert of_one[:3] == ["matrix product", "convolution", "gradient"]
    assert [check.name for check in of_torch.checks(INPUTS)] == [
        *of_one[:3], "torch.compile", "all-reduce over 2 devices"
    ]  # fmt: skip


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Array:
        raise RuntimeError("CUDNN_STATUS_\n  NOT_SUPPORTED")

    ones = np.ones((2, 2))
    checks = [
        Check(name="a", compute=lambda: ones * (1 + 1e-3), expected=ones),
        Check(name="b", compute=fail, expected=ones),
        Check(name="c", compute=lambda: ones * np.inf, expected=ones),
    ]
    tell(checks, "cpu")
    ran = read_lines(capsys.readouterr().out)
    assert ran.errors == {"a": pytest.approx(1e-3), "c": None}
    assert ran.failed == {"b": "RuntimeError: CUDNN_STATUS_ NOT_SUPPORTED"}


def test_the_whole_way_with_jax_on_two_devices() -> None:
    finding = judge_compute("jax", compute([sys.executable, "-m", "jax_runner.compute_check"], timeout_s=300))
    assert finding.verdict == "ok", finding.found
    assert finding.found.startswith("matrix product, convolution, gradient, all-reduce over 2 devices on cpu: as numpy")


def test_pytorchs_processes_add_up() -> None:
    assert relative_error(of_torch.all_reduce(INPUTS, 2), compute_check.all_reduce(INPUTS, 2)) < TOLERANCE / 10
