"""Random resized crops and flips, drawn by numpy; both runners' augment.py cuts the images on the device by them."""

import math
import zlib

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
