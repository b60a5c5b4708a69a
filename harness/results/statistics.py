"""The formulas: from raw samples to numbers. Pure; the same samples give the same numbers everywhere.

Each function's docstring gives its formula and where it comes from. A record keeps raw samples only: a better
formula here improves old records too. quantities.py says which number of the report is derived by which of them.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from harness.results.record import Blocks, Energy, EpochPoint, Explanation, GpuState, Latency, Result

Number = TypeVar("Number", int, float)

CONFIDENCE = 0.95
"""Of every interval of a ratio; 1 less it is how often two that are alike are told apart."""
NORMAL_INTERQUARTILE_RANGE = 1.349
"""Of a normal distribution, in standard deviations."""
REPLICATES_FOR_AN_INTERVAL = 2
"""Two give one of t[1] = 12.7 standard errors: true, and the first that can be seen while a job runs."""
SAME_WITHIN = 1.01
ROUNDING = 1e-9
"""So that 4 degrees of freedom that come out as 3.9999999999999996 are not rounded down to 3."""


class Interval(NamedTuple):
    low: float
    high: float


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
        std=standard_deviation(values) if len(values) > 1 else 0.0,
        min=min(values),
        max=max(values),
        p50=median(values),
        p95=percentile(values, 0.95),
    )


def standard_deviation(values: Sequence[float]) -> float:
    """Of the sample: sqrt(sum((value - mean)**2) / (n - 1)). The standard library's `stdev` computes with fractions: it
    is as exact for such data, and takes ten times as long."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


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


def block_drift(blocks: Blocks) -> float | None:
    """Median time of the last third of the blocks over that of the first, less 1; None with fewer than six."""
    times_s = blocks.block_times_s
    third = len(times_s) // 3
    return median(times_s[-third:]) / median(times_s[:third]) - 1 if third >= 2 else None


def dispatch_time_s(explanation: Explanation) -> float:
    """Of a step: until its call has returned, started when the device was idle. The median."""
    return median(explanation.dispatch_times_s) / explanation.blocks.steps_per_call


def latency_p50_s(latency: Latency) -> float:
    """Median over waited-for calls of (time of the call) / (steps of the call)."""
    return median(latency.call_times_s) / latency.steps_per_call


def latency_p95_s(latency: Latency) -> float | None:
    """Their 95th percentile. None where a call holds several steps: a single slow step is diluted in their mean, and
    the spread of such means says little about that of a step."""
    return percentile(latency.call_times_s, 0.95) if latency.steps_per_call == 1 else None


def latency_p99_s(latency: Latency) -> float | None:
    """Their 99th percentile. None as above, and where there are fewer calls than `calls_needed` has: the largest of so
    few says little about it."""
    calls = len(latency.call_times_s)
    if latency.steps_per_call > 1 or calls < calls_needed(0.99):
        return None
    return percentile(latency.call_times_s, 0.99)


def latency_mean_s(latency: Latency) -> float:
    return math.fsum(latency.call_times_s) / len(latency.call_times_s) / latency.steps_per_call


def calls_needed(share: float, confidence: float = 0.95) -> int:
    """Fewest samples that can bound the `share` percentile from above: 72 for the 95th percentile at 95 %,
    368 for the 99th.

    The smallest n with share**n <= (1 - confidence) / 2: with fewer, even the largest sample lies below that
    percentile too often. The same order statistics as median_interval.
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(share))


def energy_per_sample(energy: Energy) -> float | None:
    """Joules of the whole board over the samples of the window; None where there is no counter."""
    return energy.gross_joules / energy.samples if energy.gross_joules is not None and energy.samples else None


def epoch_time_s(epochs: Sequence[EpochPoint]) -> float | None:
    """Median over epochs of their training time, evaluation excluded; None where nothing was trained."""
    return median([point.train_time_s for point in epochs]) if epochs else None


def energy_per_epoch(result: Result) -> float | None:
    """Joules: mean power of the energy window's blocks, (gross energy) / (their time), times the time of an epoch's
    steps. The counter itself is not read around an epoch."""
    energy, time_s = result.energy, epoch_time_s(result.epochs)
    if energy.gross_joules is None or not energy.busy_s or time_s is None:
        return None
    return energy.gross_joules / energy.busy_s * time_s


def net_energy_per_sample(energy: Energy) -> float | None:
    """The same less what the idle board would have taken in that time: (gross - idle power * window) / samples."""
    if energy.gross_joules is None or not energy.samples or energy.idle_watts is None or energy.window_s is None:
        return None
    return (energy.gross_joules - energy.idle_watts * energy.window_s) / energy.samples


def numbers_read(states: Sequence[GpuState], name: str) -> list[float]:
    """Of one reading of the GPU, wherever it was not refused."""
    return [value for state in states if name in state and not isinstance(value := state[name], tuple)]


def words_read(states: Sequence[GpuState], name: str) -> set[str]:
    """The same of a reading that gives words, such as the reasons for a held-back clock."""
    return {word for state in states if isinstance(words := state.get(name), tuple) for word in words}


def held_back_shares(result: Result) -> dict[str, float]:
    """By reason: (seconds that the driver held the clocks back) / (seconds of the throughput window)."""
    held_back = result.held_back
    return {reason: seconds / held_back.window_s for reason, seconds in held_back.seconds.items()} if held_back else {}


def sum_of_all(values: Sequence[Number | None]) -> Number | None:
    """None where one is missing: the sum of some is not that of all."""
    return None if None in values else sum(value for value in values if value is not None)


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
    """Over 30 degrees of freedom the value for 30 is kept, which is a little too wide (2.042, and 1.984 for 100).

    Raises:
        ValueError: there is no degree of freedom.
    """
    if degrees_of_freedom < 1:
        raise ValueError(f"{degrees_of_freedom} degrees of freedom have no interval")
    return STUDENT_T_95[min(degrees_of_freedom, len(STUDENT_T_95)) - 1]


def interval_of_log_ratios(differences: Sequence[float]) -> Interval | None:
    """95 % interval of the ratio of two sides, paired by replicate; None for a single one.

    Student's t on d = log(numerator / denominator) of each replicate: exp(mean(d) +- t[n - 1] * s / sqrt(n)),
    with s the standard deviation of d. Its centre is the geometric mean of the replicates' ratios.

    Not a bootstrap: what claims 95 % must cover 95 %, and with 3 replicates a bootstrap of the median covers 75 %
    (docs/studies/interval_coverage.md).

    Args:
        differences: d.
    """
    count = len(differences)
    if count < REPLICATES_FOR_AN_INTERVAL:
        return None
    centre = math.fsum(differences) / count
    reach = student_t_95(count - 1) * standard_deviation(differences) / math.sqrt(count)
    return Interval(math.exp(centre - reach), math.exp(centre + reach))


class PairedRatio(NamedTuple):
    """Of any quantity, over replicates."""

    value: float
    """Geometric mean of the ratios of the replicates."""
    interval: Interval | None
    """Of 95 %; None for a single replicate."""
    replicates: int
    p: float | None
    """How often replicates of two sides that are alike would differ by so much or more; None for a single one."""


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> PairedRatio:
    """
    Raises:
        ValueError: no replicates, the sides have different lengths, or a value is not positive.
    """
    count = len(numerators)
    if count != len(denominators):
        raise ValueError(f"{count} replicates cannot be paired with {len(denominators)}")
    if count == 0:
        raise ValueError("a ratio needs one replicate at the least")
    if min(*numerators, *denominators) <= 0:
        raise ValueError("a ratio's interval needs positive values on both sides")
    differences = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
    return PairedRatio(
        value=math.exp(math.fsum(differences) / count),
        interval=interval_of_log_ratios(differences),
        replicates=count,
        p=chance_of_no_difference(differences) if count >= REPLICATES_FOR_AN_INTERVAL else None,
    )


def unpaired_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval | None:
    """95 % interval of the ratio of two sides of which no replicate is another's neighbour; None for a single one.

    With m, s and n of the logarithms of each side, it is exp(m1 - m2 +- t[f] * sqrt(v1 + v2)) with v = s**2 / n and
    f = (v1 + v2)**2 / sum(v**2 / (n - 1)) degrees of freedom, rounded down (Welch and Satterthwaite; NIST/SEMATECH
    e-Handbook 1.3.5.3). Its centre is the ratio of the geometric means.

    Raises:
        ValueError: a value is not positive.
    """
    if min(len(numerators), len(denominators)) < REPLICATES_FOR_AN_INTERVAL:
        return None
    centre = math.log(geometric_mean(numerators) / geometric_mean(denominators))
    variance = fourth = 0.0
    for side in (numerators, denominators):
        of_mean = standard_deviation([math.log(value) for value in side]) ** 2 / len(side)
        variance += of_mean
        fourth += of_mean**2 / (len(side) - 1)
    if fourth == 0:
        return Interval(math.exp(centre), math.exp(centre))
    reach = student_t_95(math.floor(variance**2 / fourth * (1 + ROUNDING))) * math.sqrt(variance)
    return Interval(math.exp(centre - reach), math.exp(centre + reach))


def chance_of_no_difference(differences: Sequence[float]) -> float:
    """The two-sided p-value of Student's t for the mean of d being 0: P(|T| >= |mean(d)| / (s / sqrt(n))), with n - 1
    degrees of freedom. It is below 1 - CONFIDENCE where the interval of the same replicates excludes 1."""
    count = len(differences)
    mean, spread = math.fsum(differences) / count, standard_deviation(differences)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    return student_t_tails(abs(mean) / spread * math.sqrt(count), count - 1)


def student_t_tails(t: float, degrees_of_freedom: int) -> float:
    """P(|T| >= t) of Student's t, for whole degrees of freedom: 1 less the finite series of Abramowitz and Stegun,
    "Handbook of Mathematical Functions", 26.7.3 and 26.7.4, in the angle atan(t / sqrt(f))."""
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    cosine = math.cos(angle)
    odd = degrees_of_freedom % 2
    term, terms = cosine if odd else 1.0, 0.0
    for step in range(1 + odd, degrees_of_freedom, 2):
        terms += term
        term *= cosine**2 * step / (step + 1)
    inside = math.sin(angle) * terms
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if odd else inside))


def holm(p_values: Sequence[tuple[str, float]]) -> set[str]:
    """The names that stay: in the order of their p, as long as p is at most 5 % over the number of those not yet taken
    (Holm 1979, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6(2)). Then one false name
    among them, or more, comes in at most 5 % of such families."""
    stay: set[str] = set()
    for left, (name, p) in zip(range(len(p_values), 0, -1), sorted(p_values, key=lambda one: one[1]), strict=True):
        if p > (1 - CONFIDENCE) / left:
            break
        stay.add(name)
    return stay


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The q of each p: with m of them sorted, q of the i-th is the least p[j] * m / j over all j >= i. Those whose q is
    at most 5 % have, on average, at most 5 % false ones among them (Benjamini and Hochberg 1995, "Controlling the false
    discovery rate", J. R. Stat. Soc. B 57(1)). It takes the p-values for independent, or for positively dependent."""
    count = len(p_values)
    found, least = [0.0] * count, 1.0
    for rank, place in sorted(enumerate(sorted(range(count), key=lambda one: p_values[one]), start=1), reverse=True):
        least = min(least, p_values[place] * count / rank)
        found[place] = least
    return found
