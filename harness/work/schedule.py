"""The learning rate of each step, as an array: both frameworks gather from it on the device, so they train alike."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Schedule = Literal["constant", "cosine"]


def rates_of_steps(
    learning_rate: float, schedule: Schedule, *, epochs: int, warmup_epochs: float, steps_per_epoch: int
) -> NDArray[np.float32]:
    """[epochs * steps_per_epoch]. A linear warm-up of w = warmup_epochs * steps_per_epoch steps (rounded), whose step t
    has the rate learning_rate * (t + 1) / (w + 1); after it learning_rate, or of n remaining steps the t-th has
    learning_rate * (1 + cos(pi t / n)) / 2.

    float32, as PyTorch's fused SGD takes a rate on the device; the float64 references take the same numbers.

    Source: Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts; Goyal et al. 2017, "Accurate, large
    minibatch SGD", section 2.2.
    """
    count = epochs * steps_per_epoch
    warmup_steps = min(count, round(warmup_epochs * steps_per_epoch))
    rising = np.arange(1, warmup_steps + 1) / (warmup_steps + 1)
    rest = np.arange(count - warmup_steps)
    falling = (1 + np.cos(np.pi * rest / max(1, rest.size))) / 2 if schedule == "cosine" else np.ones(rest.size)
    return (learning_rate * np.concatenate([rising, falling])).astype(np.float32)
