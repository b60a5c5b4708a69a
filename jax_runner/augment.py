"""Random resized crops and flips on the device, in the step. harness/work/augmentation.py draws them.

Bilinear, of the four pixels around a point and no more (no antialiasing), with half-pixel centres: what
F.interpolate(mode="bilinear", align_corners=False) makes of the crop. Nothing is rounded back to whole colours.

In whole numbers but for one product at the end, so both frameworks have the same bits, however they fuse. An output of
more than 1,450 x 1,450 pixels would need more than 32 of them.
"""

from typing import Any

import jax
from jax import numpy as jnp

from jax_runner.task import Batch


def augmented(batch: Batch, size: int | None, dtype: Any) -> Batch:
    """The images of a batch as its `crops` cut them; a batch without them as it is.

    Args:
        size: height and width of the crops afterwards; None for those of the images.
        dtype: of the images afterwards; they stay from 0 to 255.
    """
    if "crops" not in batch:
        return batch
    rest = {name: array for name, array in batch.items() if name != "crops"}
    images = batch["images"]
    height, width = images.shape[1:3] if size is None else (size, size)
    return rest | {"images": cut(images, batch["crops"], height, width, dtype)}


def cut(images: jax.Array, crops: jax.Array, height: int, width: int, dtype: Any) -> jax.Array:
    """[batch, rows, columns, channels] by crops [batch, CROP_FIELDS] to [batch, height, width, channels]."""
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
