"""The check of JAX's training before it is timed: what is right passes, and a step that does something else does not.

A wrong kernel is in test_wrong_kernels.py, gradients that nobody averages are in test_several_devices.py.
"""

from collections.abc import Callable
from typing import Any

import optax
import pytest

from harness.errors import CheckFailed
from jax_runner.use_cases import train as module
from tests.made.numbers import losses_of
from tests.made.sessions import build, make_session, with_first

MODES = ("step.jit", "scan.jit")
SGD = optax.sgd


def session(mode: str, **others: Any) -> Any:
    """Three steps in an epoch of 24 samples."""
    return with_first(make_session("jax", "train", batch_size=8, execution_mode=mode, **others), train=24)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_right_passes(mode: str) -> None:
    """And leaves the program as it was built."""
    program: Any = build(session(mode, weight_decay=0.1))
    calls = 1 if program.steps_per_call > 1 else 3
    first = losses_of(program, calls)
    errors = [check.error for check in program.check()]
    assert len(errors) == {"step.jit": 5, "scan.jit": 6}[mode]
    assert max(errors) < 1e-4
    assert losses_of(program, calls) == pytest.approx(first, rel=1e-6)


FAULTS: dict[str, Callable[..., Any]] = {
    "momentum": lambda rate, momentum: SGD(rate, momentum=momentum / 2),
    "nesterov": lambda rate, momentum: SGD(rate, momentum=momentum, nesterov=True),
    "rate": lambda rate, momentum: SGD(rate * 1.01, momentum=momentum),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", ["step.jit", pytest.param("scan.jit", marks=pytest.mark.nightly)])
def test_another_optimizer_is_caught(mode: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.optax, "sgd", FAULTS[fault])
    with pytest.raises(CheckFailed, match=r"updates of 2 steps of .* against float64"):
        build(session(mode)).check()


@pytest.mark.parametrize("mode", MODES)
def test_missing_weight_decay_is_caught(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for training is of the size of a gradient's rounding in float32, so this one is larger."""
    monkeypatch.setattr(module.optax, "add_decayed_weights", lambda _: optax.identity())
    with pytest.raises(CheckFailed, match=r"gradients of .* against float64"):
        build(session(mode, weight_decay=0.1)).check()


def test_a_scan_that_repeats_a_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong between the steps of a call shows in no single step."""
    right = module.Training.optimizer_step

    def wrong(self: Any, state: Any, data: Any) -> Any:
        state, loss = right(self, state, data)
        return state._replace(step=0 * state.step), loss

    monkeypatch.setattr(module.Training, "optimizer_step", wrong)
    with pytest.raises(CheckFailed, match="of 2 scanned steps against float64"):
        build(session("scan.jit")).check()
