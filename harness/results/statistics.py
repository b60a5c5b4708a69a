"""The formulas: from raw samples to numbers. Pure; the same samples give the same numbers everywhere.

Each function's docstring gives its formula and where it comes from. A record keeps raw samples only: a better
formula here improves old records too. quantities.py says which number of the report is derived by which of them.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from harness.results.record import Blocks, Energy, EpochPoint, Explanation, GpuState, Latency, Record, Result

Number = TypeVar("Number", int, float)

CONFIDENCE = 0.95
"""Of every interval of a ratio; 1 less it is how often two that are alike are told apart."""
REPLICATES_FOR_AN_INTERVAL = 2
"""Two give one of t[1] = 12.7 standard errors: true, and the first that can be seen while a job runs."""
ENOUGH_REPLICATES = 3
"""For a verdict: t[2] = 4.3. Fewer are flagged."""
SAME_WITHIN = 1.01
REPLICATES_NEEDED_MAX = 100
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
    busy_s = energy.busy_s or energy.window_s
    return (
        None if energy.gross_joules is None or not busy_s or time_s is None else energy.gross_joules / busy_s * time_s
    )


def net_energy_per_sample(energy: Energy) -> float | None:
    """The same less what the idle board would have taken in that time: (gross - idle power * window) / samples."""
    if energy.gross_joules is None or not energy.samples or energy.idle_watts is None or energy.window_s is None:
        return None
    return (energy.gross_joules - energy.idle_watts * energy.window_s) / energy.samples


def numbers_read(states: Sequence[GpuState], name: str) -> list[float]:
    """Of one reading of the GPU, wherever it was not refused."""
    values = [state[name] for state in states if name in state]
    return [value for value in values if not isinstance(value, tuple)]


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
    """Over 30 degrees of freedom the value for 30 is kept, which is a little too wide (2.042, and 1.984 for 100)."""
    return STUDENT_T_95[min(degrees_of_freedom, len(STUDENT_T_95)) - 1]


def log_ratio_in_turns(numerator: Blocks, denominator: Blocks) -> float:
    """Logarithm of the ratio of two throughputs, of processes that took turns block by block: A B B A A B B A ...

    Blocks of the same number are neighbours in time. With a and b the logarithms of samples per second, it is the
    median over quads k of ((a[2k] + a[2k + 1]) - (b[2k] + b[2k + 1])) / 2. Within A B B A a steady drift of the machine
    is the same on both sides, and so leaves no trace; one that is the same in all quads leaves none in their median
    either. The last block of an odd number is left out.

    Raises:
        ValueError: there is no whole quad.
    """
    ours, theirs = (
        [
            math.log(blocks.calls_per_block * blocks.steps_per_call * blocks.samples_per_step / time_s)
            for time_s in blocks.block_times_s
        ]
        for blocks in (numerator, denominator)
    )
    quads = min(len(ours), len(theirs)) // 2
    return median([(ours[2 * k] + ours[2 * k + 1] - theirs[2 * k] - theirs[2 * k + 1]) / 2 for k in range(quads)])


def took_turns(one: Record, other: Record) -> bool:
    """Whether these two processes did, with each other and to the end."""
    turns = [(record.environment.get("pairing") or {}).get("turns") for record in (one, other)]
    return turns[0] is not None and turns[0] == turns[1]


def log_ratio(jax: Record, torch: Record) -> float:
    """Logarithm of JAX's throughput over PyTorch's, of one replicate: from neighbouring blocks where the two processes
    took turns, else from each one's own median. Raises ValueError where a side has no blocks."""
    blocks = [record.result.blocks if record.result else None for record in (jax, torch)]
    if blocks[0] is None or blocks[1] is None:
        raise ValueError("a ratio needs blocks on both sides")
    if took_turns(jax, torch):
        return log_ratio_in_turns(blocks[0], blocks[1])
    return math.log(throughput_samples_per_s(blocks[0]) / throughput_samples_per_s(blocks[1]))


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval | None:
    """95 % interval of the ratio of two sides, paired by replicate; None for a single one.

    Student's t on d = log(numerator / denominator) of each replicate: exp(mean(d) +- t[n - 1] * s / sqrt(n)),
    with s the standard deviation of d. Its centre is the geometric mean of the replicates' ratios.

    Not a bootstrap: what claims 95 % must cover 95 %, and with 3 replicates a bootstrap of the median covers 75 %
    (docs/studies/interval_coverage.md).

    Raises:
        ValueError: the sides have different lengths, or a value is not positive.
    """
    return interval_of_log_ratios(_log_ratios(numerators, denominators))


def interval_of_log_ratios(differences: Sequence[float]) -> Interval | None:
    """The same from d, the logarithms of the replicates' ratios."""
    count = len(differences)
    if count < REPLICATES_FOR_AN_INTERVAL:
        return None
    centre = math.fsum(differences) / count
    reach = student_t_95(count - 1) * standard_deviation(differences) / math.sqrt(count)
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
    """Of 95 %; None for a single replicate."""
    replicates: int
    verdict: Verdict
    replicates_needed: int | None
    """In all, to come to a verdict; REPLICATES_NEEDED_MAX stands for so many or more. None when there is a verdict, or
    a doubt."""
    doubt: str | None = None
    """Why it is undecided whatever its interval, and in no mean."""
    p: float | None = None
    """How often replicates of two sides that are alike would differ by so much or more; None for a single one."""

    @property
    def is_judged(self) -> bool:
        """Whether there are enough replicates for a verdict, and no doubt against one."""
        return self.replicates >= ENOUGH_REPLICATES and self.doubt is None

    @property
    def excludes_1(self) -> bool:
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high

    @property
    def names_a_side(self) -> bool:
        return self.verdict in ("JAX faster", "PyTorch faster")


def estimate_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> RatioEstimate:
    """The ratio of JAX's throughputs over PyTorch's, paired by replicate: value, 95 % interval, verdict.

    Raises:
        ValueError: no replicates, the sides have different lengths, or a value is not positive.
    """
    return estimate_of_log_ratios(_log_ratios(numerators, denominators))


def estimate_of_log_ratios(differences: Sequence[float]) -> RatioEstimate:
    """The same from the logarithms of the replicates' ratios. Raises ValueError without any."""
    count = len(differences)
    if count == 0:
        raise ValueError("a ratio needs one replicate at the least")
    interval = interval_of_log_ratios(differences)
    verdict = verdict_of(interval) if count >= ENOUGH_REPLICATES else "undecided"
    return RatioEstimate(
        value=math.exp(math.fsum(differences) / count),
        interval=interval,
        replicates=count,
        verdict=verdict,
        replicates_needed=_replicates_needed(differences) if verdict == "undecided" else None,
        p=chance_of_no_difference(differences) if count >= REPLICATES_FOR_AN_INTERVAL else None,
    )


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


def doubted(estimate: RatioEstimate, doubt: str) -> RatioEstimate:
    """Without a verdict, as what was measured is not to be relied on."""
    return estimate._replace(verdict="undecided", replicates_needed=None, doubt=doubt)


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


def _replicates_needed(differences: Sequence[float]) -> int:
    """How many replicates in all would come to a verdict, if their mean and spread stayed what they are.

    With c = mean(d), s its standard deviation and h = t[n - 1] * s / sqrt(n), a verdict is reached when the interval
    excludes 1, h < |c|, or lies within the band of `same`, h <= log(SAME_WITHIN) - |c|. So n is the smallest number
    above the present one whose h is under the larger of the two. The rule h = t * s / sqrt(n), tried with one n after
    the other as t depends on n, is that of the NIST/SEMATECH e-Handbook, 7.2.2.2 "Sample sizes required". As c and s
    are themselves estimates, so many replicates decide about every second time.
    """
    count = len(differences)
    if count < ENOUGH_REPLICATES:
        return ENOUGH_REPLICATES
    distance = abs(math.fsum(differences) / count)
    goal = max(distance, math.log(SAME_WITHIN) - distance)
    spread = standard_deviation(differences)
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
