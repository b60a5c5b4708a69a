"""Random resized crops and flips, drawn by numpy. In the step both runners' augment.py cuts the images on the device.

Bilinear, of the four pixels around a point and no more (no antialiasing), with half-pixel centres: what
F.interpolate(mode="bilinear", align_corners=False) makes of the crop. Nothing is rounded back to whole colours. In
whole numbers but for one product at the end, so both frameworks have the same bits, however they fuse. An output of
more than 1,450 x 1,450 pixels would need more than 32 of them.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE = (0.08, 1.0)
"""Of a crop's area, as a share of the image's."""
RATIO = (3 / 4, 4 / 3)
"""Of its width to its height; their logarithm is uniform."""
TRIES = 10

CROP_FIELDS = 5
"""Top, left, height and width in pixels, and 1 where it is flipped from left to right."""


def crops_of_steps(
    seed: int, order: NDArray[np.int32], steps_per_epoch: int, sample_count: int, height: int, width: int
) -> NDArray[np.int32]:
    """Of the samples that each step sees: [steps, batch, CROP_FIELDS].

    A crop belongs to a sample and an epoch, so a larger batch has the same ones.

    Args:
        order: [steps, batch], rows of the training set.
        height, width: of the images.
    """
    of_steps = np.empty((*order.shape, CROP_FIELDS), np.int32)
    for epoch, first in enumerate(range(0, len(order), steps_per_epoch)):
        generator = np.random.default_rng([seed, zlib.crc32(b"augmentation"), epoch])
        rows = order[first : first + steps_per_epoch]
        of_steps[first : first + steps_per_epoch] = draw_crops(generator, sample_count, height, width)[rows]
    return of_steps


def draw_crops(generator: np.random.Generator, count: int, height: int, width: int) -> NDArray[np.int32]:
    """[count, CROP_FIELDS]. What fits into the image in none of TRIES tries is the largest centred crop
    of an allowed ratio.

    Source: torchvision.transforms.RandomResizedCrop.get_params, with a flip of half of the images
    (RandomHorizontalFlip).
    """
    area = generator.uniform(*SCALE, (TRIES, count)) * height * width
    ratio = np.exp(generator.uniform(math.log(RATIO[0]), math.log(RATIO[1]), (TRIES, count)))
    heights, widths = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    first, some = fits.argmax(0), fits.any(0)
    centred_height, centred_width = largest_crop(height, width)
    crop_height = np.where(some, heights[first, np.arange(count)], centred_height)
    crop_width = np.where(some, widths[first, np.arange(count)], centred_width)
    down, right, turned = generator.uniform(0, 1, (3, count))
    top = np.where(some, np.floor(down * (height - crop_height + 1)), (height - centred_height) // 2)
    left = np.where(some, np.floor(right * (width - crop_width + 1)), (width - centred_width) // 2)
    return np.stack([top, left, crop_height, crop_width, turned < 0.5], axis=1).astype(np.int32)


def largest_crop(height: int, width: int) -> tuple[int, int]:
    """Height and width of the largest crop of an allowed ratio."""
    if width / height < RATIO[0]:
        return round(width / RATIO[0]), width
    if width / height > RATIO[1]:
        return height, round(height * RATIO[1])
    return height, width


def with_crops_cut(
    batch: Mapping[str, Any], size: int | None, dtype: Any, cut: Callable[[Any, Any, int, int, Any], Any]
) -> Mapping[str, Any]:
    """The images of a batch as its `crops` cut them; a batch without them as it is.

    Args:
        size: height and width of the crops afterwards; None for those of the images.
        dtype: of the images afterwards; they stay from 0 to 255.
        cut: images [batch, rows, columns, channels] by crops [batch, CROP_FIELDS] to [batch, height, width, channels].
    """
    if "crops" not in batch:
        return batch
    rest = {name: array for name, array in batch.items() if name != "crops"}
    images = batch["images"]
    height, width = images.shape[1:3] if size is None else (size, size)
    return rest | {"images": cut(images, batch["crops"], height, width, dtype)}
