"""Text, token by token: a small network that sees the last few tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.work.benchmarks.text import CONTEXT, FEATURES, HIDDEN, VOCABULARY


class Mlp(nn.Module):
    """A window of embeddings and one hidden layer: 74,112 parameters.

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", without direct connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, FEATURES)
        self.hidden = nn.Linear(CONTEXT * FEATURES, HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, positions] to logits [batch, positions, VOCABULARY]; zeros are before the first token."""
        padded = F.pad(self.embed(tokens), (0, 0, CONTEXT - 1, 0))
        positions = tokens.shape[1]
        seen = torch.cat([padded[:, first : first + positions] for first in range(CONTEXT)], dim=-1)
        logits: Tensor = self.output(torch.tanh(self.hidden(seen)))
        return logits


def make_model(name: str, _sizes: Any) -> nn.Module:
    return {"mlp": Mlp}[name]()
