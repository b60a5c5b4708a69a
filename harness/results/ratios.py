"""The ratio of a pair of modes: from the records of its replicates to log ratios, flags and an estimate. Pure;
harness/results/sequential.py has the estimate from log ratios."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from harness.results.record import Blocks, Record
from harness.results.sequential import (
    FIRST_LOOK,
    LogRatio,
    RatioEstimate,
    around_orders,
    doubted,
    estimate_sequentially,
)
from harness.results.statistics import (
    NORMAL_INTERQUARTILE_RANGE,
    median,
    percentile,
    throughput_samples_per_s,
)

IMPRECISE = 0.02
"""Standard error of a log ratio from inside its pair, from which on longer windows would help."""
RATIO_DRIFT, RATIO_DRIFT_ERRORS = 0.02, 3.0
"""Of the log ratio, from the first third of a pair's blocks to the last; and in standard errors of that change."""
DIFFER_LEVEL = 0.99
"""Quantile of chi square, above which replicates differ by more than what is inside them."""
ERROR_OF_MEDIAN = 1.2533
"""Of a normal distribution, in standard errors of the mean: sqrt(pi / 2)."""
TENTHS = 10

NOT_FAIR = "precision `default`: nothing was set, so each side has arithmetic of its own"

RecordPair = tuple[Record, Record]
"""JAX's and PyTorch's of one replicate."""


class Replicate(NamedTuple):
    """What one pair of processes says of the ratio."""

    log_ratio: LogRatio
    in_turns: bool
    error: float | None
    """Standard error of the log ratio, from inside the pair; None from too few blocks."""
    drift: float | None
    """Of the log ratio, from the first third of the blocks to the last."""


class PairEstimate(NamedTuple):
    ratio: RatioEstimate
    left_out: str | None
    """How many are not, and why."""
    flags: Mapping[str, str]


def took_turns(one: Record, other: Record) -> bool:
    """Whether these two processes did, with each other and to the end."""
    turns = [(record.environment.get("pairing") or {}).get("turns") for record in (one, other)]
    return turns[0] is not None and turns[0] == turns[1]


def log_ratios_of_quads(numerator: Blocks, denominator: Blocks) -> list[float]:
    """Of two throughputs, of processes that took turns block by block: A B B A A B B A ...

    Blocks of the same number are neighbours in time. With a and b the logarithms of samples per second, it is
    ((a[2k] + a[2k + 1]) - (b[2k] + b[2k + 1])) / 2 of each quad k. Within A B B A a steady drift of the machine is the
    same on both sides, and so leaves no trace. The last block of an odd number is left out.
    """
    ours, theirs = _log_rates(numerator), _log_rates(denominator)
    quads = min(len(ours), len(theirs)) // 2
    return [(ours[2 * k] + ours[2 * k + 1] - theirs[2 * k] - theirs[2 * k + 1]) / 2 for k in range(quads)]


def _log_rates(blocks: Blocks) -> list[float]:
    samples = blocks.calls_per_block * blocks.steps_per_call * blocks.samples_per_step
    return [math.log(samples / time_s) for time_s in blocks.block_times_s]


def replicate_of(jax: Record, torch: Record) -> Replicate:
    """Raises ValueError where a side has no blocks."""
    ours, theirs = _blocks(jax), _blocks(torch)
    quads = log_ratios_of_quads(ours, theirs) if took_turns(jax, torch) else []
    if quads:
        value, error, drift = median(quads), _error_of_quads(quads), _change(quads)
    else:
        value = math.log(throughput_samples_per_s(ours) / throughput_samples_per_s(theirs))
        rates = _log_rates(ours), _log_rates(theirs)
        errors, drifts = [_error_of_tenths(one) for one in rates], [_change(one) for one in rates]
        error = None if None in errors else math.hypot(*(one for one in errors if one is not None))
        drift = None if drifts[0] is None or drifts[1] is None else drifts[0] - drifts[1]
    found = LogRatio(jax.measurement.replicate, value, _is_first(jax, torch))
    return Replicate(found, bool(quads), error, drift)


def _is_first(one: Record, other: Record) -> bool:
    """Its process was started first."""
    turns = one.result.in_turns if one.result else None
    return turns.is_first if turns and took_turns(one, other) else one.started_at < other.started_at


def _blocks(record: Record) -> Blocks:
    if record.result is None or record.result.blocks is None:
        raise ValueError("a ratio needs blocks on both sides")
    return record.result.blocks


def _error_of_quads(quads: Sequence[float]) -> float | None:
    if len(quads) < 3:
        return None
    spread = (percentile(quads, 0.75) - percentile(quads, 0.25)) / NORMAL_INTERQUARTILE_RANGE
    return ERROR_OF_MEDIAN * spread / math.sqrt(len(quads))


def _error_of_tenths(rates: Sequence[float]) -> float | None:
    """Of the median: the medians of consecutive tenths hold what blocks of one moment have in common."""
    if len(rates) < TENTHS:
        return None
    edges = [round(part * len(rates) / TENTHS) for part in range(TENTHS + 1)]
    medians = [median(rates[start:end]) for start, end in zip(edges, edges[1:], strict=False)]
    mean = math.fsum(medians) / TENTHS
    return math.sqrt(math.fsum((one - mean) ** 2 for one in medians) / (TENTHS - 1) / TENTHS)


def _change(values: Sequence[float]) -> float | None:
    third = len(values) // 3
    return median(values[-third:]) - median(values[:third]) if third >= 2 else None


def flags_of(replicates: Sequence[Replicate]) -> dict[str, str]:
    """Name to sentence: what would make the ratio surer. No verdict depends on them: the interval has what they see."""
    flags = {}
    errors = [one.error for one in replicates if one.error is not None]
    if errors and (typical := median(errors)) > IMPRECISE:
        help_ = "longer windows (max_time_s)" if replicates[0].in_turns else "turns (pairing: interleaved)"
        flags["imprecise"] = f"a pair knows its ratio to {typical:.1%}; {help_} would help"
    if len(errors) == len(replicates) >= FIRST_LOOK and _differ([one.log_ratio for one in replicates], errors):
        flags["processes_differ"] = (
            f"replicates differ by {_spread([one.log_ratio for one in replicates]):.1%}, "
            f"and each knows its ratio to {median(errors):.1%}; more replicates would help, longer ones would not"
        )
    drifts = {
        one.log_ratio.replicate: one.drift
        for one in replicates
        if one.drift is not None
        and one.error is not None
        and abs(one.drift) > max(RATIO_DRIFT, RATIO_DRIFT_ERRORS * math.sqrt(6) * one.error)
    }
    if drifts:  # a third of the blocks has sqrt(3) times the error, and two of them differ
        worst = max(drifts, key=lambda replicate: abs(drifts[replicate]))
        flags["drift"] = (
            f"in {len(drifts)} of {len(replicates)} replicates the ratio changed while it was measured, by "
            f"{math.expm1(drifts[worst]):+.1%} in r{worst}: it depends on when"
        )
    return flags


def _differ(found: Sequence[LogRatio], errors: Sequence[float]) -> bool:
    inside = math.fsum(error**2 for error in errors) / len(errors)
    means, squares = around_orders(found)
    return squares > chi_square_quantile(DIFFER_LEVEL, len(found) - len(means)) * inside


def _spread(found: Sequence[LogRatio]) -> float:
    means, squares = around_orders(found)
    return math.sqrt(squares / (len(found) - len(means)))


def chi_square_quantile(share: float, freedom: int) -> float:
    """By Wilson and Hilferty (1931), "The distribution of chi-square", PNAS 17(12): within 1 % from 2 degrees on."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + NormalDist().inv_cdf(share) * math.sqrt(part)) ** 3


def estimate_of(pairs: Sequence[RecordPair]) -> PairEstimate:
    """
    Args:
        pairs: of the replicates that may be compared, in their order.

    Raises:
        ValueError: there is none, or a side has no blocks.
    """
    found = [replicate_of(*pair) for pair in pairs]
    left_out = None
    if any(one.in_turns for one in found) and not all(one.in_turns for one in found):
        kept = [one.in_turns for one in found]
        left_out = f"{kept.count(False)} of {len(found)} replicates, which lost their turns"
        pairs = [pair for pair, is_kept in zip(pairs, kept, strict=True) if is_kept]
        found = [one for one in found if one.in_turns]
    logs = [one.log_ratio for one in found]
    at_most, is_extended = design_of(pairs)
    ratio = estimate_sequentially(logs, at_most, is_extended=is_extended)
    if doubt := doubt_of(pairs):
        ratio = doubted(ratio, doubt)
    return PairEstimate(
        ratio=ratio,
        left_out=left_out,
        flags=flags_of(found) | _not_paired(pairs, found),
    )


def _not_paired(pairs: Sequence[RecordPair], found: Sequence[Replicate]) -> dict[str, str]:
    """Both sides took turns, with others."""
    turns = [(record.environment.get("pairing") or {}).get("turns") for pair in pairs for record in pair]
    if found[0].in_turns or not any(turns):
        return {}
    return {"not_paired": "its two modes took turns with other modes, and not with each other"}


def design_of(pairs: Sequence[RecordPair]) -> tuple[int, bool]:
    """How many pairs there are at most, and whether that was changed after there could be a look."""
    most = {record.measurement.protocol.replicates for pair in pairs for record in pair}
    with_looks = {one for one in most if one >= FIRST_LOOK}
    return max(most), len(with_looks) > 1


def doubt_of(pairs: Sequence[RecordPair]) -> str | None:
    """Why the number means nothing. What blocks did is in the spread of the replicates, so no flag of noise or drift is
    among these."""
    if pairs[0][0].measurement.variant.precision == "default":
        return NOT_FAIR
    for side, name in enumerate(("JAX", "PyTorch")):
        times_s = [tuple(_blocks(pair[side]).block_times_s) for pair in pairs]
        if len(set(times_s)) < len(times_s):  # no two processes take the same times
            return f"identical replicates of {name}: copied records?"
    return None
