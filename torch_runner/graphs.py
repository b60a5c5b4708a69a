"""Batches of graphs, packed on the device into arrays of a fixed length (harness/work/graphs.py), and sums over rows
with the same index.

Rows are added up by `index_add`, on a GPU with atomic additions. Where the indices are sorted, as those of receivers
and of graphs are, `segment_reduce` can do it without them (`use_sorted_sums`): in the sum, and in the gradient of a
gather, which is one. Those of senders are not sorted. Below vmap it is `scatter_add` (`use_scatter_sums`): of an
`index_add` whose indices differ from sample to sample, torch.func makes a loop over the samples.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from harness.work.applies import require_layers
from harness.work.graphs import Capacity, GraphBatch, Places, Room

How = Literal["index_add", "scatter_add", "segment_reduce"]
"""Rows are added up; `segment_reduce` is for sorted ones."""


class Sums(NamedTuple):
    """How a layer adds up rows."""

    of_sorted: How = "index_add"
    of_others: How = "index_add"


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
        edge_count=batch["edge_count"],
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


def taken(values: Tensor, index: Tensor, how: How = "index_add") -> Tensor:
    """`values[index]`, of values [rows, width]. Its gradient is added up as `how` says; that of `[]` sorts on a GPU."""
    if how == "index_add":
        return values.index_select(0, index)
    if how == "scatter_add":
        return values.gather(0, as_wide_as(values, index))
    found: Tensor = TakenInOrder.apply(values, index)
    return found


def summed(values: Tensor, index: Tensor, count: int, how: How = "index_add") -> Tensor:
    """Rows of values [rows, width] with the same index are added up: [count, width]."""
    if how == "index_add":
        return values.new_zeros(count, values.shape[1]).index_add(0, index, values)
    if how == "scatter_add":
        return values.new_zeros(count, values.shape[1]).scatter_add(0, as_wide_as(values, index), values)
    found: Tensor = SummedInOrder.apply(values, index, count)
    return found


def as_wide_as(values: Tensor, index: Tensor) -> Tensor:
    """An index of rows, [rows], as one of numbers, [rows, width]; nothing is copied."""
    return index[:, None].expand(-1, values.shape[1])


class TakenInOrder(torch.autograd.Function):
    """Of a sorted index."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = len(values)
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return sums_of_segments(gradient, index, ctx.count), None


class SummedInOrder(torch.autograd.Function):
    """Of a sorted index."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        return sums_of_segments(values, index, count)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None


def sums_of_segments(values: Tensor, index: Tensor, count: int) -> Tensor:
    """One after the other by position, without atomic additions. `unsafe` leaves out a check on the host."""
    ends = torch.searchsorted(index, torch.arange(count, device=index.device), right=True)
    lengths = torch.diff(ends, prepend=ends.new_zeros(1))
    return torch.segment_reduce(values.contiguous(), "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def use_sorted_sums(model: nn.Module) -> None:
    """From now on, of all the model's layers that sum over rows. Raises Refused where it has none."""
    require_layers("sorted_sums", _use(model, Sums(of_sorted="segment_reduce")))


def use_scatter_sums(model: nn.Module) -> None:
    """The same, for vmap."""
    _use(model, Sums(of_sorted="scatter_add", of_others="scatter_add"))


def _use(model: nn.Module, sums: Sums) -> int:
    modules: Any = [module for module in model.modules() if hasattr(module, "sums")]
    for module in modules:
        module.sums = sums
    return len(modules)


# Graph by graph


def places_of(batch: GraphBatch, room: Room) -> dict[str, Places]:
    def places(graph: Tensor, count: Tensor, length: int) -> Places:
        nth, end = torch.arange(length, device=count.device), torch.cumsum(count, 0)
        is_there = nth < count[:, None]
        return Places(graph, torch.where(is_there, (end - count)[:, None] + nth, 0), is_there)

    return {
        "nodes": places(batch.graph_of_node, batch.node_count, room.nodes),
        "edges": places(batch.graph_of_edge, batch.edge_count, room.edges),
    }


def side_by_side(values: Tensor, places: Places) -> Tensor:
    """Rows of a packed batch [rows, ...] as [graphs, room, ...], and zeros behind those that a graph has."""
    is_there = places.is_there.view(*places.is_there.shape, *(1 for _ in values.shape[1:]))
    return torch.where(is_there, values[places.row], 0)


def of_rows(of_graphs: Tensor, places: Places) -> Tensor:
    """Each graph's number, [graphs], for each of its rows, [rows]; zero for padding."""
    return nn.functional.pad(of_graphs, (0, 1))[places.graph]
