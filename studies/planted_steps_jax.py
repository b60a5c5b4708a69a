"""A small training step in JAX, one compiled program, with one cause of a longer step planted in it."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

LAYERS = 3
LEARNING_RATE = 1e-3

State = tuple[tuple[Array, ...], Array]
"""The weights, and what is planted."""


def make_step(batch: int, width: int, cause: str, *, rows: int = 1, seconds: float = 0.0) -> Callable[[], Any]:
    """Dense layers, forward, backward and SGD; its outputs can be waited for.

    Args:
        rows: of the array [rows, width] in which work is planted.
        seconds: in which nothing computes.
    """
    draw = np.random.default_rng(0)

    def drawn(rows: int) -> Array:
        return jnp.asarray(draw.standard_normal((rows, width), dtype=np.float32))

    inputs, rotation = drawn(batch), jnp.asarray(np.linalg.qr(drawn(width))[0])
    weights = tuple(drawn(width) / width**0.5 for _ in range(LAYERS))
    state: State = (weights, drawn(rows))

    def loss_of(weights: tuple[Array, ...], inputs: Array) -> Array:
        hidden = inputs
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.mean(jnp.square(hidden))

    def unknown_operation(values: Any) -> Any:
        """Sleeps; its name says nothing."""
        time.sleep(seconds)
        return np.asarray(values)

    @partial(jax.jit, donate_argnums=0)
    def update(state: State, inputs: Array, rotation: Array) -> tuple[State, Array]:
        weights, extra = state
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs)
        weights = tuple(weight - LEARNING_RATE * gradient for weight, gradient in zip(weights, gradients, strict=True))
        extra = extra.at[0, 0].set(weights[0][0, 0])  # or XLA would run what is planted beside the rest
        if cause == "a product":
            extra = extra @ rotation
        elif cause == "an elementwise pass":
            extra = extra * 0.999 + 0.001
        elif cause == "a change of layout":
            extra = extra.T.reshape(extra.shape)  # which no other layout in memory can stand for
        elif cause == "an unknown operator":
            extra = jax.pure_callback(unknown_operation, jax.ShapeDtypeStruct(extra.shape, extra.dtype), extra)
        return (weights, extra), loss

    def step() -> Array:
        nonlocal state
        state, loss = update(state, inputs, rotation)
        if cause == "the host waits":
            jax.block_until_ready(loss)
            time.sleep(seconds)
        return loss

    return step
