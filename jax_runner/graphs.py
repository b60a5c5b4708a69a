"""Batches of graphs, packed on the device into arrays of a fixed length (harness/work/graphs.py)."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
from jax import numpy as jnp

from harness.work.graphs import Capacity


class GraphBatch(NamedTuple):
    """Nodes and edges of some graphs, one graph behind the other, and then padding: nodes of a graph that is not there
    (its number is that of the graphs), and edges among these nodes."""

    atoms: jax.Array
    """int32 [nodes, features]"""
    bonds: jax.Array
    """int32 [edges, features]"""
    senders: jax.Array
    """int32 [edges]: nodes of the batch"""
    receivers: jax.Array
    """The same; sorted."""
    graph_of_node: jax.Array
    """int32 [nodes]; sorted"""
    graph_of_edge: jax.Array
    """int32 [edges]; sorted"""
    node_count: jax.Array
    """int32 [graphs]"""


@partial(jax.jit, static_argnames="capacity")
def packed(batch: Mapping[str, jax.Array], capacity: Capacity) -> GraphBatch:
    """The graphs whose places are given, [graphs], with the arrays that all share. Static shapes only.

    Padded edges are spread evenly over padded nodes: all on one node, they would wait for each other.
    """
    node_graph, node_row, node_is_real, node_end = rows_of(batch["node_start"], batch["node_count"], capacity.nodes)
    edge_graph, edge_row, edge_is_real, edge_end = rows_of(batch["edge_start"], batch["edge_count"], capacity.edges)
    graphs = len(batch["node_count"])
    first_node = (node_end - batch["node_count"])[jnp.minimum(edge_graph, graphs - 1)]
    padded_nodes, padded_edges = capacity.nodes - node_end[-1], capacity.edges - edge_end[-1]
    edges_per_node = jnp.maximum((padded_edges + padded_nodes - 1) // padded_nodes, 1)
    nth = jnp.arange(capacity.edges, dtype=jnp.int32) - edge_end[-1]
    padding = node_end[-1] + nth // edges_per_node
    rows = {
        name: taken(batch[name], node_row if name == "atoms" else edge_row).astype(jnp.int32)
        for name in ("atoms", "bonds", "senders", "receivers")
    }
    return GraphBatch(
        atoms=rows["atoms"],
        bonds=rows["bonds"],
        senders=jnp.where(edge_is_real, rows["senders"] + first_node, padding),
        receivers=jnp.where(edge_is_real, rows["receivers"] + first_node, padding),
        graph_of_node=node_graph,
        graph_of_edge=edge_graph,
        node_count=batch["node_count"],
    )


def rows_of(start: jax.Array, count: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of each place in a packed array, [capacity]: which graph it belongs to, which row of the shared array it is (the
    first one, of padding), and whether it is any graph's; and where each graph ends, [graphs]."""
    end = jnp.cumsum(count, dtype=jnp.int32)
    place = jnp.arange(capacity, dtype=jnp.int32)
    # The default method of searchsorted is a loop on the device.
    graph = jnp.searchsorted(end, place, side="right", method="sort").astype(jnp.int32)
    is_real = graph < len(count)
    known = jnp.minimum(graph, len(count) - 1)
    row = jnp.where(is_real, start[known] + place - (end - count)[known], 0)
    return graph, row, is_real, end


def taken(array: jax.Array, rows: jax.Array) -> jax.Array:
    """`array[rows]` of rows that are there, for which JAX need not look."""
    return array.at[rows].get(mode="promise_in_bounds")
