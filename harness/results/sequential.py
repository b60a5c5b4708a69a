"""The sequential design of a ratio: looks at 4, 6, 8 and 12 pairs, each with an interval that knows which process of a
pair was started first. Pure; docs/studies.md has the simulation."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from harness.results.statistics import (
    CONFIDENCE,
    ROUNDING,
    SAME_WITHIN,
    Interval,
    geometric_mean,
    interval_of_log_ratios,
    student_t_95,
    student_t_tails,
)

CRITICAL_VALUES: Mapping[int, Mapping[int, float]] = {
    4: {4: 4.303},
    6: {4: 5.339, 6: 3.55},
    8: {4: 6.205, 6: 3.92, 8: 3.14},
    12: {4: 7.649, 6: 4.5, 8: 3.52, 12: 2.69},
    20: {4: 9.925, 6: 5.26, 8: 4.01, 12: 3.03, 16: 2.73, 20: 2.56},
}
"""By the most pairs of a design: at how many pairs there is a look, and how many standard errors its interval reaches.
The looks together name a side of two that are alike in 5 % of rows, of which 5 % * n / most are spent up to n pairs."""
FIRST_LOOK = min(CRITICAL_VALUES)
"""Pairs. With fewer there is no verdict."""
MIXTURE_VARIANCE = 10.0
"""Of the confidence sequence, in squared standard errors of one pair."""

Verdict = Literal["JAX faster", "PyTorch faster", "same", "undecided"]


class LogRatio(NamedTuple):
    """Of one replicate."""

    replicate: int
    value: float
    """Logarithm of JAX's throughput over PyTorch's."""
    jax_first: bool
    """JAX's process was started first."""


class RatioEstimate(NamedTuple):
    """The throughput of JAX over that of PyTorch."""

    value: float
    interval: Interval | None
    """None for a single pair."""
    replicates: int
    """The pairs that it rests on: those of the last look."""
    verdict: Verdict
    doubt: str | None = None
    """Why there is no verdict whatever the interval, and no part in a mean."""
    p: float | None = None
    """How often two sides that are alike come so far from 1, at this look or at one before; None without a look."""
    freedom: int = 0
    """Degrees of freedom of its interval."""
    at_most: int = 0
    """Pairs of the design; 0 where there is none, of fewer pairs than FIRST_LOOK."""
    is_extended: bool = False
    """The most pairs were raised after a look, so the interval is that of a confidence sequence."""

    @property
    def is_judged(self) -> bool:
        """Whether there was a look, and no doubt against a verdict."""
        return self.p is not None and self.doubt is None

    @property
    def excludes_1(self) -> bool:
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high

    @property
    def names_a_side(self) -> bool:
        return self.verdict in ("JAX faster", "PyTorch faster")


def looks_of(at_most: int) -> tuple[int, ...]:
    """At how many pairs; of the largest design within `at_most`. Empty under FIRST_LOOK."""
    return tuple(CRITICAL_VALUES[max(design)]) if (design := [one for one in CRITICAL_VALUES if one <= at_most]) else ()


def why_no_design(replicates: int) -> str | None:
    """Why so many are not to be asked for; None where they are."""
    if replicates < FIRST_LOOK or replicates in CRITICAL_VALUES:
        return None
    valid = ", ".join(map(str, CRITICAL_VALUES))
    return (
        f"{replicates} replicates are no design: a ratio is looked at after 4, 6, 8, 12, 16 and 20 pairs; "
        f"valid: {valid}, or 1 to {FIRST_LOOK - 1} for numbers without a verdict"
    )


def estimate_sequentially(found: Sequence[LogRatio], at_most: int, *, is_extended: bool = False) -> RatioEstimate:
    """The ratio at its last look: the first with a verdict, or the last for which there are pairs enough.

    With d the logarithms, of which n/2 have JAX first (+) and n/2 have PyTorch first (-): the estimate is
    c = (mean of d over +, plus mean over -) / 2, so that what the process that starts first loses is on both sides.
    s**2 is the sum of (d - mean of its order)**2 over n - 2; the interval is exp(c +- k * s / sqrt(n)), with k of
    CRITICAL_VALUES. Where one order has more pairs, its last ones wait for the others.

    Args:
        at_most: pairs of the design.
        is_extended: `at_most` was another one at an earlier look.

    Raises:
        ValueError: no pairs.
    """
    if not found:
        raise ValueError("a ratio needs one pair at the least")
    at_most = max(looks_of(at_most), default=0)
    latest = None
    for pairs in looks_of(at_most):
        chosen = balanced(found, pairs)
        if not chosen:
            break
        latest = _at_look(chosen, at_most, latest, is_extended=is_extended)
        if latest.verdict != "undecided":
            break
    return latest or _so_far(found, at_most)


def balanced(found: Sequence[LogRatio], pairs: int) -> list[LogRatio]:
    """The first of each order, half of `pairs` of each; empty where there are not so many."""
    ordered = sorted(found)
    half = pairs // 2
    of_orders = [[one for one in ordered if one.jax_first == first][:half] for first in (True, False)]
    return sum(of_orders, []) if all(len(one) == half for one in of_orders) else []


def _at_look(
    chosen: Sequence[LogRatio], at_most: int, before: RatioEstimate | None, *, is_extended: bool
) -> RatioEstimate:
    count, freedom = len(chosen), len(chosen) - 2
    means, squares = around_orders(chosen)
    centre, error = sum(means) / 2, math.sqrt(squares / freedom / count)
    critical = _of_confidence_sequence(count) if is_extended else CRITICAL_VALUES[at_most][count]
    interval = Interval(math.exp(centre - critical * error), math.exp(centre + critical * error))
    estimate = RatioEstimate(
        value=math.exp(centre),
        interval=interval,
        replicates=count,
        verdict=verdict_of(interval),
        freedom=freedom,
        at_most=at_most,
        is_extended=is_extended,
    )
    if error == 0:
        return doubted(estimate, "identical pairs: copied records?")
    p = _p_at_look(abs(centre) / error, freedom, critical)
    return estimate._replace(p=min(p, before.p) if before and before.p is not None else p)


def around_orders(found: Sequence[LogRatio]) -> tuple[list[float], float]:
    """The mean of each order in which processes were started, and the sum of all squared distances from their own."""
    means, squares = [], 0.0
    for first in (True, False):
        values = [one.value for one in found if one.jax_first == first]
        if values:
            means.append(math.fsum(values) / len(values))
            squares += math.fsum((value - means[-1]) ** 2 for value in values)
    return means, squares


def _p_at_look(t: float, freedom: int, critical: float) -> float:
    """The two-sided p of Student's t, times 5 % over that of the look's critical value: where it is below 5 %, the
    interval excludes 1."""
    return min(1.0, student_t_tails(t, freedom) * (1 - CONFIDENCE) / student_t_tails(critical, freedom))


def _of_confidence_sequence(pairs: int) -> float:
    """Standard errors that an interval reaches which holds at all looks together, whenever they are taken.

    The t mixture: with A = 1 + n * MIXTURE_VARIANCE, v = n - 2 and K = (A / 0.05**2)**(1 / (v + 1)), it is
    sqrt(v * (K - 1) / (1 - K / A)); infinite where K is A or more (Wang and Ramdas 2023, "Anytime-valid t-tests and
    confidence sequences for Gaussian means with unknown variance").
    """
    freedom, scale = pairs - 2, 1 + pairs * MIXTURE_VARIANCE
    factor = (scale / (1 - CONFIDENCE) ** 2) ** (1 / (freedom + 1))
    return math.sqrt(freedom * (factor - 1) / (1 - factor / scale)) if factor < scale else math.inf


def _so_far(found: Sequence[LogRatio], at_most: int) -> RatioEstimate:
    """Before the first look: no verdict, and Student's t over the pairs, in whatever order they were."""
    values = [one.value for one in found]
    return RatioEstimate(
        value=math.exp(math.fsum(values) / len(values)),
        interval=interval_of_log_ratios(values),
        replicates=len(values),
        verdict="undecided",
        at_most=at_most,
    )


def doubted(estimate: RatioEstimate, doubt: str) -> RatioEstimate:
    """Without a verdict, as the number means nothing."""
    return estimate._replace(verdict="undecided", doubt=doubt)


def verdict_of(interval: Interval | None) -> Verdict:
    """`same`: the whole interval lies within 1 / SAME_WITHIN and SAME_WITHIN, so that swapping the sides changes
    nothing. This comes first: a difference of 0.2 % may be sure, and is still none to choose a framework by."""
    if interval is None:
        return "undecided"
    if interval.low >= 1 / SAME_WITHIN and interval.high <= SAME_WITHIN:
        return "same"
    if interval.low > 1:
        return "JAX faster"
    if interval.high < 1:
        return "PyTorch faster"
    return "undecided"


def geometric_mean_of_ratios(estimates: Sequence[RatioEstimate]) -> tuple[float, Interval | None]:
    """The geometric mean over variants or benchmarks, and its 95 % interval; None where one of them had no look.

    The interval is about these very variants, not about others that might have been chosen: it holds what the
    replicates leave unknown. With e = half of log(high / low) / t[f_k] of each of k intervals, so that one alone keeps
    its own, it is exp(mean +- t[f] * sqrt(sum(e**2)) / k), with f = sum(e**2)**2 / sum(e**4 / f_k) degrees of freedom,
    rounded down (Welch and Satterthwaite; NIST/SEMATECH e-Handbook 2.5.7.1). It takes the errors of the variants for
    independent.

    Raises:
        ValueError: no estimates.
    """
    value = geometric_mean([estimate.value for estimate in estimates])
    variance = fourth = 0.0
    for estimate in estimates:
        if estimate.interval is None or not estimate.is_judged:
            return value, None
        error = math.log(estimate.interval.high / estimate.interval.low) / 2 / student_t_95(estimate.freedom)
        variance += error**2
        fourth += error**4 / estimate.freedom
    reach = student_t_95(math.floor(variance**2 / fourth * (1 + ROUNDING))) * math.sqrt(variance) / len(estimates)
    return value, Interval(value * math.exp(-reach), value * math.exp(reach))
