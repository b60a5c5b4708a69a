"""GPT-2's architecture as nanoGPT has it, without biases; harness/work/gpt.py has its sizes.

    x = embedding of the tokens + embedding of the positions
    x = x + attention(LayerNorm(x)), then x = x + projection(GELU(dense(LayerNorm(x)))), in each layer
    logits = LayerNorm(x) times the transposed embedding

The recipe in bf16, the same in both frameworks and written out instead of left to autocast: weights are float32 and
converted where they are used; matrix products, GELU and what is added up between the layers are in bfloat16; LayerNorm
computes in float32 and returns bfloat16; attention's softmax is in float32; logits are bfloat16, and become float32 in
the loss. Rows of the embedding are looked up in float32, so that their gradients add up in float32.

Each product with a weight is a layer of its own, which captured.py can see.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.work.gpt import EPSILON, GptSize


class Embedding(nn.Embedding):
    """Rows of a table, converted after the lookup, so that their gradients add up in the table's dtype."""

    def forward(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[override]  # one argument more
        """Tokens [batch, positions] to [batch, positions, width]."""
        return super().forward(tokens).to(dtype)


class Positions(nn.Module):
    """A table with a row for each position."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(positions, width))

    def forward(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Tokens [batch, positions] to [batch, positions, width], the same for each sample."""
        return self.weight[: tokens.shape[-1]].to(dtype).expand(*tokens.shape, -1)


class LayerNorm(nn.Module):
    """Of mean 0 and variance 1 over the features, times a weight. Computed in float32 at least."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Where the weight is in half precision too, as in inference, PyTorch's kernel does that without a copy."""
        if inputs.dtype == self.weight.dtype:
            return F.layer_norm(inputs, self.weight.shape, self.weight, eps=EPSILON)
        wide = torch.promote_types(inputs.dtype, torch.float32)
        return F.layer_norm(inputs.to(wide), self.weight.shape, self.weight.to(wide), eps=EPSILON).to(inputs.dtype)

    def normalised(self, inputs: Tensor) -> Tensor:
        """Before the weight; in float32 at least."""
        wide = torch.promote_types(inputs.dtype, torch.float32)
        return F.layer_norm(inputs.to(wide), self.weight.shape, eps=EPSILON)


class Linear(nn.Linear):
    """Without a bias, in the dtype of what comes in."""

    def __init__(self, features_in: int, features_out: int) -> None:
        super().__init__(features_in, features_out, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight.to(inputs.dtype))


class TiedHead(nn.Module):
    """Logits from the table of the embedding, which is no parameter of this layer."""

    shares = "wte"
    """The layer whose weight it is."""

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """[batch, positions, width] and [vocabulary, width] to [batch, positions, vocabulary]."""
        return F.linear(hidden, table.to(hidden.dtype))


class CausalSelfAttention(nn.Module):
    """Each position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = Linear(width, 3 * width)
        self.c_proj = Linear(width, width)
        self.written_out = False

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, positions, width] to the same."""
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(inputs).chunk(3, -1)
        )
        if self.written_out:
            attended = attention(queries, keys, values)
        else:
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        outputs: Tensor = self.c_proj(attended.transpose(1, 2).flatten(2))
        return outputs


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(features)) V, written out; no query sees a key behind its own place. [..., positions,
    features] each. The softmax is in float32 at least, as jax_runner/layers.py has it."""
    scores = queries @ keys.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) / math.sqrt(queries.shape[-1])
    is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(is_later, -math.inf).softmax(-1)
    return weights.to(values.dtype) @ values


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = Linear(width, 4 * width)
        self.c_proj = Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.c_proj(F.gelu(self.c_fc(inputs), approximate="tanh"))
        return outputs


class Block(nn.Module):
    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(size.width)
        self.attn = CausalSelfAttention(size.width, size.heads)
        self.ln_2 = LayerNorm(size.width)
        self.mlp = Mlp(size.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Names are nanoGPT's."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.wte = Embedding(size.vocabulary, size.width)
        self.wpe = Positions(size.positions, size.width)
        self.h = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.ln_f = LayerNorm(size.width)
        self.head = TiedHead()

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, positions] to logits [batch, positions, vocabulary].

        Under autocast it computes in autocast's dtype, by its own recipe.
        """
        device = tokens.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else self.wte.weight.dtype
        with torch.autocast(device, enabled=False):
            x = self.wte(tokens, dtype) + self.wpe(tokens, dtype)
            logits: Tensor = self.head(self.ln_f(self.h(x)), self.wte.weight)
        return logits
