"""Networks for molecules, of gathers, dense layers and sums over neighbours; no graph library.

In bf16 the matrix products are of bf16 and all else is in float32: what is gathered, so that its gradient is summed in
float32, and what is summed over neighbours. PyTorch's side is the same.
"""

from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.benchmarks.molpcba import ATOM_CODES, BOND_CODES, EPSILON, TASKS, Sizes
from jax_runner.graphs import GraphBatch, taken
from jax_runner.task import in_full_precision


class Gcn(nnx.Module):
    """OGB's graph convolutional network with LayerNorm for BatchNorm, residual connections and no dropout: 426,880
    parameters of the default sizes.

    Source: snap-stanford/ogb, examples/graphproppred/mol/conv.py (GCNConv, GNN_node); Kipf and Welling 2017, arXiv
    1609.02907.
    """

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        width = sizes.width
        self.atom = embedding(sum(ATOM_CODES), width, dtypes)
        self.layers = nnx.List([GcnLayer(width, dtypes) for _ in range(sizes.layers)])
        self.output = linear(width, TASKS, dtypes)

    def __call__(self, batch: GraphBatch) -> jax.Array:
        """Logits [graphs, TASKS], from the mean over a graph's nodes."""
        nodes = embedded(self.atom, batch.atoms)
        # A node is a neighbour of itself.
        degrees = 1 + summed(jnp.ones((len(batch.receivers), 1), nodes.dtype), batch.receivers, len(nodes))
        for layer in self.layers:
            nodes = layer(nodes, degrees, batch)
        graphs = len(batch.node_count)
        means = summed(nodes, batch.graph_of_node, graphs + 1)[:graphs] / batch.node_count[:, None]
        return dense(self.output, means)


class GcnLayer(nnx.Module):
    def __init__(self, width: int, dtypes: dict[str, Any]) -> None:
        self.linear = linear(width, width, dtypes)
        self.root = embedding(1, width, dtypes)
        self.bond = embedding(sum(BOND_CODES), width, dtypes)
        self.norm = layer_norm(width, dtypes)

    def __call__(self, nodes: jax.Array, degrees: jax.Array, batch: GraphBatch) -> jax.Array:
        """Nodes [nodes, width] to the same; `degrees` is [nodes, 1]."""
        projected = dense(self.linear, nodes)
        scale = jax.lax.rsqrt(degrees)
        messages = jax.nn.relu(taken(projected, batch.senders) + embedded(self.bond, batch.bonds))
        messages = messages * (taken(scale, batch.senders) * taken(scale, batch.receivers))
        own = jax.nn.relu(projected + in_full_precision(self.root.embedding[...])) / degrees
        return nodes + jax.nn.relu(self.norm(summed(messages, batch.receivers, len(nodes)) + own))


class GraphNet(nnx.Module):
    """AlgoPerf's graph network with embedded codes and no dropout: 3,598,464 parameters of the default sizes.

    Source: mlcommons/algorithmic-efficiency, workloads/ogbg/ogbg_jax/models.py; Battaglia et al. 2018, arXiv
    1806.01261.
    """

    def __init__(self, sizes: Sizes, dtypes: dict[str, Any]) -> None:
        width = sizes.width
        self.atom = embedding(sum(ATOM_CODES), width, dtypes)
        self.bond = embedding(sum(BOND_CODES), width, dtypes)
        self.steps = nnx.List([GraphNetStep(width, width if step else TASKS, dtypes) for step in range(sizes.layers)])
        self.output = linear(width, TASKS, dtypes)

    def __call__(self, batch: GraphBatch) -> jax.Array:
        """Logits [graphs, TASKS], from what the graphs have of their own, which is zero at first."""
        nodes, edges = embedded(self.atom, batch.atoms), embedded(self.bond, batch.bonds)
        # The last one is that of the padding.
        graphs = jnp.zeros((len(batch.node_count) + 1, TASKS), nodes.dtype)
        for step in self.steps:
            nodes, edges, graphs = step(nodes, edges, graphs, batch)
        return dense(self.output, graphs[:-1])


class GraphNetStep(nnx.Module):
    def __init__(self, width: int, of_graph: int, dtypes: dict[str, Any]) -> None:
        """`of_graph`: the width of what a graph has of its own."""
        self.edge = Mlp(3 * width + of_graph, width, dtypes)
        self.node = Mlp(3 * width + of_graph, width, dtypes)
        self.graph = Mlp(2 * width + of_graph, width, dtypes)

    def __call__(
        self, nodes: jax.Array, edges: jax.Array, graphs: jax.Array, batch: GraphBatch
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Each [count, width]; the edges first, and then the nodes and the graphs that they belong to."""
        ends = (taken(nodes, batch.senders), taken(nodes, batch.receivers))
        edges = self.edge(jnp.concatenate([edges, *ends, taken(graphs, batch.graph_of_edge)], 1))
        sent, received = (summed(edges, index, len(nodes)) for index in (batch.senders, batch.receivers))
        nodes = self.node(jnp.concatenate([nodes, sent, received, taken(graphs, batch.graph_of_node)], 1))
        of_nodes = summed(nodes, batch.graph_of_node, len(graphs))
        of_edges = summed(edges, batch.graph_of_edge, len(graphs))
        return nodes, edges, self.graph(jnp.concatenate([of_nodes, of_edges, graphs], 1))


class Mlp(nnx.Module):
    def __init__(self, features: int, width: int, dtypes: dict[str, Any]) -> None:
        self.dense = linear(features, width, dtypes)
        self.norm = layer_norm(width, dtypes)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.norm(dense(self.dense, x)))


# Every value is overwritten by load_initial_weights.


def linear(features_in: int, features_out: int, dtypes: dict[str, Any]) -> nnx.Linear:
    return nnx.Linear(features_in, features_out, rngs=nnx.Rngs(0), **dtypes)


def embedding(codes: int, width: int, dtypes: dict[str, Any]) -> nnx.Embed:
    return nnx.Embed(codes, width, rngs=nnx.Rngs(0), param_dtype=dtypes["param_dtype"])


def layer_norm(width: int, dtypes: dict[str, Any]) -> nnx.LayerNorm:
    """In float32 at least."""
    dtype = dtypes["param_dtype"]
    return nnx.LayerNorm(
        width, epsilon=EPSILON, use_fast_variance=False, rngs=nnx.Rngs(0), dtype=dtype, param_dtype=dtype
    )


def dense(layer: nnx.Linear, x: jax.Array) -> jax.Array:
    """The product in the layer's precision."""
    return in_full_precision(layer(x))


def embedded(layer: nnx.Embed, codes: jax.Array) -> jax.Array:
    """The sum over the features: codes [count, features] to [count, width]."""
    return in_full_precision(taken(layer.embedding[...], codes)).sum(1)


def summed(values: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """Rows of values [rows, width] with the same index are added up: [count, width]."""
    return jax.ops.segment_sum(values, index, count, mode="promise_in_bounds")


def make_model(name: str, sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return {"gcn": Gcn, "graphnet": GraphNet}[name](sizes, dtypes)
