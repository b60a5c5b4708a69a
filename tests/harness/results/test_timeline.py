"""What follows from a timeline, against answers worked out by hand and against a grid of microseconds."""

import math

import numpy as np
import pytest

from harness.results.timeline import Timeline, busy_s, gaps, innermost, shares_s, timeline_of, window_of

UNKNOWN = math.nan
US = 1e-6


def none_of(timeline: Timeline) -> np.ndarray:
    return np.zeros(len(timeline.start_s), bool)


def test_overlap_counts_once() -> None:
    """0 to 4, 2 to 6 and 10 to 11: busy for 7 of 11 seconds."""
    found = timeline_of([("a", 0, 4, UNKNOWN), ("b", 2, 6, UNKNOWN), ("a", 10, 11, UNKNOWN)])
    assert busy_s(found) == 7
    # a is alone for 2 s and has half of 2 s; b half of 2 s, and is alone for 2 s.
    assert shares_s(found, none_of(found)).tolist() == [3, 3, 1]


def test_a_collective_has_what_nothing_else_hides() -> None:
    """A product from 0 to 5, a collective from 3 to 9: 4 s of it are exposed."""
    found = timeline_of([("gemm", 0, 5, UNKNOWN), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 3, 9, UNKNOWN)])
    assert shares_s(found, np.array([False, True])).tolist() == [5, 4]
    window = window_of(found, steps=1)
    assert {kernel.name[:4]: kernel.busy_s for kernel in window.kernels} == {"gemm": 5, "nccl": 4}


def random_timeline(seed: int, count: int) -> Timeline:
    draw = np.random.default_rng(seed)
    starts = draw.integers(0, 5 * count, count)
    lengths = draw.integers(0, 9, count)
    names = draw.choice(["gemm", "loop_add_fusion", "ncclKernel", "Memcpy DtoD"], count)
    return timeline_of(
        [(str(n), s * US, (s + d) * US, UNKNOWN) for n, s, d in zip(names, starts, lengths, strict=True)]
    )


@pytest.mark.parametrize("seed", range(5))
def test_against_a_grid_of_microseconds(seed: int) -> None:
    found = random_timeline(seed, 200)
    collective = np.array([found.names[name] == "ncclKernel" for name in found.name])
    starts, ends = (np.rint(times / US).astype(int) for times in (found.start_s, found.end_s))
    shares = np.zeros(200)
    busy = 0
    for tick in range(ends.max()):
        running = np.flatnonzero((starts <= tick) & (tick < ends))
        others = running[~collective[running]]
        busy += len(running) > 0
        who = others if len(others) else running
        shares[who] += 1 / max(1, len(who))
    assert busy_s(found) == pytest.approx(busy * US, rel=1e-9)
    assert shares_s(found, collective) == pytest.approx(shares * US, abs=1e-12)


def test_a_gap_is_the_hosts_until_the_launching_call_has_returned() -> None:
    """Gaps: 2 to 5 (launched at 4), 6 to 8 (launched at 1, long before), 9 to 10 (not known)."""
    found = timeline_of([("a", 0, 2, 0), ("b", 5, 6, 4), ("c", 8, 9, 1), ("d", 10, 11, UNKNOWN)])
    assert gaps(found) == (2, 1 + 2, 1)
    # A call that returns after its kernel began.
    assert gaps(timeline_of([("a", 0, 2, 0), ("b", 5, 6, 5.5)])) == (3, 0, 0)


def test_launch_bound_steps_wait_for_the_host_by_the_end_of_the_call() -> None:
    """Calls of 8 us in a row, kernels of 3 us: every call begins before the kernel of the one before has ended, so by
    the beginning of the calls no gap would be the host's."""
    kernels = [("k", 8 * number + 8, 8 * number + 11, 8 * number + 8) for number in range(100)]
    found = gaps(timeline_of(kernels))
    assert found == (5 * 99, 0, 0)


def test_nothing_traced() -> None:
    window = window_of(timeline_of([]), steps=2)
    assert (window.busy_s, window.span_s, window.kernels) == (0, 0, [])


def test_operators_belong_to_the_innermost() -> None:
    """linear 0 to 10 has addmm 2 to 7, which has copy 3 to 4; on another thread add 0 to 5."""
    events, counts = innermost([("linear", 0, 10, 1), ("addmm", 2, 7, 1), ("copy", 3, 4, 1), ("add", 0, 5, 2)])
    parts = sorted((name, start, end) for name, start, end, _ in events)
    assert parts == [
        ("add", 0, 5),
        ("addmm", 2, 3),
        ("addmm", 4, 7),
        ("copy", 3, 4),
        ("linear", 0, 2),
        ("linear", 7, 10),
    ]
    window = window_of(timeline_of(events, counts=counts), steps=1)
    assert {kernel.name: kernel.count for kernel in window.kernels} == {"linear": 1, "addmm": 1, "copy": 1, "add": 1}


def test_an_operator_that_ends_with_its_parent_and_the_next_that_begins_there() -> None:
    events, _ = innermost([("outer", 0, 4, 1), ("inner", 1, 4, 1), ("next", 4, 6, 1)])
    assert [(name, start, end) for name, start, end, _ in events] == [("outer", 0, 1), ("inner", 1, 4), ("next", 4, 6)]
