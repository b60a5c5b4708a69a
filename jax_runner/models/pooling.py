"""Pooling in shifted slices: what XLA makes one loop of, forward and backward.

XLA's own gradient of a maximum over windows is select-and-scatter: on a GPU an argmax with indices, and a scatter that
adds atomically. Its gradient of a mean over windows is a dilated reduce-window.
"""

from collections.abc import Iterator
from functools import partial

import jax
from jax import numpy as jnp

Window = tuple[int, int]
"""Height and width."""


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool(images: jax.Array, window: Window) -> jax.Array:
    """The maximum over a window that moves by one: [batch, height, width, channels] to [batch, height - window height +
    1, width - window width + 1, channels].

    Of equal pixels the first in the window gets the gradient, row by row, as in PyTorch
    (aten/src/ATen/native/cpu/MaxPoolKernel.cpp). As nnx.max_pool with strides of one.
    """
    (_, first), *others = shifted(images, window)
    maxima = first
    for _, pixels in others:
        maxima = jnp.maximum(maxima, pixels)
    return maxima


def _forward(images: jax.Array, window: Window) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    maxima = max_pool(images, window)
    return maxima, (images, maxima)


def _backward(window: Window, kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array]:
    images, maxima = kept
    height, width = window
    total = jnp.zeros_like(images)
    is_taken = jnp.zeros(maxima.shape, bool)
    for (row, column), pixels in shifted(images, window):
        takes = (pixels == maxima) & ~is_taken
        is_taken |= takes
        around = ((0, 0), (row, height - 1 - row), (column, width - 1 - column), (0, 0))
        total += jnp.pad(jnp.where(takes, gradient, 0), around)
    return (total,)


max_pool.defvjp(_forward, _backward)


def avg_pool(images: jax.Array, window: Window) -> jax.Array:
    """The mean over windows side by side: [batch, height, width, channels] to [batch, height / window height, width /
    window width, channels]. What does not fill a window is left out."""
    batch, height, width, channels = images.shape
    rows, columns = height // window[0], width // window[1]
    whole = images[:, : rows * window[0], : columns * window[1]]
    return whole.reshape(batch, rows, window[0], columns, window[1], channels).mean((2, 4))


def shifted(images: jax.Array, window: Window) -> Iterator[tuple[tuple[int, int], jax.Array]]:
    """For each place in the window, row by row: the place, and all pixels that are there for some window."""
    height, width = (size - extent + 1 for size, extent in zip(images.shape[1:3], window, strict=True))
    for row in range(window[0]):
        for column in range(window[1]):
            yield (row, column), images[:, row : row + height, column : column + width]
