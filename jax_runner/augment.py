"""Random resized crops and flips on the device, in the step; harness/work/augmentation.py says which."""

from functools import partial
from typing import Any

import jax
from jax import numpy as jnp

from harness.work.augmentation import with_crops_cut


def cut(images: jax.Array, crops: jax.Array, height: int, width: int, dtype: Any) -> jax.Array:
    top, left, crop_height, crop_width, flipped = (crops[:, field, None] for field in range(5))
    above, down = lines(top, crop_height, height)
    before, right = lines(left, crop_width, width)
    before, right = (jnp.where(flipped > 0, line[:, ::-1], line) for line in (before, right))
    below = jnp.minimum(above + 1, images.shape[1] - 1)
    behind = jnp.minimum(before + 1, images.shape[2] - 1)
    samples = jnp.arange(len(images))[:, None, None]

    def at(rows: jax.Array, columns: jax.Array) -> jax.Array:
        found = images.at[samples, rows[:, :, None], columns[:, None, :]].get(mode="promise_in_bounds")
        return found.astype(jnp.int32)

    down, right = down[:, :, None, None], right[:, None, :, None]
    up, back = 2 * height - down, 2 * width - right
    upper = at(above, before) * back + at(above, behind) * right
    lower = at(below, before) * back + at(below, behind) * right
    return (upper * up + lower * down).astype(dtype) * jnp.asarray(1 / (4 * height * width), dtype)


def lines(first: jax.Array, length: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """`count` points on a side that begins at pixel `first`, [batch, 1]: the pixel before each, and the way from there
    to the next one in parts of 1 / (2 count) of a pixel; both [batch, count]."""
    at = (2 * jnp.arange(count, dtype=first.dtype) + 1) * length - count
    at = jnp.clip(at, 0, 2 * count * (length - 1))
    return first + at // (2 * count), at % (2 * count)


augmented = partial(with_crops_cut, cut=cut)
