"""jax_runner/models/pooling.py against Flax, forward, and against PyTorch, backward, with equal pixels in most
windows."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch.nn import functional as F

from jax_runner.models.pooling import avg_pool, max_pool

DRAW = np.random.default_rng(0)
SHAPE = (3, 7, 6, 5)
FEW_VALUES = DRAW.integers(0, 3, SHAPE).astype(np.float64)
"""So that windows have ties, as after a ReLU."""
WINDOWS = [(2, 2), (3, 3), (1, 2), (2, 3)]


def gradient_of_torch(pool: Any, images: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """All NHWC."""
    leaf = torch.tensor(images.transpose(0, 3, 1, 2), requires_grad=True)
    pool(leaf).backward(torch.tensor(gradient.transpose(0, 3, 1, 2)))
    return leaf.grad.numpy().transpose(0, 2, 3, 1)


@pytest.mark.parametrize(
    ("window", "dtype"), [*zip(WINDOWS, ("float32", "bfloat16", "float64", "float64"), strict=True)]
)
def test_max_pool(window: tuple[int, int], dtype: str) -> None:
    """Whole numbers, so nothing rounds in any dtype."""
    with jax.enable_x64(True):
        images = jnp.asarray(FEW_VALUES, dtype)
        maxima, pullback = jax.vjp(lambda images: max_pool(images, window), images)
        np.testing.assert_array_equal(maxima, nnx.max_pool(images, window, strides=(1, 1)))
        gradient = DRAW.integers(-4, 5, maxima.shape).astype(np.float64)
        (ours,) = pullback(jnp.asarray(gradient, dtype))
        assert maxima.dtype == ours.dtype == dtype
        theirs = gradient_of_torch(lambda leaf: F.max_pool2d(leaf, window, 1), FEW_VALUES, gradient)
        np.testing.assert_array_equal(np.asarray(ours, np.float64), theirs)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 8, 8, 3), "float32"), ((2, 9, 7, 3), "float64")])
def test_max_pool_of_resnet_bit_by_bit(shape: tuple[int, ...], dtype: str) -> None:
    """3 x 3, stride 2, padding 1, behind a ReLU: zeros are in most windows, and a pixel is the maximum of up to four,
    whose gradients are added in PyTorch's order."""
    images = np.maximum(DRAW.standard_normal(shape), 0).astype(dtype)
    of_torch = F.max_pool2d(torch.tensor(images.transpose(0, 3, 1, 2)), 3, 2, 1).numpy().transpose(0, 2, 3, 1)
    gradient = DRAW.standard_normal(of_torch.shape).astype(dtype)
    theirs = gradient_of_torch(lambda leaf: F.max_pool2d(leaf, 3, 2, 1), images, gradient)
    with jax.enable_x64(True):
        compute = jax.jit(pooled_with_gradient)
        maxima, ours = compute(images, gradient)
        assert maxima.dtype == ours.dtype == dtype
        np.testing.assert_array_equal(maxima, of_torch)
        np.testing.assert_array_equal(ours, theirs)
        assert "scatter" not in compute.lower(images, gradient).as_text()


def pooled_with_gradient(images: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    maxima, pullback = jax.vjp(lambda images: max_pool(images, (3, 3), stride=2, padding=1), images)
    return maxima, pullback(gradient)[0]


@pytest.mark.parametrize("window", WINDOWS)
def test_avg_pool(window: tuple[int, int]) -> None:
    """Sides that no window divides leave a rest."""
    with jax.enable_x64(True):
        images = jnp.asarray(FEW_VALUES)
        means, pullback = jax.vjp(lambda images: avg_pool(images, window), images)
        np.testing.assert_allclose(means, nnx.avg_pool(images, window, strides=window), rtol=1e-14, atol=1e-15)
        gradient = DRAW.standard_normal(means.shape)
        theirs = gradient_of_torch(lambda leaf: F.avg_pool2d(leaf, window), FEW_VALUES, gradient)
        np.testing.assert_allclose(pullback(jnp.asarray(gradient))[0], theirs, rtol=1e-14, atol=1e-15)
