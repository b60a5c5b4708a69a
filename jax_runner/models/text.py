"""Text, token by token: a small network that sees the last few tokens."""

from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.benchmarks.text import CONTEXT, FEATURES, HIDDEN, VOCABULARY
from jax_runner.layers import Layers


class Mlp(nnx.Module):
    """A window of embeddings and one hidden layer: 74,112 parameters.

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", without direct connections.
    """

    def __init__(self, dtypes: dict[str, Any]) -> None:
        layers = Layers(dtypes)
        self.embed = layers.embed(VOCABULARY, FEATURES)
        self.hidden = layers.linear(CONTEXT * FEATURES, HIDDEN)
        self.output = layers.linear(HIDDEN, VOCABULARY)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tokens [batch, positions] to logits [batch, positions, VOCABULARY]; zeros are before the first token."""
        padded = jnp.pad(self.embed(tokens), ((0, 0), (CONTEXT - 1, 0), (0, 0)))
        positions = tokens.shape[1]
        seen = jnp.concatenate([padded[:, first : first + positions] for first in range(CONTEXT)], axis=-1)
        return self.output(jnp.tanh(self.hidden(seen)))


def make_model(name: str, _sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return {"mlp": Mlp}[name](dtypes)
