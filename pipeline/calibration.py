"""What a calibration says: how often the verdict on a known slowdown is right. Pure, but for reading and writing files.

In every round one fresh process measured each condition. A trial takes `replicates` of the rounds and, of each, one of
the two unslowed processes as the base, both by chance; it judges the base against another condition as a report judges
JAX against PyTorch, paired by round.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.errors import RecordError
from harness.files import write_atomically
from harness.paths import REPOSITORY
from harness.plan import Measurement
from harness.record import Blocks
from harness.settings import Framework, Frozen
from harness.statistics import Verdict, estimate_ratio, median, throughput_samples_per_s
from pipeline.markdown import GeneratedPart, markdown_table

SCHEMA_VERSION = 1
BASES = ("A", "A'")
"""The two unslowed processes of a round. Which is called which is chance."""
PLANTED: dict[str, float] = {"+1 %": 0.01, "+2 %": 0.02, "+5 %": 0.05, "+10 %": 0.10}
CONDITIONS: dict[str, float] = dict.fromkeys(BASES, 0.0) | PLANTED
"""By how much each makes a step slower."""
REPLICATES = (3, 5, 10)
TRIALS = 1000
SEED_OF_TRIALS = 0
FLAGS_OF_OTHER_NUMBERS = frozenset({"too_few_latency_calls"})
"""A calibration takes few latency calls and shows none of them."""
MOST_FALSE_IN_AA = 0.05
FOUND_GOAL = 0.90
FOUND_GOAL_OF = "+2 %"
PUBLISHED = REPOSITORY / "results" / "published" / "calibration"
DOCS = REPOSITORY / "docs" / "measurement.md"
PART_OF_DOCS = GeneratedPart(
    begin="<!-- calibration: written by `python main.py calibrate --update-docs` -->",
    end="<!-- end of calibration -->",
)
NOT_PUBLISHED = "No calibration has been published yet."

Answer = Literal["right", "wrong", "undecided"]
ANSWERS: tuple[Answer, ...] = ("right", "wrong", "undecided")


class Process(Frozen):
    """One measurement in a process of its own."""

    framework: Framework
    round: int
    condition: str
    """A key of CONDITIONS."""
    blocks: Blocks
    """Raw: all of its block times."""
    flags: dict[str, str] = {}
    load_average: float
    """Of the last minute, when it started; its predecessors are in it."""
    started_at: str
    duration_s: float


class Calibration(Frozen):
    """The file that a calibration leaves."""

    schema_version: int = SCHEMA_VERSION
    measurements: dict[Framework, Measurement]
    """What every process of a framework measured."""
    data_dir: str
    """Relative to the repository, or absolute."""
    rounds: int
    """As asked for."""
    seed: int
    """Of the order of the conditions in each round."""
    started_at: str
    environments: dict[Framework, dict[str, Any]] = {}
    """Of each framework's first process."""
    processes: list[Process] = []


@dataclass(frozen=True, kw_only=True)
class Row:
    """How often the verdict was right, over the trials of one condition with so many replicates."""

    replicates: int
    condition: str
    """`A/A`, or a key of PLANTED."""
    shares: dict[Answer, float]
    ratio: float
    """Median over the trials."""

    @property
    def true_ratio(self) -> float:
        return 1 + PLANTED.get(self.condition, 0.0)

    @property
    def goal(self) -> str:
        if self.condition == "A/A":
            return f"wrong ≤ {MOST_FALSE_IN_AA * 100:.0f} %: {_reached(self.shares['wrong'] <= MOST_FALSE_IN_AA)}"
        if self.condition == FOUND_GOAL_OF:
            return f"right ≥ {FOUND_GOAL * 100:.0f} %: {_reached(self.shares['right'] >= FOUND_GOAL)}"
        return ""


def read_calibration(path: Path) -> Calibration:
    """Raises RecordError that names the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as a calibration: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"{path}: a calibration of schema version {version}; this code reads {SCHEMA_VERSION}.")
    try:
        return Calibration.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RecordError(f"{path}: not a calibration: {where}: {first['msg']}.") from error


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Replaces the file as a whole, so that it is readable after every process."""
    try:
        write_atomically(path, calibration.model_dump_json(indent=1) + "\n", replace=True)
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}. Free space or choose another folder with --results DIR."
        ) from error


# From processes to shares.


def rounds_of(calibration: Calibration, framework: Framework) -> list[dict[str, float]]:
    """Samples per second by condition, of each round that is complete."""
    rounds: dict[int, dict[str, float]] = {}
    for process in calibration.processes:
        if process.framework == framework:
            rounds.setdefault(process.round, {})[process.condition] = throughput_samples_per_s(process.blocks)
    return [rounds[number] for number in sorted(rounds) if rounds[number].keys() == CONDITIONS.keys()]


def judge(planted: float, verdict: Verdict) -> Answer:
    """Whether the verdict on base / slowed is right. Between two that are alike, any `faster` is wrong; a planted
    slowdown must be found, so its `same` is as wrong as the other side's `faster`."""
    if verdict == "undecided":
        return "undecided"
    return "right" if verdict == ("JAX faster" if planted else "same") else "wrong"


def rows_of(rounds: Sequence[dict[str, float]], conditions: Sequence[str] = ("A/A", *PLANTED)) -> list[Row]:
    """For each number of replicates that there are rounds for: A/A, then each planted slowdown."""
    return [
        _row(rounds, replicates, condition)
        for replicates in REPLICATES
        if replicates <= len(rounds)
        for condition in conditions
    ]


def _row(rounds: Sequence[dict[str, float]], replicates: int, condition: str) -> Row:
    planted = PLANTED.get(condition, 0.0)
    estimates = []
    for chosen in trials(len(rounds), replicates):
        base = [rounds[number][BASES[swapped]] for number, swapped in chosen]
        other = [rounds[number][condition if planted else BASES[not swapped]] for number, swapped in chosen]
        estimates.append(estimate_ratio(base, other))
    answers = Counter(judge(planted, estimate.verdict) for estimate in estimates)
    return Row(
        replicates=replicates,
        condition=condition,
        shares={answer: answers[answer] / len(estimates) for answer in ANSWERS},
        ratio=median([estimate.value for estimate in estimates]),
    )


def trials(rounds: int, replicates: int) -> Iterator[list[tuple[int, bool]]]:
    """The rounds of each trial, and whether A' is the base there; always the same ones.

    Only random() is drawn from: Python promises its sequence for a seed, and not that of sample() or shuffle().
    """
    draw = random.Random(SEED_OF_TRIALS)
    for _ in range(TRIALS):
        order = sorted((draw.random(), number) for number in range(rounds))
        yield [(number, draw.random() < 0.5) for _, number in order[:replicates]]


def spread(rounds: Sequence[dict[str, float]]) -> float:
    """Of the ratio of two unslowed processes of a round: root mean square of log(A / A'), as its true mean is 0."""
    squares = [math.log(one[BASES[0]] / one[BASES[1]]) ** 2 for one in rounds]
    return math.sqrt(math.fsum(squares) / len(squares))


# From shares to text.


def describe(calibration: Calibration) -> str:
    """Markdown: what was measured where, and a table for each framework."""
    return "\n\n".join(_describe(calibration, framework) for framework in calibration.measurements)


def _describe(calibration: Calibration, framework: Framework) -> str:
    """One paragraph on one line, then the table."""
    rounds = rounds_of(calibration, framework)
    headline = f"**{framework}**, {what_was_measured(calibration, framework)}"
    if not rounds:
        return f"{headline}: no complete round yet."
    facts = [f"{headline}, on {_where(calibration, framework)}.", _how_much(calibration, framework, rounds)]
    if flags := flag_counts(calibration, framework):
        facts.append(f"Flags: {flags}.")
    if calibration.measurements[framework].quick:
        facts.append("A quick run: not a result to quote.")
    rows = rows_of(rounds)
    if not rows:
        return " ".join([*facts, f"The table needs {REPLICATES[0]} complete rounds."])
    missing = [str(replicates) for replicates in REPLICATES if replicates > len(rounds)]
    if missing:
        facts.append(f"Too few rounds for {' and '.join(missing)} replicates.")
    return " ".join(facts) + "\n\n" + table(rows)


def table(rows: Sequence[Row]) -> str:
    header = ("replicates", "planted", *ANSWERS, "median ratio", "its error", "goal")
    return markdown_table(header, map(_cells, rows))


def _cells(row: Row) -> list[str]:
    shares = [f"{row.shares[answer] * 100:.1f} %" for answer in ANSWERS]
    ratio = [f"{row.ratio:.4f}", f"{(row.ratio / row.true_ratio - 1) * 100:+.2f} %"]
    return [str(row.replicates), row.condition, *shares, *ratio, row.goal]


def what_was_measured(calibration: Calibration, framework: Framework) -> str:
    measurement = calibration.measurements[framework]
    return (
        f"{measurement.cell.benchmark}, use case {measurement.cell.use_case} ({measurement.variant.key}, "
        f"{measurement.data} data)"
    )


def flag_counts(calibration: Calibration, framework: Framework) -> str:
    """`imprecise in 42 of 43 processes, drift in 14`: those that bear on the throughput. Empty without any."""
    flags = [process.flags for process in calibration.processes if process.framework == framework]
    counts = Counter(flag for of_one in flags for flag in of_one if flag not in FLAGS_OF_OTHER_NUMBERS)
    ordered = sorted(counts.items(), key=lambda flag: (-flag[1], flag[0]))
    told = [f"{flag} in {count}" for flag, count in ordered]
    return ", ".join([f"{told[0]} of {len(flags)} processes", *told[1:]]) if told else ""


def _where(calibration: Calibration, framework: Framework) -> str:
    environment = calibration.environments[framework]
    cpu = environment.get("cpu") or {}
    of_framework = environment.get("framework") or {}
    gpu = (environment.get("gpu") or {}).get("name")
    on_cpu = gpu is None or of_framework.get("platform") == "cpu"
    device = f"{len(cpu.get('affinity') or [])} CPUs ({cpu.get('model') or 'of unknown model'})" if on_cpu else gpu
    return f"{device}, with {framework} {of_framework.get('version')} and Python {environment.get('python')}"


def _how_much(calibration: Calibration, framework: Framework, rounds: Sequence[dict[str, float]]) -> str:
    loads = [process.load_average for process in calibration.processes if process.framework == framework]
    return (
        f"{len(rounds)} rounds from {calibration.started_at[:10]}; load average {min(loads):.1f} to {max(loads):.1f}. "
        f"Two unslowed processes of a round differ by {spread(rounds) * 100:.2f} % (root mean square)."
    )


def _reached(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


# The section of docs/measurement.md.


def published_text(folder: Path = PUBLISHED) -> str:
    """What stands between the markers: every published calibration."""
    paths = sorted(folder.glob("*.json"))
    return "\n\n".join(describe(read_calibration(path)) for path in paths) if paths else NOT_PUBLISHED


def update_docs(docs: Path = DOCS, folder: Path = PUBLISHED) -> None:
    """Write the tables of all published calibrations between the markers.

    Raises:
        RecordError: a published file is no calibration or a quick one.
        ProjectError: the markers are missing.
    """
    for path in sorted(folder.glob("*.json")):
        if any(measurement.quick for measurement in read_calibration(path).measurements.values()):
            raise RecordError(f"{path}: is of a quick run, which is not for publishing. Calibrate without --quick.")
    PART_OF_DOCS.write(docs, published_text(folder))
