"""How far does a ratio lean to the framework with more execution modes? A simulation (docs/studies/best_of_modes.md).

    python -m studies.best_of_modes            prints the table
    python -m studies.best_of_modes --publish  also writes results/published/statistics/best_of_modes.json

A report chooses each framework's fastest mode on the same data that the ratio is computed from. Here all modes of both
frameworks are equally fast, which is the worst case. Each replicate of each mode has normal noise on the logarithm of
its throughput. As in a report, the fastest mode is the one with the largest median over replicates, and the ratio is
that of the two fastest modes, paired by replicate.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.results.statistics import estimate_ratio
from pipeline.markdown import markdown_table
from studies.published import PUBLISHED, Simulated, run_simulation

RECORD = PUBLISHED / "best_of_modes.json"
MODES = ((1, 1), (1, 4), (4, 4), (4, 14), (1, 14))
"""Of the numerator's framework, and of the other's."""
COUNTS = (3, 5, 10)
NOISES = (0.01, 0.03)
RUNS = 10_000
SEED = 20261121

Values = NDArray[np.float64]


def fastest(logs: Values) -> Values:
    """From [runs, modes, replicates] those of each run's fastest mode: [runs, replicates]."""
    chosen = np.median(logs, axis=2).argmax(axis=1)
    return logs[np.arange(len(logs)), chosen]


def simulate(runs: int = RUNS) -> Simulated:
    """The record: for each case the mean error of the ratio, and how often it names a faster framework, wrongly."""
    cases = []
    for noise in NOISES:
        for modes in MODES:
            for count in COUNTS:
                draw = np.random.default_rng([SEED, len(cases)])
                ours, theirs = (fastest(noise * draw.standard_normal((runs, of_one, count))) for of_one in modes)
                verdicts = [
                    estimate_ratio(jax.tolist(), torch.tolist()).verdict
                    for jax, torch in zip(np.exp(ours), np.exp(theirs), strict=True)
                ]
                cases.append(
                    {
                        "noise": noise,
                        "modes": modes,
                        "replicates": count,
                        "bias": round(float(np.expm1(np.mean(ours - theirs))), 5),
                        "named_faster": {
                            name: sum(verdict == f"{name} faster" for verdict in verdicts) / runs
                            for name in ("JAX", "PyTorch")
                        },
                    }
                )
    return {"schema_version": 1, "runs": runs, "seed": SEED, "numpy": np.__version__, "cases": cases}


def table(record: Simulated) -> str:
    """Markdown: the mean error of the ratio and, behind it, how often either side is named faster."""
    cells = {(case["noise"], tuple(case["modes"]), case["replicates"]): _cell(case) for case in record["cases"]}
    rows = [
        [f"{noise * 100:.0f} %", f"{modes[0]} and {modes[1]}", *(cells[noise, modes, count] for count in COUNTS)]
        for noise in NOISES
        for modes in MODES
    ]
    return markdown_table(["noise", "modes", *(f"n = {count}" for count in COUNTS)], rows)


def _cell(case: dict[str, Any]) -> str:
    return f"{case['bias'] * 100:+.1f} % ({sum(case['named_faster'].values()) * 100:.1f} %)"


if __name__ == "__main__":
    sys.exit(run_simulation(sys.argv[1:], about=__doc__, record=RECORD, simulate=simulate, table=table))
