"""Numbers from raw samples: what a record means. Pure; the same samples give the same numbers everywhere.

Each function's docstring gives its formula and where it comes from. A record keeps raw samples only: a better
formula here improves old records too.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from harness.record import Blocks, GpuState, Latency, Result

NOISY_SPREAD = 0.10
UNSTABLE_SPREAD = 0.25
"""Interquartile range over median. Both are torch.utils.benchmark's (_IQR_WARN_THRESHOLD, _IQR_GROSS_...)."""
DRIFT = 0.05
SHORT_BLOCK_S = 0.08
"""Blocks aim at 0.1 s; calibration may miss that by a fifth before the record says so."""
LOW_CLOCK_SHARE = 0.75
"""Of the card's highest SM clock. nvbench throws a sample away below 75 % of the default clock."""
ENERGY_COUNTER_TICK_S = 0.1
ENERGY_WINDOW_MIN_S = 40 * ENERGY_COUNTER_TICK_S
"""The counter can be one tick late at either end; over 40 ticks that is at most 5 % of the energy."""
REPLICATES_FOR_AN_INTERVAL = 3
"""Two would give one of t[1] = 12.7 standard errors: true, and of no use."""
SAME_WITHIN = 1.01
REPLICATES_NEEDED_MAX = 100
ROUNDING = 1e-9
"""So that 4 degrees of freedom that come out as 3.9999999999999996 are not rounded down to 3."""
HARMLESS_CLOCK_REASONS = frozenset({"gpu_idle", "applications_clocks_setting"})
"""Waiting between two blocks, or clocks that an administrator has set: neither slows a block by surprise."""


class Interval(NamedTuple):
    low: float
    high: float


class StepLatency(NamedTuple):
    """What one step costs when somebody waits for it, in seconds."""

    p50_s: float
    p95_s: float | None
    """None where a call holds several steps: the spread of their means says little about that of a step."""
    mean_s: float


class SampleSummary(NamedTuple):
    """In the unit of the samples."""

    mean: float
    std: float
    """Of the sample, with n - 1; 0 for a single value."""
    min: float
    max: float
    p50: float
    p95: float


def sample_summary(values: Sequence[float]) -> SampleSummary:
    """What is said of times of which each is one run, such as those of a phase. Raises ValueError without values."""
    if not values:
        raise ValueError("no values have no summary")
    return SampleSummary(
        mean=math.fsum(values) / len(values),
        std=statistics.stdev(values) if len(values) > 1 else 0.0,
        min=min(values),
        max=max(values),
        p50=median(values),
        p95=percentile(values, 0.95),
    )


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones. Raises ValueError without values."""
    if not values:
        raise ValueError("the median of no values is not defined")
    return float(statistics.median(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the samples lie, linear between two samples.

    With x sorted, counted from 0, and h = (n - 1) * share, i = floor(h): x[i] + (h - i) * (x[i + 1] - x[i]).
    Type 7 of Hyndman and Fan (1996), "Sample Quantiles in Statistical Packages"; the default of numpy.

    Raises:
        ValueError: no values, or `share` is not within 0 and 1.
    """
    if not values:
        raise ValueError("a percentile of no values is not defined")
    if not 0 <= share <= 1:
        raise ValueError(f"the share {share} must lie within 0 and 1; the 95th percentile is 0.95")
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def relative_interquartile_range(values: Sequence[float]) -> float:
    """(75th - 25th percentile) / median: the spread of the middle half, blind to a few outliers."""
    return (percentile(values, 0.75) - percentile(values, 0.25)) / median(values)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Interval of the median, whatever the distribution; the whole line for too few values (under 6 at 95 %).

    From the k-th smallest to the k-th largest of n, with the largest k for which the coverage
    1 - 2 * P(Binomial(n, 1/2) <= k - 1) is at least `confidence`. Source: David and Nagaraja, "Order
    Statistics", 3rd edition, section 7.1. It takes the values for independent;
    block times are so only roughly.
    """
    rank = _median_rank(len(values), confidence)
    if rank == 0:
        return Interval(-math.inf, math.inf)
    ordered = sorted(values)
    return Interval(ordered[rank - 1], ordered[-rank])


@cache
def _median_rank(count: int, confidence: float) -> int:
    """The largest k of median_interval; 0 where even the full range covers too little."""
    below = 0
    for rank in range(1, count // 2 + 1):
        below += math.comb(count, rank - 1)  # 2**count * P(Binomial(count, 1/2) <= rank - 1), exactly
        if 1 - 2 * below / 2**count < confidence:
            return rank - 1
    return count // 2


def relative_half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """How far median_interval reaches on its wider side, over the median; infinite for too few values."""
    low, high = median_interval(values, confidence)
    middle = median(values)
    return max(high - middle, middle - low) / middle


def throughput_samples_per_s(blocks: Blocks) -> float:
    """Median over blocks of (samples of the block) / (time of the block).

    samples of a block = calls_per_block * steps_per_call * samples_per_step. Both are of the same block:
    never the samples of many steps over the time of one.
    """
    samples = blocks.calls_per_block * blocks.steps_per_call * blocks.samples_per_step
    return median([samples / time_s for time_s in blocks.block_times_s])


def step_time_s(blocks: Blocks) -> float:
    """Median over blocks of (time of the block) / (steps of the block), of back-to-back steps."""
    steps = blocks.calls_per_block * blocks.steps_per_call
    return median([time_s / steps for time_s in blocks.block_times_s])


def step_latency(latency: Latency) -> StepLatency:
    """Over the calls, each waited for; a call's time is divided by its steps.

    Where a call holds several steps this is their mean within the call: a single slow step is diluted.
    """
    times_s = [time_s / latency.steps_per_call for time_s in latency.call_times_s]
    return StepLatency(
        p50_s=median(times_s),
        p95_s=percentile(times_s, 0.95) if latency.steps_per_call == 1 else None,
        mean_s=math.fsum(times_s) / len(times_s),
    )


def calls_needed(share: float, confidence: float = 0.95) -> int:
    """Fewest samples that can bound the `share` percentile from above: 72 for the 95th percentile at 95 %.

    The smallest n with share**n <= (1 - confidence) / 2: with fewer, even the largest sample lies below that
    percentile too often. The same order statistics as median_interval.
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(share))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x)): the mean for ratios, as 2 and 1/2 give 1. ValueError unless all are above 0."""
    if not values or min(values) <= 0:
        raise ValueError(f"a geometric mean needs positive values, at least one: {list(values)}")
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


# Two-sided 95 % quantiles of Student's t, 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
# fmt: off
STUDENT_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on


def student_t_95(degrees_of_freedom: int) -> float:
    """Over 30 degrees of freedom the value for 30 is kept, which is a little too wide (2.042, and 1.984 for 100)."""
    return STUDENT_T_95[min(degrees_of_freedom, len(STUDENT_T_95)) - 1]


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval | None:
    """95 % interval of the ratio of two sides, paired by replicate; None under 3 replicates.

    Student's t on d = log(numerator / denominator) of each replicate: exp(mean(d) +- t[n - 1] * s / sqrt(n)),
    with s the standard deviation of d. Its centre is the geometric mean of the replicates' ratios.

    Not a bootstrap: what claims 95 % must cover 95 %, and with 3 replicates a bootstrap of the median covers 75 %
    (bench/interval_coverage.py; docs/measurement.md has the table).

    Raises:
        ValueError: the sides have different lengths, or a value is not positive.
    """
    differences = _log_ratios(numerators, denominators)
    count = len(differences)
    if count < REPLICATES_FOR_AN_INTERVAL:
        return None
    centre = math.fsum(differences) / count
    reach = student_t_95(count - 1) * statistics.stdev(differences) / math.sqrt(count)
    return Interval(math.exp(centre - reach), math.exp(centre + reach))


def _log_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} replicates cannot be paired with {len(denominators)}")
    if any(value <= 0 for value in (*numerators, *denominators)):
        raise ValueError("a ratio's interval needs positive values on both sides")
    return [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]


Verdict = Literal["JAX faster", "PyTorch faster", "same", "undecided"]


class RatioEstimate(NamedTuple):
    """The throughput of JAX over that of PyTorch."""

    value: float
    """Geometric mean of the ratios of the replicates."""
    interval: Interval | None
    """Of 95 %; None under 3 replicates."""
    replicates: int
    verdict: Verdict
    replicates_needed: int | None
    """In all, to come to a verdict; REPLICATES_NEEDED_MAX stands for so many or more. None when there is a verdict, or
    a doubt."""
    doubt: str | None = None
    """Why it is undecided whatever its interval, and in no mean."""


def estimate_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> RatioEstimate:
    """The ratio of JAX's throughputs over PyTorch's, paired by replicate: value, 95 % interval, verdict.

    Raises:
        ValueError: no replicates, the sides have different lengths, or a value is not positive.
    """
    differences = _log_ratios(numerators, denominators)
    count = len(differences)
    if count == 0:
        raise ValueError("a ratio needs one replicate at the least")
    interval = ratio_interval(numerators, denominators)
    verdict = _verdict(interval)
    return RatioEstimate(
        value=math.exp(math.fsum(differences) / count),
        interval=interval,
        replicates=count,
        verdict=verdict,
        replicates_needed=_replicates_needed(differences) if verdict == "undecided" else None,
    )


def doubted(estimate: RatioEstimate, doubt: str) -> RatioEstimate:
    """Without a verdict, as what was measured is not to be relied on."""
    return estimate._replace(verdict="undecided", replicates_needed=None, doubt=doubt)


def _verdict(interval: Interval | None) -> Verdict:
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


def _replicates_needed(differences: Sequence[float]) -> int:
    """How many replicates in all would come to a verdict, if their mean and spread stayed what they are.

    With c = mean(d), s its standard deviation and h = t[n - 1] * s / sqrt(n), a verdict is reached when the interval
    excludes 1, h < |c|, or lies within the band of `same`, h <= log(SAME_WITHIN) - |c|. So n is the smallest number
    above the present one whose h is under the larger of the two. The rule h = t * s / sqrt(n), tried with one n after
    the other as t depends on n, is that of the NIST/SEMATECH e-Handbook, 7.2.2.2 "Sample sizes required". As c and s
    are themselves estimates, so many replicates decide about every second time.
    """
    count = len(differences)
    if count < REPLICATES_FOR_AN_INTERVAL:
        return REPLICATES_FOR_AN_INTERVAL
    distance = abs(math.fsum(differences) / count)
    goal = max(distance, math.log(SAME_WITHIN) - distance)
    spread = statistics.stdev(differences)
    enough = (n for n in range(count + 1, REPLICATES_NEEDED_MAX) if student_t_95(n - 1) * spread / math.sqrt(n) < goal)
    return next(enough, REPLICATES_NEEDED_MAX)


def geometric_mean_of_ratios(estimates: Sequence[RatioEstimate]) -> tuple[float, Interval | None]:
    """The geometric mean over variants or benchmarks, and its 95 % interval; None where one of them has none.

    The interval is about these very variants, not about others that might have been chosen: it holds what the
    replicates leave unknown. With e = half of log(high / low) / t[n - 1], the standard error of each of k log ratios,
    it is exp(mean +- t[f] * sqrt(sum(e**2)) / k), with f = sum(e**2)**2 / sum(e**4 / (n - 1)) degrees of freedom,
    rounded down (Welch and Satterthwaite; NIST/SEMATECH e-Handbook 2.5.7.1). It takes the errors of the variants for
    independent.

    Raises:
        ValueError: no estimates.
    """
    value = geometric_mean([estimate.value for estimate in estimates])
    variance = fourth = 0.0
    for estimate in estimates:
        if estimate.interval is None:
            return value, None
        freedom = estimate.replicates - 1
        error = math.log(estimate.interval.high / estimate.interval.low) / 2 / student_t_95(freedom)
        variance += error**2
        fourth += error**4 / freedom
    if fourth == 0:
        return value, Interval(value, value)
    reach = student_t_95(math.floor(variance**2 / fourth * (1 + ROUNDING))) * math.sqrt(variance) / len(estimates)
    return value, Interval(value * math.exp(-reach), value * math.exp(reach))


def quality_flags(result: Result, environment: Mapping[str, Any], target_noise: float) -> dict[str, str]:
    """What a reader must know before the numbers of a record: name to sentence. Empty if it is clean.

    Args:
        target_noise: the protocol's; blocks that ended without reaching it ran out of time or number.
    """
    flags = _restart_flags(environment)
    if result.recompiles:
        flags["recompiled"] = f"{result.recompiles} compilation(s) inside the timed windows: the times are worthless"
    if result.blocks is not None:
        flags |= _block_flags(result.blocks, target_noise)
    if result.latency is not None:
        flags |= _latency_flags(result.latency)
    flags |= _gpu_flags(result.gpu_states, environment)
    window_s = result.energy.window_s
    if result.energy.gross_joules is not None and window_s is not None and window_s < ENERGY_WINDOW_MIN_S:
        flags["energy_window_short"] = (
            f"energy was counted over {window_s:.2f} s; under {ENERGY_WINDOW_MIN_S:.0f} s "
            f"the counter's {ENERGY_COUNTER_TICK_S} s tick shows"
        )
    return flags


def _block_flags(blocks: Blocks, target_noise: float) -> dict[str, str]:
    flags = {}
    times_s = blocks.block_times_s
    reached = relative_half_width(times_s)
    if reached > target_noise:
        known = f"to {reached:.1%}" if math.isfinite(reached) else "from too few blocks for an interval"
        flags["imprecise"] = f"the block time is known {known}; the goal was {target_noise:.1%}, and time ran out"
    spread = relative_interquartile_range(times_s)
    if spread > UNSTABLE_SPREAD:
        flags["unstable"] = f"block times spread by {spread:.0%} (interquartile range over median): not to be relied on"
    elif spread > NOISY_SPREAD:
        flags["noisy"] = f"block times spread by {spread:.0%} (interquartile range over median)"
    third = len(times_s) // 3
    if third >= 2:
        change = median(times_s[-third:]) / median(times_s[:third]) - 1
        if abs(change) > DRIFT:
            flags["drift"] = f"the last third of the blocks took {change:+.0%} against the first third"
    if median(times_s) < SHORT_BLOCK_S:
        flags["short_blocks"] = (
            f"blocks of {median(times_s) * 1e3:.3g} ms: the wait at a block's end weighs on the throughput"
        )
    return flags


def _latency_flags(latency: Latency) -> dict[str, str]:
    """Only of what has a 95th percentile; see StepLatency."""
    calls, needed = len(latency.call_times_s), calls_needed(0.95)
    if calls >= needed or latency.steps_per_call > 1:
        return {}
    return {"too_few_latency_calls": f"{calls} latency calls: the 95th percentile needs at least {needed}"}


def _gpu_flags(states: Sequence[GpuState], environment: Mapping[str, Any]) -> dict[str, str]:
    flags = {}
    reasons = {reason for state in states for reason in state.throttle_reasons} - HARMLESS_CLOCK_REASONS
    if reasons:
        flags["throttled"] = f"the GPU held its clock back: {', '.join(sorted(reasons))}"
    gpu = environment.get("gpu") or {}
    used = (environment.get("framework") or {}).get("device_uuid")
    if used and gpu.get("uuid") and not gpu.get("mig") and used.lower() != gpu["uuid"].lower():
        flags["other_gpu_read"] = (
            f"the framework computed on {used}, and NVML told of {gpu['uuid']}: energy, clocks and the process's "
            f"memory are another card's"
        )
    highest_mhz = gpu.get("max_sm_clock_mhz")
    lowest_mhz = min((state.sm_clock_mhz for state in states), default=None)
    if highest_mhz and lowest_mhz is not None and lowest_mhz < LOW_CLOCK_SHARE * highest_mhz:
        flags["low_clocks"] = f"the SM clock fell to {lowest_mhz} MHz; the card reaches {highest_mhz} MHz"
    others = max((state.other_processes for state in states), default=0)
    if others:
        flags["other_processes"] = f"up to {others} other process(es) used the same GPU"
    return flags


def _restart_flags(environment: Mapping[str, Any]) -> dict[str, str]:
    count = int((environment.get("slurm") or {}).get("restart_count") or 0)
    if count == 0:
        return {}
    return {"restarted": f"the job was requeued {count} time(s) before this measurement"}


def summary_numbers(result: Result) -> dict[str, float]:
    """The derived numbers of one record, by the names that W&B and the job's log show, with units."""
    numbers: dict[str, float | None] = {
        "compile_time_s": result.compile_time_s,
        "compile_time_warm_s": result.compile_time_warm_s,
        "time_to_target_s": result.time_to_target_s,
        "memory_allocator_peak_bytes": result.memory.allocator_peak_bytes,
        "memory_step_peak_bytes": result.memory.step_peak_bytes,
        "memory_pool_peak_bytes": result.memory.pool_peak_bytes,
        "memory_process_bytes": result.memory.process_bytes,
        "memory_host_peak_bytes": result.memory.host_peak_bytes,
    }
    if result.blocks:
        numbers["throughput_samples_per_s"] = throughput_samples_per_s(result.blocks)
        numbers["step_time_s"] = step_time_s(result.blocks)
    if result.blocks_alone:
        numbers["step_time_alone_s"] = step_time_s(result.blocks_alone)
    if result.latency:
        latency = step_latency(result.latency)
        numbers |= {
            "step_time_p50_s": latency.p50_s,
            "step_time_p95_s": latency.p95_s,
            "step_time_mean_s": latency.mean_s,
        }
    energy = result.energy
    if energy.gross_joules is not None and energy.samples:
        numbers["energy_gross_joules_per_sample"] = energy.gross_joules / energy.samples
        if energy.idle_watts is not None and energy.window_s is not None:
            net_joules = energy.gross_joules - energy.idle_watts * energy.window_s
            numbers["energy_net_joules_per_sample"] = net_joules / energy.samples
    if result.epochs:
        numbers |= {
            "test_accuracy": result.epochs[-1].test_accuracy,
            "test_loss": result.epochs[-1].test_loss,
        }
    return {name: float(value) for name, value in numbers.items() if value is not None}
