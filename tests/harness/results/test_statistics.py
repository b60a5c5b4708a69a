"""Statistics against values worked out by hand, and against references that share no code with them."""

import math
import random
import statistics as reference
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from harness.results.record import Blocks, Energy, Latency
from harness.results.statistics import (
    Interval,
    RatioEstimate,
    benjamini_hochberg,
    calls_needed,
    energy_per_sample,
    estimate_ratio,
    geometric_mean,
    geometric_mean_of_ratios,
    latency_mean_s,
    latency_p50_s,
    latency_p95_s,
    latency_p99_s,
    log_ratio_in_turns,
    median,
    median_interval,
    net_energy_per_sample,
    percentile,
    ratio_interval,
    relative_half_width,
    relative_interquartile_range,
    sample_summary,
    step_time_s,
    student_t_95,
    student_t_tails,
    throughput_samples_per_s,
)
from tests.made.records import blocks


def test_median_of_odd_and_even_counts() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5  # (2 + 3) / 2


def test_percentile_by_hand() -> None:
    # h = (5 - 1) * 0.95 = 3.8: 40 + 0.8 * (50 - 40)
    assert percentile([50, 10, 40, 20, 30], 0.95) == pytest.approx(48)
    assert percentile([50, 10, 40, 20, 30], 0) == 10
    assert percentile([50, 10, 40, 20, 30], 1) == 50
    assert percentile([7], 0.95) == 7


def test_percentile_is_numpys_default() -> None:
    values = [random.Random(3).lognormvariate(0, 1) for _ in range(101)]
    for share in (0.01, 0.25, 0.5, 0.9, 0.95, 0.999):
        assert percentile(values, share) == pytest.approx(float(np.percentile(values, 100 * share)), rel=1e-12)


def test_sample_summary_by_hand() -> None:
    """Squares of the distances from the mean 3: 4 + 1 + 0 + 1 + 4 = 10, over n - 1 = 4; p95 at position 3.8."""
    summary = sample_summary([4.0, 1.0, 3.0, 2.0, 5.0])
    assert summary == (3.0, pytest.approx(2.5**0.5), 1.0, 5.0, 3.0, pytest.approx(4.8))
    assert sample_summary([7.0]) == (7.0, 0.0, 7.0, 7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        *((lambda share=share: percentile([1, 2], share), "within 0 and 1") for share in (-0.1, 1.1, 95)),
        (lambda: median([]), "no values"),
        (lambda: percentile([], 0.5), "no values"),
        (lambda: sample_summary([]), "no values"),
        (lambda: geometric_mean([1, 0]), "positive"),
        (lambda: ratio_interval([1, 2, 3], [1, 2]), "3 replicates cannot be paired with 2"),
        (lambda: ratio_interval([1, 2, 0], [1, 2, 3]), "positive"),
        (lambda: estimate_ratio([], []), "one replicate"),
        (lambda: estimate_ratio([1, 2], [1]), "2 replicates cannot be paired with 1"),
        (lambda: estimate_ratio([1], [-1]), "positive"),
        (lambda: geometric_mean_of_ratios([]), "at least one"),
    ],
)
def test_what_has_no_number_is_refused(ask: Callable[[], object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ask()


def test_relative_interquartile_range_by_hand() -> None:
    # Of 1..5: quartiles 2 and 4, median 3.
    assert relative_interquartile_range([1, 2, 3, 4, 5]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("count", "interval"),
    [
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


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_too_few_values_have_no_interval(count: int) -> None:
    # Five: 1 - 2/32 = 0.9375 is under 0.95.
    assert median_interval([1.0] * count) == (-math.inf, math.inf)
    if count:
        assert relative_half_width([1.0] * count) == math.inf


def test_median_interval_covers_the_true_median_as_often_as_it_claims() -> None:
    draw = random.Random(11)
    runs, count = 4000, 15
    hits = 0
    for _ in range(runs):
        low, high = median_interval([draw.expovariate(1) for _ in range(count)])  # skewed; true median log 2
        hits += low <= math.log(2) <= high
    # k = 4: 1 - 2 * (1 + 15 + 105 + 455) / 2**15 = 0.9648. Four binomial standard errors of 4000 runs: 0.012.
    assert hits / runs == pytest.approx(0.9648, abs=0.012)


def test_relative_half_width_takes_the_wider_side() -> None:
    # Interval 90..130, median (98 + 102) / 2 = 100: 30 above, 10 below.
    assert relative_half_width([90, 95, 98, 102, 110, 130]) == pytest.approx(0.30)


def test_throughput_is_of_a_whole_block_over_its_own_time() -> None:
    # 140 steps of 2 samples, each 0.1 s, in blocks of 10 calls: 10 * 2 / 1.0 s = 20 samples/s.
    # Samples of all steps over the mean time of one would say 140 * 2 / 0.1 = 2,800, as one project does.
    assert throughput_samples_per_s(blocks([1.0] * 14)) == pytest.approx(20)
    assert step_time_s(blocks([1.0] * 14)) == pytest.approx(0.1)


def test_throughput_counts_the_steps_inside_a_call() -> None:
    # 4 calls * 25 steps * 64 samples = 6,400 samples in 0.5 s; 100 steps in 0.5 s.
    scan = blocks([0.5, 0.5, 0.5], calls=4, steps=25, samples=64)
    assert throughput_samples_per_s(scan) == pytest.approx(12_800)
    assert step_time_s(scan) == pytest.approx(0.005)


def test_throughput_is_the_median_over_blocks() -> None:
    # Rates of 20 samples over 0.1, 0.2 and 4 s: 200, 100, 5. One block that stalled does not count.
    assert throughput_samples_per_s(blocks([0.1, 4.0, 0.2])) == pytest.approx(100)


def test_the_99th_percentile_needs_368_calls() -> None:
    """0.99**367 is 2.5006 %, so the largest of 367 is below the percentile more often than in 2.5 % of all cases. Of
    1 to 368 s it is at position 367 * 0.99 = 363.33, where the 364th and the 365th are neighbours."""
    times_s = [float(count) for count in range(1, 369)]
    assert latency_p99_s(Latency(steps_per_call=1, call_times_s=times_s)) == pytest.approx(364.33)
    assert latency_p99_s(Latency(steps_per_call=1, call_times_s=times_s[:-1])) is None
    assert latency_p99_s(Latency(steps_per_call=2, call_times_s=times_s)) is None
    assert calls_needed(0.99) == 368 and 0.99**368 < 0.025 < 0.99**367


def test_latency_is_per_step() -> None:
    # 1, 2, 3, 4, 10 s a step. p95: h = 3.8, 4 + 0.8 * 6.
    latency = Latency(steps_per_call=1, call_times_s=[1, 2, 3, 4, 10])
    found = latency_p50_s(latency), latency_p95_s(latency), latency_mean_s(latency)
    assert found == (3, pytest.approx(8.8), pytest.approx(4))
    # The same in calls of 4 steps: a percentile of means is not that of a step.
    latency = Latency(steps_per_call=4, call_times_s=[4, 8, 12, 16, 40])
    found = latency_p50_s(latency), latency_p95_s(latency), latency_mean_s(latency)
    assert found == (3, None, pytest.approx(4))


def test_calls_needed_for_the_95th_percentile() -> None:
    # 0.95**71 = 0.0262 > 0.025 >= 0.95**72 = 0.0249.
    assert calls_needed(0.95) == 72


def test_geometric_mean() -> None:
    assert geometric_mean([2, 0.5]) == pytest.approx(1)
    assert geometric_mean([1.5, 2.25, 4]) == pytest.approx(reference.geometric_mean([1.5, 2.25, 4]))


def test_ratio_interval_by_hand() -> None:
    # log ratios log 2 + (-0.1, 0, 0.1): mean log 2, standard deviation 0.1, t[2] = 4.303.
    # Reach 4.303 * 0.1 / sqrt(3) = 0.248434.
    interval = ratio_interval([2 * math.exp(-0.1), 2, 2 * math.exp(0.1)], [1, 1, 1])
    assert interval.low == pytest.approx(2 * math.exp(-0.248434), rel=1e-5)
    assert interval.high == pytest.approx(2 * math.exp(0.248434), rel=1e-5)


def test_ratio_interval_is_paired() -> None:
    # Both sides drift by the same factor each time: the ratio is 1.25, without spread.
    interval = ratio_interval([125, 250, 375], [100, 200, 300])
    assert interval.low == pytest.approx(1.25)
    assert interval.high == pytest.approx(1.25)


def test_ratio_interval_of_swapped_sides_is_the_inverse() -> None:
    jax, torch = [105.0, 99.0, 111.0, 102.0], [80.0, 84.0, 79.0, 90.0]
    there, back = ratio_interval(jax, torch), ratio_interval(torch, jax)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_ratio_interval_covers_the_true_ratio_as_often_as_it_claims(count: int) -> None:
    draw = random.Random(count)
    runs = 4000
    hits = 0
    for _ in range(runs):
        interval = ratio_interval([1.3 * draw.lognormvariate(0, 0.02) for _ in range(count)], [1.0] * count)
        hits += interval.low <= 1.3 <= interval.high
    assert hits / runs == pytest.approx(0.95, abs=0.014)  # four binomial standard errors


def test_ratio_interval_needs_two_replicates() -> None:
    assert ratio_interval([1], [1]) is None
    # d = 0.1 and 0.3: mean 0.2, s = sqrt(0.02), s / sqrt(2) = 0.1, t[1] = 12.706.
    low, high = ratio_interval([math.exp(0.1), math.exp(0.3)], [1.0, 1.0])
    assert (math.log(low), math.log(high)) == (pytest.approx(0.2 - 1.2706), pytest.approx(0.2 + 1.2706))


def estimate(*log_ratios: float) -> RatioEstimate:
    return estimate_ratio([math.exp(d) for d in log_ratios], [1.0] * len(log_ratios))


def test_student_t_of_tables() -> None:
    # NIST/SEMATECH e-Handbook, 1.3.6.7.2, column 0.975.
    assert [student_t_95(freedom) for freedom in (1, 2, 9, 30)] == [12.706, 4.303, 2.262, 2.042]
    assert student_t_95(99) == 2.042  # the table's is 1.984: kept a little too wide


def test_a_clear_difference_names_the_faster_framework() -> None:
    # As above: mean log 2, reach 0.248434; 2 * exp(-0.248434) = 1.56 is above 1.
    jax, torch = [2 * math.exp(-0.1), 2, 2 * math.exp(0.1)], [1.0, 1.0, 1.0]
    found = estimate_ratio(jax, torch)
    assert found.value == pytest.approx(2)
    assert found.interval == ratio_interval(jax, torch)
    assert (found.replicates, found.verdict, found.replicates_needed) == (3, "JAX faster", None)
    assert estimate_ratio(torch, jax).verdict == "PyTorch faster"


def test_same_is_an_interval_within_one_percent() -> None:
    # Mean 0.004, standard deviation 0.001, reach 4.303 * 0.001 / sqrt(3) = 0.00248: 0.0015 to 0.0065 excludes 1 and
    # is still within log 1.01 = 0.00995.
    assert estimate(0.003, 0.004, 0.005)[2:5] == (3, "same", None)
    assert estimate(-0.003, -0.004, -0.005).verdict == "same"
    # 0.008 + 0.00248 = 0.0105: over the edge, and above 1.
    assert estimate(0.007, 0.008, 0.009).verdict == "JAX faster"
    assert estimate(-0.007, -0.008, -0.009).verdict == "PyTorch faster"


def test_undecided_says_how_many_replicates_would_decide() -> None:
    # Mean 0.02, standard deviation 0.01. Reach with 3: 0.0248, over 0.02. With 4: 3.182 * 0.01 / 2 = 0.0159, under.
    assert estimate(0.01, 0.02, 0.03)[2:5] == (3, "undecided", 4)
    # Mean 0.005: to exclude 1 the reach must be under 0.005; to be within 1 %, under 0.00995 - 0.005 = 0.00495.
    # 17: t[16] * 0.01 / sqrt(17) = 2.120 * 0.01 / 4.123 = 0.00514. 18: 2.110 * 0.01 / 4.243 = 0.00497, under 0.005.
    assert estimate(-0.005, 0.005, 0.015)[2:5] == (3, "undecided", 18)
    # Mean 0, standard deviation 0.005: within 1 % it must be under 0.00995. Reach with 3: 0.01242; with 4: 0.00796.
    assert estimate(-0.005, 0.0, 0.005)[2:5] == (3, "undecided", 4)


def test_replicates_needed_end_at_a_hundred() -> None:
    assert estimate(-1.0, 0.0, 1.0)[2:5] == (3, "undecided", 100)


@pytest.mark.parametrize("count", [1, 2])
def test_under_three_replicates_three_are_needed(count: int) -> None:
    found = estimate(*[0.5] * count)
    assert (found.value, *found[2:5]) == (pytest.approx(math.exp(0.5)), count, "undecided", 3)
    assert (found.interval is None) == (count == 1)


def test_geometric_mean_of_ratios_by_hand() -> None:
    # Each log ratio has the standard error 0.1 / sqrt(3): sum of squares 0.02 / 3, so 0.0816497 / 2 for their mean.
    # Degrees of freedom (0.02 / 3)**2 / (2 * (0.01 / 3)**2 / 2) = 4; t[4] = 2.776. Reach 0.113330.
    there = estimate(math.log(8) - 0.1, math.log(8), math.log(8) + 0.1)
    back = estimate(-math.log(2) - 0.1, -math.log(2), -math.log(2) + 0.1)
    value, interval = geometric_mean_of_ratios([there, back])
    assert value == pytest.approx(2)  # sqrt(8 / 2)
    assert interval.low == pytest.approx(2 * math.exp(-0.113330), rel=1e-6)
    assert interval.high == pytest.approx(2 * math.exp(0.113330), rel=1e-6)


def test_geometric_mean_of_one_ratio_is_that_ratio() -> None:
    one = estimate(0.1, 0.15, 0.22, 0.12)
    value, interval = geometric_mean_of_ratios([one])
    assert value == pytest.approx(one.value)
    assert interval == pytest.approx(one.interval)


def test_geometric_mean_without_spread_or_without_an_interval() -> None:
    assert geometric_mean_of_ratios([RatioEstimate(1.5, Interval(1.5, 1.5), 3, "JAX faster", None)]) == (
        pytest.approx(1.5),
        pytest.approx((1.5, 1.5)),
    )
    assert geometric_mean_of_ratios([estimate(0.1, 0.1, 0.1), estimate(0.3)]) == (
        pytest.approx(math.exp(0.2)),
        None,
    )


def test_geometric_mean_covers_the_true_mean_as_often_as_it_claims() -> None:
    """Three variants of very different spread, three replicates of each: the worst case of Welch and Satterthwaite."""
    draw = random.Random(5)
    runs, hits = 4000, 0
    for _ in range(runs):
        _, interval = geometric_mean_of_ratios(
            [estimate(*(draw.gauss(centre, spread) for _ in range(3))) for centre, spread in CENTRES_AND_SPREADS]
        )
        hits += interval.low <= math.exp(0.1) <= interval.high
    assert 0.95 - 0.014 <= hits / runs <= 0.98  # rounding the degrees of freedom down only widens it


CENTRES_AND_SPREADS = ((0.3, 0.01), (-0.1, 0.02), (0.1, 0.05))
"""Of log ratios; the mean of the centres is 0.1."""


def test_net_energy_leaves_out_what_idling_costs() -> None:
    # 900 J over 3 s at 100 W idle: 600 J are the work's; 300 samples.
    energy = Energy(gross_joules=900.0, window_s=3.0, samples=300, idle_watts=100.0)
    assert (energy_per_sample(energy), net_energy_per_sample(energy)) == (3.0, 2.0)
    assert net_energy_per_sample(Energy(gross_joules=900.0, window_s=3.0, samples=300)) is None
    assert energy_per_sample(Energy(absent="no GPU")) is None


@pytest.mark.parametrize(
    ("t", "freedom", "tails"),
    [
        (1.0, 1, 0.5),  # Cauchy: 1 - 2 atan(1) / pi
        (0.0, 4, 1.0),
        (math.sqrt(2), 2, 1 - math.sqrt(0.5)),  # 1 - t / sqrt(2 + t**2)
        *((student_t_95(freedom), freedom, 0.05) for freedom in (1, 2, 3, 4, 9, 10, 29, 30)),
    ],
)
def test_tails_of_student_t(t: float, freedom: int, tails: float) -> None:
    assert student_t_tails(t, freedom) == pytest.approx(tails, rel=1e-3)


def test_p_value_of_a_ratio() -> None:
    """d = log 2 + (-1, 0, 1) * 0.1: t = log 2 / 0.1 * sqrt(3) = 12.006 with 2 degrees of freedom."""
    differences = [math.log(2) - 0.1, math.log(2), math.log(2) + 0.1]
    t = math.log(2) / 0.1 * math.sqrt(3)
    estimate = estimate_ratio([math.exp(one) for one in differences], [1.0] * 3)
    assert estimate.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert estimate_ratio([2.0], [1.0]).p is None
    assert estimate_ratio([2.0] * 3, [1.0] * 3).p == 0
    assert estimate_ratio([1.0] * 3, [1.0] * 3).p == 1


def test_p_is_below_5_percent_just_where_the_interval_excludes_1() -> None:
    for shift in (0.0, 0.02, 0.024, 0.025, 0.026, 0.1):
        estimate = estimate_ratio([math.exp(shift + step) for step in (-0.01, 0.0, 0.01)], [1.0] * 3)
        assert estimate.interval is not None and estimate.p is not None
        assert (estimate.p < 0.05) == (estimate.interval.low > 1)


def test_q_values_of_benjamini_and_hochberg() -> None:
    """m = 4: 0.01 * 4 / 1 = 0.04; 0.02 * 4 / 2 = 0.04; 0.04 * 4 / 3 = 0.0533; 0.5 * 4 / 4 = 0.5."""
    assert benjamini_hochberg([0.04, 0.01, 0.5, 0.02]) == pytest.approx([0.16 / 3, 0.04, 0.5, 0.04])
    assert benjamini_hochberg([0.04, 0.05]) == pytest.approx([0.05, 0.05])  # not 0.08: the second takes it along
    assert benjamini_hochberg([]) == []
    assert benjamini_hochberg([0.03]) == [0.03]
    assert benjamini_hochberg([0.9, 0.9]) == [0.9, 0.9]


# Processes that take turns


def blocks_of(times_s: list[float], samples: int = 1) -> Blocks:
    return Blocks(
        calls_per_block=samples, steps_per_call=1, samples_per_step=1, block_times_s=times_s, warmup_times_s=[]
    )


def test_ratio_of_neighbouring_blocks_by_hand() -> None:
    """Two quads: log 2 and half of log 40, whose median is their mean. Blocks of A have 3 samples, those of B 6. The
    fifth block of A has no neighbour."""
    a = blocks_of([0.3, 0.3, 0.6, 0.3, 9.0], samples=3)  # 10, 10, 5 and 10 samples/s
    b = blocks_of([1.2, 1.2, 6.0, 4.8], samples=6)  # 5, 5, 1 and 1.25: the quads are 10 * 10 / (5 * 5), 50 / 1.25
    expected = (math.log(4) / 2 + math.log(40) / 2) / 2
    assert log_ratio_in_turns(a, b) == pytest.approx(expected)
    assert log_ratio_in_turns(b, a) == pytest.approx(-expected)
    with pytest.raises(ValueError, match="no values"):
        log_ratio_in_turns(blocks_of([1.0]), b)


DRIFT = 0.002
"""By so much the machine gets slower with each block, on the logarithm."""
TRUE_RATIO = 1.02


def drifting(positions: Iterable[int], work_s: float) -> Blocks:
    """Blocks at these places in time."""
    return blocks_of([work_s * math.exp(DRIFT * position) for position in positions])


@pytest.mark.parametrize("quads", [10, 25])
def test_neighbouring_blocks_remove_a_drift(quads: int) -> None:
    """A is 2 % faster. One after the other, B's blocks come 2 q later each, and the drift of 4 % (10 quads) or 10 %
    (25) is taken for a difference of the two. In turns it leaves nothing."""
    count = 2 * quads
    one_by_one = drifting(range(count), 1.0), drifting(range(count, 2 * count), TRUE_RATIO)
    apart = [throughput_samples_per_s(blocks) for blocks in one_by_one]
    assert math.log(apart[0] / apart[1]) == pytest.approx(math.log(TRUE_RATIO) + DRIFT * count, abs=1e-4)

    of_a = [4 * k + place for k in range(quads) for place in (0, 3)]
    of_b = [4 * k + place for k in range(quads) for place in (1, 2)]
    in_turns = drifting(of_a, 1.0), drifting(of_b, TRUE_RATIO)
    assert log_ratio_in_turns(*in_turns) == pytest.approx(math.log(TRUE_RATIO), abs=1e-12)


def test_neighbouring_blocks_are_less_noisy_than_medians_where_the_machine_changes() -> None:
    """A simulated machine whose speed walks at random, as a busy one's does: steps of 2 % from block to block, and
    blocks that each have 1 % of their own. The true ratio is 1.02; 200 pairs of processes with 20 blocks each."""
    draw = random.Random(1)
    errors: dict[str, list[float]] = {"in turns": [], "one by one": []}

    def walk(places: int) -> list[float]:
        speed, found = 0.0, []
        for _ in range(places):
            speed += draw.gauss(0, 0.02)
            found.append(speed + draw.gauss(0, 0.01))
        return found

    def blocks(machine: list[float], places: Iterable[int], work_s: float) -> Blocks:
        return blocks_of([work_s * math.exp(machine[place]) for place in places])

    true = math.log(TRUE_RATIO)
    for _ in range(200):
        machine = walk(40)
        a, b = blocks(machine, range(20), 1.0), blocks(machine, range(20, 40), TRUE_RATIO)
        errors["one by one"].append(math.log(throughput_samples_per_s(a) / throughput_samples_per_s(b)) - true)
        a = blocks(machine, [place for place in range(40) if place % 4 in (0, 3)], 1.0)
        b = blocks(machine, [place for place in range(40) if place % 4 in (1, 2)], TRUE_RATIO)
        errors["in turns"].append(log_ratio_in_turns(a, b) - true)
    spread = {name: math.sqrt(sum(error**2 for error in found) / 200) for name, found in errors.items()}
    # Of a quad, with steps e of the walk, (e1 - e3) / 2, and four blocks' own noise: sqrt(0.02**2 / 2 + 0.01**2)
    # = 0.0173. Of the median of ten, pi / 2 times the variance over 10: 0.0069. Medians of each side are
    # 20 steps apart.
    assert spread["in turns"] == pytest.approx(0.0069, rel=0.25)
    assert spread["one by one"] > 5 * spread["in turns"]
