"""Between Flax NNX's parameters and the neutral layout of harness/work/weights.py.

    neutral (PyTorch)                       Flax NNX
    conv.weight   [out, in, h, w]           conv.kernel   [h, w, in, out]
    fc.weight     [out, in]                 fc.kernel     [in, out]
    fc.weight     [out, channels * h * w]   fc.kernel     [h * w * channels, out]     where FLATTENED names fc
    bn.weight, bn.bias                      bn.scale, bn.bias
    bn.running_mean, bn.running_var         bn.mean, bn.var

    embed.weight  [tokens, features]        embed.embedding  [tokens, features]

    in_proj_weight [3 * width, width]       in_proj_weight [width, 3 * width]
    in_proj_bias, class_token, pos_embedding                 the same

A model's FLATTENED gives, for each dense layer behind a flattened image, that image's (channels, height, width).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from harness.work.weights import Draw, WeightOf, initial_weight

Params = dict[str | int, Any]
"""Arrays by the names of the model's attributes, nested as these are. Plain dicts: an nnx.State would be taken apart in
Python in every call of a jitted function."""
Neutral = dict[str, NDArray[np.float64]]
Flattened = Mapping[str, tuple[int, int, int]]

Path = tuple[Any, ...]
"""Names of attributes, and indices of lists."""

NEUTRAL_NAMES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "mean": "running_mean",
    "var": "running_var",
}
"""Of those that differ."""
TRANSPOSED = ("kernel", "in_proj_weight")


def load_initial_weights(model: nnx.Module, seed: int, draw: Draw = initial_weight) -> None:
    """Those that training begins with."""
    load_weights(model, partial(draw, seed))


def load_weights(model: nnx.Module, weight_of: WeightOf) -> None:
    """Make all parameters and running statistics, or overwrite them."""
    state, flattened = nnx.state(model), flattened_of(model)
    drawn = {}
    for path, variable in nnx.to_flat_state(state):
        name = neutral_name(path)
        shape = to_neutral_layout(path, np.empty(variable.shape, np.float32), flattened).shape
        value = from_neutral_layout(path, weight_of(name, shape), flattened)
        drawn[path] = variable.replace(jax.numpy.asarray(value, variable.dtype))
    nnx.update(model, nnx.from_flat_state(drawn))


def store_as(model: nnx.Module, dtype: Any) -> None:
    """Round all weights to `dtype`, but those and the statistics of BatchNorm, which computes in float32."""
    kept = {path for path, module in nnx.iter_modules(model) if isinstance(module, nnx.BatchNorm)}
    rounded = {
        path: variable if path[:-1] in kept else variable.replace(variable[...].astype(dtype))
        for path, variable in nnx.to_flat_state(nnx.state(model))
    }
    nnx.update(model, nnx.from_flat_state(rounded))


def flattened_of(model: nnx.Module) -> Flattened:
    """Empty where no dense layer is behind a flattened image."""
    flattened: Flattened = getattr(model, "FLATTENED", {})
    return flattened


def arrays_of(model: nnx.Module, *kinds: Any) -> Params:
    """Of these kinds of variables, or of all; `nnx.merge` takes them as it takes an nnx.State."""
    arrays: Params = nnx.to_pure_dict(nnx.state(model, *kinds))  # type: ignore[arg-type,assignment]
    return arrays


def to_neutral(params: Params, flattened: Flattened, leading_axes: int = 0, *, in_place: bool = False) -> Neutral:
    """Parameters or gradients by neutral name; `leading_axes` counts axes before the parameter's own (samples).

    `in_place`: in their own precision, without a copy where they are on the host; else in float64.
    """
    dtype = None if in_place else np.float64
    return {
        neutral_name(path): to_neutral_layout(path, np.asarray(value, dtype), flattened, leading_axes)
        for path, value in flatten_dict(params).items()
    }


def neutral_name(path: Path) -> str:
    """('layer1', 0, 'conv1', 'kernel') -> 'layer1.0.conv1.weight'."""
    *modules, leaf = path
    return ".".join([*map(str, modules), NEUTRAL_NAMES.get(str(leaf), str(leaf))])


def to_neutral_layout(path: Path, value: NDArray[Any], flattened: Flattened, leading_axes: int = 0) -> NDArray[Any]:
    own_axes = value.ndim - leading_axes
    if path[-1] not in TRANSPOSED:
        return value
    lead = tuple(range(leading_axes))
    if own_axes == 4:
        return value.transpose(*lead, *(leading_axes + axis for axis in (3, 2, 0, 1)))
    if image := flattened.get(str(path[-2])):
        channels, height, width = image
        unflattened = value.reshape(*value.shape[:leading_axes], height, width, channels, -1)
        in_neutral_order = unflattened.transpose(*lead, *(leading_axes + axis for axis in (3, 2, 0, 1)))
        return in_neutral_order.reshape(*value.shape[:leading_axes], value.shape[-1], -1)
    if own_axes != 2:
        raise ValueError(f"{neutral_name(path)}: no neutral layout for a kernel of {own_axes} axes; known: 2 and 4")
    return value.swapaxes(-1, -2)


def from_neutral_layout(path: Path, value: NDArray[Any], flattened: Flattened) -> NDArray[Any]:
    if path[-1] not in TRANSPOSED:
        return value
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if image := flattened.get(str(path[-2])):
        return value.reshape(-1, *image).transpose(2, 3, 1, 0).reshape(-1, value.shape[0])
    return value.T


def parameter_count(model: nnx.Module) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
