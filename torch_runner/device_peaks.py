"""What a device can do at most, as steps to be timed: a matrix product, and a triad for its memory."""

from collections.abc import Callable

import torch
from torch import Tensor

from torch_runner.device import HALF, Device

SCALE = 3.0


def matrix_product(device: Device, precision: str, shape: tuple[int, int, int]) -> Callable[[], Tensor]:
    """[m, k] by [k, n], `shape` being m, k, n: normal random numbers, into the same place each time. The device is set
    up for the precision; in bf16 and fp16 both operands and the result are stored so."""
    rows, inner, columns = shape
    dtype = HALF.get(precision, torch.float32)
    left, right = (_drawn(device, seed, size).to(dtype) for seed, size in enumerate(((rows, inner), (inner, columns))))
    place = torch.empty((rows, columns), dtype=dtype, device=device.device)
    return lambda: torch.matmul(left, right, out=place)


def triad(device: Device, elements: int) -> Callable[[], Tensor]:
    """a = b + SCALE * c in float32, into the same a each time."""
    first, second = (_drawn(device, seed, (elements,)) for seed in range(2))
    place = torch.empty_like(first)
    return lambda: torch.add(first, second, alpha=SCALE, out=place)


def _drawn(device: Device, seed: int, size: tuple[int, ...]) -> Tensor:
    draw = torch.Generator(device.device).manual_seed(seed)
    return torch.randn(size, generator=draw, device=device.device)
