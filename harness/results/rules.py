"""The rules by which a ratio has its verdict, by their version, and what older versions were. Pure.

A record is judged by the rules that it was registered under (harness/work/registration.py): whoever changes a threshold
after a look at the numbers can get another answer. The verdict by the newest rules stands beside it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.results.sequential import RatioEstimate, doubted, verdict_of
from harness.results.statistics import (
    chance_of_no_difference,
    interval_of_log_ratios,
)

RULES: Mapping[int, str] = {
    1: "three replicates or more, Student's t; a ratio with an `unstable` side had no verdict, and was in no mean",
    2: "three replicates or more, Student's t; flags of noise and drift warn, and take no verdict away",
    3: "looks at 4, 6, 8 and 12 pairs, with an interval that knows which process was started first",
}
NEWEST = max(RULES)
FLAGS_UP_TO_2 = frozenset({"noisy", "unstable", "imprecise", "drift"})
"""Of the blocks of one process, as older records have them; today numbers, and flags of a ratio (ratios.py)."""

_UP_TO_2: Mapping[str, Any] = {
    "WORTHLESS": ["recompiled", "mixed_gpus", "known_slow_jaxlib"],
    "NOISY_SPREAD": 0.10,
    "UNSTABLE_SPREAD": 0.25,
    "DRIFT": 0.05,
    "SHORT_BLOCK_S": 0.08,
    "LOW_CLOCK_SHARE": 0.75,
    "ENERGY_COUNTER_TICK_S": 0.1,
    "ENERGY_WINDOW_MIN_S": 4.0,
    "HELD_BACK_SHARE": 0.02,
    "OTHER_CPUS": 0.25,
    "KNOWN_SLOW_JAXLIB": ["0.10.2", "0.11.0"],
    "NOISE": 0.02,
    "MISSED": 0.05,
    "NORMAL_INTERQUARTILE_RANGE": 1.349,
    "CLEAR_STANDARD_ERRORS": 3.0,
    "CLEAR_REPLICATES": 3,
    "CONFIDENCE": 0.95,
    "REPLICATES_FOR_AN_INTERVAL": 2,
    "ENOUGH_REPLICATES": 3,
    "SAME_WITHIN": 1.01,
    "REPLICATES_NEEDED_MAX": 100,
    "ROUNDING": 1e-9,
    "STUDENT_T_95": [
        *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
        *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
        *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
    ],
    "ON_GPU": [1.02, 0.05, 0.05],
    "ON_CPU": [1.5, 0.25, 0.25],
    "UNKNOWN_KERNELS": 0.05,
    "DECIDES": 0.15,
    "MENTIONED": 0.03,
    "LAUNCHES": 0.8,
    "TOLD": 0.8,
    "WORTH_TELLING": 0.1,
    "AGREES": 0.15,
    "PER_STEP": 0.01,
}
THRESHOLDS: Mapping[int, Mapping[str, Any]] = {1: _UP_TO_2, 2: _UP_TO_2}
"""Of the older versions, all of them, as they were hashed into the records of then."""


class Older(NamedTuple):
    """What an older version judges."""

    version: int
    log_ratios: Sequence[float]
    largest_spread: float
    """Interquartile range of block times over their median, the largest of all its processes."""
    doubt: str | None


def older_estimate(found: Older) -> RatioEstimate:
    """Student's t over the log ratios, in whatever order the processes of a pair were started."""
    values, count = found.log_ratios, len(found.log_ratios)
    interval = interval_of_log_ratios(values)
    is_enough = count >= _UP_TO_2["ENOUGH_REPLICATES"]
    estimate = RatioEstimate(
        value=math.exp(math.fsum(values) / count),
        interval=interval,
        replicates=count,
        verdict=verdict_of(interval) if is_enough else "undecided",
        p=chance_of_no_difference(values) if is_enough else None,
        freedom=count - 1,
    )
    if found.doubt:
        return doubted(estimate, found.doubt)
    if found.version == 1 and found.largest_spread > _UP_TO_2["UNSTABLE_SPREAD"]:
        return doubted(estimate, f"unstable: block times of a process spread by {found.largest_spread:.0%}")
    return estimate
