"""Does a ratio cover what it claims when a screening chooses the modes? A simulation (docs/studies/screening.md).

    python -m studies.screening            prints the tables
    python -m studies.screening --publish  also writes results/published/statistics/screening.json

The fastest modes of both frameworks are equally fast, so the true ratio is 1. All other modes of a framework are slower
by the same lead, which is zero in the worst case. Every process has normal noise on the logarithm of its throughput,
those of the screening too. Before: all modes have all replicates, and the largest median chooses. After: one screening
of each mode, replicates of those that can still be the fastest, and the choice of harness/results/screening.py.
"""

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.results.screening import NOISE, Screened, chosen_mode, still_fastest
from harness.results.statistics import ratio_interval, verdict_of
from pipeline.markdown import markdown_table
from studies.best_of_modes import fastest
from studies.published import PUBLISHED, Simulated, run_simulation

RECORD = PUBLISHED / "screening.json"
MODES = ((1, 1), (1, 4), (1, 14), (14, 14))
"""Of the numerator's framework, and of the other's."""
LEADS = (0.0, 1.0, 2.0, 4.0, 10.0)
"""Of the fastest mode over all others of its framework, in standard deviations of the noise."""
COUNTS = (3, 5)
NOISES = (0.01, 0.03)
RUNS = 4_000
SEED = 20261122

Values = NDArray[np.float64]


class Side:
    """One framework in all runs of a case. Logarithms of throughputs, less that of the fastest mode."""

    def __init__(self, draw: np.random.Generator, *, modes: int, lead: float, noise: float, count: int, runs: int):
        self.truth = np.where(np.arange(modes) == 0, 0.0, -lead)
        self.screening = self.truth + noise * draw.standard_normal((runs, modes))
        self.replicates = self.truth[:, None] + noise * draw.standard_normal((runs, modes, count))
        """[runs, modes, replicates]"""

    def before(self) -> Values:
        """[runs, replicates] of the chosen modes."""
        return fastest(self.replicates)

    def after(self) -> tuple[Values, Values, Values]:
        """[runs, replicates] of the chosen modes, what these truly have [runs], and how many modes had replicates; the
        last is negative where the truly fastest had none."""
        chosen, kept = zip(*(self._choose(run) for run in range(len(self.screening))), strict=True)
        runs = np.arange(len(self.screening))
        return self.replicates[runs, list(chosen)], self.truth[list(chosen)], np.array(kept)

    def _choose(self, run: int) -> tuple[int, int]:
        screening = {str(mode): math.exp(value) for mode, value in enumerate(self.screening[run])}
        kept = still_fastest({name: Screened(value, NOISE) for name, value in screening.items()})
        throughputs = {name: dict(enumerate(np.exp(self.replicates[run, int(name)]))) for name in sorted(kept)}
        return int(chosen_mode(throughputs, screening)), len(kept) if "0" in kept else -len(kept)


def simulate(runs: int = RUNS) -> Simulated:
    """The record: for each case what the ratio's interval covers, its mean error, and what was measured."""
    cases = []
    for noise in NOISES:
        for modes in MODES:
            for lead in LEADS if max(modes) > 1 else LEADS[:1]:
                for count in COUNTS:
                    draw = np.random.default_rng([SEED, len(cases)])
                    sides = [
                        Side(draw, modes=of_one, lead=lead * noise, noise=noise, count=count, runs=runs)
                        for of_one in modes
                    ]
                    cases.append(
                        {"noise": noise, "modes": modes, "lead": lead, "replicates": count} | _outcome(sides, count)
                    )
    return {"schema_version": 1, "runs": runs, "seed": SEED, "numpy": np.__version__, "cases": cases}


def _outcome(sides: list[Side], count: int) -> dict[str, Any]:
    ours, theirs = sides
    (jax, true_jax, kept_jax), (torch, true_torch, kept_torch) = ours.after(), theirs.after()
    kept = {side: np.abs(kept) for side, kept in ((ours, kept_jax), (theirs, kept_torch))}
    measured = sum(len(side.truth) + count * of_side for side, of_side in kept.items())
    return {
        "before": _covered(ours.before(), theirs.before()),
        "after": _covered(jax, torch),
        "of_the_chosen_pair": _covered(jax - true_jax[:, None], torch - true_torch[:, None])["coverage"],
        "left_out": round(float(np.mean(np.concatenate([kept_jax < 0, kept_torch < 0]))), 4),
        "measurements": round(float(np.mean(measured)), 2),
        "measurements_before": count * sum(len(side.truth) for side in sides),
    }


def _covered(jax: Values, torch: Values) -> dict[str, float]:
    """[runs, replicates] each; the true ratio is 1."""
    intervals = [ratio_interval(a.tolist(), b.tolist()) for a, b in zip(np.exp(jax), np.exp(torch), strict=True)]
    verdicts = [verdict_of(interval) for interval in intervals]
    covering = sum(interval is not None and interval.low <= 1 <= interval.high for interval in intervals)
    return {
        "bias": round(float(np.expm1(np.mean(jax - torch))), 5),
        "coverage": covering / len(intervals),
        "named_faster": sum(verdict.endswith("faster") for verdict in verdicts) / len(verdicts),
    }


def table(record: Simulated) -> str:
    """Markdown. Mean error of the ratio and, behind it, how often its interval covers the true one."""
    head = ["noise", "modes", "lead"]
    for count in COUNTS:
        head += [f"before, n = {count}", f"after, n = {count}", "chosen pair"]
    cases: dict[tuple[float, tuple[int, ...], float], list[str]] = {}
    for case in record["cases"]:
        cells = cases.setdefault((case["noise"], tuple(case["modes"]), case["lead"]), [])
        cells += [_cell(case["before"]), _cell(case["after"]), f"{case['of_the_chosen_pair'] * 100:.1f} %"]
    return markdown_table(head, [[*_names(*key), *cells] for key, cells in cases.items()])


def cost_table(record: Simulated) -> str:
    """Markdown. With 3 replicates: how many measurements there are, and how often the fastest mode had no replicate."""
    rows = [
        [
            *_names(case["noise"], tuple(case["modes"]), case["lead"]),
            f"{case['measurements_before']}",
            f"{case['measurements']:.1f}",
            f"{case['left_out'] * 100:.1f} %",
        ]
        for case in record["cases"]
        if case["replicates"] == COUNTS[0] and max(case["modes"]) > 1
    ]
    return markdown_table(["noise", "modes", "lead", "measured before", "measured after", "fastest left out"], rows)


def tables(record: Simulated) -> str:
    return f"{table(record)}\n\n{cost_table(record)}"


def _names(noise: float, modes: tuple[int, ...], lead: float) -> list[str]:
    return [f"{noise * 100:.0f} %", f"{modes[0]} and {modes[1]}", f"{lead * noise * 100:.0f} %"]


def _cell(case: dict[str, float]) -> str:
    return f"{case['bias'] * 100:+.1f} % ({case['coverage'] * 100:.1f} %)"


if __name__ == "__main__":
    sys.exit(run_simulation(sys.argv[1:], about=__doc__, record=RECORD, simulate=simulate, table=tables))
