"""Layers that several models share, as PyTorch and torchvision define them, and other ways to compute the same ones.

Convolutions and attention can be written down in more than one way. `write_as` changes it for all of a model's layers;
the choice is part of the model's graphdef.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.errors import Refused
from harness.work import declared
from harness.work.applies import require_layers
from jax_runner.graphs import use_sorted_sums

Function = Callable[[jax.Array], jax.Array]
Attention = Callable[[jax.Array, jax.Array, jax.Array, Any, bool], jax.Array]
"""(queries, keys, values, precision, is_causal) -> outputs; each array [batch, tokens, heads, features]."""


class BatchNorm(nnx.BatchNorm):
    """torch.nn.BatchNorm2d's mathematics: the running variance is the unbiased one, statistics stay in float32.

    Source: torch/nn/modules/batchnorm.py; flax/nnx/nn/normalization.py keeps the biased one.
    """

    def __init__(self, features: int, constants: declared.BatchNorm, rngs: nnx.Rngs) -> None:
        super().__init__(features, momentum=1 - constants.momentum, epsilon=constants.epsilon, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        kept_var = self.momentum * self.var[...]
        normalised = super().__call__(x)
        if not self.use_running_average:
            count = x.size // x.shape[-1]
            self.var[...] = kept_var + (self.var[...] - kept_var) * (count / (count - 1))
        return normalised.astype(x.dtype)


class Sequential(nnx.Module):
    """torch.nn.Sequential with its names: 0, 1, ... Functions have a number, too; None only takes one, as a dropout
    does that is off."""

    def __init__(self, *layers: Function | None) -> None:
        for number, layer in enumerate(layers):
            if layer is not None:
                setattr(self, str(number), layer)
        self.count = len(layers)

    def __call__(self, x: jax.Array) -> jax.Array:
        for number in range(self.count):
            if hasattr(self, str(number)):
                x = getattr(self, str(number))(x)
        return x


class SelfAttention(nnx.Module):
    """torch.nn.MultiheadAttention of a sequence with itself, with its names. The kernel of queries, keys and values is
    stored as [features, 3 * features].

    In bf16 the products are of bf16 and the softmax is in float32, as in PyTorch's kernels.
    """

    def __init__(self, features: int, heads: int, rngs: nnx.Rngs, dtypes: dict[str, Any]) -> None:
        self.in_proj_weight = nnx.Param(jnp.zeros((features, 3 * features), dtypes["param_dtype"]))
        self.in_proj_bias = nnx.Param(jnp.zeros((3 * features,), dtypes["param_dtype"]))
        self.out_proj = nnx.Linear(features, features, rngs=rngs, **dtypes)
        self.heads = heads
        self.dtype = dtypes["dtype"]
        self.precision = dtypes.get("precision")
        self.attend: Attention = attention

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, features] to the same."""
        batch, tokens, features = x.shape
        weight, bias = self.in_proj_weight[...].astype(self.dtype), self.in_proj_bias[...].astype(self.dtype)
        projected = jnp.dot(x.astype(self.dtype), weight, precision=self.precision) + bias
        by_head = projected.reshape(batch, tokens, 3, self.heads, features // self.heads)
        attended = self.attend(by_head[:, :, 0], by_head[:, :, 1], by_head[:, :, 2], self.precision, False)
        return self.out_proj(attended.reshape(batch, tokens, features))


@dataclass(frozen=True)
class Layers:
    """Makes the layers of one model, of its dtypes and with its constants of BatchNorm."""

    dtypes: dict[str, Any]
    """See jax_runner/device.py::model_dtypes. BatchNorm gets none, and returns what it is given."""
    constants: declared.BatchNorm | None = None
    rngs: nnx.Rngs = field(default_factory=lambda: nnx.Rngs(0))
    """Every value is overwritten by load_initial_weights."""

    def conv(
        self,
        channels_in: int,
        channels_out: int,
        size: int,
        stride: int = 1,
        groups: int = 1,
        *,
        bias: bool = False,
        padding: int | None = None,
    ) -> nnx.Conv:
        """Padded by numbers, half the window by default, and the same on all sides: `SAME` is not symmetric with a
        stride."""
        return nnx.Conv(
            channels_in,
            channels_out,
            (size, size),
            strides=stride,
            padding=size // 2 if padding is None else padding,
            feature_group_count=groups,
            use_bias=bias,
            rngs=self.rngs,
            **self.dtypes,
        )

    def batch_norm(self, features: int) -> BatchNorm:
        assert self.constants is not None
        return BatchNorm(features, self.constants, self.rngs)

    def conv_norm(
        self,
        channels_in: int,
        channels_out: int,
        size: int,
        stride: int = 1,
        activation: Function | None = None,
        groups: int = 1,
    ) -> Sequential:
        """torchvision.ops.Conv2dNormActivation."""
        convolution = self.conv(channels_in, channels_out, size, stride, groups)
        return Sequential(convolution, self.batch_norm(channels_out), activation)

    def linear(self, features_in: int, features_out: int) -> nnx.Linear:
        return nnx.Linear(features_in, features_out, rngs=self.rngs, **self.dtypes)

    def layer_norm(self, features: int, epsilon: float) -> nnx.LayerNorm:
        """Statistics in float32 at least."""
        return nnx.LayerNorm(features, epsilon=epsilon, rngs=self.rngs, **self.without_precision)

    def embed(self, count: int, features: int) -> nnx.Embed:
        return nnx.Embed(count, features, rngs=self.rngs, **self.without_precision)

    @property
    def without_precision(self) -> dict[str, Any]:
        """The dtypes of layers without a product."""
        return {name: dtype for name, dtype in self.dtypes.items() if name != "precision"}

    def self_attention(self, features: int, heads: int) -> SelfAttention:
        return SelfAttention(features, heads, self.rngs, self.dtypes)

    def zeros(self, *shape: int) -> nnx.Param[jax.Array]:
        """A parameter of the model itself."""
        return nnx.Param(jnp.zeros(shape, self.dtypes["param_dtype"]))


def write_as(model: nnx.Module, formulation: str, *, on_gpu: bool) -> None:
    """Write the model's layers down as a mode's formulation has them; most formulations are not about layers. Raises
    Refused."""
    changes: dict[str, Callable[[nnx.Module], int]] = {
        "taps": use_taps,
        "patches": use_patches,
        "cudnn_attention": partial(use_cudnn_attention, on_gpu=on_gpu),
        "sorted_sums": use_sorted_sums,
    }
    change = changes.get(formulation)
    if change:
        require_layers(formulation, change(model))


def convolutions_of(model: nnx.Module) -> list[nnx.Conv]:
    """Those whose windows overlap, or that are 1 x 1."""
    convolutions = [module for _, module in nnx.iter_modules(model) if isinstance(module, nnx.Conv)]
    return [one for one in convolutions if strides_of(one) != tuple(one.kernel_size) or set(one.kernel_size) == {1}]


def strides_of(convolution: nnx.Conv) -> tuple[int, ...]:
    strides = convolution.strides
    return (strides or 1,) * len(convolution.kernel_size) if isinstance(strides, int | None) else tuple(strides)


# ReLU


@jax.custom_vjp
def relu_of_output(x: jax.Array) -> jax.Array:
    """ReLU, of which only the output is kept for the backward pass, as in PyTorch's autograd. XLA would make `x > 0` of
    `relu(x) > 0`, and keep the input, too."""
    return jnp.maximum(x, 0)


def relu_and_kept(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    output = jnp.maximum(x, 0)
    return output, jax.lax.optimization_barrier(output)


relu_of_output.defvjp(relu_and_kept, lambda kept, gradient: (jnp.where(kept > 0, gradient, 0),))


def keep_outputs_of_relu(model: nnx.Module) -> None:
    """From now on, of the model's ReLUs behind convolutions with a bias, which cuDNN then computes together. It is for
    the gradient of a whole batch: below vmap cuDNN has no such call, and XLA changes layouts more often."""
    modules: Any = [module for _, module in nnx.iter_modules(model)]
    for module in modules:
        if hasattr(module, "relu"):
            module.relu = relu_of_output


# Convolutions


def use_patches(model: nnx.Module) -> int:
    """Every convolution of the model becomes a product of matrices, from now on; see `product_of_patches`. How many."""
    convolutions = convolutions_of(model)
    if any(module.feature_group_count > 1 for module in convolutions):
        raise Refused("the formulation patches knows convolutions without groups only")
    for module in convolutions:
        module.conv_general_dilated = product_of_patches
    return len(convolutions)


def product_of_patches(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **_conventions: Any,
) -> jax.Array:
    """A convolution without one: what the kernel sees at each position, times the kernel. Below vmap over models it is
    one batched product of matrices, where a convolution would have a group for each model.

    Args:
        images: [batch, height, width, channels].
        kernel: [window height, window width, channels, channels out].
        strides: by height and width.
        padding: zeros before and after, by height and width.
    """
    patches = patches_of(images, kernel.shape[:2], strides, padding)
    return jnp.dot(patches, kernel.reshape(-1, kernel.shape[-1]), precision=precision)


def patches_of(
    images: jax.Array, window: Sequence[int], strides: Sequence[int], padding: Sequence[tuple[int, int]]
) -> jax.Array:
    """What a kernel sees at each position: [..., height, width, channels] to [..., height, width, window * channels].

    Along the width first, then along the height: as many slices as the sum of the two, not as their product.

    Args:
        window, strides: by height and width.
        padding: zeros before and after, by height and width.
    """
    lead = images.shape[:-3]
    padded = jnp.pad(images, (*((0, 0) for _ in lead), *padding, (0, 0)))
    down, right = strides
    height, width = (
        (side - extent) // stride + 1 for side, extent, stride in zip(padded.shape[-3:-1], window, strides, strict=True)
    )
    columns = [padded[..., first : first + right * (width - 1) + 1 : right, :] for first in range(window[1])]
    in_a_row = jnp.stack(columns, axis=-2)
    rows = [in_a_row[..., first : first + down * (height - 1) + 1 : down, :, :, :] for first in range(window[0])]
    return jnp.stack(rows, axis=-3).reshape(*lead, height, width, -1)


def use_taps(model: nnx.Module) -> int:
    """Every depthwise convolution of the model becomes a sum of shifted products, from now on; see `taps`. How many."""
    depthwise = [module for module in convolutions_of(model) if 1 < module.feature_group_count == module.in_features]
    for module in depthwise:
        module.conv_general_dilated = taps
    return len(depthwise)


def taps(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    **_conventions: Any,
) -> jax.Array:
    """A depthwise convolution without one: for each place in the window, the pixels there times the kernel's weight
    there, added up. XLA makes one loop of it, where a grouped convolution on a CPU is a slow kernel.

    Sums are in float32 at least, as a convolution's are.

    Args:
        images: [batch, height, width, channels].
        kernel: [window height, window width, 1, channels].
        strides: by height and width.
        padding: zeros before and after, by height and width.
    """
    wide = jnp.promote_types(images.dtype, jnp.float32)
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    batch, *sides, channels = padded.shape
    down, right = strides
    height, width = (
        (side - extent) // stride for side, extent, stride in zip(sides, kernel.shape[:2], strides, strict=True)
    )
    total: Any = 0
    for row in range(kernel.shape[0]):
        for column in range(kernel.shape[1]):
            end = (batch, row + down * height + 1, column + right * width + 1, channels)
            pixels = jax.lax.slice(padded, (0, row, column, 0), end, (1, down, right, 1))
            total += pixels.astype(wide) * kernel[row, column, 0].astype(wide)
    return jnp.asarray(total, images.dtype)


# Attention


def attention(queries: jax.Array, keys: jax.Array, values: jax.Array, precision: Any, is_causal: bool) -> jax.Array:
    """softmax(Q K^T / sqrt(features)) V, written out; causal, no query sees a key behind its own place. The softmax is
    in float32 at least; jax.nn.dot_product_attention would make it float32 in double precision, too."""
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = (product if queries.dtype == wide else product_of_halves)(queries, keys, precision)
    scores /= jnp.sqrt(jnp.asarray(queries.shape[-1], wide))
    if is_causal:
        scores = jnp.where(jnp.tri(queries.shape[1], keys.shape[1], dtype=bool), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(values.dtype), values, precision=precision)


def product(queries: jax.Array, keys: jax.Array, precision: Any) -> jax.Array:
    """Q K^T, [batch, heads, queries, keys], in float32 at least."""
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    return jnp.einsum("bqhd,bkhd->bhqk", queries, keys, precision=precision, preferred_element_type=wide)


def gradients_of_halves(precision: Any, operands: tuple[jax.Array, jax.Array], of_scores: jax.Array) -> Any:
    queries, keys = operands
    rounded = of_scores.astype(queries.dtype)
    of_queries = jnp.einsum("bhqk,bkhd->bqhd", rounded, keys, precision=precision)
    return of_queries, jnp.einsum("bhqk,bqhd->bkhd", rounded, queries, precision=precision)


product_of_halves = jax.custom_vjp(product, nondiff_argnums=(2,))
"""`product` of bf16 or fp16, whose gradients are products of these, too, as in fused kernels: the scores' gradient is
rounded. JAX would make products of float32 of them."""
product_of_halves.defvjp(
    lambda queries, keys, precision: (product(queries, keys, precision), (queries, keys)), gradients_of_halves
)


def cudnn_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, _precision: Any, is_causal: bool
) -> jax.Array:
    """The same as one kernel of cuDNN, which never has the scores in memory."""
    attend = of_cudnn if queries.shape[1] % 2 == 0 else of_cudnn_with_odd_gradients
    attended: jax.Array = attend(queries, keys, values, is_causal)
    return attended


def of_cudnn(queries: jax.Array, keys: jax.Array, values: jax.Array, is_causal: bool, **lengths: Any) -> jax.Array:
    return jax.nn.dot_product_attention(queries, keys, values, is_causal=is_causal, implementation="cudnn", **lengths)


def padded_to_even(queries: jax.Array, keys: jax.Array, values: jax.Array, is_causal: bool) -> jax.Array:
    """Of an odd number of tokens, with one more at the end, whose key no query sees. Its own query sees the others: a
    row of nothing could be 0 / 0."""
    batch, tokens = keys.shape[:2]
    queries, keys, values = (jnp.pad(array, ((0, 0), (0, 1), (0, 0), (0, 0))) for array in (queries, keys, values))
    real = jnp.full((batch,), tokens, jnp.int32)
    return of_cudnn(queries, keys, values, is_causal, key_value_seq_lengths=real)[:, :tokens]


of_cudnn_with_odd_gradients = jax.custom_vjp(of_cudnn, nondiff_argnums=(3,))
"""JAX refuses gradients of an odd number of tokens (docs/known-issues.md); outputs alone are of any number."""
of_cudnn_with_odd_gradients.defvjp(
    lambda queries, keys, values, is_causal: jax.vjp(
        partial(padded_to_even, is_causal=is_causal), queries, keys, values
    ),
    lambda _is_causal, gradient, of_outputs: gradient(of_outputs),
)


def use_cudnn_attention(model: nnx.Module, *, on_gpu: bool) -> int:
    """Every attention of the model is cuDNN's, from now on. How many.

    Raises:
        Refused: there is no GPU, or the model does not compute in half precision, which is all that this kernel does.
    """
    if not on_gpu:
        raise Refused("cuDNN's attention needs an NVIDIA GPU; JAX sees none here")
    modules: Any = [module for _, module in nnx.iter_modules(model) if getattr(module, "attend", None) is attention]
    for module in modules:
        if module.dtype not in (jnp.bfloat16, jnp.float16):
            name = jnp.dtype(module.dtype).name
            raise Refused(f"cuDNN's attention is for bf16 and fp16, and this model computes in {name}")
        module.attend = cudnn_attention
    return len(modules)
