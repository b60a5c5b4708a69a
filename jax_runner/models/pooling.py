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


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(images: jax.Array, window: Window, stride: int = 1, padding: int = 0) -> jax.Array:
    """The maximum over a window that moves by `stride`: [batch, height, width, channels] to [batch, (height + 2 *
    padding - window height) // stride + 1, the same of the width, channels]. What is padded is never the maximum.

    Of equal pixels the first in the window gets the gradient, row by row, and a pixel adds up what its windows give in
    their order, as in PyTorch on a CPU (aten/src/ATen/native/cpu/MaxPoolKernel.cpp).
    """
    (_, first), *others = shifted(padded(images, padding), window, stride)
    maxima = first
    for _, pixels in others:
        maxima = jnp.maximum(maxima, pixels)
    return maxima


def _forward(
    images: jax.Array, window: Window, stride: int, padding: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    maxima = max_pool(images, window, stride, padding)
    return maxima, (images, maxima)


def _backward(
    window: Window, stride: int, padding: int, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array]:
    images, maxima = kept
    around = padded(images, padding)
    is_taken = jnp.zeros(maxima.shape, bool)
    parts = []
    for place, pixels in shifted(around, window, stride):
        takes = (pixels == maxima) & ~is_taken
        is_taken |= takes
        parts.append((place, jnp.where(takes, gradient, 0)))
    total = jnp.zeros_like(around)
    # The last place in a window is the first window's to see a pixel.
    for place, part in reversed(parts):
        total += jax.lax.pad(part, jnp.zeros((), part.dtype), spread(place, part.shape, around.shape, stride))
    _, height, width, _ = images.shape
    return (total[:, padding : padding + height, padding : padding + width],)


max_pool.defvjp(_forward, _backward)


def padded(images: jax.Array, padding: int) -> jax.Array:
    """With the lowest number around them."""
    sides = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return jnp.pad(images, sides, constant_values=-jnp.inf) if padding else images


def spread(
    place: tuple[int, int], of_part: tuple[int, ...], of_whole: tuple[int, ...], stride: int
) -> list[tuple[int, int, int]]:
    """How `lax.pad` puts what `shifted` took from a place in the window back there: zeros before, behind, between."""
    sides = zip(place, of_part[1:3], of_whole[1:3], strict=True)
    moved = [(first, whole - first - stride * (part - 1) - 1, stride - 1) for first, part, whole in sides]
    return [(0, 0, 0), *moved, (0, 0, 0)]


def avg_pool(images: jax.Array, window: Window) -> jax.Array:
    """The mean over windows side by side: [batch, height, width, channels] to [batch, height / window height, width /
    window width, channels]. What does not fill a window is left out."""
    batch, height, width, channels = images.shape
    rows, columns = height // window[0], width // window[1]
    whole = images[:, : rows * window[0], : columns * window[1]]
    return whole.reshape(batch, rows, window[0], columns, window[1], channels).mean((2, 4))


def shifted(images: jax.Array, window: Window, stride: int) -> Iterator[tuple[tuple[int, int], jax.Array]]:
    """For each place in the window, row by row: the place, and all pixels that are there for some window."""
    height, width = ((size - extent) // stride for size, extent in zip(images.shape[1:3], window, strict=True))
    for row in range(window[0]):
        for column in range(window[1]):
            rows = slice(row, row + stride * height + 1, stride)
            columns = slice(column, column + stride * width + 1, stride)
            yield (row, column), images[:, rows, columns]
