"""Which 95 % interval covers 95 % with few replicates? Six, simulated (docs/studies/interval_coverage.md).

    python -m studies.interval_coverage            prints the table
    python -m studies.interval_coverage --publish  also writes results/published/statistics/interval_coverage.json

The simulation draws logarithms of paired ratios around a true 0, in units of the standard deviation of the noise
without outliers. There are three kinds of noise: normal; heavy-tailed (Student's t with 3 degrees of freedom); and
contaminated, where one value in ten is shifted by 10 standard deviations, up or down with equal chance, because either
side of a pair may be disturbed.

An interval covers if it contains the 0. If it does not, it names a faster framework where both are equally fast.
"""

import math
import sys
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from harness.results.statistics import student_t_95
from pipeline.markdown import markdown_table
from studies.published import PUBLISHED, Simulated, run_simulation

RECORD = PUBLISHED / "interval_coverage.json"
COUNTS = (3, 5, 10, 20)
RUNS = 10_000
"""Standard error of a coverage near 95 %: 0.2 %."""
RESAMPLES = 1_000
CHUNK = 500
SEED = 20261121
TAIL = 0.025

Values = NDArray[np.float64]
Intervals = tuple[Values, Values]
"""Lower and upper ends, one for each run."""
Method = Callable[[Values, np.random.Generator], Intervals | None]
"""From [runs, replicates]; None where so few replicates have no such interval."""


def normal(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    return draw.standard_normal(shape)


def heavy_tailed(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    return draw.standard_t(3, shape)


def contaminated(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    outliers = np.where(draw.random(shape) < 0.1, draw.choice((-10.0, 10.0), shape), 0.0)
    return draw.standard_normal(shape) + outliers


def resampled(values: Values, draw: np.random.Generator) -> Values:
    """[runs, resamples, replicates], with replacement within each run."""
    runs, count = values.shape
    rows = draw.integers(count, size=(runs, RESAMPLES, count))
    return np.take_along_axis(values[:, None, :], rows, axis=2)


def bootstrap_of_the_median(values: Values, draw: np.random.Generator) -> Intervals:
    low, high = np.quantile(np.median(resampled(values, draw), axis=2), (TAIL, 1 - TAIL), axis=1)
    return low, high


def bootstrap_of_the_mean(values: Values, draw: np.random.Generator) -> Intervals:
    low, high = np.quantile(resampled(values, draw).mean(axis=2), (TAIL, 1 - TAIL), axis=1)
    return low, high


def bca_of_the_mean(values: Values, draw: np.random.Generator) -> Intervals:
    """Bias-corrected and accelerated: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 14.3."""
    means = np.sort(resampled(values, draw).mean(axis=2), axis=1)
    centre = values.mean(axis=1)
    count = values.shape[1]
    below = (np.sum(means < centre[:, None], axis=1) + 0.5 * np.sum(means == centre[:, None], axis=1)) / RESAMPLES
    cdf, inverse = np.vectorize(NormalDist().cdf), np.vectorize(NormalDist().inv_cdf)
    bias = inverse(np.clip(below, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES))
    without = (values.sum(axis=1, keepdims=True) - values) / (count - 1)
    off = without.mean(axis=1, keepdims=True) - without
    acceleration = np.sum(off**3, axis=1) / (6 * np.sum(off**2, axis=1) ** 1.5)
    ends = []
    for tail in (TAIL, 1 - TAIL):
        z = bias + NormalDist().inv_cdf(tail)
        share = cdf(bias + z / (1 - acceleration * z))
        place = np.clip((share * RESAMPLES).astype(int), 0, RESAMPLES - 1)
        ends.append(np.take_along_axis(means, place[:, None], axis=1)[:, 0])
    return ends[0], ends[1]


def student_t(values: Values, _draw: np.random.Generator) -> Intervals:
    """As harness.results.statistics.ratio_interval."""
    count = values.shape[1]
    reach = student_t_95(count - 1) * values.std(axis=1, ddof=1) / math.sqrt(count)
    return values.mean(axis=1) - reach, values.mean(axis=1) + reach


def order_statistics(values: Values, _draw: np.random.Generator) -> Intervals | None:
    """Of the median, as harness.results.statistics.median_interval: there is none under 6 values."""
    count = values.shape[1]
    ranks = [rank for rank in range(1, count // 2 + 1) if 2 * _at_most(count, rank - 1) <= 2 * TAIL]
    if not ranks:
        return None
    ordered = np.sort(values, axis=1)
    return ordered[:, ranks[-1] - 1], ordered[:, -ranks[-1]]


def _at_most(count: int, heads: int) -> float:
    return sum(math.comb(count, k) for k in range(heads + 1)) / 2**count


def signed_ranks(values: Values, _draw: np.random.Generator) -> Intervals | None:
    """Of the centre of symmetry, by Wilcoxon's signed ranks: there is none under 6 values.

    The k-th smallest and largest of the means of all pairs. Hollander and Wolfe, "Nonparametric Statistical Methods",
    section 3.3.
    """
    count = values.shape[1]
    sums = np.zeros(count * (count + 1) // 2 + 1)  # how many sets of signs give each sum of ranks
    sums[0] = 1
    for rank in range(1, count + 1):
        sums[rank:] += sums[:-rank].copy()
    rank = int(np.searchsorted(np.cumsum(sums) / 2**count, TAIL, side="right"))
    if rank == 0:
        return None
    first, second = np.triu_indices(count)
    means = np.sort((values[:, first] + values[:, second]) / 2, axis=1)
    return means[:, rank - 1], means[:, -rank]


NOISES = {"normal": normal, "heavy-tailed": heavy_tailed, "contaminated": contaminated}
METHODS: dict[str, Method] = {
    "bootstrap of the median": bootstrap_of_the_median,
    "bootstrap of the mean": bootstrap_of_the_mean,
    "BCa bootstrap of the mean": bca_of_the_mean,
    "order statistics": order_statistics,
    "signed ranks": signed_ranks,
    "Student's t": student_t,
}


def simulate(runs: int = RUNS) -> Simulated:
    """The record: for each noise, count and method its coverage and median width; None where it has no interval."""
    cases = []
    for noise, draw_noise in NOISES.items():
        for count in COUNTS:
            draw = np.random.default_rng([SEED, len(cases)])
            found: dict[str, list[Intervals | None]] = {name: [] for name in METHODS}
            for _ in range(runs // CHUNK):
                values = draw_noise(draw, (CHUNK, count))
                for name, method in METHODS.items():
                    found[name].append(method(values, draw))
            cases += [
                {"noise": noise, "replicates": count, "method": name, **_judge(intervals)}
                for name, intervals in found.items()
            ]
    return {
        "schema_version": 1,
        "confidence": 1 - 2 * TAIL,
        "runs": runs,
        "resamples": RESAMPLES,
        "seed": SEED,
        "numpy": np.__version__,
        "cases": cases,
    }


def _judge(intervals: list[Intervals | None]) -> dict[str, float | None]:
    there = [interval for interval in intervals if interval is not None]
    if not there:
        return {"coverage": None, "median_width": None}
    low, high = (np.concatenate(ends) for ends in zip(*there, strict=True))
    return {
        "coverage": float(np.mean((low <= 0) & (high >= 0))),
        "median_width": round(float(np.median(high - low)), 4),
    }


def table(record: Simulated) -> str:
    """Markdown: coverage in percent and, behind it, median width in standard deviations."""
    cells = {(case["noise"], case["method"], case["replicates"]): _cell(case) for case in record["cases"]}
    rows = [
        [noise, method, *(cells[noise, method, count] for count in COUNTS)] for noise in NOISES for method in METHODS
    ]
    return markdown_table(["noise", "interval", *(f"n = {count}" for count in COUNTS)], rows)


def _cell(case: dict[str, float | None]) -> str:
    coverage, width = case["coverage"], case["median_width"]
    return "none" if coverage is None or width is None else f"{coverage * 100:.1f} % ({width:.2f})"


if __name__ == "__main__":
    sys.exit(run_simulation(sys.argv[1:], about=__doc__, record=RECORD, simulate=simulate, table=table))
