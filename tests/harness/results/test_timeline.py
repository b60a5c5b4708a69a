"""What follows from a timeline, against answers worked out by hand and against a grid of microseconds."""

import math

import numpy as np
import pytest

from harness.results.timeline import busy_s, gaps, innermost, shares_s, timeline_of, window_of

UNKNOWN = math.nan
US = 1e-6


def test_a_collective_has_what_nothing_else_hides() -> None:
    """A product from 0 to 5, a collective from 3 to 9: 4 s of it are exposed, and 9 s in all are busy."""
    found = timeline_of([("gemm", 0, 5, UNKNOWN), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 3, 9, UNKNOWN)])
    assert shares_s(found, np.array([False, True])).tolist() == [5, 4]
    window = window_of(found, steps=1)
    assert window.busy_s == 9
    assert {kernel.name[:4]: kernel.busy_s for kernel in window.kernels} == {"gemm": 5, "nccl": 4}


@pytest.mark.parametrize("seed", range(3))
def test_against_a_grid_of_microseconds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    starts = draw.integers(0, 1000, 200)
    ends = starts + draw.integers(0, 9, 200)
    collective = draw.random(200) < 0.25
    shares = np.zeros(200)
    busy = 0
    for tick in range(ends.max()):
        running = np.flatnonzero((starts <= tick) & (tick < ends))
        others = running[~collective[running]]
        busy += len(running) > 0
        who = others if len(others) else running
        shares[who] += 1 / max(1, len(who))
    found = timeline_of([("k", start * US, end * US, UNKNOWN) for start, end in zip(starts, ends, strict=True)])
    assert busy_s(found) == pytest.approx(busy * US, rel=1e-9)
    assert shares_s(found, collective) == pytest.approx(shares * US, abs=1e-12)


def test_a_gap_is_the_hosts_until_the_launching_call_has_returned() -> None:
    """Gaps: 2 to 5 (launched at 4), 6 to 8 (launched at 1, long before), 9 to 10 (not known)."""
    found = timeline_of([("a", 0, 2, 0), ("b", 5, 6, 4), ("c", 8, 9, 1), ("d", 10, 11, UNKNOWN)])
    assert gaps(found) == (2, 1 + 2, 1)
    # A call that returns after its kernel began.
    assert gaps(timeline_of([("a", 0, 2, 0), ("b", 5, 6, 5.5)])) == (3, 0, 0)
    nothing = window_of(timeline_of([]), steps=2)
    assert (nothing.busy_s, nothing.span_s, nothing.kernels) == (0, 0, [])


def test_operators_belong_to_the_innermost() -> None:
    """linear 0 to 10 has addmm 2 to 7, which has copy 3 to 4, and view 8 to 10; next begins where these end. On another
    thread there is add 0 to 5."""
    of_one_thread = [
        ("linear", 0, 10, 1),
        ("addmm", 2, 7, 1),
        ("copy", 3, 4, 1),
        ("view", 8, 10, 1),
        ("next", 10, 12, 1),
    ]
    events, counts = innermost([*of_one_thread, ("add", 0, 5, 2)])
    assert sorted((name, start, end) for name, start, end, _ in events) == [
        *(("add", 0, 5), ("addmm", 2, 3), ("addmm", 4, 7), ("copy", 3, 4)),
        *(("linear", 0, 2), ("linear", 7, 8), ("next", 10, 12), ("view", 8, 10)),
    ]
    window = window_of(timeline_of(events, counts=counts), steps=1)
    assert [kernel.count for kernel in window.kernels] == [1] * 6
