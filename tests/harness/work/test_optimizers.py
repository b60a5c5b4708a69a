"""The optimizers as they are written down: by hand."""

from typing import Any

import numpy as np
import pytest

from harness.work.optimizers import Reference, clip_factor, weight_decay_of
from harness.work.use_cases.train import Settings

PLAIN: dict[str, Any] = {"epochs": 1, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.2, "target_metric": 0.5}
ADAMW = PLAIN | {"optimizer": "adamw", "beta1": 0.5, "beta2": 0.75, "epsilon": 0.5}


def weights_after(settings: dict[str, Any], gradients: list[list[float]], decay: list[float]) -> list[list[float]]:
    """From ones, at the rate 0.1."""
    reference = Reference(Settings.model_validate(settings), np.ones(len(decay)), np.array(decay))
    found = []
    for gradient in gradients:
        reference.step(np.array(gradient), 0.1)
        found.append(reference.weights.tolist())
    return found


def test_sgd_by_hand() -> None:
    """v = 0.5 + 0.2 = 0.7, w = 0.93;  v = 0.9 * 0.7 + 1 + 0.2 * 0.93 = 1.816, w = 0.93 - 0.1816."""
    one, two = weights_after(PLAIN, [[0.5], [1.0]], [0.2])
    assert (one, two) == (pytest.approx([0.93]), pytest.approx([0.7484]))


def test_adamw_by_hand() -> None:
    """With decay and without it, which does not touch the moments.

    Step 1, g = 0.5: m = 0.25, v = 0.0625; corrected 0.5 and 0.25; u = 0.5 / (0.5 + 0.5) = 0.5.
    w = 1 - 0.1 (0.5 + 0.2) = 0.93, and 1 - 0.05 = 0.95.
    Step 2, g = 1: m = 0.625, v = 0.046875 + 0.25 = 0.296875; corrected 0.625 / 0.75 and 0.296875 / 0.4375;
    u = 0.833333 / (0.823754 + 0.5) = 0.629522. w = 0.93 - 0.1 (0.629522 + 0.186) = 0.848448, and 0.95 - 0.0629522.
    """
    one, two = weights_after(ADAMW, [[0.5, 0.5], [1.0, 1.0]], [0.2, 0.0])
    assert one == pytest.approx([0.93, 0.95])
    assert two == pytest.approx([0.8484478, 0.8870478], abs=1e-7)


def test_clipping_by_hand() -> None:
    """A gradient of norm 5 to one of norm 1, all by the same factor; one of norm 0.5 stays. In the gradient that was
    taken SGD has 0.2 * 1 of decay, AdamW none."""
    assert [clip_factor(*given) for given in ((5.0, 1.0), (0.5, 1.0), (5.0, 0.0), (0.0, 1.0))] == [0.2, 1, 1, 1]
    ((first, second),) = weights_after(PLAIN | {"max_gradient_norm": 1.0}, [[3.0, 4.0]], [0.0, 0.0])
    assert (first, second) == (pytest.approx(1 - 0.06), pytest.approx(1 - 0.08))
    for settings, expected in ((PLAIN, [0.8, 1.0]), (ADAMW, [0.6, 0.8])):
        clipping = Settings.model_validate(settings | {"max_gradient_norm": 1.0})
        reference = Reference(clipping, np.ones(2), np.full(2, 0.2))
        reference.step(np.array([3.0, 4.0]), 0.1)
        assert reference.first_gradient() == pytest.approx(np.array(expected))


def test_adamw_decays_matrices_and_more() -> None:
    sgd, adamw = Settings.model_validate(PLAIN), Settings.model_validate(ADAMW)
    assert [weight_decay_of(sgd, axes) for axes in (0, 1, 2, 4)] == [0.2] * 4
    assert [weight_decay_of(adamw, axes) for axes in (0, 1, 2, 4)] == [0, 0, 0.2, 0.2]
