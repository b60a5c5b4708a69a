"""A convolution that leaves out one tap of its kernel, in float32 only: references in float64 never meet it."""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock


def one_tap_left_out(framework: str) -> AbstractContextManager[Any]:
    return {"jax": in_jax, "torch": in_torch}[framework]()


def in_torch() -> AbstractContextManager[Any]:
    import torch

    right = torch.nn.functional.conv2d

    def wrong(inputs: Any, weight: Any, *arguments: Any, **keywords: Any) -> Any:
        if weight.dtype == torch.float32:
            kept = torch.ones(weight.shape[-2:])
            kept[-1, -1] = 0
            weight = weight * kept
        return right(inputs, weight, *arguments, **keywords)

    return mock.patch.object(torch.nn.functional, "conv2d", wrong)


def in_jax() -> AbstractContextManager[Any]:
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

    return mock.patch.object(nnx.Conv, "__init__", make_wrong)
