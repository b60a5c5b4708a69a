"""A model without BatchNorm, whose convolutions have a bias instead; harness/work/folding.py has its weights."""

from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.folding import convolution_before


class Identity(nnx.Module):
    """In the place of a BatchNorm."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


def without_batch_norm(model: nnx.Module) -> list[str]:
    """Take every BatchNorm out of the model and give the convolution before it a bias; the names of what was taken."""
    modules = {".".join(map(str, path)): module for path, module in nnx.iter_modules(model)}
    names = [name for name, module in modules.items() if isinstance(module, nnx.BatchNorm)]
    for name in names:
        convolution: Any = modules[convolution_before(name)]
        assert isinstance(convolution, nnx.Conv) and not convolution.use_bias, name
        convolution.bias = nnx.Param(jnp.zeros(convolution.out_features, convolution.param_dtype))
        convolution.use_bias = True
        parent, _, own = name.rpartition(".")
        setattr(modules[parent], own, Identity())
    return names
