"""Statistics against values worked out by hand, and against references that share no code with them."""

import math
import random
import statistics as reference
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from harness.results.record import Blocks, Latency
from harness.results.statistics import (
    benjamini_hochberg,
    block_drift,
    calls_needed,
    geometric_mean,
    holm,
    latency_mean_s,
    latency_p50_s,
    latency_p95_s,
    latency_p99_s,
    median,
    median_interval,
    paired_ratio,
    percentile,
    relative_half_width,
    sample_summary,
    step_time_s,
    student_t_95,
    student_t_tails,
    throughput_samples_per_s,
)
from tests.made.records import blocks


def test_median_by_hand_and_percentiles_as_numpy_has_them() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5  # (2 + 3) / 2
    values = [random.Random(3).lognormvariate(0, 1) for _ in range(101)]
    for share in (0, 0.01, 0.25, 0.9, 0.95, 0.999, 1):
        assert percentile(values, share) == pytest.approx(float(np.percentile(values, 100 * share)), rel=1e-12)
    assert geometric_mean([1.5, 2.25, 4]) == pytest.approx(reference.geometric_mean([1.5, 2.25, 4]))


def test_sample_summary_by_hand() -> None:
    """Squares of the distances from the mean 3: 4 + 1 + 0 + 1 + 4 = 10, over n - 1 = 4; p95 at position 3.8."""
    summary = sample_summary([4.0, 1.0, 3.0, 2.0, 5.0])
    assert summary == (3.0, pytest.approx(2.5**0.5), 1.0, 5.0, 3.0, pytest.approx(4.8))
    assert sample_summary([7.0]) == (7.0, 0.0, 7.0, 7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        *((lambda share=share: percentile([1, 2], share), "within 0 and 1") for share in (-0.1, 95)),
        (lambda: median([]), "no values"),
        (lambda: percentile([], 0.5), "no values"),
        (lambda: sample_summary([]), "no values"),
        (lambda: geometric_mean([1, 0]), "positive"),
        (lambda: paired_ratio([1, 2, 0], [1, 2, 3]), "positive"),
        (lambda: paired_ratio([], []), "one replicate"),
        (lambda: paired_ratio([1, 2], [1]), "2 replicates cannot be paired with 1"),
    ],
)
def test_what_has_no_number_is_refused(ask: Callable[[], object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ask()


@pytest.mark.parametrize(
    ("count", "interval"),
    [
        *((count, (-math.inf, math.inf)) for count in (0, 5)),  # 1 - 2/32 = 0.9375 is too little
        # P(Bin(6, 1/2) <= 0) = 1/64, so from the smallest to the largest the coverage is 1 - 2/64 = 0.96875.
        (6, (1, 6)),
        # k = 2: P(Bin(10, 1/2) <= 1) = (1 + 10) / 1024, coverage 1 - 22/1024 = 0.978515625.
        # k = 3: (1 + 10 + 45) / 1024, coverage 0.890625: too little.
        (10, (2, 9)),
        # A standard table (Conover, "Practical Nonparametric Statistics"): n = 20, 95 %: ranks 6 and 15.
        (20, (6, 15)),
    ],
)
def test_median_interval_by_hand(count: int, interval: tuple[int, int]) -> None:
    assert median_interval(random.Random(1).sample(range(1, count + 1), count)) == interval


def test_relative_half_width_takes_the_wider_side_and_drift_compares_the_first_third_with_the_last() -> None:
    # Interval 90..130, median (98 + 102) / 2 = 100: 30 above, 10 below.
    assert relative_half_width([90, 95, 98, 102, 110, 130]) == pytest.approx(0.30)
    assert relative_half_width([1.0] * 5) == math.inf
    assert block_drift(blocks([0.1, 0.1, 0.1, 0.2, 0.2, 0.107, 0.107, 0.107])) == pytest.approx(0.07)
    assert block_drift(blocks([0.1, 0.1, 0.1, 0.2, 0.2])) is None


@pytest.mark.parametrize(
    ("found", "samples_per_s", "step_s"),
    [
        # 140 steps of 2 samples, each 0.1 s, in blocks of 10 calls: 10 * 2 / 1.0 s = 20 samples/s.
        # Samples of all steps over the mean time of one would say 140 * 2 / 0.1 = 2,800, as one project does.
        (blocks([1.0] * 14), 20, 0.1),
        # 4 calls * 25 steps * 64 samples = 6,400 samples in 0.5 s; 100 steps in 0.5 s.
        (blocks([0.5] * 3, calls=4, steps=25, samples=64), 12_800, 0.005),
        # Rates of 20 samples over 0.1, 0.2 and 4 s: 200, 100, 5. One block that stalled does not count.
        (blocks([0.1, 4.0, 0.2]), 100, 0.02),
    ],
)
def test_throughput_and_step_time_by_hand(found: Blocks, samples_per_s: float, step_s: float) -> None:
    assert throughput_samples_per_s(found) == pytest.approx(samples_per_s)
    assert step_time_s(found) == pytest.approx(step_s)


def test_the_99th_percentile_needs_368_calls() -> None:
    """0.99**367 is 2.5006 %, so the largest of 367 is below the percentile more often than in 2.5 % of all cases. Of
    1 to 368 s it is at position 367 * 0.99 = 363.33, where the 364th and the 365th are neighbours."""
    times_s = [float(count) for count in range(1, 369)]
    assert latency_p99_s(Latency(steps_per_call=1, call_times_s=times_s)) == pytest.approx(364.33)
    assert latency_p99_s(Latency(steps_per_call=1, call_times_s=times_s[:-1])) is None
    assert latency_p99_s(Latency(steps_per_call=2, call_times_s=times_s)) is None
    assert calls_needed(0.99) == 368 and 0.99**368 < 0.025 < 0.99**367
    assert calls_needed(0.95) == 72 and 0.95**72 < 0.025 < 0.95**71  # 0.0249 and 0.0262


def test_latency_is_per_step() -> None:
    """1, 2, 3, 4, 10 s a step; p95: h = 3.8, 4 + 0.8 * 6. In calls of 4 steps a percentile of means is not that of a
    step."""
    for steps, p95 in ((1, pytest.approx(8.8)), (4, None)):
        latency = Latency(steps_per_call=steps, call_times_s=[steps * one for one in (1, 2, 3, 4, 10)])
        found = latency_p50_s(latency), latency_p95_s(latency), latency_mean_s(latency)
        assert found == (3, p95, pytest.approx(4))


def test_paired_ratio_by_hand() -> None:
    """Log ratios log 2 + (-0.1, 0, 0.1): mean log 2, standard deviation 0.1, t[2] = 4.303, so a reach of
    4.303 * 0.1 / sqrt(3) = 0.248434; and t = log 2 / 0.1 * sqrt(3) = 12.006 with 2 degrees of freedom."""
    value, interval, count, p = paired_ratio([2 * math.exp(step) for step in (-0.1, 0, 0.1)], [1.0] * 3)
    t = math.log(2) / 0.1 * math.sqrt(3)
    assert (value, count, p) == (pytest.approx(2), 3, pytest.approx(1 - t / math.sqrt(2 + t**2)))
    assert interval == pytest.approx((2 * math.exp(-0.248434), 2 * math.exp(0.248434)), rel=1e-5)
    # d = 0.1 and 0.3: mean 0.2, s = sqrt(0.02), s / sqrt(2) = 0.1, t[1] = 12.706.
    low, high = paired_ratio([math.exp(0.1), math.exp(0.3)], [1.0, 1.0]).interval
    assert (math.log(low), math.log(high)) == (pytest.approx(0.2 - 1.2706), pytest.approx(0.2 + 1.2706))
    assert paired_ratio([2.0], [1.0]) == (2, None, 1, None)
    alike = paired_ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])  # a drift of both sides
    assert (alike.interval, alike.p) == (pytest.approx((2, 2)), 0)
    assert paired_ratio([1.0] * 3, [1.0] * 3).p == 1


@pytest.mark.parametrize(
    ("t", "freedom", "tails"),
    [
        (1.0, 1, 0.5),  # Cauchy: 1 - 2 atan(1) / pi
        (0.0, 4, 1.0),
        (math.sqrt(2), 2, 1 - math.sqrt(0.5)),  # 1 - t / sqrt(2 + t**2)
        *((student_t_95(freedom), freedom, 0.05) for freedom in (1, 2, 3, 4, 9, 10, 29, 30)),
    ],
)
def test_student_t_by_hand_and_by_tables(t: float, freedom: int, tails: float) -> None:
    """The table against scipy. Above 30 it is kept a little too wide: 1.984 for 99."""
    assert student_t_tails(t, freedom) == pytest.approx(tails, rel=1e-3)
    assert [student_t_95(one) for one in range(1, 31)] == [round(stats.t.ppf(0.975, one), 3) for one in range(1, 31)]
    assert student_t_95(99) == 2.042


def test_q_values_of_benjamini_and_hochberg_and_what_holm_keeps() -> None:
    """m = 4: 0.01 * 4 / 1 = 0.04; 0.02 * 4 / 2 = 0.04; 0.04 * 4 / 3 = 0.0533; 0.5 * 4 / 4 = 0.5. By Holm, 0.01 <= 0.05
    / 4 and 0.016 <= 0.05 / 3; 0.03 > 0.05 / 2, so it and all that are larger go."""
    assert benjamini_hochberg([0.04, 0.01, 0.5, 0.02]) == pytest.approx([0.16 / 3, 0.04, 0.5, 0.04])
    assert benjamini_hochberg([0.04, 0.05]) == pytest.approx([0.05, 0.05])  # not 0.08: the second takes it along
    assert holm([("a", 0.03), ("b", 0.01), ("c", 0.016), ("d", 0.001 + 0.03)]) == {"b", "c"}
    assert (benjamini_hochberg([]), holm([])) == ([], set())
