"""Random inputs, and small models in any size: one layer, a 4-layer MLP, a 4-layer ConvNet. No data set.

harness/work/benchmarks/synthetic.py has the sizes and the shapes.
"""

from typing import Any

import jax
from flax import nnx

from harness.work.benchmarks.synthetic import Sizes
from jax_runner.layers import Layers


class Linear(nnx.Module):
    """One dense layer."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        self.fc = Layers(dtypes).linear(sizes.in_features, sizes.out_features)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[batch, features] to logits [batch, classes]."""
        return self.fc(inputs)


class Conv2d(nnx.Module):
    """One 3 x 3 convolution, ReLU, and the mean over space."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        self.conv = Layers(dtypes).conv(sizes.channels, sizes.hidden_channels, 3, bias=True)

    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, channels] to logits [batch, classes]."""
        return nnx.relu(self.conv(images)).mean((1, 2))


class Mlp(nnx.Module):
    """Four dense layers."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        layers = Layers(dtypes)
        self.fc1 = layers.linear(sizes.in_features, sizes.hidden_features)
        self.fc2 = layers.linear(sizes.hidden_features, sizes.hidden_features)
        self.fc3 = layers.linear(sizes.hidden_features, sizes.hidden_features)
        self.fc4 = layers.linear(sizes.hidden_features, sizes.out_features)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[batch, features] to logits [batch, classes]."""
        hidden = nnx.relu(self.fc1(inputs))
        hidden = nnx.relu(self.fc2(hidden))
        hidden = nnx.relu(self.fc3(hidden))
        return self.fc4(hidden)


class ConvNet(nnx.Module):
    """Four 3 x 3 convolutions, the second and third of stride 2, and the mean over space."""

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        layers, inner = Layers(dtypes), sizes.hidden_channels
        self.conv1 = layers.conv(sizes.channels, inner, 3, bias=True)
        self.conv2 = layers.conv(inner, inner, 3, 2, bias=True)
        self.conv3 = layers.conv(inner, inner, 3, 2, bias=True)
        self.conv4 = layers.conv(inner, sizes.classes, 3, bias=True)

    def __call__(self, images: jax.Array) -> jax.Array:
        """[batch, height, width, channels] to logits [batch, classes]."""
        hidden = nnx.relu(self.conv1(images))
        hidden = nnx.relu(self.conv2(hidden))
        hidden = nnx.relu(self.conv3(hidden))
        return self.conv4(hidden).mean((1, 2))


def make_model(name: str, sizes: Sizes, dtypes: dict[str, Any]) -> nnx.Module:
    return {"linear": Linear, "conv2d": Conv2d, "mlp": Mlp, "convnet": ConvNet}[name](sizes, dtypes)
