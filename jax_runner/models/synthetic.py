"""Random inputs, and small models in any size: one layer, a 4-layer MLP, a 4-layer ConvNet. No data set.

harness/work/benchmarks/synthetic.py has the sizes and the shapes.
"""

from typing import Any

import jax
from flax import nnx

from harness.work.benchmarks.synthetic import Sizes


class Linear(nnx.Module):
    """One dense layer."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        self.fc = nnx.Linear(sizes.in_features, sizes.out_features, rngs=rngs, **dtypes)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[batch, features] to logits [batch, classes]."""
        return self.fc(inputs)


class Conv2d(nnx.Module):
    """One 3 x 3 convolution, ReLU, and the mean over space."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        self.conv = nnx.Conv(sizes.channels, sizes.hidden_channels, (3, 3), padding=1, rngs=rngs, **dtypes)

    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, channels] to logits [batch, classes]."""
        return nnx.relu(self.conv(images)).mean((1, 2))


class Mlp(nnx.Module):
    """Four dense layers."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        self.fc1 = nnx.Linear(sizes.in_features, sizes.hidden_features, rngs=rngs, **dtypes)
        self.fc2 = nnx.Linear(sizes.hidden_features, sizes.hidden_features, rngs=rngs, **dtypes)
        self.fc3 = nnx.Linear(sizes.hidden_features, sizes.hidden_features, rngs=rngs, **dtypes)
        self.fc4 = nnx.Linear(sizes.hidden_features, sizes.out_features, rngs=rngs, **dtypes)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[batch, features] to logits [batch, classes]."""
        hidden = nnx.relu(self.fc1(inputs))
        hidden = nnx.relu(self.fc2(hidden))
        hidden = nnx.relu(self.fc3(hidden))
        return self.fc4(hidden)


class ConvNet(nnx.Module):
    """Four 3 x 3 convolutions, the second and third of stride 2, and the mean over space."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        inner = sizes.hidden_channels
        self.conv1 = nnx.Conv(sizes.channels, inner, (3, 3), padding=1, rngs=rngs, **dtypes)
        self.conv2 = nnx.Conv(inner, inner, (3, 3), strides=2, padding=1, rngs=rngs, **dtypes)
        self.conv3 = nnx.Conv(inner, inner, (3, 3), strides=2, padding=1, rngs=rngs, **dtypes)
        self.conv4 = nnx.Conv(inner, sizes.classes, (3, 3), padding=1, rngs=rngs, **dtypes)

    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, channels] to logits [batch, classes]."""
        hidden = nnx.relu(self.conv1(images))
        hidden = nnx.relu(self.conv2(hidden))
        hidden = nnx.relu(self.conv3(hidden))
        return self.conv4(hidden).mean((1, 2))


def make_model(name: str, sizes: Sizes, dtypes: dict[str, Any]) -> nnx.Module:
    return {"linear": Linear, "conv2d": Conv2d, "mlp": Mlp, "convnet": ConvNet}[name](sizes, dtypes)
