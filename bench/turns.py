"""Two contenders in turn: whatever else the machine does, both have their share of it."""

import math
from collections.abc import Callable, Sequence
from time import perf_counter

from harness.results.statistics import median, median_interval

Timed = Callable[[], float]
"""Does its work and returns the seconds that it took."""
MIN_ROUNDS = 10
"""However long they take."""


def rounds_in_turn(
    ours: Timed, theirs: Timed, *, rounds: int, max_time_s: float = math.inf
) -> list[tuple[float, float]]:
    """Seconds of both in each round, which runs each of them twice: ours, theirs, theirs, ours."""
    found: list[tuple[float, float]] = []
    start = perf_counter()
    while len(found) < MIN_ROUNDS or (len(found) < rounds and perf_counter() - start < max_time_s):
        first, second, third, fourth = ours(), theirs(), theirs(), ours()
        found.append((first + fourth, second + third))
    return found


def with_interval(ratios: Sequence[float], digits: int = 2) -> str:
    """Median of the rounds and its interval, in words."""
    low, high = median_interval(ratios)
    return f"{median(ratios):.{digits}f} (95 % interval {low:.{digits}f} to {high:.{digits}f})"
