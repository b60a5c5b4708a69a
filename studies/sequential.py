"""How often a sequential design names a side rightly and wrongly, and after how many pairs; and its critical values.

`python -m studies.sequential` prints two tables; `--publish` also writes the record.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.paths import REPOSITORY
from harness.results.sequential import CRITICAL_VALUES, LogRatio, estimate_sequentially
from harness.results.statistics import SAME_WITHIN

RECORD = REPOSITORY / "results" / "published" / "statistics" / "sequential.json"
SEQUENCES, RUNS = 8_000_000, 20_000
CHUNK = 200_000
SAME = math.log(SAME_WITHIN)
Pairs = NDArray[np.float64]
"""[runs, pairs]: log ratios; JAX is first in even columns."""


def critical_values(most: int, sequences: int = SEQUENCES) -> dict[int, float]:
    """Of normal errors: at the first look exact, then by simulation. Up to n pairs, 5 % * n / most is spent."""
    draw = np.random.default_rng(20261125)
    looks = list(CRITICAL_VALUES[most])
    parts: dict[int, list[NDArray[np.float32]]] = {n: [] for n in looks}
    for _ in range(sequences // CHUNK):
        pairs = draw.standard_normal((CHUNK, most))
        for n in looks:
            centre, error = by_order(pairs[:, :n])
            parts[n].append(np.abs(centre / error).astype(np.float32))
    t = {n: np.concatenate(part) for n, part in parts.items()}
    alive, found = np.ones(sequences, dtype=bool), {}
    for n in looks:
        if n == looks[0]:
            critical = float(stats.t.isf(0.025 * n / most, n - 2))
        else:
            to_spend = round(0.05 * n / most * sequences) - int((~alive).sum())
            left = t[n][alive]
            critical = float(np.partition(left, len(left) - to_spend)[len(left) - to_spend])
        found[n] = critical
        alive &= ~(t[n] > critical)
    return found


def by_order(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Estimate and standard error of each run."""
    count = pairs.shape[1]
    first, second = pairs[:, 0::2], pairs[:, 1::2]
    means = first.mean(1), second.mean(1)
    squares = ((first - means[0][:, None]) ** 2).sum(1) + ((second - means[1][:, None]) ** 2).sum(1)
    return (means[0] + means[1]) / 2, np.sqrt(squares / (count - 2) / count)


def verdicts(low: Pairs, high: Pairs) -> NDArray[np.int64]:
    """1 and -1: JAX and PyTorch faster; 2: the same; 0: none."""
    same = (low >= -SAME) & (high <= SAME)
    return np.where(same, 2, np.where(low > 0, 1, np.where(high < 0, -1, 0)))


Design = Callable[[Pairs], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Verdict and pairs of each run."""


def sequential(most: int) -> Design:
    def run(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        verdict = np.zeros(len(pairs), dtype=np.int64)
        taken = np.full(len(pairs), most)
        is_open = np.ones(len(pairs), dtype=bool)
        for n, critical in CRITICAL_VALUES[most].items():
            centre, error = by_order(pairs[:, :n])
            now = np.where(is_open, verdicts(centre - critical * error, centre + critical * error), 0)
            decided = now != 0
            verdict[decided], taken[decided] = now[decided], n
            is_open &= ~decided
        return verdict, taken

    return run


def by_t(pairs: Pairs) -> NDArray[np.int64]:
    n = pairs.shape[1]
    reach = stats.t.isf(0.025, n - 1) * pairs.std(1, ddof=1) / math.sqrt(n)
    return verdicts(pairs.mean(1) - reach, pairs.mean(1) + reach)


def fixed_three(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rules 2: Student's t over three."""
    return by_t(pairs[:, :3]), np.full(len(pairs), 3)


def until_decided(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Student's t after each pair from the third on, until there is a verdict: who measures again when undecided."""
    verdict, taken = np.zeros(len(pairs), dtype=np.int64), np.full(len(pairs), 12)
    is_open = np.ones(len(pairs), dtype=bool)
    for n in range(3, 13):
        decided = is_open & ((now := by_t(pairs[:, :n])) != 0)
        verdict[decided], taken[decided] = now[decided], n
        is_open &= ~decided
    return verdict, taken


DESIGNS: Mapping[str, Design] = {
    "three pairs, t": fixed_three,
    "t, until decided": until_decided,
    "at most 4": sequential(4),
    "at most 8": sequential(8),
    "at most 12": sequential(12),
    "at most 20": sequential(20),
}


def normal(spread: float, order: float = 0.0) -> Callable[[np.random.Generator, int], Pairs]:
    """`order`: what the process that is started first loses, of its throughput."""

    def draw(generator: np.random.Generator, runs: int) -> Pairs:
        pairs = generator.normal(0, spread, (runs, 20))
        pairs[:, 0::2] -= order
        pairs[:, 1::2] += order
        return pairs

    return draw


def contaminated(spread: float, *, both: bool) -> Callable[[np.random.Generator, int], Pairs]:
    """One process in ten is slower by ten standard deviations, on both sides or on PyTorch's alone. The truth is the
    ratio of the typical processes."""

    def draw(generator: np.random.Generator, runs: int) -> Pairs:
        pairs = generator.normal(0, spread, (runs, 20))
        pairs += 10 * spread * (generator.random(pairs.shape) < 0.1)
        if both:
            pairs -= 10 * spread * (generator.random(pairs.shape) < 0.1)
        return pairs

    return draw


NOISES: Mapping[str, Callable[[np.random.Generator, int], Pairs]] = {
    "GPU, quiet: 0.5 %": normal(0.005),
    "GPU: 1.5 %": normal(0.015),
    "CPU in turns: 1.5 %, first process 2.2 % slower": normal(0.0145, 0.011),
    "CPU in turns: 2.3 %, first process 1.5 % slower": normal(0.0225, 0.0075),
    "noisy: 5 %": normal(0.05),
    "one after the other: 20 %": normal(0.2),
    "1.5 %, one process in ten 10 sd slower, both sides": contaminated(0.015, both=True),
    "1.5 %, one process in ten 10 sd slower, one side": contaminated(0.015, both=False),
}
TRUTHS = (0.0, 0.01, 0.02, 0.05, 0.10)


def simulate(runs: int = RUNS) -> dict[str, Any]:
    generator, cases = np.random.default_rng(7), []
    for noise, draw in NOISES.items():
        for truth in TRUTHS:
            pairs = draw(generator, runs) + math.log1p(truth)
            for design, run in DESIGNS.items():
                verdict, taken = run(pairs)
                cases.append(
                    {
                        "noise": noise,
                        "truth": truth,
                        "design": design,
                        "jax": float((verdict == 1).mean()),
                        "torch": float((verdict == -1).mean()),
                        "same": float((verdict == 2).mean()),
                        "pairs": float(taken.mean()),
                    }
                )
    return {
        "runs": runs,
        "sequences": SEQUENCES,
        "numpy": np.__version__,
        "critical_values": {str(most): critical_values(most) for most in CRITICAL_VALUES},
        "cases": cases,
    }


def table(found: Mapping[str, Any]) -> str:
    """A row for each noise and design: named where both are equal (`same` in brackets), then found at each truth, with
    the mean number of pairs."""
    lines = ["| noise | design | " + " | ".join(f"{truth:.0%}" for truth in TRUTHS) + " |", "|---|---|" + "---|" * 5]
    for noise in NOISES:
        for design in DESIGNS:
            cells = []
            for truth in TRUTHS:
                [case] = [
                    one
                    for one in found["cases"]
                    if (one["noise"], one["design"], one["truth"]) == (noise, design, truth)
                ]
                named = case["jax"] if truth else case["jax"] + case["torch"]
                same = f" ({case['same']:.0%} same)" if case["same"] >= 0.005 else ""
                cells.append(f"{named:.1%}{same}; {case['pairs']:.1f}")
            lines.append(f"| {noise} | {design} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def critical_table(found: Mapping[str, Any]) -> str:
    lines = ["| at most | critical values, by simulation | in use |", "|---|---|---|"]
    for most, values in found["critical_values"].items():
        used = CRITICAL_VALUES[int(most)]
        simulated = ", ".join(f"{n}: {value:.3f}" for n, value in values.items())
        lines.append(f"| {most} | {simulated} | {', '.join(f'{n}: {value:g}' for n, value in used.items())} |")
    return "\n".join(lines)


def agrees_with_the_project(runs: int = 300) -> None:
    """The project's own function gives the verdict of this file's, run by run."""
    pairs = normal(0.02, 0.01)(np.random.default_rng(1), runs) + 0.02
    ours, taken = sequential(12)(pairs)
    words = {"JAX faster": 1, "PyTorch faster": -1, "same": 2, "undecided": 0}
    for run in range(runs):
        logs = [LogRatio(n, float(value), n % 2 == 0) for n, value in enumerate(pairs[run, :12])]
        theirs = estimate_sequentially(logs, 12)
        assert (words[theirs.verdict], theirs.replicates) == (ours[run], taken[run]), run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.sequential", description=__doc__)
    parser.add_argument("--publish", action="store_true", help=f"write {RECORD.relative_to(REPOSITORY)}")
    arguments = parser.parse_args()
    agrees_with_the_project()
    found = simulate()
    print(critical_table(found), table(found), sep="\n\n")
    if arguments.publish:
        Path(RECORD).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
