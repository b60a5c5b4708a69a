"""Networks for molecules, of gathers, dense layers and sums over neighbours; no graph library.

In bf16 the matrix products are of bf16 and all else is in float32: what is gathered, so that its gradient is summed in
float32, and what is summed over neighbours. PyTorch's side is the same.

A layer says of what it sees rows (`rows`): nodes, edges or graphs. captured.py sees it by its `product`, and of a dense
layer by its `dot_general`.
"""

from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.benchmarks.molpcba import ATOM_CODES, BOND_CODES, EPSILON, TASKS, Sizes
from harness.work.graphs import GraphBatch, Kind
from jax_runner.graphs import summed, taken
from jax_runner.task import in_full_precision


class Gcn(nnx.Module):
    """OGB's graph convolutional network with LayerNorm for BatchNorm, residual connections and no dropout: 426,880
    parameters of the default sizes.

    Source: snap-stanford/ogb, examples/graphproppred/mol/conv.py (GCNConv, GNN_node); Kipf and Welling 2017, arXiv
    1609.02907.
    """

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        width = sizes.width
        self.atom = CodeTable("nodes", sum(ATOM_CODES), width, dtypes)
        self.layers = nnx.List([GcnLayer(width, dtypes) for _ in range(sizes.layers)])
        self.output = GraphLinear("graphs", width, TASKS, dtypes)
        self.sorted_sums = False

    def __call__(self, batch: GraphBatch) -> jax.Array:
        """Logits [graphs, TASKS], from the mean over a graph's nodes."""
        nodes, is_sorted = self.atom(batch.atoms), self.sorted_sums
        # A node is a neighbour of itself.
        neighbours = jnp.ones((len(batch.receivers), 1), nodes.dtype)
        degrees = 1 + summed(neighbours, batch.receivers, len(nodes), is_sorted)
        for layer in self.layers:
            nodes = layer(nodes, degrees, batch)
        graphs = len(batch.node_count)
        sums = summed(nodes, batch.graph_of_node, graphs + 1, is_sorted)[:graphs]
        return dense(self.output, sums / batch.node_count[:, None])


class GcnLayer(nnx.Module):
    def __init__(self, width: int, dtypes: dict[str, Any]) -> None:
        self.linear = GraphLinear("nodes", width, width, dtypes)
        self.root = Root("nodes", width, dtypes)
        self.bond = CodeTable("edges", sum(BOND_CODES), width, dtypes)
        self.norm = GraphNorm("nodes", width, dtypes)
        self.sorted_sums = False

    def __call__(self, nodes: jax.Array, degrees: jax.Array, batch: GraphBatch) -> jax.Array:
        """Nodes [nodes, width] to the same; `degrees` is [nodes, 1]."""
        projected, is_sorted = dense(self.linear, nodes), self.sorted_sums
        scale = jax.lax.rsqrt(degrees)
        messages = jax.nn.relu(taken(projected, batch.senders) + self.bond(batch.bonds))
        messages = messages * (taken(scale, batch.senders) * taken(scale, batch.receivers, is_sorted))
        own = jax.nn.relu(self.root(projected)) / degrees
        received = summed(messages, batch.receivers, len(nodes), is_sorted)
        return nodes + jax.nn.relu(self.norm(received + own))


class GraphNet(nnx.Module):
    """AlgoPerf's graph network with embedded codes and no dropout: 3,598,464 parameters of the default sizes.

    Source: mlcommons/algorithmic-efficiency, workloads/ogbg/ogbg_jax/models.py; Battaglia et al. 2018, arXiv
    1806.01261.
    """

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        width = sizes.width
        self.atom = CodeTable("nodes", sum(ATOM_CODES), width, dtypes)
        self.bond = CodeTable("edges", sum(BOND_CODES), width, dtypes)
        self.steps = nnx.List([GraphNetStep(width, width if step else TASKS, dtypes) for step in range(sizes.layers)])
        self.output = GraphLinear("graphs", width, TASKS, dtypes)

    def __call__(self, batch: GraphBatch) -> jax.Array:
        """Logits [graphs, TASKS], from what the graphs have of their own, which is zero at first."""
        nodes, edges = self.atom(batch.atoms), self.bond(batch.bonds)
        # The last one is that of the padding.
        graphs = jnp.zeros((len(batch.node_count) + 1, TASKS), nodes.dtype)
        for step in self.steps:
            nodes, edges, graphs = step(nodes, edges, graphs, batch)
        return dense(self.output, graphs[:-1])


class GraphNetStep(nnx.Module):
    def __init__(self, width: int, of_graph: int, dtypes: dict[str, Any]) -> None:
        """`of_graph`: the width of what a graph has of its own."""
        self.edge = Mlp("edges", 3 * width + of_graph, width, dtypes)
        self.node = Mlp("nodes", 3 * width + of_graph, width, dtypes)
        self.graph = Mlp("graphs", 2 * width + of_graph, width, dtypes)
        self.sorted_sums = False

    def __call__(
        self, nodes: jax.Array, edges: jax.Array, graphs: jax.Array, batch: GraphBatch
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Each [count, width]; the edges first, and then the nodes and the graphs that they belong to."""
        is_sorted = self.sorted_sums
        ends = (taken(nodes, batch.senders), taken(nodes, batch.receivers, is_sorted))
        edges = self.edge(jnp.concatenate([edges, *ends, taken(graphs, batch.graph_of_edge, is_sorted)], 1))
        sent = summed(edges, batch.senders, len(nodes))
        received = summed(edges, batch.receivers, len(nodes), is_sorted)
        nodes = self.node(jnp.concatenate([nodes, sent, received, taken(graphs, batch.graph_of_node, is_sorted)], 1))
        of_nodes = summed(nodes, batch.graph_of_node, len(graphs), is_sorted)
        of_edges = summed(edges, batch.graph_of_edge, len(graphs), is_sorted)
        return nodes, edges, self.graph(jnp.concatenate([of_nodes, of_edges, graphs], 1))


class Mlp(nnx.Module):
    def __init__(self, rows: Kind, features: int, width: int, dtypes: dict[str, Any]) -> None:
        self.dense = GraphLinear(rows, features, width, dtypes)
        self.norm = GraphNorm(rows, width, dtypes)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.norm(dense(self.dense, x)))


# Layers, whose values are all overwritten by load_initial_weights.


class GraphLinear(nnx.Linear):
    """In the layer's precision."""

    def __init__(self, rows: Kind, features_in: int, features_out: int, dtypes: dict[str, Any]) -> None:
        super().__init__(features_in, features_out, rngs=nnx.Rngs(0), **dtypes)
        self.rows = rows


class CodeTable(nnx.Module):
    """A row for each code, of all features: codes [count, features] to the sums over the features, [count, width]."""

    def __init__(self, rows: Kind, codes: int, width: int, dtypes: dict[str, Any]) -> None:
        self.embedding = nnx.Param(jnp.zeros((codes, width), dtypes["param_dtype"]))
        self.rows = rows
        self.product = sums_of_rows

    def __call__(self, codes: jax.Array) -> jax.Array:
        return self.product(codes, in_full_precision(self.embedding[...]))


class Root(nnx.Module):
    """A row that is added to all."""

    def __init__(self, rows: Kind, width: int, dtypes: dict[str, Any]) -> None:
        self.embedding = nnx.Param(jnp.zeros((1, width), dtypes["param_dtype"]))
        self.rows = rows
        self.product = jnp.multiply

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return inputs + self.product(jnp.ones_like(inputs), in_full_precision(self.embedding[...]))


class GraphNorm(nnx.Module):
    """LayerNorm. Of what is in float32 at least, and computed so; the variance is the mean of the squared differences
    (see models/gpt.py)."""

    def __init__(self, rows: Kind, width: int, dtypes: dict[str, Any]) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtypes["param_dtype"]))
        self.bias = nnx.Param(jnp.zeros((width,), dtypes["param_dtype"]))
        self.rows = rows
        self.product = jnp.multiply

    def __call__(self, inputs: jax.Array) -> jax.Array:
        centred = inputs - inputs.mean(-1, keepdims=True)
        normalised = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return self.product(normalised, self.scale[...].astype(inputs.dtype)) + self.bias[...].astype(inputs.dtype)


def dense(layer: GraphLinear, x: jax.Array) -> jax.Array:
    """The product in the layer's precision, returned in float32 at least."""
    return in_full_precision(layer(x))


def sums_of_rows(codes: jax.Array, table: jax.Array) -> jax.Array:
    return taken(table, codes).sum(-2)


def make_model(name: str, sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return {"gcn": Gcn, "graphnet": GraphNet}[name](sizes, dtypes)
