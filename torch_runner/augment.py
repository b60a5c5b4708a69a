"""Random resized crops and flips on the device, in the step; harness/work/augmentation.py says which."""

from functools import partial

import torch
from torch import Tensor

from harness.work.augmentation import with_crops_cut


def cut(images: Tensor, crops: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    crops = crops.int()
    top, left, crop_height, crop_width, flipped = (crops[:, field, None] for field in range(5))
    above, down = lines(top, crop_height, height)
    before, right = lines(left, crop_width, width)
    before, right = (torch.where(flipped > 0, line.flip(1), line) for line in (before, right))
    below = (above + 1).clamp(max=images.shape[1] - 1)
    behind = (before + 1).clamp(max=images.shape[2] - 1)
    samples = torch.arange(len(images), device=images.device)[:, None, None]

    def at(rows: Tensor, columns: Tensor) -> Tensor:
        return images[samples, rows[:, :, None], columns[:, None, :]].int()

    down, right = down[:, :, None, None], right[:, None, :, None]
    up, back = 2 * height - down, 2 * width - right
    upper = at(above, before) * back + at(above, behind) * right
    lower = at(below, before) * back + at(below, behind) * right
    return (upper * up + lower * down).to(dtype) * (1 / (4 * height * width))


def lines(first: Tensor, length: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` points on a side that begins at pixel `first`, [batch, 1]: the pixel before each, and the way from there
    to the next one in parts of 1 / (2 count) of a pixel; both [batch, count]."""
    at = (2 * torch.arange(count, dtype=first.dtype, device=first.device) + 1) * length - count
    at = at.clamp(min=torch.zeros_like(length), max=2 * count * (length - 1))
    return first + at // (2 * count), at % (2 * count)


augmented = partial(with_crops_cut, cut=cut)
