"""What `main.py doctor --compute` computes in each framework, what numpy says of it, and how an outcome is told.

A runner's compute_check.py computes the same from the same inputs. Each outcome is a line of JSON on stdout as soon as
it is there, so that a process that hangs or crashes has said how far it came.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-5
"""Relative error (2-norm) of float32 arithmetic over sums of at most 256 terms: rounding makes some 1e-7, TF32 1e-3."""
CPU_DEVICES = 2
"""Without a GPU, an all-reduce is between as many devices of the CPU, as in the use cases of several devices."""

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """In float32."""

    left: Array
    """[64, 256]"""
    right: Array
    """[256, 32]"""
    images: Array
    """[4, 16, 18, 18]: batch, channels, height, width."""
    kernels: Array
    """[32, 16, 3, 3]: output channels, input channels, height, width."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to compute."""

    name: str
    compute: Callable[[], Array]
    expected: Array


def drawn_inputs(seed: int = 0) -> Inputs:
    draw = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return draw.standard_normal(shape).astype(np.float32)

    return Inputs(
        left=normal(64, 256), right=normal(256, 32), images=normal(4, 16, 18, 18), kernels=normal(32, 16, 3, 3)
    )


def product(inputs: Inputs) -> Array:
    """left @ right, [64, 32], in float64."""
    return inputs.left.astype(np.float64) @ inputs.right.astype(np.float64)


def convolution(inputs: Inputs) -> Array:
    """Cross-correlation, as both frameworks call it, without padding: [4, 32, 16, 16], in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(inputs.images.astype(np.float64), (3, 3), axis=(2, 3))
    found: Array = np.einsum("nchwij,ocij->nohw", windows, inputs.kernels.astype(np.float64))
    return found


def gradient(inputs: Inputs) -> Array:
    """Of sum(sin(left @ right / 16)) by `right`, [256, 32], in float64."""
    return inputs.left.astype(np.float64).T @ np.cos(product(inputs) / 16) / 16


def all_reduce(inputs: Inputs, devices: int) -> Array:
    """The sum over devices of (rank + 1) * left, [64, 256], in float64."""
    return inputs.left.astype(np.float64) * (devices * (devices + 1) / 2)


def relative_error(actual: Array, expected: Array) -> float:
    """In the 2-norm over all elements. Raises ValueError where the shapes differ."""
    if actual.shape != expected.shape:
        raise ValueError(f"the outcome has the shape {actual.shape}, and should have {expected.shape}")
    return float(np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected))


def tell(checks: Iterable[Check], device: str) -> None:
    """Does one after the other, whatever becomes of those before. The lines: {"device": ...} once, {"begun": name}
    before each check, and after it {"done": name, "relative_error": ...} or {"done": name, "failed": why}."""
    _line(device=device)
    for check in checks:
        _line(begun=check.name)
        try:
            error = relative_error(check.compute(), check.expected)
        except Exception as failure:  # of any class: frameworks, compilers and libraries raise their own
            _line(done=check.name, failed=f"{type(failure).__name__}: {' '.join(str(failure).split())[:1500]}")
        else:
            # JSON has no infinity and no NaN.
            _line(done=check.name, relative_error=error if np.isfinite(error) else None)


def _line(**content: Any) -> None:
    print(json.dumps(content), flush=True, file=sys.stdout)
