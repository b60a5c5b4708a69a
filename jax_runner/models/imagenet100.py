"""ImageNet-100: four models of torchvision, of the same mathematics, names and shapes.

In bf16, what a block adds to and what it adds are bf16; BatchNorm, LayerNorm and softmax compute in float32 inside.
"""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.benchmarks.imagenet100 import BENCHMARK, CLASSES, Sizes
from harness.work.declared import BatchNorm
from jax_runner.layers import Function, Layers, Sequential
from jax_runner.models.pooling import max_pool

BLOCKS_OF_RESNET50 = (3, 4, 6, 3)
WIDTHS_OF_RESNET = (64, 128, 256, 512)
EXPANSION = 4
"""Channels behind a bottleneck over those in it."""

MobileRow = tuple[int, int, int, int, bool, Function, int]
"""channels in, window, expanded channels, channels out, squeeze and excitation, activation, stride"""
MOBILENET_V3_SMALL: tuple[MobileRow, ...] = (
    (16, 3, 16, 16, True, nnx.relu, 2),
    (16, 3, 72, 24, False, nnx.relu, 2),
    (24, 3, 88, 24, False, nnx.relu, 1),
    (24, 5, 96, 40, True, nnx.hard_silu, 2),
    (40, 5, 240, 40, True, nnx.hard_silu, 1),
    (40, 5, 240, 40, True, nnx.hard_silu, 1),
    (40, 5, 120, 48, True, nnx.hard_silu, 1),
    (48, 5, 144, 48, True, nnx.hard_silu, 1),
    (48, 5, 288, 96, True, nnx.hard_silu, 2),
    (96, 5, 576, 96, True, nnx.hard_silu, 1),
    (96, 5, 576, 96, True, nnx.hard_silu, 1),
)
HIDDEN_OF_MOBILENET = 1024

EfficientStage = tuple[int, int, int, int, int, int]
"""expansion, window, stride of the first block, channels in, channels out, blocks"""
EFFICIENTNET_B0: tuple[EfficientStage, ...] = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)

PATCH = 16
"""Height and width of ViT's patches."""
EPSILON_OF_VIT = 1e-6
"""Of LayerNorm."""


class Bottleneck(nnx.Module):
    """torchvision.models.resnet.Bottleneck: the stride is in the 3 x 3 convolution (ResNet v1.5)."""

    def __init__(self, channels_in: int, width: int, stride: int, layers: Layers) -> None:
        channels_out = EXPANSION * width
        self.conv1 = layers.conv(channels_in, width, 1)
        self.bn1 = layers.batch_norm(width)
        self.conv2 = layers.conv(width, width, 3, stride)
        self.bn2 = layers.batch_norm(width)
        self.conv3 = layers.conv(width, channels_out, 1)
        self.bn3 = layers.batch_norm(channels_out)
        changes_shape = stride != 1 or channels_in != channels_out
        self.downsample = layers.conv_norm(channels_in, channels_out, 1, stride) if changes_shape else None

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.bn1(self.conv1(x)))
        hidden = nnx.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        return nnx.relu(hidden + (self.downsample(x) if self.downsample else x))


class ResNet(nnx.Module):
    """torchvision.models.resnet.ResNet of bottlenecks (He et al. 2015); ResNet-50 by default."""

    def __init__(
        self,
        dtypes: dict[str, Any],
        batch_norm: BatchNorm,
        classes: int = CLASSES,
        blocks: Sequence[int] = BLOCKS_OF_RESNET50,
    ) -> None:
        layers = Layers(dtypes, batch_norm)
        self.conv1 = layers.conv(3, 64, 7, 2)
        self.bn1 = layers.batch_norm(64)
        channels_in = 64
        for number, (width, count) in enumerate(zip(WIDTHS_OF_RESNET, blocks, strict=True), start=1):
            stride = 1 if number == 1 else 2
            first = Bottleneck(channels_in, width, stride, layers)
            channels_in = EXPANSION * width
            others = [Bottleneck(channels_in, width, 1, layers) for _ in range(count - 1)]
            setattr(self, f"layer{number}", Sequential(first, *others))
        self.fc = layers.linear(channels_in, classes)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, height, width, 3] to logits [batch, classes]."""
        hidden = nnx.relu(self.bn1(self.conv1(images)))
        hidden = max_pool(hidden, (3, 3), stride=2, padding=1)
        for number in range(1, len(WIDTHS_OF_RESNET) + 1):
            hidden = getattr(self, f"layer{number}")(hidden)
        return self.fc(hidden.mean((1, 2)))


class SqueezeExcitation(nnx.Module):
    """torchvision.ops.SqueezeExcitation (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int, activation: Function, gate: Function, layers: Layers) -> None:
        self.fc1 = layers.conv(channels, squeezed, 1, bias=True)
        self.fc2 = layers.conv(squeezed, channels, 1, bias=True)
        self.activation = activation
        self.gate = gate

    def __call__(self, x: jax.Array) -> jax.Array:
        means = x.mean((1, 2), keepdims=True)
        return x * self.gate(self.fc2(self.activation(self.fc1(means))))


class InvertedResidual(nnx.Module):
    """torchvision's InvertedResidual (mobilenetv3.py) and MBConv (efficientnet.py): expansion, depthwise convolution,
    squeeze and excitation, projection."""

    def __init__(
        self,
        channels_in: int,
        window: int,
        expanded: int,
        channels_out: int,
        stride: int,
        activation: Function,
        squeeze: SqueezeExcitation | None,
        layers: Layers,
    ) -> None:
        parts: list[Function] = []
        if expanded != channels_in:
            parts.append(layers.conv_norm(channels_in, expanded, 1, 1, activation))
        parts.append(layers.conv_norm(expanded, expanded, window, stride, activation, groups=expanded))
        if squeeze is not None:
            parts.append(squeeze)
        parts.append(layers.conv_norm(expanded, channels_out, 1))
        self.block = Sequential(*parts)
        self.has_shortcut = stride == 1 and channels_in == channels_out

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.block(x)
        return hidden + x if self.has_shortcut else hidden


def divisible(channels: float, divisor: int = 8) -> int:
    """The nearest multiple, at most a tenth below. Source: torchvision/models/_utils.py, _make_divisible."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


class MobileNetV3(nnx.Module):
    """torchvision.models.mobilenetv3.MobileNetV3 (Howard et al. 2019) without dropout; MobileNetV3-Small by default."""

    def __init__(
        self,
        dtypes: dict[str, Any],
        batch_norm: BatchNorm,
        classes: int = CLASSES,
        rows: Sequence[MobileRow] = MOBILENET_V3_SMALL,
        hidden: int = HIDDEN_OF_MOBILENET,
    ) -> None:
        layers = Layers(dtypes, batch_norm)
        blocks = []
        for channels_in, window, expanded, channels_out, squeezes, activation, stride in rows:
            squeeze = None
            if squeezes:
                squeezed = divisible(expanded // 4)
                squeeze = SqueezeExcitation(expanded, squeezed, nnx.relu, nnx.hard_sigmoid, layers)
            blocks.append(
                InvertedResidual(channels_in, window, expanded, channels_out, stride, activation, squeeze, layers)
            )
        first, last = rows[0][0], rows[-1][3]
        self.features = Sequential(
            layers.conv_norm(3, first, 3, 2, nnx.hard_silu),
            *blocks,
            layers.conv_norm(last, 6 * last, 1, 1, nnx.hard_silu),
        )
        self.classifier = Sequential(
            layers.linear(6 * last, hidden), nnx.hard_silu, None, layers.linear(hidden, classes)
        )

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, height, width, 3] to logits [batch, classes]."""
        return self.classifier(self.features(images).mean((1, 2)))


class EfficientNet(nnx.Module):
    """torchvision.models.efficientnet.EfficientNet (Tan and Le 2019) without dropout and stochastic depth;
    EfficientNet-B0 by default."""

    def __init__(
        self,
        dtypes: dict[str, Any],
        batch_norm: BatchNorm,
        classes: int = CLASSES,
        stages: Sequence[EfficientStage] = EFFICIENTNET_B0,
    ) -> None:
        layers = Layers(dtypes, batch_norm)
        made = []
        for expansion, window, stride_of_first, channels_of_first, channels_out, count in stages:
            blocks = []
            for index in range(count):
                channels_in = channels_of_first if index == 0 else channels_out
                stride = stride_of_first if index == 0 else 1
                expanded = divisible(channels_in * expansion)
                squeeze = SqueezeExcitation(expanded, max(1, channels_in // 4), nnx.silu, nnx.sigmoid, layers)
                blocks.append(
                    InvertedResidual(channels_in, window, expanded, channels_out, stride, nnx.silu, squeeze, layers)
                )
            made.append(Sequential(*blocks))
        first, last = stages[0][3], stages[-1][4]
        self.features = Sequential(
            layers.conv_norm(3, first, 3, 2, nnx.silu), *made, layers.conv_norm(last, 4 * last, 1, 1, nnx.silu)
        )
        self.classifier = Sequential(None, layers.linear(4 * last, classes))

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, height, width, 3] to logits [batch, classes]."""
        return self.classifier(self.features(images).mean((1, 2)))


def gelu(x: jax.Array) -> jax.Array:
    """x times the normal distribution's integral up to x; Flax's default is an approximation by tanh."""
    return nnx.gelu(x, approximate=False)


class EncoderBlock(nnx.Module):
    """torchvision.models.vision_transformer.EncoderBlock."""

    def __init__(self, features: int, heads: int, hidden: int, layers: Layers) -> None:
        self.ln_1 = layers.layer_norm(features, EPSILON_OF_VIT)
        self.self_attention = layers.self_attention(features, heads)
        self.ln_2 = layers.layer_norm(features, EPSILON_OF_VIT)
        self.mlp = Sequential(layers.linear(features, hidden), gelu, None, layers.linear(hidden, features))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Encoder(nnx.Module):
    """torchvision.models.vision_transformer.Encoder."""

    def __init__(self, tokens: int, depth: int, features: int, heads: int, hidden: int, layers: Layers) -> None:
        self.pos_embedding = layers.zeros(1, tokens, features)
        self.layers = nnx.Dict(
            {f"encoder_layer_{number}": EncoderBlock(features, heads, hidden, layers) for number in range(depth)}
        )
        self.ln = layers.layer_norm(features, EPSILON_OF_VIT)
        self.depth = depth

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.pos_embedding[...].astype(x.dtype)
        for number in range(self.depth):
            x = self.layers[f"encoder_layer_{number}"](x)
        return self.ln(x)


class VisionTransformer(nnx.Module):
    """torchvision.models.vision_transformer.VisionTransformer (Dosovitskiy et al. 2021); ViT-B/16 by default."""

    def __init__(
        self,
        dtypes: dict[str, Any],
        image_size: int,
        classes: int = CLASSES,
        depth: int = 12,
        features: int = 768,
        heads: int = 12,
        hidden: int = 3072,
    ) -> None:
        layers = Layers(dtypes)
        self.conv_proj = layers.conv(3, features, PATCH, PATCH, bias=True, padding=0)
        self.class_token = layers.zeros(1, 1, features)
        self.encoder = Encoder((image_size // PATCH) ** 2 + 1, depth, features, heads, hidden, layers)
        self.heads = nnx.Dict({"head": layers.linear(features, classes)})

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, height, width, 3] to logits [batch, classes]."""
        patches = self.conv_proj(images)
        batch, _, _, features = patches.shape
        first = jnp.broadcast_to(self.class_token[...].astype(patches.dtype), (batch, 1, features))
        tokens = jnp.concatenate([first, patches.reshape(batch, -1, features)], axis=1)
        return self.heads["head"](self.encoder(tokens)[:, 0])


def make_model(name: str, sizes: Sizes, dtypes: dict[str, Any]) -> nnx.Module:
    if name == "vit_b_16":
        return VisionTransformer(dtypes, sizes.image_size)
    batch_norm = BENCHMARK.model(name).batch_norm
    assert batch_norm is not None
    convolutional = {"resnet50": ResNet, "mobilenet_v3_small": MobileNetV3, "efficientnet_b0": EfficientNet}
    return convolutional[name](dtypes, batch_norm)
