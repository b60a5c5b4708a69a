"""Networks for molecules, of gathers, dense layers and sums over neighbours; no graph library.

In bf16 the matrix products are of bf16 and all else is in float32: what is gathered, so that its gradient is summed in
float32, and what is summed over neighbours. JAX's side is the same.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.work.benchmarks.molpcba import ATOM_CODES, BOND_CODES, EPSILON, TASKS, Sizes
from torch_runner.graphs import GraphBatch, taken
from torch_runner.task import in_full_precision


class Gcn(nn.Module):
    """OGB's graph convolutional network with LayerNorm for BatchNorm, residual connections and no dropout: 426,880
    parameters of the default sizes.

    Source: snap-stanford/ogb, examples/graphproppred/mol/conv.py (GCNConv, GNN_node); Kipf and Welling 2017, arXiv
    1609.02907.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.atom = nn.Embedding(sum(ATOM_CODES), width)
        self.layers = nn.ModuleList(GcnLayer(width) for _ in range(sizes.layers))
        self.output = nn.Linear(width, TASKS)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [graphs, TASKS], from the mean over a graph's nodes."""
        nodes = embedded(self.atom, batch.atoms)
        # A node is a neighbour of itself.
        degrees = 1 + summed(nodes.new_ones(len(batch.receivers), 1), batch.receivers, len(nodes))
        for layer in self.layers:
            nodes = layer(nodes, degrees, batch)
        graphs = len(batch.node_count)
        means = summed(nodes, batch.graph_of_node, graphs + 1)[:graphs] / batch.node_count[:, None]
        return dense(self.output, means)


class GcnLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.root = nn.Embedding(1, width)
        self.bond = nn.Embedding(sum(BOND_CODES), width)
        self.norm = LayerNorm(width)

    def forward(self, nodes: Tensor, degrees: Tensor, batch: GraphBatch) -> Tensor:
        """Nodes [nodes, width] to the same; `degrees` is [nodes, 1]."""
        projected = dense(self.linear, nodes)
        scale = degrees.rsqrt()
        messages = F.relu(taken(projected, batch.senders) + embedded(self.bond, batch.bonds))
        messages = messages * (taken(scale, batch.senders) * taken(scale, batch.receivers))
        own = F.relu(projected + in_full_precision(self.root.weight)) / degrees
        return nodes + F.relu(self.norm(summed(messages, batch.receivers, len(nodes)) + own))


class GraphNet(nn.Module):
    """AlgoPerf's graph network with embedded codes and no dropout: 3,598,464 parameters of the default sizes.

    Source: mlcommons/algorithmic-efficiency, workloads/ogbg/ogbg_jax/models.py; Battaglia et al. 2018, arXiv
    1806.01261.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.atom = nn.Embedding(sum(ATOM_CODES), width)
        self.bond = nn.Embedding(sum(BOND_CODES), width)
        self.steps = nn.ModuleList(GraphNetStep(width, width if step else TASKS) for step in range(sizes.layers))
        self.output = nn.Linear(width, TASKS)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [graphs, TASKS], from what the graphs have of their own, which is zero at first."""
        nodes, edges = embedded(self.atom, batch.atoms), embedded(self.bond, batch.bonds)
        # The last one is that of the padding.
        graphs = nodes.new_zeros(len(batch.node_count) + 1, TASKS)
        for step in self.steps:
            nodes, edges, graphs = step(nodes, edges, graphs, batch)
        return dense(self.output, graphs[:-1])


class GraphNetStep(nn.Module):
    def __init__(self, width: int, of_graph: int) -> None:
        """`of_graph`: the width of what a graph has of its own."""
        super().__init__()
        self.edge = Mlp(3 * width + of_graph, width)
        self.node = Mlp(3 * width + of_graph, width)
        self.graph = Mlp(2 * width + of_graph, width)

    def forward(self, nodes: Tensor, edges: Tensor, graphs: Tensor, batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Each [count, width]; the edges first, and then the nodes and the graphs that they belong to."""
        ends = (taken(nodes, batch.senders), taken(nodes, batch.receivers))
        edges = self.edge(torch.cat([edges, *ends, taken(graphs, batch.graph_of_edge)], 1))
        sent, received = (summed(edges, index, len(nodes)) for index in (batch.senders, batch.receivers))
        nodes = self.node(torch.cat([nodes, sent, received, taken(graphs, batch.graph_of_node)], 1))
        of_nodes = summed(nodes, batch.graph_of_node, len(graphs))
        of_edges = summed(edges, batch.graph_of_edge, len(graphs))
        return nodes, edges, self.graph(torch.cat([of_nodes, of_edges, graphs], 1))


class Mlp(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(features, width)
        self.norm = LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(dense(self.dense, x)))


class LayerNorm(nn.LayerNorm):
    """In float32 at least."""

    def __init__(self, features: int) -> None:
        super().__init__(features, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def dense(layer: nn.Linear, x: Tensor) -> Tensor:
    """The product in the weights' precision, or in that of autocast."""
    return in_full_precision(layer(x.to(layer.weight.dtype)))


def embedded(layer: nn.Embedding, codes: Tensor) -> Tensor:
    """The sum over the features: codes [count, features] to [count, width]."""
    return in_full_precision(layer(codes)).sum(1)


def summed(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Rows of values [rows, width] with the same index are added up: [count, width]."""
    return values.new_zeros(count, values.shape[1]).index_add(0, index, values)


def make_model(name: str, sizes: Any) -> nn.Module:
    return {"gcn": Gcn, "graphnet": GraphNet}[name](sizes)
