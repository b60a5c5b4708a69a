"""Statistics against values worked out by hand, and against references that share no code with them."""

import math
import random
import statistics as reference
from typing import Any

import numpy as np
import pytest

from harness.record import Blocks, Energy, GpuState, Latency, Result
from harness.statistics import (
    Interval,
    RatioEstimate,
    calls_needed,
    estimate_ratio,
    geometric_mean,
    geometric_mean_of_ratios,
    median,
    median_interval,
    percentile,
    quality_flags,
    ratio_interval,
    relative_half_width,
    relative_interquartile_range,
    sample_summary,
    step_latency,
    step_time_s,
    student_t_95,
    summary_numbers,
    throughput_samples_per_s,
)

LOOSE = math.inf
"""A target for the noise that is always reached: the flag under test stands alone."""


def blocks(times_s: list[float], *, calls: int = 10, steps: int = 1, samples: int = 2) -> Blocks:
    return Blocks(
        calls_per_block=calls,
        steps_per_call=steps,
        samples_per_step=samples,
        block_times_s=times_s,
        warmup_times_s=[],
    )


def gpu_state(sm_clock_mhz: int = 1980, reasons: tuple[str, ...] = (), others: int = 0) -> GpuState:
    return GpuState(
        sm_clock_mhz=sm_clock_mhz,
        memory_clock_mhz=3201,
        temperature_c=45,
        power_watts=300.0,
        throttle_reasons=reasons,
        other_processes=others,
    )


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
    with pytest.raises(ValueError, match="no values"):
        sample_summary([])


@pytest.mark.parametrize("share", [-0.1, 1.1, 95])
def test_percentile_refuses_a_share_outside_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="within 0 and 1"):
        percentile([1, 2], share)


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_relative_interquartile_range_by_hand() -> None:
    # Of 1..5: quartiles 2 and 4, median 3.
    assert relative_interquartile_range([1, 2, 3, 4, 5]) == pytest.approx(2 / 3)


def test_median_interval_of_six_is_its_range() -> None:
    # P(Bin(6, 1/2) <= 0) = 1/64, so from the smallest to the largest the coverage is 1 - 2/64 = 0.96875.
    assert median_interval([6, 1, 5, 2, 4, 3]) == (1, 6)


def test_median_interval_of_ten_leaves_out_the_extremes() -> None:
    # k = 2: P(Bin(10, 1/2) <= 1) = (1 + 10) / 1024, coverage 1 - 22/1024 = 0.978515625.
    # k = 3: (1 + 10 + 45) / 1024, coverage 0.890625: too little.
    assert median_interval(list(range(1, 11))) == (2, 9)


def test_median_interval_of_twenty_runs_from_the_sixth_to_the_fifteenth() -> None:
    # A standard table (Conover, "Practical Nonparametric Statistics"): n = 20, 95 %: ranks 6 and 15.
    assert median_interval(list(range(1, 21))) == (6, 15)


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


def test_latency_is_per_step() -> None:
    # 1, 2, 3, 4, 10 s a step. p95: h = 3.8, 4 + 0.8 * 6.
    latency = step_latency(Latency(steps_per_call=1, call_times_s=[1, 2, 3, 4, 10]))
    assert latency == (3, pytest.approx(8.8), pytest.approx(4))
    # The same in calls of 4 steps: a percentile of means is not that of a step.
    latency = step_latency(Latency(steps_per_call=4, call_times_s=[4, 8, 12, 16, 40]))
    assert latency == (3, None, pytest.approx(4))


def test_calls_of_several_steps_have_no_p95_and_no_flag_about_it() -> None:
    few = Result(latency=Latency(steps_per_call=4, call_times_s=[4.0] * 3))
    assert quality_flags(few, {}, 0.005) == {}
    assert "step_time_p95_s" not in summary_numbers(few)
    assert summary_numbers(few)["step_time_p50_s"] == 1


def test_calls_needed_for_the_95th_percentile() -> None:
    # 0.95**71 = 0.0262 > 0.025 >= 0.95**72 = 0.0249.
    assert calls_needed(0.95) == 72


def test_geometric_mean() -> None:
    assert geometric_mean([2, 0.5]) == pytest.approx(1)
    assert geometric_mean([1.5, 2.25, 4]) == pytest.approx(reference.geometric_mean([1.5, 2.25, 4]))
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1, 0])


def test_ratio_interval_by_hand() -> None:
    # log ratios log 2 + (-0.1, 0, 0.1): mean log 2, standard deviation 0.1, t[2] = 4.303.
    # Reach 4.303 * 0.1 / sqrt(3) = 0.248434.
    interval = ratio_interval([2 * math.exp(-0.1), 2, 2 * math.exp(0.1)], [1, 1, 1])
    assert interval is not None
    assert interval.low == pytest.approx(2 * math.exp(-0.248434), rel=1e-5)
    assert interval.high == pytest.approx(2 * math.exp(0.248434), rel=1e-5)


def test_ratio_interval_is_paired() -> None:
    # Both sides drift by the same factor each time: the ratio is 1.25, without spread.
    interval = ratio_interval([125, 250, 375], [100, 200, 300])
    assert interval is not None
    assert interval.low == pytest.approx(1.25)
    assert interval.high == pytest.approx(1.25)


def test_ratio_interval_of_swapped_sides_is_the_inverse() -> None:
    jax, torch = [105.0, 99.0, 111.0, 102.0], [80.0, 84.0, 79.0, 90.0]
    there, back = ratio_interval(jax, torch), ratio_interval(torch, jax)
    assert there is not None
    assert back is not None
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)


@pytest.mark.parametrize("count", [3, 5])
def test_ratio_interval_covers_the_true_ratio_as_often_as_it_claims(count: int) -> None:
    draw = random.Random(count)
    runs = 4000
    hits = 0
    for _ in range(runs):
        interval = ratio_interval([1.3 * draw.lognormvariate(0, 0.02) for _ in range(count)], [1.0] * count)
        assert interval is not None
        hits += interval.low <= 1.3 <= interval.high
    assert hits / runs == pytest.approx(0.95, abs=0.014)  # four binomial standard errors


def test_ratio_interval_needs_three_replicates_on_equal_sides() -> None:
    assert ratio_interval([1, 2], [1, 2]) is None
    with pytest.raises(ValueError, match="3 replicates cannot be paired with 2"):
        ratio_interval([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="positive"):
        ratio_interval([1, 2, 0], [1, 2, 3])


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
    assert estimate(*[0.5] * count)[:5] == (pytest.approx(math.exp(0.5)), None, count, "undecided", 3)


def test_estimate_ratio_refuses_what_is_no_pair() -> None:
    with pytest.raises(ValueError, match="one replicate"):
        estimate_ratio([], [])
    with pytest.raises(ValueError, match="2 replicates cannot be paired with 1"):
        estimate_ratio([1, 2], [1])
    with pytest.raises(ValueError, match="positive"):
        estimate_ratio([1], [-1])


def test_geometric_mean_of_ratios_by_hand() -> None:
    # Each log ratio has the standard error 0.1 / sqrt(3): sum of squares 0.02 / 3, so 0.0816497 / 2 for their mean.
    # Degrees of freedom (0.02 / 3)**2 / (2 * (0.01 / 3)**2 / 2) = 4; t[4] = 2.776. Reach 0.113330.
    there = estimate(math.log(8) - 0.1, math.log(8), math.log(8) + 0.1)
    back = estimate(-math.log(2) - 0.1, -math.log(2), -math.log(2) + 0.1)
    value, interval = geometric_mean_of_ratios([there, back])
    assert value == pytest.approx(2)  # sqrt(8 / 2)
    assert interval is not None
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
    assert geometric_mean_of_ratios([estimate(0.1, 0.1, 0.1), estimate(0.3, 0.3)]) == (
        pytest.approx(math.exp(0.2)),
        None,
    )
    with pytest.raises(ValueError, match="at least one"):
        geometric_mean_of_ratios([])


def test_geometric_mean_covers_the_true_mean_as_often_as_it_claims() -> None:
    """Three variants of very different spread, three replicates of each: the worst case of Welch and Satterthwaite."""
    draw = random.Random(5)
    runs, hits = 4000, 0
    for _ in range(runs):
        _, interval = geometric_mean_of_ratios(
            [estimate(*(draw.gauss(centre, spread) for _ in range(3))) for centre, spread in CENTRES_AND_SPREADS]
        )
        assert interval is not None
        hits += interval.low <= math.exp(0.1) <= interval.high
    assert 0.95 - 0.014 <= hits / runs <= 0.98  # rounding the degrees of freedom down only widens it


CENTRES_AND_SPREADS = ((0.3, 0.01), (-0.1, 0.02), (0.1, 0.05))
"""Of log ratios; the mean of the centres is 0.1."""


def test_a_clean_result_has_no_flags() -> None:
    result = Result(
        blocks=blocks([0.1] * 20),
        latency=Latency(steps_per_call=1, call_times_s=[0.01] * 72),
        energy=Energy(gross_joules=1500.0, window_s=5.0, samples=1000),
        gpu_states=[gpu_state(reasons=("gpu_idle",)), gpu_state()],
    )
    environment = {"gpu": {"name": "NVIDIA A100", "max_sm_clock_mhz": 1980}, "slurm": {"restart_count": 0}}
    assert quality_flags(result, environment, LOOSE) == {}


def test_noisy_and_unstable_exclude_each_other() -> None:
    # Sorted: three of 0.10 s, one of 0.11, three of 0.12. Quartiles at h = 1.5 and 4.5: 0.02 / 0.11 = 18 %.
    noisy = [0.10, 0.12, 0.10, 0.11, 0.12, 0.10, 0.12]
    assert quality_flags(Result(blocks=blocks(noisy)), {}, LOOSE) == {
        "noisy": "block times spread by 18% (interquartile range over median)"
    }
    unstable = [0.10, 0.16, 0.10, 0.13, 0.16, 0.10, 0.16]  # 0.06 / 0.13 = 46 %
    flags = quality_flags(Result(blocks=blocks(unstable)), {}, LOOSE)
    assert flags == {"unstable": "block times spread by 46% (interquartile range over median): not to be relied on"}


def test_drift_compares_the_first_third_with_the_last() -> None:
    # First third 0.1, last third 0.107: +7 %. The spread of all is small: 7 % / median.
    times_s = [0.100] * 4 + [0.103] * 4 + [0.107] * 4
    flags = quality_flags(Result(blocks=blocks(times_s)), {}, LOOSE)
    assert flags == {"drift": "the last third of the blocks took +7% against the first third"}
    assert quality_flags(Result(blocks=blocks([0.100] * 4 + [0.102] * 4 + [0.104] * 4)), {}, LOOSE) == {}


def test_short_blocks() -> None:
    flags = quality_flags(Result(blocks=blocks([0.02] * 20)), {}, LOOSE)
    assert list(flags) == ["short_blocks"]
    assert "20 ms" in flags["short_blocks"]


def test_few_latency_calls() -> None:
    flags = quality_flags(Result(latency=Latency(steps_per_call=1, call_times_s=[0.1] * 71)), {}, LOOSE)
    assert flags == {"too_few_latency_calls": "71 latency calls: the 95th percentile needs at least 72"}


def test_short_energy_window() -> None:
    assert list(quality_flags(Result(energy=Energy(gross_joules=900.0, window_s=3.0)), {}, LOOSE)) == [
        "energy_window_short"
    ]
    assert quality_flags(Result(energy=Energy(window_s=3.0, absent="no GPU")), {}, LOOSE) == {}


def test_gpu_flags() -> None:
    states = [gpu_state(), gpu_state(1400, ("sw_thermal_slowdown", "gpu_idle"), others=2)]
    flags = quality_flags(Result(gpu_states=states), {"gpu": {"max_sm_clock_mhz": 1980}}, LOOSE)
    # 1400 < 0.75 * 1980 = 1485.
    assert flags == {
        "throttled": "the GPU held its clock back: sw_thermal_slowdown",
        "low_clocks": "the SM clock fell to 1400 MHz; the card reaches 1980 MHz",
        "other_processes": "up to 2 other process(es) used the same GPU",
    }
    assert quality_flags(Result(gpu_states=[gpu_state(1485)]), {"gpu": {"max_sm_clock_mhz": 1980}}, LOOSE) == {}


@pytest.mark.parametrize(
    ("used", "read", "flagged"),
    [
        ("GPU-ab12", {"uuid": "GPU-ab12"}, False),
        ("GPU-AB12", {"uuid": "GPU-ab12"}, False),
        ("GPU-cd34", {"uuid": "GPU-ab12"}, True),
        ("GPU-cd34", {"uuid": "MIG-ab12", "mig": True}, False),  # a slice has a UUID of its own
        ("GPU-cd34", {"absent": "no NVML"}, False),
        (None, {"uuid": "GPU-ab12"}, False),
    ],
)
def test_energy_of_another_gpu_is_flagged(used: str | None, read: dict[str, Any], flagged: bool) -> None:
    flags = quality_flags(Result(), {"framework": {"device_uuid": used}, "gpu": read}, LOOSE)
    assert ("other_gpu_read" in flags) == flagged
    if flagged:
        assert flags["other_gpu_read"].startswith("the framework computed on GPU-cd34, and NVML told of GPU-ab12:")


def test_restarted() -> None:
    assert list(quality_flags(Result(), {"slurm": {"restart_count": 2}}, LOOSE)) == ["restarted"]


def test_blocks_that_ended_before_the_goal_are_flagged() -> None:
    # Ten blocks: the interval runs from the 2nd to the 9th smallest, 0.099 to 0.101; the median is 0.100.
    times_s = [0.098, 0.099, 0.099, 0.1, 0.1, 0.1, 0.1, 0.101, 0.101, 0.102]
    assert quality_flags(Result(blocks=blocks(times_s)), {}, 0.011) == {}
    flags = quality_flags(Result(blocks=blocks(times_s)), {}, 0.005)
    assert flags == {"imprecise": "the block time is known to 1.0%; the goal was 0.5%, and time ran out"}
    assert "too few blocks" in quality_flags(Result(blocks=blocks([0.1] * 5)), {}, 0.5)["imprecise"]


def test_a_compilation_inside_the_windows_is_flagged() -> None:
    assert quality_flags(Result(recompiles=2), {}, LOOSE) == {
        "recompiled": "2 compilation(s) inside the timed windows: the times are worthless"
    }


def test_net_energy_leaves_out_what_idling_costs() -> None:
    # 900 J over 3 s at 100 W idle: 600 J are the work's; 300 samples.
    energy = Energy(gross_joules=900.0, window_s=3.0, samples=300, idle_watts=100.0)
    numbers = summary_numbers(Result(energy=energy))
    assert numbers == {"energy_gross_joules_per_sample": 3.0, "energy_net_joules_per_sample": 2.0}
