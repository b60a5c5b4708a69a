"""CIFAR-10: 32 x 32 colour images, ten classes."""

from itertools import pairwise
from typing import Any

import jax
from flax import nnx

from jax_runner.models.pooling import avg_pool

WIDTHS = (3, 32, 32, 64, 64, 128, 128, 256, 10)
POOLED_AFTER = (2, 4, 6)
"""Average pooling 2 x 2 stands behind these convolutions, counted from 1."""


class Cnn(nnx.Module):
    """The 605,226-parameter network of the per-sample-gradient literature: eight 3 x 3 convolutions, mean over space.

    Source: Subramani et al. 2020 (arXiv 2010.09063), github.com/TheSalon/fast-dpsgd, jaxdp.py.
    """

    def __init__(self, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        for number, (channels_in, channels_out) in enumerate(pairwise(WIDTHS), start=1):
            setattr(
                self,
                f"conv{number}",
                nnx.Conv(channels_in, channels_out, (3, 3), padding=1, rngs=rngs, **dtypes),
            )

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, 32, 32, 3] to logits [batch, 10]."""
        hidden = images
        for number in range(1, len(WIDTHS)):
            hidden = getattr(self, f"conv{number}")(hidden)
            if number < len(WIDTHS) - 1:
                hidden = nnx.relu(hidden)
            if number in POOLED_AFTER:
                hidden = avg_pool(hidden, (2, 2))
        return hidden.mean((1, 2))


class BatchNorm(nnx.BatchNorm):
    """torch.nn.BatchNorm2d's mathematics: the running variance is the unbiased one, statistics stay in float32.

    Source: torch/nn/modules/batchnorm.py; flax/nnx/nn/normalization.py keeps the biased one.
    """

    def __init__(self, features: int, rngs: nnx.Rngs) -> None:
        super().__init__(features, momentum=0.9, epsilon=1e-5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        kept_var = self.momentum * self.var[...]
        normalised = super().__call__(x)
        if not self.use_running_average:
            count = x.size // x.shape[-1]
            self.var[...] = kept_var + (self.var[...] - kept_var) * (count / (count - 1))
        return normalised.astype(x.dtype)


def conv(
    channels_in: int, channels_out: int, size: int, stride: int, rngs: nnx.Rngs, dtypes: dict[str, Any]
) -> nnx.Conv:
    return nnx.Conv(
        channels_in,
        channels_out,
        (size, size),
        strides=stride,
        padding=size // 2,
        use_bias=False,
        rngs=rngs,
        **dtypes,
    )


class Downsample(nnx.Module):
    """1 x 1 convolution and BatchNorm on the shortcut; named as torchvision names them, 0 and 1."""

    def __init__(
        self, channels_in: int, channels_out: int, stride: int, rngs: nnx.Rngs, dtypes: dict[str, Any]
    ) -> None:
        setattr(self, "0", conv(channels_in, channels_out, 1, stride, rngs, dtypes))
        setattr(self, "1", BatchNorm(channels_out, rngs))

    def __call__(self, x: jax.Array) -> jax.Array:
        return getattr(self, "1")(getattr(self, "0")(x))


class BasicBlock(nnx.Module):
    """torchvision.models.resnet.BasicBlock."""

    def __init__(
        self, channels_in: int, channels_out: int, stride: int, rngs: nnx.Rngs, dtypes: dict[str, Any]
    ) -> None:
        self.conv1 = conv(channels_in, channels_out, 3, stride, rngs, dtypes)
        self.bn1 = BatchNorm(channels_out, rngs)
        self.conv2 = conv(channels_out, channels_out, 3, 1, rngs, dtypes)
        self.bn2 = BatchNorm(channels_out, rngs)
        changes_shape = stride != 1 or channels_in != channels_out
        self.downsample = Downsample(channels_in, channels_out, stride, rngs, dtypes) if changes_shape else None

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.bn1(self.conv1(x)))
        hidden = self.bn2(self.conv2(hidden))
        shortcut = self.downsample(x) if self.downsample else x
        return nnx.relu(hidden + shortcut)


class ResNet18(nnx.Module):
    """torchvision's ResNet-18 with the stem that CIFAR-10 asks for: 3 x 3, stride 1, no max pooling (He et al. 2015,
    4.2)."""

    def __init__(self, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        self.conv1 = conv(3, 64, 3, 1, rngs, dtypes)
        self.bn1 = BatchNorm(64, rngs)
        channels_in = 64
        for number, channels_out in enumerate((64, 128, 256, 512), start=1):
            stride = 1 if number == 1 else 2
            blocks = [
                BasicBlock(channels_in, channels_out, stride, rngs, dtypes),
                BasicBlock(channels_out, channels_out, 1, rngs, dtypes),
            ]
            setattr(self, f"layer{number}", nnx.List(blocks))
            channels_in = channels_out
        self.fc = nnx.Linear(512, 10, rngs=rngs, **dtypes)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalised images [batch, 32, 32, 3] to logits [batch, 10]."""
        hidden = nnx.relu(self.bn1(self.conv1(images)))
        for number in range(1, 5):
            for block in getattr(self, f"layer{number}"):
                hidden = block(hidden)
        return self.fc(hidden.mean((1, 2)))


def make_model(name: str, _sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return {"cnn": Cnn, "resnet18": ResNet18}[name](dtypes)
