"""Folding of BatchNorm into the convolution before it, on the neutral weights: once, for both frameworks.

With running statistics, BatchNorm is a product and a sum for each channel, which a convolution can do as well:

    weight' = weight * g / sqrt(v + e)        bias' = b - m * g / sqrt(v + e)

g and b are BatchNorm's weight and bias, m and v its running mean and variance, e its epsilon (Jacob et al. 2018,
arXiv 1712.05877, section 3.2). A folded model has no BatchNorm, and its convolutions have a bias.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.work.weights import WeightOf


def convolution_before(batch_norm: str) -> str:
    """The name of the convolution that a BatchNorm stands behind, as torchvision names them: `layer1.0.bn2` and
    `layer1.0.conv2`; `features.0.1` and `features.0.0`.

    Raises:
        ValueError: it has another kind of name.
    """
    parent, dot, own = batch_norm.rpartition(".")
    if own.startswith("bn"):
        return f"{parent}{dot}conv{own.removeprefix('bn')}"
    if own.isdigit() and int(own) > 0:
        return f"{parent}{dot}{int(own) - 1}"
    raise ValueError(f"{batch_norm}: which convolution is before it? Known are the names bn1, bn2, ... and 1, 2, ...")


def folded(weight_of: WeightOf, batch_norms: Collection[str], epsilon: float) -> WeightOf:
    """The weights of the folded model, in float64, from those of the model with BatchNorm.

    Args:
        weight_of: of the model with BatchNorm.
        batch_norms: their names; the convolution before each has no bias of its own.
        epsilon: of all of them.
    """
    folded_into = {convolution_before(name): name for name in batch_norms}

    def weight_of_folded(name: str, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        module, _, kind = name.rpartition(".")
        if module not in folded_into:
            return weight_of(name, shape)

        def of_batch_norm(which: str) -> NDArray[np.float64]:
            """[channels]"""
            return np.asarray(weight_of(f"{folded_into[module]}.{which}", shape[:1]), np.float64)

        factors = of_batch_norm("weight") / np.sqrt(of_batch_norm("running_var") + epsilon)
        if kind == "bias":
            return of_batch_norm("bias") - of_batch_norm("running_mean") * factors
        return np.asarray(weight_of(name, shape), np.float64) * factors.reshape(-1, *[1] * (len(shape) - 1))

    return weight_of_folded
