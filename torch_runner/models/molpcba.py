"""Networks for molecules, of gathers, dense layers and sums over neighbours; no graph library.

In bf16 the matrix products are of bf16 and all else is in float32: what is gathered, so that its gradient is summed in
float32, and what is summed over neighbours. JAX's side is the same.

A layer says of what it sees rows (`rows`): nodes, edges or graphs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.work.benchmarks.molpcba import ATOM_CODES, BOND_CODES, EPSILON, TASKS, Sizes
from harness.work.graphs import GraphBatch, Kind
from torch_runner.graphs import Sums, summed, taken
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
        self.atom = CodeTable("nodes", sum(ATOM_CODES), width)
        self.layers = nn.ModuleList(GcnLayer(width) for _ in range(sizes.layers))
        self.output = GraphLinear("graphs", width, TASKS)
        self.sums = Sums()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [graphs, TASKS], from the mean over a graph's nodes."""
        nodes, sums = self.atom(batch.atoms), self.sums
        # A node is a neighbour of itself.
        degrees = 1 + summed(nodes.new_ones(len(batch.receivers), 1), batch.receivers, len(nodes), sums.of_sorted)
        for layer in self.layers:
            nodes = layer(nodes, degrees, batch)
        graphs = len(batch.node_count)
        of_graphs = summed(nodes, batch.graph_of_node, graphs + 1, sums.of_sorted)[:graphs]
        return dense(self.output, of_graphs / batch.node_count[:, None])


class GcnLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = GraphLinear("nodes", width, width)
        self.root = Root("nodes", width)
        self.bond = CodeTable("edges", sum(BOND_CODES), width)
        self.norm = GraphNorm("nodes", width)
        self.sums = Sums()

    def forward(self, nodes: Tensor, degrees: Tensor, batch: GraphBatch) -> Tensor:
        """Nodes [nodes, width] to the same; `degrees` is [nodes, 1]."""
        projected, sums = dense(self.linear, nodes), self.sums
        scale = degrees.rsqrt()
        messages = F.relu(taken(projected, batch.senders, sums.of_others) + self.bond(batch.bonds))
        scales = (taken(scale, batch.senders, sums.of_others), taken(scale, batch.receivers, sums.of_sorted))
        messages = messages * (scales[0] * scales[1])
        own = F.relu(self.root(projected)) / degrees
        received = summed(messages, batch.receivers, len(nodes), sums.of_sorted)
        return nodes + F.relu(self.norm(received + own))


class GraphNet(nn.Module):
    """AlgoPerf's graph network with embedded codes and no dropout: 3,598,464 parameters of the default sizes.

    Source: mlcommons/algorithmic-efficiency, workloads/ogbg/ogbg_jax/models.py; Battaglia et al. 2018, arXiv
    1806.01261.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.atom = CodeTable("nodes", sum(ATOM_CODES), width)
        self.bond = CodeTable("edges", sum(BOND_CODES), width)
        self.steps = nn.ModuleList(GraphNetStep(width, width if step else TASKS) for step in range(sizes.layers))
        self.output = GraphLinear("graphs", width, TASKS)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [graphs, TASKS], from what the graphs have of their own, which is zero at first."""
        nodes, edges = self.atom(batch.atoms), self.bond(batch.bonds)
        # The last one is that of the padding.
        graphs = nodes.new_zeros(len(batch.node_count) + 1, TASKS)
        for step in self.steps:
            nodes, edges, graphs = step(nodes, edges, graphs, batch)
        return dense(self.output, graphs[:-1])


class GraphNetStep(nn.Module):
    def __init__(self, width: int, of_graph: int) -> None:
        """`of_graph`: the width of what a graph has of its own."""
        super().__init__()
        self.edge = Mlp("edges", 3 * width + of_graph, width)
        self.node = Mlp("nodes", 3 * width + of_graph, width)
        self.graph = Mlp("graphs", 2 * width + of_graph, width)
        self.sums = Sums()

    def forward(self, nodes: Tensor, edges: Tensor, graphs: Tensor, batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Each [count, width]; the edges first, and then the nodes and the graphs that they belong to."""
        sums = self.sums
        ends = (taken(nodes, batch.senders, sums.of_others), taken(nodes, batch.receivers, sums.of_sorted))
        edges = self.edge(torch.cat([edges, *ends, taken(graphs, batch.graph_of_edge, sums.of_sorted)], 1))
        sent = summed(edges, batch.senders, len(nodes), sums.of_others)
        received = summed(edges, batch.receivers, len(nodes), sums.of_sorted)
        nodes = self.node(torch.cat([nodes, sent, received, taken(graphs, batch.graph_of_node, sums.of_sorted)], 1))
        of_nodes = summed(nodes, batch.graph_of_node, len(graphs), sums.of_sorted)
        of_edges = summed(edges, batch.graph_of_edge, len(graphs), sums.of_sorted)
        return nodes, edges, self.graph(torch.cat([of_nodes, of_edges, graphs], 1))


class Mlp(nn.Module):
    def __init__(self, rows: Kind, features: int, width: int) -> None:
        super().__init__()
        self.dense = GraphLinear(rows, features, width)
        self.norm = GraphNorm(rows, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(dense(self.dense, x)))


# Layers


class GraphLinear(nn.Linear):
    """In the weights' precision, or in that of autocast."""

    def __init__(self, rows: Kind, features_in: int, features_out: int) -> None:
        super().__init__(features_in, features_out)
        self.rows = rows


class CodeTable(nn.Embedding):
    """A row for each code, of all features: codes [count, features] to the sums over the features, [count, width]."""

    def __init__(self, rows: Kind, codes: int, width: int) -> None:
        super().__init__(codes, width)
        self.rows = rows

    def forward(self, codes: Tensor) -> Tensor:
        return in_full_precision(super().forward(codes)).sum(-2)


class Root(nn.Module):
    """A row that is added to all."""

    def __init__(self, rows: Kind, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.rows = rows

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + in_full_precision(self.weight)


class GraphNorm(nn.LayerNorm):
    """LayerNorm. Of what is in float32 at least, and computed so."""

    def __init__(self, rows: Kind, width: int) -> None:
        super().__init__(width, eps=EPSILON)
        self.rows = rows

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias = self.weight.to(inputs.dtype), self.bias.to(inputs.dtype)
        return F.layer_norm(inputs, self.normalized_shape, weight, bias, self.eps)

    def normalised(self, inputs: Tensor) -> Tensor:
        """Before weight and bias."""
        return F.layer_norm(inputs, self.normalized_shape, eps=self.eps)


def dense(layer: GraphLinear, x: Tensor) -> Tensor:
    """The product in the layer's precision, returned in float32 at least."""
    return in_full_precision(layer(x.to(layer.weight.dtype)))


def make_model(name: str, sizes: Any) -> nn.Module:
    return {"gcn": Gcn, "graphnet": GraphNet}[name](sizes)
