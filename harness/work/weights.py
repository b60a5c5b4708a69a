"""The initial weights, the same for both frameworks: drawn by numpy from the seed, the parameter's name and shape.

Names and shapes are neutral: PyTorch's names (`conv1.weight`, `bn1.bias`) and layouts (convolutions out x in x height x
width, dense layers out x in, features flattened in the order channels, height, width). Each runner's weights.py
converts.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.suggest import valid_names

WeightOf = Callable[[str, tuple[int, ...]], NDArray[np.floating[Any]]]
"""(neutral name, neutral shape) -> the values of a parameter or of a running statistic."""
Draw = Callable[[int, str, tuple[int, ...]], NDArray[np.floating[Any]]]
"""(seed, neutral name, neutral shape) -> the same."""
RUNNING_STATISTICS = ("running_mean", "running_var")
KERNELS = ("weight", "in_proj_weight")
EMBEDDINGS = ("class_token", "pos_embedding")

RESIDUAL_SCALE = 0.2
"""Of the last BatchNorm in each of ResNet-50's blocks, `bn3`. With ones, each of 16 blocks adds as much as it is given,
and rounding grows through them until five steps of fp32 agree with nothing, not with their own float64; with zeros
(Goyal et al. 2017, arXiv 1706.02677, 5.1) the gradients inside the blocks are zero, and no mistake there would show."""
EMBEDDING_STD = 0.02
"""Of class token and positions (Dosovitskiy et al. 2021; torchvision/models/vision_transformer.py)."""


def initial_weight(seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Kaiming uniform for kernels (He et al. 2015, fan in, gain of ReLU), also those of attention's queries, keys and
    values; zeros for biases; ones for the scales of normalisation, but RESIDUAL_SCALE for those of `bn3`; N(0,
    EMBEDDING_STD) for class token and positions.

    Kernels: U(-b, b) with b = sqrt(6 / fan_in), fan_in = product of all dimensions but the first.

    Raises:
        ValueError: a parameter of another kind.
    """
    kind = name.rpartition(".")[2]
    if kind in ("bias", "in_proj_bias", "running_mean"):
        return np.zeros(shape, np.float32)
    if kind == "running_var" or (kind == "weight" and len(shape) == 1):
        scale = RESIDUAL_SCALE if name.endswith("bn3.weight") else 1.0
        return np.full(shape, scale, np.float32)
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if kind in EMBEDDINGS:
        return (EMBEDDING_STD * generator.standard_normal(shape)).astype(np.float32)
    if kind not in KERNELS:
        known = ("bias", "in_proj_bias", *KERNELS, *EMBEDDINGS, *RUNNING_STATISTICS)
        raise ValueError(f"parameter {name!r}: no rule to draw it; {valid_names(kind, known)}")
    bound = math.sqrt(6 / math.prod(shape[1:]))
    return generator.uniform(-bound, bound, shape).astype(np.float32)


def inference_weight(
    seed: int, name: str, shape: tuple[int, ...], draw: Draw = initial_weight
) -> NDArray[np.floating[Any]]:
    """Initial weights in which nothing is constant: running statistics, scales and biases are drawn too, or whoever
    leaves one out would not be seen.

    What `draw` fills with zeros is N(0, 0.1); what it fills with another number c is U(0.5 c, 1.5 c).
    """
    initial = draw(seed, name, shape)
    constant = initial.flat[0]
    if not np.all(initial == constant):
        return initial
    generator = np.random.default_rng([seed, zlib.crc32(name.encode()), 1])
    drawn = constant * generator.uniform(0.5, 1.5, shape) if constant else 0.1 * generator.standard_normal(shape)
    return drawn.astype(np.float32)


def batch_order(seed: int, sample_count: int, batch_size: int, epochs: int) -> NDArray[np.int32]:
    """Which samples each training step sees: shape [epochs * steps_per_epoch, batch_size].

    Every epoch is a fresh permutation; the last incomplete batch is dropped. Both frameworks gather by it on the
    device.

    Raises:
        ValueError: a batch does not fit into the data set.
    """
    steps_per_epoch = sample_count // batch_size
    if steps_per_epoch == 0:
        raise ValueError(f"batch size {batch_size} is larger than the training set ({sample_count} samples)")
    generator = np.random.default_rng([seed, zlib.crc32(b"batch order")])
    kept = steps_per_epoch * batch_size
    epochs_order = [generator.permutation(sample_count)[:kept] for _ in range(epochs)]
    return np.concatenate(epochs_order).reshape(-1, batch_size).astype(np.int32)
