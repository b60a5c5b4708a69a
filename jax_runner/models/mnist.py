"""MNIST: 28 x 28 grey images, ten digits."""

from typing import Any, ClassVar

import jax
from flax import nnx
from jax import numpy as jnp

from jax_runner.layers import Layers
from jax_runner.models.pooling import max_pool


class Cnn(nnx.Module):
    """The 26,010-parameter network of the per-sample-gradient literature.

    Source: Subramani et al. 2020 (arXiv 2010.09063), github.com/TheSalon/fast-dpsgd, jaxdp.py.
    """

    FLATTENED: ClassVar = {"fc1": (32, 4, 4)}

    def __init__(self, dtypes: dict[str, Any]) -> None:
        layers = Layers(dtypes)
        self.conv1 = layers.conv(1, 16, 8, 2, bias=True, padding=3)
        self.conv2 = layers.conv(16, 32, 4, 2, bias=True, padding=0)
        self.fc1 = layers.linear(512, 32)
        self.fc2 = layers.linear(32, 10)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, 28, 28, 1] to logits [batch, 10]."""
        hidden = max_pool(nnx.relu(self.conv1(images)), (2, 2))
        hidden = max_pool(nnx.relu(self.conv2(hidden)), (2, 2))
        hidden = nnx.relu(self.fc1(jnp.reshape(hidden, (hidden.shape[0], -1))))
        return self.fc2(hidden)


def make_model(name: str, _sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return {"cnn": Cnn}[name](dtypes)
