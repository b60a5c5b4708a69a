"""GPT and GraphNet in PyTorch as one writes them by hand, with the names of the project's own parameters."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.work.benchmarks.molpcba import ATOM_CODES, BOND_CODES, TASKS
from harness.work.gpt import GptSize


def linear(features_in: int, features_out: int) -> nn.Linear:
    return nn.Linear(features_in, features_out, bias=False)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn = nn.ModuleDict({"c_attn": linear(width, 3 * width), "c_proj": linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": linear(width, 4 * width), "c_proj": linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        by_head = (batch, positions, self.heads, width // self.heads)
        q, k, v = (part.view(by_head).transpose(1, 2) for part in self.attn["c_attn"](self.ln_1(x)).split(width, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](attended.transpose(1, 2).reshape(batch, positions, width))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.wte = nn.Embedding(size.vocabulary, size.width)
        self.wpe = nn.Embedding(size.positions, size.width)
        self.h = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.layers)))
        self.ln_f = nn.LayerNorm(size.width, bias=False)

    def forward(self, window: Tensor) -> Tensor:
        """The mean loss of windows [batch, positions + 1]."""
        inputs, targets = window[:, :-1], window[:, 1:]
        x = self.wte(inputs) + self.wpe.weight[: inputs.shape[1]]
        logits = F.linear(self.ln_f(self.h(x)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GraphNet(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.atom, self.bond = nn.Embedding(sum(ATOM_CODES), width), nn.Embedding(sum(BOND_CODES), width)
        self.steps = nn.ModuleList()
        for step in range(layers):
            of_graph = width if step else TASKS
            features = {"edge": 3 * width + of_graph, "node": 3 * width + of_graph, "graph": 2 * width + of_graph}
            self.steps.append(nn.ModuleDict({name: mlp(count, width) for name, count in features.items()}))
        self.output = nn.Linear(width, TASKS)

    def forward(self, batch: Any, labels: Tensor) -> Tensor:
        """The mean loss of a packed batch; labels [graphs, TASKS] are 1, 0 or -1."""
        nodes, edges = self.atom(batch.atoms).sum(1), self.bond(batch.bonds).sum(1)
        graphs = nodes.new_zeros(len(labels) + 1, TASKS)
        for step in self.steps:
            ends = (nodes[batch.senders], nodes[batch.receivers])
            edges = step["edge"](torch.cat([edges, *ends, graphs[batch.graph_of_edge]], 1))
            sent, received = (summed(edges, index, len(nodes)) for index in (batch.senders, batch.receivers))
            nodes = step["node"](torch.cat([nodes, sent, received, graphs[batch.graph_of_node]], 1))
            of_nodes = summed(nodes, batch.graph_of_node, len(graphs))
            of_edges = summed(edges, batch.graph_of_edge, len(graphs))
            graphs = step["graph"](torch.cat([of_nodes, of_edges, graphs], 1))
        logits, present = self.output(graphs[:-1]), labels >= 0
        losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
        return torch.where(present, losses, 0).mean()


def mlp(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(dense=nn.Linear(features, width), norm=nn.LayerNorm(width, eps=1e-6), relu=nn.ReLU())
    )


def summed(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, values.shape[1]).index_add(0, index, values)
