"""The optimizers of training, as their formulas are written down: what both runners' checks compare with. Pure.

Over all weights w as one vector, with the gradient g of the mean loss, averaged over the devices:

    clip    g <- g * c / max(|g|, c),   c = max_gradient_norm, |g| the L2 norm over all parameters together
    SGD     v <- momentum * v + (g + decay * w),   w <- w - rate * v
    AdamW   m <- beta1 * m + (1 - beta1) * g,   v <- beta2 * v + (1 - beta2) * g^2,   and of step t = 1, 2, ...
            w <- w - rate * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay * w)

Sources: torch.optim.SGD; Loshchilov and Hutter 2019, "Decoupled weight decay regularization", with the decay scaled by
the rate, as torch.optim.AdamW and optax.adamw do; Pascanu et al. 2013, "On the difficulty of training recurrent neural
networks", for the clipping (torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm, optax.clip_by_global_norm nothing).
"""

import numpy as np
from numpy.typing import NDArray

from harness.work.use_cases.train import Settings

Vector = NDArray[np.float64]

DECAYED_AXES = 2
"""AdamW's weight decay is for parameters of as many axes or more: not for biases and scales of normalisation (nanoGPT's
configure_optimizers). SGD's is for all."""


def weight_decay_of(settings: Settings, axes: int) -> float:
    """Of a parameter with so many axes, the same number in both frameworks' layouts."""
    is_decayed = settings.optimizer == "sgd" or axes >= DECAYED_AXES
    return settings.weight_decay if is_decayed else 0.0


def clip_factor(norm: float, max_norm: float) -> float:
    """What a gradient of this norm is multiplied by; a `max_norm` of 0 is none."""
    return max_norm / max(norm, max_norm) if max_norm else 1.0


class Reference:
    """An optimizer in float64. It changes no array that it was given."""

    def __init__(self, settings: Settings, weights: Vector, weight_decay: Vector) -> None:
        """`weight_decay`: [weights], that of each."""
        self.weights = weights
        self._settings = settings
        self._weight_decay = weight_decay
        self._first = np.zeros_like(weights)
        self._second = np.zeros_like(weights)
        self._steps = 0

    def step(self, gradient: Vector, rate: float) -> None:
        settings = self._settings
        self._steps += 1
        gradient = gradient * clip_factor(float(np.linalg.norm(gradient)), settings.max_gradient_norm)
        decay = self._weight_decay * self.weights
        if settings.optimizer == "sgd":
            self._first = settings.momentum * self._first + gradient + decay
            self.weights = self.weights - rate * self._first
            return
        beta1, beta2 = settings.beta1, settings.beta2
        self._first = beta1 * self._first + (1 - beta1) * gradient
        self._second = beta2 * self._second + (1 - beta2) * gradient**2
        mean, square = self._first / (1 - beta1**self._steps), self._second / (1 - beta2**self._steps)
        self.weights = self.weights - rate * (mean / (np.sqrt(square) + settings.epsilon) + decay)

    def first_gradient(self) -> Vector:
        """After one step: the gradient that it took, as what the optimizer keeps says. Clipped, where it was; with
        SGD's weight decay, which is a part of it, and without AdamW's."""
        return self._first if self._settings.optimizer == "sgd" else self._first / (1 - self._settings.beta1)
