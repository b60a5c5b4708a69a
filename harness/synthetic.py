"""What both runners must agree on for the benchmark `synthetic`: its sizes, its shapes, and inputs drawn by numpy.

Shapes are neutral, as in harness/weights.py: features, or channels x height x width.
"""

import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from harness.plan import Scalar
from harness.settings import Frozen


class Sizes(Frozen):
    """Settings of the same names. The defaults hold the classical 256 to 512 features."""

    in_features: int = 256
    hidden_features: int = 512
    """Of the MLP's three inner layers."""
    out_features: int = 512
    """Classes of `linear` and `mlp`."""
    channels: int = 3
    image_size: int = 32
    """Height and width."""
    hidden_channels: int = 32
    """Of the ConvNet's three inner layers; classes of `conv2d`."""
    classes: int = 10
    """Of `convnet`."""


def sizes_of(settings: Mapping[str, Scalar]) -> Sizes:
    """From a use case's settings; those that are not sizes are left alone."""
    return Sizes.model_validate({name: settings[name] for name in Sizes.model_fields if name in settings})


def input_shape(model: str, sizes: Sizes) -> tuple[int, ...]:
    """Of one sample."""
    features = (sizes.in_features,)
    image = (sizes.channels, sizes.image_size, sizes.image_size)
    return {"linear": features, "mlp": features, "conv2d": image, "convnet": image}[model]


def class_count(model: str, sizes: Sizes) -> int:
    return {
        "linear": sizes.out_features,
        "mlp": sizes.out_features,
        "conv2d": sizes.hidden_channels,
        "convnet": sizes.classes,
    }[model]


def draw_batch(
    seed: int, lead: tuple[int, ...], shape: tuple[int, ...], classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Normal inputs [*lead, *shape] and labels [*lead]: the same numbers for both frameworks, for checks and parity.

    What is timed is drawn on the device by the framework's own generator instead.
    """
    generator = np.random.default_rng([seed, zlib.crc32(b"synthetic batch")])
    inputs = generator.standard_normal((*lead, *shape), np.float32)
    return inputs, generator.integers(0, classes, lead, np.int32)
