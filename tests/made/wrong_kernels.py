"""A convolution that leaves out one tap of its kernel, in float32 only: references in float64 never meet it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def one_tap_left_out(framework: str) -> Iterator[None]:
    with {"jax": in_jax, "torch": in_torch}[framework]():
        yield


@contextmanager
def in_torch() -> Iterator[None]:
    import torch

    right = torch.nn.functional.conv2d

    def wrong(inputs: Any, weight: Any, *arguments: Any, **keywords: Any) -> Any:
        if weight.dtype == torch.float32:
            kept = torch.ones(weight.shape[-2:])
            kept[-1, -1] = 0
            weight = weight * kept
        return right(inputs, weight, *arguments, **keywords)

    with mock.patch.object(torch.nn.functional, "conv2d", wrong):
        yield


@contextmanager
def in_jax() -> Iterator[None]:
    import jax
    from flax import nnx
    from jax import numpy as jnp

    right = jax.lax.conv_general_dilated
    make = nnx.Conv.__init__

    def wrong(inputs: Any, kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        if kernel.dtype == jnp.float32:
            kernel = kernel.at[-1, -1].set(0)
        return right(inputs, kernel, *arguments, **keywords)

    def make_wrong(self: Any, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords, conv_general_dilated=wrong)

    with mock.patch.object(nnx.Conv, "__init__", make_wrong):
        yield
