"""Capacities, room and the balanced order of sets of graphs, by hand."""

import numpy as np
import pytest

from harness.work.graphs import (
    Capacity,
    Given,
    Room,
    balanced,
    capacities_of,
    capacity_of_any,
    describe_packing,
    places,
    room_of,
    units_of,
)


def test_a_capacity_is_that_of_the_largest_batch_rounded_up() -> None:
    """The batches have 63, 64 and 30 nodes, and 128, 129 and 2 edges; one node must be left for the padding."""
    arrays = places(np.array([60, 3, 4, 30]), np.array([126, 2, 3, 0]))
    batches = np.array([[0, 1], [0, 2], [1, 3]])
    given = [Given(arrays=arrays, batches=batches), Given(arrays=arrays, batches=[np.array([3])])]
    assert capacities_of(given[:1]) == {2: Capacity(128, 192)}
    assert capacities_of([Given(arrays=arrays, batches=batches[:1])]) == {2: Capacity(64, 128)}
    assert capacities_of(given) == {2: Capacity(128, 192), 1: Capacity(64, 64)}
    assert capacity_of_any([arrays], 2) == Capacity(128, 192)  # the two largest: 90 nodes, 129 edges
    found = describe_packing(given, capacities_of(given))
    assert found["capacity"] == {"nodes": 128, "edges": 192}
    assert found["padding"] == pytest.approx({"nodes": 1 - 160 / 3 / 128, "edges": 1 - 259 / 3 / 192})
    assert describe_packing([], {}) == {}


def test_edges_and_room_of_a_graph() -> None:
    """Of the batches named first, the graph of 126 edges comes twice, those of 2, 3 and 0 come once. The one with most
    nodes, 60, is not the one with most edges, 130."""
    arrays = places(np.array([60, 3, 4, 30, 33]), np.array([126, 2, 3, 0, 130]))
    first = Given(arrays=arrays, batches=[np.array([0, 1, 0]), np.array([2, 3])])
    given = [first, Given(arrays=arrays, batches=np.array([[4]]))]
    assert units_of(given) == {"edges": pytest.approx((2 * 126 + 2 + 3) / 5)}
    assert (room_of([first]), room_of(given)) == (Room(64, 128), Room(64, 136))
    assert room_of([Given(arrays=arrays, batches=[np.array([3])])]) == Room(32, 8)
    assert (units_of([]), room_of([])) == ({}, None)


def test_balanced_batches_by_hand() -> None:
    """Eight samples of the sizes 0 to 7, two steps of four in an epoch. Dealt in snake order: 7 4 3 0 and 6 5 2 1, in
    an epoch by itself; and a step's own to its four parts."""
    order = np.array([[3, 1, 4, 0], [5, 7, 2, 6]] * 2, np.int32)
    found = balanced(order, np.arange(8), steps_per_epoch=2)
    assert found.tolist() == [[7, 4, 3, 0], [6, 5, 2, 1]] * 2
