"""Batches of graphs, packed on the device into arrays of a fixed length (harness/work/graphs.py)."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from harness.work.graphs import Capacity


class GraphBatch(NamedTuple):
    """Nodes and edges of some graphs, one graph behind the other, and then padding: nodes of a graph that is not there
    (its number is that of the graphs), and edges among these nodes."""

    atoms: Tensor
    """int64 [nodes, features]"""
    bonds: Tensor
    """int64 [edges, features]"""
    senders: Tensor
    """int64 [edges]: nodes of the batch"""
    receivers: Tensor
    """The same; sorted."""
    graph_of_node: Tensor
    """int64 [nodes]; sorted"""
    graph_of_edge: Tensor
    """int64 [edges]; sorted"""
    node_count: Tensor
    """int64 [graphs]"""


def packed(batch: Mapping[str, Tensor], capacity: Capacity) -> GraphBatch:
    """The graphs whose places are given, [graphs], with the arrays that all share. Static shapes only.

    Padded edges are spread evenly over padded nodes: all on one node, they would wait for each other.
    """
    node_graph, node_row, node_is_real, node_end = rows_of(batch["node_start"], batch["node_count"], capacity.nodes)
    edge_graph, edge_row, edge_is_real, edge_end = rows_of(batch["edge_start"], batch["edge_count"], capacity.edges)
    graphs = len(batch["node_count"])
    first_node = (node_end - batch["node_count"])[edge_graph.clamp(max=graphs - 1)]
    padded_nodes, padded_edges = capacity.nodes - node_end[-1], capacity.edges - edge_end[-1]
    edges_per_node = ((padded_edges + padded_nodes - 1) // padded_nodes).clamp(min=1)
    nth = torch.arange(capacity.edges, device=edge_row.device) - edge_end[-1]
    padding = node_end[-1] + nth // edges_per_node
    return GraphBatch(
        atoms=batch["atoms"][node_row].long(),
        bonds=batch["bonds"][edge_row].long(),
        senders=torch.where(edge_is_real, batch["senders"][edge_row] + first_node, padding),
        receivers=torch.where(edge_is_real, batch["receivers"][edge_row] + first_node, padding),
        graph_of_node=node_graph,
        graph_of_edge=edge_graph,
        node_count=batch["node_count"],
    )


def rows_of(start: Tensor, count: Tensor, capacity: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each place in a packed array, [capacity]: which graph it belongs to, which row of the shared array it is (the
    first one, of padding), and whether it is any graph's; and where each graph ends, [graphs]."""
    end = torch.cumsum(count, 0)
    place = torch.arange(capacity, device=count.device)
    graph = torch.searchsorted(end, place, right=True)
    is_real = graph < len(count)
    known = graph.clamp(max=len(count) - 1)
    row = torch.where(is_real, start[known] + place - (end - count)[known], 0)
    return graph, row, is_real, end


def taken(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, whose gradient is added up by index_add; that of the other sorts on a GPU."""
    return values.index_select(0, index)
