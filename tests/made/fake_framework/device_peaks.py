"""Stands in for a runner's device_peaks.py: each product and each triad takes 10 ms (simulated)."""

from collections.abc import Callable
from typing import Any

from .simulated_clock import advance


def matrix_product(device: Any, precision: str, shape: tuple[int, int, int]) -> Callable[[], None]:
    return lambda: advance(10e-3)


def triad(device: Any, elements: int) -> Callable[[], None]:
    return lambda: advance(10e-3)
