"""Batches of graphs, packed on the device into arrays of a fixed length (harness/work/graphs.py), and sums over rows
with the same index.

Rows are added up by XLA's scatter. Where the indices are sorted, as those of receivers and of graphs are, XLA can be
told so (`use_sorted_sums`): in the sum, and in the gradient of a gather, which is one. Those of senders are not sorted.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp

from harness.work.graphs import Capacity, GraphBatch, Places, Room


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
        edge_count=batch["edge_count"],
    )


def rows_of(start: jax.Array, count: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of each place in a packed array, [capacity]: which graph it belongs to, which row of the shared array it is (the
    first one, of padding), and whether it is any graph's; and where each graph ends, [graphs]."""
    end = jnp.cumsum(count, dtype=jnp.int32)
    place = jnp.arange(capacity, dtype=jnp.int32)
    # The default method of searchsorted is a loop on the device; to sort takes several kernels, to compare all is one.
    graph = jnp.searchsorted(end, place, side="right", method="compare_all").astype(jnp.int32)
    is_real = graph < len(count)
    known = jnp.minimum(graph, len(count) - 1)
    row = jnp.where(is_real, start[known] + place - (end - count)[known], 0)
    return graph, row, is_real, end


def taken(array: jax.Array, rows: jax.Array, is_sorted: bool = False) -> jax.Array:
    """`array[rows]` of rows that are there, for which JAX need not look; `is_sorted` is about the gradient."""
    return array.at[rows].get(mode="promise_in_bounds", indices_are_sorted=is_sorted)


def summed(values: jax.Array, index: jax.Array, count: int, is_sorted: bool = False) -> jax.Array:
    """Rows of values [rows, width] with the same index are added up: [count, width]."""
    return jax.ops.segment_sum(values, index, count, indices_are_sorted=is_sorted, mode="promise_in_bounds")


def use_sorted_sums(model: nnx.Module) -> int:
    """From now on, of all the model's layers that sum over rows. How many."""
    modules: Any = [module for _, module in nnx.iter_modules(model) if hasattr(module, "sorted_sums")]
    for module in modules:
        module.sorted_sums = True
    return len(modules)


# Graph by graph


def places_of(batch: GraphBatch, room: Room) -> dict[str, Places]:
    def places(graph: jax.Array, count: jax.Array, length: int) -> Places:
        nth, end = jnp.arange(length, dtype=jnp.int32), jnp.cumsum(count, dtype=jnp.int32)
        is_there = nth < count[:, None]
        return Places(graph, jnp.where(is_there, (end - count)[:, None] + nth, 0), is_there)

    return {
        "nodes": places(batch.graph_of_node, batch.node_count, room.nodes),
        "edges": places(batch.graph_of_edge, batch.edge_count, room.edges),
    }


def side_by_side(values: jax.Array, places: Places) -> jax.Array:
    """Rows of a packed batch [rows, ...] as [graphs, room, ...], and zeros behind those that a graph has."""
    of_graphs = taken(values, places.row)
    is_there = places.is_there.reshape(*places.is_there.shape, *(1 for _ in values.shape[1:]))
    return jnp.where(is_there, of_graphs, 0)


def of_rows(of_graphs: jax.Array, places: Places) -> jax.Array:
    """Each graph's number, [graphs], for each of its rows, [rows]; zero for padding."""
    return taken(jnp.append(of_graphs, jnp.zeros((), of_graphs.dtype)), places.graph)
