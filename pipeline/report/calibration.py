"""What calibrations say: how often the verdict on a known slowdown is right. From records to shares; pure.

In every round (a replicate of the plan) one fresh process measured each condition. A trial takes `replicates` of the
rounds and, of each, one of the two unslowed processes as the base, both by chance; it judges the base against another
condition as a report judges JAX against PyTorch, paired by round. Where processes took turns, two by two, a round has a
ratio for each condition, with a base of its own.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from harness.packs import record_paths
from harness.plan import (
    BASES,
    CONDITIONS,
    CONDITIONS_IN_TURNS,
    PAIRS_IN_TURNS,
    SLOWDOWNS,
    Framework,
    Measurement,
)
from harness.results.record import Record
from harness.results.statistics import (
    Verdict,
    estimate_of_log_ratios,
    log_ratio,
    median,
    throughput_samples_per_s,
    took_turns,
)
from pipeline.report.compare import device_of
from pipeline.report.reading import read_records

REPLICATES = (3, 5, 10)
TRIALS = 1000
SEED_OF_TRIALS = 0
FLAGS_OF_OTHER_NUMBERS = frozenset({"too_few_latency_calls"})
"""A calibration takes few latency calls and shows none of them."""
MOST_FALSE_IN_AA = 0.05
FOUND_GOAL = 0.90
FOUND_GOAL_OF = "slower_2_percent"
A_A = "A/A"
"""The two unslowed conditions against each other."""

Answer = Literal["right", "wrong", "undecided"]
ANSWERS: tuple[Answer, ...] = ("right", "wrong", "undecided")
Round = dict[str, float]
"""Samples per second by condition; where processes took turns, the base's over the other one's by A_A and the keys of
SLOWDOWNS."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """How often the verdict was right, over the trials of one condition with so many replicates."""

    replicates: int
    condition: str
    """A_A, or a key of SLOWDOWNS."""
    shares: dict[Answer, float]
    ratio: float
    """Median over the trials."""

    @property
    def true_ratio(self) -> float:
        return 1 + SLOWDOWNS.get(self.condition, 0.0)

    @property
    def goal(self) -> str:
        if self.condition == A_A:
            return f"wrong ≤ {MOST_FALSE_IN_AA * 100:.0f} %: {_reached(self.shares['wrong'] <= MOST_FALSE_IN_AA)}"
        if self.condition == FOUND_GOAL_OF:
            return f"right ≥ {FOUND_GOAL * 100:.0f} %: {_reached(self.shares['right'] >= FOUND_GOAL)}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """With so many replicates: how often a verdict was false where both sides were alike, and how often a slowdown of
    2 % was found. Shares of the trials."""

    replicates: int
    false_in_aa: float
    found: float


@dataclass(frozen=True)
class Calibration:
    """What one framework measured, always the same but for what was planted, on one device with the same versions."""

    records: tuple[Record, ...]
    """One of each round and condition, the oldest first."""

    @property
    def measurement(self) -> Measurement:
        return self.records[0].measurement

    @property
    def framework(self) -> Framework:
        return self.measurement.framework

    @property
    def environment(self) -> dict[str, Any]:
        return self.records[0].environment

    @property
    def device(self) -> str:
        return device_of(self.environment)

    @property
    def what(self) -> str:
        """Benchmark, use case, variant and data."""
        measurement = self.measurement
        key = measurement.variant.model_copy(update={"planted": None}).key
        return f"{measurement.cell.benchmark}, use case {measurement.cell.use_case} ({key}, {measurement.data} data)"

    @property
    def day(self) -> str:
        return self.records[0].started_at[:10]

    @property
    def quick(self) -> bool:
        return self.measurement.quick

    @property
    def flags(self) -> str:
        """`imprecise in 42 of 43 processes, drift in 14`: those that bear on the throughput. Empty without any."""
        counts = Counter(flag for record in self.records for flag in record.flags if flag not in FLAGS_OF_OTHER_NUMBERS)
        ordered = sorted(counts.items(), key=lambda flag: (-flag[1], flag[0]))
        told = [f"{flag} in {count}" for flag, count in ordered]
        return ", ".join([f"{told[0]} of {len(self.records)} processes", *told[1:]]) if told else ""

    @property
    def is_interleaved(self) -> bool:
        """Processes took turns."""
        return self.measurement.variant.planted in CONDITIONS_IN_TURNS

    @cached_property
    def complete(self) -> list[Round]:
        """The rounds that have every condition."""
        return self._in_turns() if self.is_interleaved else self._one_by_one()

    def _in_turns(self) -> list[Round]:
        """A pair of which one process was lost, or measured again later, is none."""
        found: dict[int, dict[str, Record]] = defaultdict(dict)
        for record in self.records:
            if record.result and record.result.blocks:
                found[record.measurement.replicate][str(record.measurement.variant.planted)] = record
        rounds = []
        for number in sorted(found):
            ratios = {
                A_A if name not in SLOWDOWNS else name: math.exp(log_ratio(found[number][base], found[number][other]))
                for name, (base, other) in PAIRS_IN_TURNS.items()
                if {base, other} <= found[number].keys() and took_turns(found[number][base], found[number][other])
            }
            if len(ratios) == len(PAIRS_IN_TURNS):
                rounds.append(ratios)
        return rounds

    def _one_by_one(self) -> list[Round]:
        rounds: dict[int, Round] = defaultdict(dict)
        for record in self.records:
            measurement = record.measurement
            if record.result and record.result.blocks and measurement.variant.planted:
                throughput = throughput_samples_per_s(record.result.blocks)
                rounds[measurement.replicate][measurement.variant.planted] = throughput
        return [rounds[number] for number in sorted(rounds) if rounds[number].keys() == CONDITIONS.keys()]

    @property
    def rounds(self) -> int:
        return len(self.complete)

    @property
    def spread(self) -> float | None:
        return spread(self.complete) if self.complete else None

    @cached_property
    def trust(self) -> tuple[Trust, ...]:
        """Empty under 3 complete rounds."""
        rows = rows_of(self.complete, conditions=(A_A, FOUND_GOAL_OF))
        return tuple(
            Trust(replicates=alike.replicates, false_in_aa=alike.shares["wrong"], found=slowed.shares["right"])
            for alike, slowed in zip(rows[::2], rows[1::2], strict=True)
        )


def read_calibrations(folders: Iterable[Path]) -> tuple[list[Calibration], tuple[str, ...]]:
    """Those of all folders, oldest first, and a sentence about each file that is no record."""
    paths = {path.resolve() for folder in folders for path in record_paths(folder)}
    reading = read_records(sorted(paths), planted=True)
    return calibrations_of(reading.records), reading.refused


def calibrations_of(records: Iterable[Record]) -> list[Calibration]:
    """The newest good record of each round and condition. What was measured on another device or with other versions
    is another calibration."""
    found: dict[tuple[object, ...], dict[str, Record]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.ended_at):
        if record.outcome == "ok" and record.measurement.variant.planted:
            found[_what_is_the_same(record)][record.measurement_id] = record
    by_start = [sorted(one.values(), key=lambda record: record.started_at) for one in found.values()]
    return [Calibration(tuple(one)) for one in sorted(by_start, key=lambda one: one[0].started_at)]


def _what_is_the_same(record: Record) -> tuple[object, ...]:
    """For all processes of one calibration."""
    measurement, environment = record.measurement, record.environment
    variant = measurement.variant.model_copy(update={"planted": None})
    framework = environment.get("framework") or {}
    return (
        measurement.model_copy(update={"variant": variant, "replicate": 0}).id,
        measurement.variant.planted in CONDITIONS_IN_TURNS,
        environment.get("node"),
        environment.get("python"),
        (environment.get("gpu") or {}).get("uuid"),
        framework.get("version"),
        framework.get("platform"),
        tuple(sorted((environment.get("packages") or {}).items())),
    )


def judge(planted: float, verdict: Verdict) -> Answer:
    """Whether the verdict on base / slowed is right. Between two that are alike, any `faster` is wrong; a planted
    slowdown must be found, so its `same` is as wrong as the other side's `faster`."""
    if verdict == "undecided":
        return "undecided"
    return "right" if verdict == ("JAX faster" if planted else "same") else "wrong"


def rows_of(rounds: Sequence[Round], conditions: Sequence[str] = (A_A, *SLOWDOWNS)) -> list[Row]:
    """For each number of replicates that there are rounds for: A/A, then each planted slowdown."""
    return [
        _row(rounds, replicates, condition)
        for replicates in REPLICATES
        if replicates <= len(rounds)
        for condition in conditions
    ]


def _row(rounds: Sequence[Round], replicates: int, condition: str) -> Row:
    planted = SLOWDOWNS.get(condition, 0.0)
    estimates = []
    for chosen in trials(len(rounds), replicates):
        estimates.append(
            estimate_of_log_ratios([_log_ratio(rounds[number], condition, swapped) for number, swapped in chosen])
        )
    answers = Counter(judge(planted, estimate.verdict) for estimate in estimates)
    return Row(
        replicates=replicates,
        condition=condition,
        shares={answer: answers[answer] / len(estimates) for answer in ANSWERS},
        ratio=median([estimate.value for estimate in estimates]),
    )


def _log_ratio(one: Round, condition: str, swapped: bool) -> float:
    """Of the base over the other one. `swapped`: which of two unslowed processes is the base."""
    if A_A in one:
        return -math.log(one[A_A]) if condition == A_A and swapped else math.log(one[condition])
    return math.log(one[BASES[swapped]] / one[BASES[not swapped] if condition == A_A else condition])


def trials(rounds: int, replicates: int) -> Iterator[list[tuple[int, bool]]]:
    """The rounds of each trial, and whether the second unslowed process is the base there; always the same ones.

    Only random() is drawn from: Python promises its sequence for a seed, and not that of sample() or shuffle().
    """
    draw = random.Random(SEED_OF_TRIALS)
    for _ in range(TRIALS):
        order = sorted((draw.random(), number) for number in range(rounds))
        yield [(number, draw.random() < 0.5) for _, number in order[:replicates]]


def spread(rounds: Sequence[Round]) -> float:
    """Of the ratio of two unslowed processes of a round: root mean square of log(A / A'), as its true mean is 0."""
    squares = [_log_ratio(one, A_A, False) ** 2 for one in rounds]
    return math.sqrt(math.fsum(squares) / len(squares))


def in_percent(condition: str) -> str:
    """`+2 %`."""
    return f"+{SLOWDOWNS[condition] * 100:.0f} %"


def _reached(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"
