"""CIFAR-10: 32 x 32 colour images, ten classes."""

from itertools import pairwise
from typing import Any

import jax
from flax import nnx

from harness.work.benchmarks.cifar10 import BENCHMARK
from harness.work.declared import BatchNorm
from jax_runner.layers import Function, Layers, Sequential
from jax_runner.models.pooling import avg_pool

WIDTHS = (3, 32, 32, 64, 64, 128, 128, 256, 10)
POOLED_AFTER = (2, 4, 6)
"""Average pooling 2 x 2 stands behind these convolutions, counted from 1."""


class Cnn(nnx.Module):
    """The 605,226-parameter network of the per-sample-gradient literature: eight 3 x 3 convolutions, mean over space.

    Source: Subramani et al. 2020 (arXiv 2010.09063), github.com/TheSalon/fast-dpsgd, jaxdp.py.
    """

    def __init__(self, dtypes: dict[str, Any]) -> None:
        layers = Layers(dtypes)
        self.relu: Function = nnx.relu
        for number, (channels_in, channels_out) in enumerate(pairwise(WIDTHS), start=1):
            setattr(self, f"conv{number}", layers.conv(channels_in, channels_out, 3, bias=True))

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, 32, 32, 3] to logits [batch, 10]."""
        hidden = images
        for number in range(1, len(WIDTHS)):
            hidden = getattr(self, f"conv{number}")(hidden)
            if number < len(WIDTHS) - 1:
                hidden = self.relu(hidden)
            if number in POOLED_AFTER:
                hidden = avg_pool(hidden, (2, 2))
        return hidden.mean((1, 2))


class BasicBlock(nnx.Module):
    """torchvision.models.resnet.BasicBlock."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, layers: Layers) -> None:
        self.conv1 = layers.conv(channels_in, channels_out, 3, stride)
        self.bn1 = layers.batch_norm(channels_out)
        self.conv2 = layers.conv(channels_out, channels_out, 3)
        self.bn2 = layers.batch_norm(channels_out)
        changes_shape = stride != 1 or channels_in != channels_out
        self.downsample = layers.conv_norm(channels_in, channels_out, 1, stride) if changes_shape else None

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.bn1(self.conv1(x)))
        hidden = self.bn2(self.conv2(hidden))
        shortcut = self.downsample(x) if self.downsample else x
        return nnx.relu(hidden + shortcut)


class ResNet18(nnx.Module):
    """torchvision's ResNet-18 with the stem that CIFAR-10 asks for: 3 x 3, stride 1, no max pooling (He et al. 2015,
    4.2)."""

    def __init__(self, dtypes: dict[str, Any], batch_norm: BatchNorm) -> None:
        layers = Layers(dtypes, batch_norm)
        self.conv1 = layers.conv(3, 64, 3)
        self.bn1 = layers.batch_norm(64)
        channels_in = 64
        for number, channels_out in enumerate((64, 128, 256, 512), start=1):
            stride = 1 if number == 1 else 2
            first = BasicBlock(channels_in, channels_out, stride, layers)
            setattr(self, f"layer{number}", Sequential(first, BasicBlock(channels_out, channels_out, 1, layers)))
            channels_in = channels_out
        self.fc = layers.linear(512, 10)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, 32, 32, 3] to logits [batch, 10]."""
        hidden = nnx.relu(self.bn1(self.conv1(images)))
        for number in range(1, 5):
            hidden = getattr(self, f"layer{number}")(hidden)
        return self.fc(hidden.mean((1, 2)))


def make_model(name: str, _sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    batch_norm = BENCHMARK.model(name).batch_norm or BatchNorm()
    makers = {"cnn": lambda: Cnn(dtypes), "resnet18": lambda: ResNet18(dtypes, batch_norm)}
    return makers[name]()
