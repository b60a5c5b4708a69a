"""Sets of graphs as arrays, and batches of them: which graphs, in which order, and how much room they take. No
framework.

A graph is a sample. Its nodes and edges are rows of arrays that all graphs of a data set share (`Dataset.shared`), one
graph behind the other, and the sample's own arrays say where they are: `node_start`, `node_count`, `edge_start`,
`edge_count`, int32 [graphs].

    atoms        uint8 [nodes, features]     a code for each feature, all of them rows of one table (`in_one_table`)
    bonds        uint8 [edges, features]     the same of another table
    senders      int16 [edges]               a node of the same graph, from 0; edges have a direction
    receivers    int16 [edges]               sorted within a graph, those of one receiver by sender

A batch is packed: its graphs' nodes stand one behind the other in arrays of a fixed length, and so do its edges. What
is left is padding, which no graph sees. The length is the capacity, the same for all batches of a run, so that no shape
ever changes. Both frameworks pack on the device, by the same whole numbers (graphs.py of each runner).

In a packed batch a layer sees rows, of nodes or of edges, and a graph's gradient is a sum over its rows. What is linear
in the rows, such as a weighted sum over all graphs, is made of the packed rows, which have next to no padding. What is
a product of each graph's own rows is made `by_sample`: each graph has the room of the largest one, and zeros behind its
own rows. Products of groups of different sizes are no alternative: XLA pads those of a GPU itself (openxla/xla#45995)
and has none for Gram matrices, and PyTorch's (`grouped_mm`) make none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLE_ARRAYS = ("node_start", "node_count", "edge_start", "edge_count")
SHARED_ARRAYS = ("atoms", "bonds", "senders", "receivers")
MULTIPLE = 64
"""Capacities are rounded up to it."""
ROOM_MULTIPLE = 8
"""The room of a graph is rounded up to it."""
BATCHES_IN_GROUP = 16
"""That get graphs of all sizes in equal parts."""
PARTS_OF_BATCH = 8
"""At most: that many devices get equal shares of a batch's edges, as far as its graphs allow."""

Arrays = Mapping[str, NDArray[Any]]
Rows = NDArray[np.integer[Any]]


Kind = Literal["nodes", "edges", "graphs"]
"""Of which a layer sees rows."""


class GraphBatch(NamedTuple):
    """Nodes and edges of some graphs, one graph behind the other, and then padding: nodes of a graph that is not there
    (its number is that of the graphs), and edges among these nodes. A framework's arrays, int32 in JAX and int64 in
    PyTorch."""

    atoms: Any
    """[nodes, features]"""
    bonds: Any
    """[edges, features]"""
    senders: Any
    """[edges]: nodes of the batch"""
    receivers: Any
    """The same; sorted."""
    graph_of_node: Any
    """[nodes]; sorted"""
    graph_of_edge: Any
    """[edges]; sorted"""
    node_count: Any
    """[graphs]"""
    edge_count: Any
    """[graphs]"""


class Places(NamedTuple):
    """Where the nodes, or the edges, of each graph are in a packed batch. A framework's arrays."""

    graph: Any
    """Integers [rows]: whose each is; the number of graphs where it is padding"""
    row: Any
    """Integers [graphs, room]; any, behind those that a graph has"""
    is_there: Any
    """bool [graphs, room]"""


class Capacity(NamedTuple):
    """Of a packed batch."""

    nodes: int
    """At least one more than any batch has: padded edges need a node."""
    edges: int


class Room(NamedTuple):
    """For each graph, where those of a batch stand side by side instead of one behind the other."""

    nodes: int
    edges: int


@dataclass(frozen=True, kw_only=True)
class Given:
    """Batches that a task will be given."""

    arrays: Arrays
    """Those of the samples."""
    batches: Sequence[Rows] | Rows
    """Rows of `arrays`, for each batch: an array [batches, batch], or a list of batches that differ in size."""


class Graph(NamedTuple):
    atoms: NDArray[np.uint8]
    """[nodes, features]"""
    ends: NDArray[np.int16]
    """[edges, 2]: sender and receiver of each edge, in any order; both directions are edges of their own."""
    bonds: NDArray[np.uint8]
    """[edges, features]"""


def shared_arrays(graphs: Sequence[Graph]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.int32]]]:
    """The nodes and edges of all graphs, and where those of each are."""
    orders = [np.lexsort((graph.ends[:, 0], graph.ends[:, 1])) for graph in graphs]
    ends = np.concatenate([graph.ends[order] for graph, order in zip(graphs, orders, strict=True)])
    shared = {
        "atoms": np.concatenate([graph.atoms for graph in graphs]),
        "bonds": np.concatenate([graph.bonds[order] for graph, order in zip(graphs, orders, strict=True)]),
        "senders": np.ascontiguousarray(ends[:, 0]),
        "receivers": np.ascontiguousarray(ends[:, 1]),
    }
    return shared, places(
        np.array([len(graph.atoms) for graph in graphs]), np.array([len(graph.ends) for graph in graphs])
    )


def in_one_table(codes: NDArray[np.uint8], counts: Sequence[int]) -> NDArray[np.uint8]:
    """Codes [rows, features], each from 0, to rows of one table: a feature's begin where those of the one before end.

    Args:
        counts: how many codes each feature has; 256 in all at most.
    """
    starts = np.cumsum(counts) - counts
    return codes + starts.astype(np.uint8)


def places(node_count: NDArray[Any], edge_count: NDArray[Any]) -> dict[str, NDArray[np.int32]]:
    """SAMPLE_ARRAYS of graphs that stand one behind the other."""
    return {
        "node_start": (np.cumsum(node_count) - node_count).astype(np.int32),
        "node_count": node_count.astype(np.int32),
        "edge_start": (np.cumsum(edge_count) - edge_count).astype(np.int32),
        "edge_count": edge_count.astype(np.int32),
    }


def sizes_of(arrays: Arrays, rows: Rows) -> tuple[int, int]:
    """Nodes and edges of these graphs together."""
    return int(arrays["node_count"][rows].sum()), int(arrays["edge_count"][rows].sum())


def capacities_of(given: Iterable[Given]) -> dict[int, Capacity]:
    """By the number of graphs in a batch: what the largest of these batches takes."""
    largest: dict[int, Capacity] = {}
    for batches in given:
        for rows in batches.batches:
            nodes, edges = sizes_of(batches.arrays, np.asarray(rows))
            before = largest.get(len(rows), Capacity(0, 0))
            largest[len(rows)] = Capacity(max(before.nodes, _rounded(nodes + 1)), max(before.edges, _rounded(edges)))
    return largest


def capacity_of_any(parts: Iterable[Arrays], batch_size: int) -> Capacity:
    """What any batch of these graphs takes: the sum over the largest ones."""
    node_counts = np.concatenate([part["node_count"] for part in parts])
    edge_counts = np.concatenate([part["edge_count"] for part in parts])
    nodes, edges = (int(np.sort(counts)[-batch_size:].sum()) for counts in (node_counts, edge_counts))
    return Capacity(_rounded(nodes + 1), _rounded(edges))


def room_of(given: Iterable[Given]) -> Room | None:
    """What the largest graph of these batches takes, rounded up to ROOM_MULTIPLE; None where there are none."""
    found = [Room(0, 0)]
    for batches in given:
        counts = [batches.arrays[name] for name in ("node_count", "edge_count")]
        found += [Room(*(int(count[np.asarray(rows)].max()) for count in counts)) for rows in batches.batches]
    nodes, edges = (-(-max(counts) // ROOM_MULTIPLE) * ROOM_MULTIPLE for counts in zip(*found, strict=True))
    return Room(nodes, max(edges, ROOM_MULTIPLE)) if nodes else None


def describe_packing(given: Sequence[Given], capacities: Mapping[int, Capacity]) -> dict[str, Any]:
    """For `Result.details`, of the batches named first: the capacity, and the share of a batch's nodes and edges that
    is padding, on average. Nothing where no batches were named."""
    if not given:
        return {}
    arrays, batches = given[0].arrays, given[0].batches
    capacity = capacities[len(batches[0])]
    nodes, edges = np.mean([sizes_of(arrays, np.asarray(rows)) for rows in batches], axis=0)
    return {
        "capacity": capacity._asdict(),
        "padding": {"nodes": float(1 - nodes / capacity.nodes), "edges": float(1 - edges / capacity.edges)},
    }


def units_of(given: Sequence[Given]) -> dict[str, float]:
    """For `Result.units`, of the batches named first: how many edges a graph has, on average. Nothing where no batches
    were named."""
    if not given:
        return {}
    rows = np.concatenate([np.asarray(rows) for rows in given[0].batches])
    return {"edges": sizes_of(given[0].arrays, rows)[1] / len(rows)}


def balanced(order: NDArray[np.int32], sizes: NDArray[Any], steps_per_epoch: int) -> NDArray[np.int32]:
    """The same samples in nearly the same steps, so that batches differ less in size and a capacity is better filled.

    Within each group of BATCHES_IN_GROUP steps of an epoch, the samples are sorted by size and dealt to the steps in
    snake order (1, 2, 3, 3, 2, 1, ...); those of a step are dealt to its parts in the same way.

    Args:
        order: [steps, batch], of all epochs.
        sizes: of all samples.
    """
    groups = []
    for epoch in range(0, len(order), steps_per_epoch):
        for first in range(epoch, epoch + steps_per_epoch, BATCHES_IN_GROUP):
            rows = order[first : min(first + BATCHES_IN_GROUP, epoch + steps_per_epoch)]
            batches = dealt(by_size(rows.ravel(), sizes), len(rows))
            groups += [_in_parts(by_size(batch, sizes)) for batch in batches]
    return np.stack(groups)


def by_size(rows: NDArray[np.int32], sizes: NDArray[Any]) -> NDArray[np.int32]:
    """The largest first; those of one size in the order that they had."""
    return rows[np.argsort(-sizes[rows].astype(np.int64), kind="stable")]


def dealt(rows: NDArray[np.int32], hands: int) -> NDArray[np.int32]:
    """In snake order: [hands, rows / hands]."""
    rounds = rows.reshape(-1, hands).copy()
    rounds[1::2] = rounds[1::2, ::-1]
    return np.ascontiguousarray(rounds.T)


def _in_parts(batch: NDArray[np.int32]) -> NDArray[np.int32]:
    return dealt(batch, int(np.gcd(len(batch), PARTS_OF_BATCH))).ravel()


def _rounded(count: int) -> int:
    return max(MULTIPLE, -(-count // MULTIPLE) * MULTIPLE)
