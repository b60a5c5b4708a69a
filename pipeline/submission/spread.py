"""`--spread N`: the rows of the selected cells shared out over jobs that hold N GPUs together. Pure.

A row, all modes of both frameworks of one model, batch size, precision and options, is never cut: its screening and its
pairs belong together. Times are by the protocol's settings alone, so the same command cuts in the same way again and
finds its own jobs.
"""

import heapq
from collections.abc import Collection, Sequence
from typing import NamedTuple

from harness.plan import Pair, Variant
from pipeline.submission.estimate import NO_DURATIONS, Estimate, estimate_of, expected, in_time, together

Row = tuple[float, str]
"""At most so many seconds, and the comparison key."""


class Share(NamedTuple):
    """What one job has of a cell."""

    seconds: float
    place: int
    keys: frozenset[str]


def spread(pairs: Sequence[Pair], devices: int, most_jobs: int | None = None) -> list[Pair]:
    """Each pair, cut into as many jobs as make the longest job short, with `devices` in use by all jobs together.

    What is a calibration, or has one row, stays whole. With more pairs than devices, or than `most_jobs` that may run
    at once, none is cut: jobs then wait for each other.
    """
    rows = [rows_of(pair) for pair in pairs]
    shares = [levelled(of_pair, 1) for of_pair in rows]
    left = devices - sum(pair.cell.devices for pair in pairs)
    jobs_left = devices if most_jobs is None else most_jobs - len(pairs)
    while jobs_left > 0:
        # One more job for the pair that has the longest one, of those that can be cut and for which there is room.
        longest = max(
            (
                (max(share.seconds for share in found), place)
                for place, found in enumerate(shares)
                if len(found) < len(rows[place]) and pairs[place].cell.devices <= left
            ),
            default=None,
        )
        if longest is None:
            break
        place = longest[1]
        shares[place] = levelled(rows[place], len(shares[place]) + 1)
        left, jobs_left = left - pairs[place].cell.devices, jobs_left - 1
    return [one for pair, found in zip(pairs, shares, strict=True) for one in _cut(pair, found)]


def rows_of(pair: Pair) -> list[Row]:
    """The longest first."""
    if pair.cell.is_calibration:
        return [(0.0, "")]
    keys = dict.fromkeys(variant.comparison_key for plan in pair.jobs for variant in plan.variants)
    return sorted(((most_seconds_of(_part(pair, [key])), key) for key in keys), reverse=True)


def levelled(rows: Sequence[Row], count: int) -> list[Share]:
    """The next longest row goes to the share that has least."""
    shares = [Share(0.0, place, frozenset()) for place in range(count)]
    for seconds, key in rows:
        least = heapq.heappop(shares)
        heapq.heappush(shares, Share(least.seconds + seconds, least.place, least.keys | {key}))
    return sorted(shares, key=lambda share: share.place)


def _cut(pair: Pair, shares: Sequence[Share]) -> list[Pair]:
    if len(shares) < 2:
        return [pair]
    return [_part(pair, share.keys).model_copy(update={"part": share.place + 1}) for share in shares]


def _part(pair: Pair, keys: Collection[str]) -> Pair:
    def of(variants: Sequence[Variant]) -> tuple[Variant, ...]:
        return tuple(one for one in variants if one.comparison_key in keys)

    plans = [plan.model_copy(update={"variants": of(plan.variants)}) for plan in pair.jobs]
    return pair.model_copy(update={"jobs": tuple(plan for plan in plans if plan.variants)})


def most_seconds_of(pair: Pair) -> float:
    """By the protocol's settings alone."""
    alone = len(pair.jobs) == 1
    estimates = [estimate_of(plan, expected(plan, alone=alone), NO_DURATIONS) for plan in pair.jobs]
    return together(estimates).most_seconds


def spread_in_words(pairs: Sequence[Pair], estimates: Sequence[Estimate]) -> str:
    """How many devices are in use at once, for how much of the time, and how long the longest job takes at most."""
    in_use = sum(pair.cell.devices for pair in pairs)
    longest, most = max(zip(pairs, estimates, strict=True), key=lambda one: one[1].most_seconds)
    share = sum(one.most_seconds * one.devices for one in estimates) / max(in_use * most.most_seconds, 1.0)
    is_one_row = len(pairs) > 1 and len(rows_of(longest)) == 1
    return (
        f"Spread: {len(pairs)} jobs on {in_use} GPUs at once, which are busy for {share:.0%} of the time; the longest, "
        f"{longest.words}, takes {in_time(most.most_seconds)} at most"
        f"{', and is one row, which is never cut' if is_one_row else ''}."
    )
