"""The optimizers of training: optax's, inside the jitted step, and clipping in front of them.

harness/work/optimizers.py has the formulas.
"""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from numpy.typing import NDArray

from harness.work.optimizers import DECAYED_AXES
from harness.work.use_cases.train import Settings


def make_optimizer(settings: Settings, rates: NDArray[np.float32] | None) -> optax.GradientTransformation:
    """`rates`: of each step; None where all are `settings.learning_rate`."""
    rate = rate_of(rates, settings.learning_rate)
    if settings.optimizer == "sgd":
        optimizer = optax.chain(
            optax.add_decayed_weights(settings.weight_decay), optax.sgd(rate, momentum=settings.momentum)
        )
    else:
        optimizer = optax.adamw(
            rate,
            b1=settings.beta1,
            b2=settings.beta2,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            mask=are_decayed,
        )
    if not settings.max_gradient_norm:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(settings.max_gradient_norm), optimizer)


def are_decayed(params: Any) -> Any:
    """Of AdamW: a tree of bools."""
    return jax.tree.map(lambda leaf: leaf.ndim >= DECAYED_AXES, params)


def rate_of(rates: NDArray[np.float32] | None, learning_rate: float) -> Any:
    """What optax takes: one number, or a function of how many steps were made."""
    if rates is None:
        return learning_rate
    return lambda steps_made: jnp.asarray(rates)[steps_made % len(rates)]


def moments(settings: Settings, opt_state: Any) -> dict[str, Any]:
    """AdamW's, by the names that the parity gate has for them."""
    if settings.optimizer == "sgd":
        return {}
    kept = {"first_moments": "mu", "second_moments": "nu"}
    return {quantity: optax.tree_utils.tree_get(opt_state, key) for quantity, key in kept.items()}


def first_gradients(settings: Settings, opt_state: Any) -> Any:
    """After one step: the gradients that it took, by what it keeps of them (harness/work/optimizers.py, Reference)."""
    if settings.optimizer == "sgd":
        return optax.tree_utils.tree_get(opt_state, "trace")
    return jax.tree.map(lambda mean: mean / (1 - settings.beta1), moments(settings, opt_state)["first_moments"])
