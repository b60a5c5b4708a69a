"""GPT-2's architecture as nanoGPT has it, without biases; harness/work/gpt.py has its sizes.

    x = embedding of the tokens + embedding of the positions
    x = x + attention(LayerNorm(x)), then x = x + projection(GELU(dense(LayerNorm(x)))), in each layer
    logits = LayerNorm(x) times the transposed embedding

The recipe in bf16, the same in both frameworks and written out: weights are float32 and converted where they are used;
matrix products, GELU and what is added up between the layers are in bfloat16; LayerNorm computes in float32 and returns
bfloat16; attention's softmax is in float32; logits are bfloat16, and become float32 in the loss. Rows of the embedding
are looked up in float32, so that their gradients add up in float32.

Each product with a weight is a layer of its own, which captured.py can see: those of this file have it as `product`.
"""

from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.gpt import EPSILON, GptSize
from jax_runner.layers import Attention, Sequential, attention


class Embedding(nnx.Module):
    """Rows of a table, converted after the lookup, so that their gradients add up in the table's dtype."""

    def __init__(self, vocabulary: int, width: int, dtypes: dict[str, Any]) -> None:
        self.embedding = nnx.Param(jnp.zeros((vocabulary, width), dtypes["param_dtype"]))
        self.dtype = dtypes["dtype"]
        self.product = rows_of

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tokens [batch, positions] to [batch, positions, width]."""
        return self.product(tokens, self.embedding[...], dtype=self.dtype)


class Positions(nnx.Module):
    """A table with a row for each position."""

    def __init__(self, positions: int, width: int, dtypes: dict[str, Any]) -> None:
        self.embedding = nnx.Param(jnp.zeros((positions, width), dtypes["param_dtype"]))
        self.dtype = dtypes["dtype"]
        self.product = first_rows

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tokens [batch, positions] to [batch, positions, width], the same for each sample."""
        return self.product(tokens, self.embedding[...].astype(self.dtype))


class LayerNorm(nnx.Module):
    """Of mean 0 and variance 1 over the features, times a weight. Computed in float32 at least.

    The variance is the mean of the squared differences: flax/nnx/nn/normalization.py takes the difference of two means
    where it is not told otherwise, which loses digits.
    """

    def __init__(self, width: int, dtypes: dict[str, Any]) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtypes["param_dtype"]))
        self.product = jnp.multiply

    def __call__(self, inputs: jax.Array) -> jax.Array:
        wide = jnp.promote_types(inputs.dtype, jnp.float32)
        centred = inputs.astype(wide) - inputs.astype(wide).mean(-1, keepdims=True)
        normalised = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return self.product(normalised, self.scale[...].astype(wide)).astype(inputs.dtype)


class TiedHead(nnx.Module):
    """Logits from the table of the embedding, which is no parameter of this layer."""

    shares = ("wte",)
    """The layer whose weight it is."""

    def __init__(self, dtypes: dict[str, Any]) -> None:
        self.precision = dtypes.get("precision")
        self.product = onto_rows

    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        """[batch, positions, width] and [vocabulary, width] to [batch, positions, vocabulary]."""
        return self.product(hidden, table.astype(hidden.dtype), precision=self.precision)


class CausalSelfAttention(nnx.Module):
    """nanoGPT's, with its names and without biases: each position attends to itself and to those before it.

    In bf16 the products are of bf16 and the softmax is in float32, as in PyTorch's kernels.
    """

    def __init__(self, width: int, heads: int, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        self.c_attn = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs, **dtypes)
        self.c_proj = nnx.Linear(width, width, use_bias=False, rngs=rngs, **dtypes)
        self.heads = heads
        self.dtype = dtypes["dtype"]
        self.precision = dtypes.get("precision")
        self.attend: Attention = attention

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[batch, positions, width] to the same."""
        batch, positions, width = inputs.shape
        by_head = self.c_attn(inputs).reshape(batch, positions, 3, self.heads, width // self.heads)
        attended = self.attend(by_head[:, :, 0], by_head[:, :, 1], by_head[:, :, 2], self.precision, True)
        return self.c_proj(attended.reshape(batch, positions, width))


class Mlp(nnx.Module):
    def __init__(self, width: int, dtypes: dict[str, Any]) -> None:
        rngs = nnx.Rngs(0)  # every value is overwritten by load_initial_weights
        self.c_fc = nnx.Linear(width, 4 * width, use_bias=False, rngs=rngs, **dtypes)
        self.c_proj = nnx.Linear(4 * width, width, use_bias=False, rngs=rngs, **dtypes)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return self.c_proj(nnx.gelu(self.c_fc(inputs), approximate=True))


class Block(nnx.Module):
    def __init__(self, size: GptSize, dtypes: dict[str, Any]) -> None:
        self.ln_1 = LayerNorm(size.width, dtypes)
        self.attn = CausalSelfAttention(size.width, size.heads, dtypes)
        self.ln_2 = LayerNorm(size.width, dtypes)
        self.mlp = Mlp(size.width, dtypes)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nnx.Module):
    """Names are nanoGPT's."""

    def __init__(self, size: GptSize, dtypes: dict[str, Any]) -> None:
        self.wte = Embedding(size.vocabulary, size.width, dtypes)
        self.wpe = Positions(size.positions, size.width, dtypes)
        self.h = Sequential(*(Block(size, dtypes) for _ in range(size.layers)))
        self.ln_f = LayerNorm(size.width, dtypes)
        self.head = TiedHead(dtypes)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tokens [batch, positions] to logits [batch, positions, vocabulary]."""
        x = self.wte(tokens) + self.wpe(tokens)
        return self.head(self.ln_f(self.h(x)), self.wte.embedding[...])


# Products of an input and a weight, linear in the weight.


def rows_of(tokens: jax.Array, table: jax.Array, *, dtype: Any) -> jax.Array:
    """No token is outside the table, and JAX need not look."""
    return table.at[tokens].get(mode="promise_in_bounds").astype(dtype)


def first_rows(tokens: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.broadcast_to(table[: tokens.shape[-1]], (*tokens.shape, table.shape[-1]))


def onto_rows(hidden: jax.Array, table: jax.Array, *, precision: Any) -> jax.Array:
    return jnp.einsum("...c,vc->...v", hidden, table, precision=precision)
