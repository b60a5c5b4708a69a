"""The sequential design: estimates worked out by hand, and critical values against a simulation of its own."""

import math
from itertools import cycle

import numpy as np
import pytest
from scipy import stats

from harness.results.sequential import (
    CRITICAL_VALUES,
    LogRatio,
    RatioEstimate,
    doubted,
    estimate_sequentially,
    geometric_mean_of_ratios,
    looks_of,
    verdict_of,
    why_no_design,
)
from harness.results.statistics import Interval, student_t_95

FOUR = (0.08, 0.04, 0.12, 0.06)
"""JAX first: 0.08 and 0.12, of mean 0.10 and squares 2 * 0.02**2; else 0.04 and 0.06, of mean 0.05 and squares
2 * 0.01**2. So the estimate is 0.075, s**2 = 0.001 / 2 = 0.0005, and its error sqrt(0.0005 / 4) = 0.01118034."""
ERROR = 0.01118034


def pairs(*values: float, orders: str = "+-") -> list[LogRatio]:
    """`+`: JAX first; the orders are repeated."""
    return [LogRatio(n, value, order == "+") for n, (value, order) in enumerate(zip(values, cycle(orders)))]  # noqa: B905


@pytest.mark.parametrize(
    ("at_most", "reach", "verdict"),
    [
        (12, 7.649 * ERROR, "undecided"),  # 0.0855
        (8, 6.205 * ERROR, "JAX faster"),  # 0.0694
        (5, 4.303 * ERROR, "JAX faster"),  # the largest design within
    ],
)
def test_estimate_at_four_pairs_by_hand(at_most: int, reach: float, verdict: str) -> None:
    found = estimate_sequentially(pairs(*FOUR), at_most)
    assert found.value == pytest.approx(math.exp(0.075))
    assert found.interval == pytest.approx((math.exp(0.075 - reach), math.exp(0.075 + reach)), rel=1e-7)
    assert (found.freedom, found.replicates) == (2, 4)
    assert (found.verdict, found.at_most, found.doubt) == (verdict, {5: 4}.get(at_most, at_most), None)
    assert found.excludes_1 == found.names_a_side == (verdict != "undecided") and found.is_judged


def test_where_one_order_has_more_pairs_they_wait() -> None:
    """Three of four have JAX first: no look. With a second one of the other order it is that of FOUR."""
    found = estimate_sequentially(pairs(0.08, 0.04, 0.12, 0.50, orders="+-++"), 12)
    assert (found.verdict, found.p, found.replicates) == ("undecided", None, 4)
    assert not found.is_judged
    later = estimate_sequentially(pairs(0.08, 0.04, 0.12, 0.50, 0.06, orders="+-++-"), 12)
    assert (later.value, later.replicates) == (pytest.approx(math.exp(0.075)), 4)


@pytest.mark.parametrize(("count", "reach"), [(1, None), (2, 12.706 * 0.1), (3, 4.303 * 0.1 / math.sqrt(3))])
def test_before_the_first_look_there_is_a_number_and_no_verdict(count: int, reach: float | None) -> None:
    """d = 0.1 and 0.3: mean 0.2, error 0.1, t[1] = 12.706; a third of 0.2 leaves s = 0.1, t[2] = 4.303."""
    found = estimate_sequentially(pairs(*(0.1, 0.3, 0.2)[:count]), 12)
    assert found.value == pytest.approx(math.exp(0.1 if count == 1 else 0.2))
    assert found.interval == (None if reach is None else pytest.approx((math.exp(0.2 - reach), math.exp(0.2 + reach))))
    assert (found.verdict, found.p, found.replicates, found.at_most) == ("undecided", None, count, 12)
    assert estimate_sequentially(pairs(0.1), 3).at_most == 0


def test_a_row_decided_at_four_stays_decided_whatever_comes_later() -> None:
    """As FOUR, and 0.5 more: 0.575 is over 7.649 * 0.01118."""
    four = [value + 0.5 for value in FOUR]
    decided = estimate_sequentially(pairs(*four), 12)
    assert decided.verdict == "JAX faster"
    assert estimate_sequentially(pairs(*four, *[-9.0, -8.0] * 4), 12) == decided
    with pytest.raises(ValueError, match="one pair"):
        estimate_sequentially([], 12)


@pytest.mark.parametrize(
    ("count", "looked_at", "centre", "reach"),
    [
        (5, 4, 0.035, 7.649 * ERROR),
        # Squares 0.0032 / 3 and 0.0008 / 3, over 4 and 6: the error is 0.00745356.
        (7, 6, 0.03, 4.5 * 0.00745356),
        # Squares 0.0016 and 0.0004, over 6 and 8: the error is 0.00645497. That decides.
        (12, 8, 0.035, 3.52 * 0.00645497),
    ],
)
def test_looks_go_on_until_one_decides(count: int, looked_at: int, centre: float, reach: float) -> None:
    """JAX first: 0.04, 0.08, ...; else 0.00, 0.02, ..."""
    found = estimate_sequentially(pairs(*[0.04, 0.0, 0.08, 0.02] * 3)[:count], 12)
    assert (found.replicates, found.value) == (looked_at, pytest.approx(math.exp(centre)))
    assert found.interval == pytest.approx((math.exp(centre - reach), math.exp(centre + reach)), rel=1e-6)
    assert found.verdict == ("undecided" if looked_at < 8 else "JAX faster")


def test_identical_pairs_are_doubted_and_a_doubt_takes_the_verdict_away() -> None:
    found = estimate_sequentially(pairs(*[0.2] * 4), 12)
    assert (found.verdict, found.doubt, found.p) == ("undecided", "identical pairs: copied records?", None)
    assert not found.is_judged
    found = doubted(estimate_sequentially(pairs(*FOUR), 4), "a reason")
    assert (found.verdict, found.doubt, found.is_judged) == ("undecided", "a reason", False)
    assert found.value == pytest.approx(math.exp(0.075))


def with_t(t: float) -> list[LogRatio]:
    """Four pairs, so many errors from 1: of FOUR's deviations."""
    return pairs(*(t * ERROR + step for step in (-0.02, -0.01, 0.02, 0.01)))


@pytest.mark.parametrize("at_most", CRITICAL_VALUES)
def test_p_is_5_percent_at_the_critical_value_and_goes_as_students(at_most: int) -> None:
    critical = CRITICAL_VALUES[at_most][4]
    for t in (critical, critical * 1.5, critical / 2):
        expected = 0.05 * stats.t.sf(t, 2) / stats.t.sf(critical, 2)
        assert estimate_sequentially(with_t(t), at_most).p == pytest.approx(expected, rel=1e-5)
    for shift, excludes in ((-1e-4, False), (1e-4, True)):
        found = estimate_sequentially(with_t(critical + shift), at_most)
        assert (found.p < 0.05) == found.excludes_1 == excludes
    assert estimate_sequentially(with_t(0.0), at_most).p == 1
    if at_most > 4:  # a later look does not raise it
        later = [*with_t(critical - 1e-4), LogRatio(4, 0.4, True), LogRatio(5, -0.4, False)]
        assert estimate_sequentially(later, at_most).p == estimate_sequentially(later[:4], at_most).p


@pytest.mark.parametrize(
    ("count", "reach"),
    [
        # A = 41, K = (41 / 0.0025)**(1 / 3) = 25.4067: sqrt(2 * 24.4067 / (1 - 25.4067 / 41)).
        (4, 11.3290),
        # A = 61, K = (61 / 0.0025)**(1 / 5) = 7.54185: sqrt(4 * 6.54185 / (1 - 7.54185 / 61)).
        (6, 5.46434),
    ],
)
def test_a_design_that_was_raised_has_a_confidence_sequence(count: int, reach: float) -> None:
    found = estimate_sequentially(pairs(*FOUR, 0.08, 0.05)[:count], 12, is_extended=True)
    fixed = estimate_sequentially(pairs(*FOUR, 0.08, 0.05)[:count], 12)
    assert found.is_extended and found.replicates == fixed.replicates == count
    half, fixed_half = (math.log(one.interval.high / one.value) for one in (found, fixed))
    assert half == pytest.approx(reach * fixed_half / CRITICAL_VALUES[12][count], rel=1e-5)
    for t, excludes in ((reach * 0.999, False), (reach * 1.001, True)):  # its p knows of it
        at_4 = estimate_sequentially(with_t(t), 12, is_extended=True)
        assert count == 6 or (at_4.p < 0.05) == at_4.excludes_1 == excludes


# How often two that are alike are told apart.


@pytest.mark.parametrize(("at_most", "order_effect"), [*((most, 0.0) for most in CRITICAL_VALUES), (12, 2.0)])
def test_two_that_are_alike_are_told_apart_in_5_percent(at_most: int, order_effect: float) -> None:
    """Drawn log ratios with a noise of 1, in the order + - - + ...; four binomial standard errors are 0.006. The effect
    of the order is twice the noise: with noise of 1 %, 2 %."""
    first = np.arange(at_most) % 4 % 3 == 0
    drawn = np.random.default_rng(1).standard_normal((20_000, at_most)) + np.where(first, order_effect, -order_effect)
    is_named = np.zeros(len(drawn), bool)
    for count, critical in CRITICAL_VALUES[at_most].items():
        of_first, of_other = (drawn[:, np.flatnonzero(first == one)[: count // 2]] for one in (True, False))
        variance = (of_first.var(1, ddof=1) + of_other.var(1, ddof=1)) / 2
        is_named |= np.abs(of_first.mean(1) + of_other.mean(1)) / 2 / np.sqrt(variance / count) > critical
        assert is_named.mean() == pytest.approx(0.05 * count / at_most, abs=0.006)  # spent evenly over the pairs
    assert tuple(CRITICAL_VALUES[at_most]) == looks_of(at_most) and count == at_most
    for row, named in list(zip(drawn, is_named, strict=True))[:200]:  # the code is what was simulated
        assert estimate_sequentially(pairs(*row, orders="+--+"), at_most).names_a_side == named


# Verdicts and designs.


def test_verdict_of_an_interval() -> None:
    """The first excludes 1, and is none to choose a framework by."""
    intervals = ((1.001, 1.0099), (1 / 1.0099, 0.999), (1.001, 1.0101), (1 / 1.0101, 0.999), (0.98, 1.001))
    verdicts = ["same", "same", "JAX faster", "PyTorch faster", "undecided"]
    assert [verdict_of(Interval(*one)) for one in intervals] == verdicts
    assert verdict_of(None) == "undecided"


def test_what_is_no_design_is_named_with_what_is_valid() -> None:
    assert [count for count in range(1, 40) if why_no_design(count) is None] == [1, 2, 3, 4, 6, 8, 12, 20]
    assert why_no_design(5) == (
        "5 replicates are no design: a ratio is looked at after 4, 6, 8, 12, 16 and 20 pairs; "
        "valid: 4, 6, 8, 12, 20, or 1 to 3 for numbers without a verdict"
    )
    assert [looks_of(count) for count in (3, 5, 12, 100)] == [(), (4,), (4, 6, 8, 12), (4, 6, 8, 12, 16, 20)]


# The mean of ratios.


def estimate(value: float, error: float | None, p: float | None = 0.5) -> RatioEstimate:
    reach = None if error is None else math.exp(student_t_95(2) * error)
    interval = Interval(value / reach, value * reach) if reach else None
    return RatioEstimate(value, interval, 4, "undecided", p=p, freedom=2)


def test_geometric_mean_of_ratios_by_hand() -> None:
    """Errors of 0.05 and 0.05: sqrt(0.005) / 2 = 0.0353553 for their mean, (0.005)**2 / (2 * 0.0025**2 / 2) = 4 degrees
    of freedom, t[4] = 2.776: a reach of 0.0981464. Errors of 0.01 and 0.02: sqrt(0.0005) / 2 = 0.0111803, and
    0.0005**2 / ((1e-8 + 1.6e-7) / 2) = 2.94, so 2 degrees, t[2] = 4.303: 0.0481090."""
    for errors, reach in (((0.05, 0.05), 0.0981464), ((0.01, 0.02), 0.0481090)):
        value, interval = geometric_mean_of_ratios([estimate(8.0, errors[0]), estimate(0.5, errors[1])])
        assert value == pytest.approx(2)
        assert interval == pytest.approx((2 * math.exp(-reach), 2 * math.exp(reach)), rel=1e-6)
    alone = estimate_sequentially(pairs(*FOUR), 12)  # keeps its own interval, which is wide as there are more looks
    assert geometric_mean_of_ratios([alone])[1] == pytest.approx(alone.interval)
    # With one that had no look, or is doubted, there is no interval.
    for without in (estimate(0.5, 0.05, p=None), estimate(0.5, None), doubted(estimate(0.5, 0.1), "!")):
        assert geometric_mean_of_ratios([estimate(8.0, 0.05), without]) == (pytest.approx(2), None)
