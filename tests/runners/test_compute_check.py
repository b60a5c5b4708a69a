"""What `main.py doctor --compute` computes in each framework, against numpy; the whole way with JAX, in a process as
the doctor starts it."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

from harness.work.compute_check import TOLERANCE, Array, Check, drawn_inputs, relative_error, tell
from jax_runner import compute_check as of_jax
from pipeline.compute_checks import compute, judge_compute, read_lines
from torch_runner import compute_check as of_torch

BOTH = ["matrix product", "convolution", "gradient"]


@pytest.mark.parametrize(
    ("runner", "names"), [(of_jax, BOTH), (of_torch, [*BOTH, "torch.compile", "all-reduce over 2 devices"])]
)
def test_the_frameworks_compute_the_same(runner: Any, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy, so as each other; PyTorch's compiler gives what it is given here."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    checks = list(runner.checks(drawn_inputs()))
    assert [check.name for check in checks][: len(names)] == names
    for check in checks:
        assert relative_error(check.compute(), check.expected) < TOLERANCE / 10, check.name


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Array:
        raise RuntimeError("CUDNN_STATUS_\n  NOT_SUPPORTED")

    ones = np.ones((2, 2))
    checks = [
        Check(name="a", compute=lambda: ones * (1 + 1e-3), expected=ones),
        Check(name="b", compute=fail, expected=ones),
        Check(name="c", compute=lambda: ones * np.inf, expected=ones),
        Check(name="d", compute=lambda: ones[1:], expected=ones),
    ]
    tell(checks, "cpu")
    ran = read_lines(capsys.readouterr().out)
    assert ran.errors == {"a": pytest.approx(1e-3), "c": None}
    of_shape = "ValueError: the outcome has the shape (1, 2), and should have (2, 2)"
    assert ran.failed == {"b": "RuntimeError: CUDNN_STATUS_ NOT_SUPPORTED", "d": of_shape}


def test_the_whole_way_with_jax_on_two_devices() -> None:
    finding = judge_compute("jax", compute([sys.executable, "-m", "jax_runner.compute_check"], timeout_s=300))
    assert finding.verdict == "ok", finding.found
    assert finding.found.startswith("matrix product, convolution, gradient, all-reduce over 2 devices on cpu: as numpy")
