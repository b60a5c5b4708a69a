"""The rates of a schedule, by hand."""

import numpy as np
import pytest

from harness.work.schedule import rates_of_steps


def test_half_a_cosine_or_a_constant_rate_after_a_linear_warm_up() -> None:
    """Two epochs of 3 steps; 2/3 of an epoch are 2 steps, of 1/3 and 2/3 of the rate. Four are left: the cosine of 0,
    45, 90 and 135 degrees."""
    rates = rates_of_steps(0.6, "cosine", epochs=2, warmup_epochs=0.67, steps_per_epoch=3)
    half_root = 0.5**0.5
    expected = [0.2, 0.4, 0.6, 0.3 * (1 + half_root), 0.3, 0.3 * (1 - half_root)]
    assert rates.dtype == np.float32
    assert rates.tolist() == pytest.approx(expected, rel=1e-6)
    rates = rates_of_steps(0.4, "constant", epochs=2, warmup_epochs=0.5, steps_per_epoch=2)
    assert rates.tolist() == pytest.approx([0.2, 0.4, 0.4, 0.4])
    # A warm-up that is longer than the training rises to its end.
    rates = rates_of_steps(1.0, "cosine", epochs=1, warmup_epochs=5, steps_per_epoch=3)
    assert rates.tolist() == pytest.approx([0.25, 0.5, 0.75])
