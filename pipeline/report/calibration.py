"""What calibrations say: how often the verdict on a known slowdown is right. From records to shares, then to the tables
of `main.py calibrate` and to the report's sentences about each of its devices.

In every round (a replicate of the plan) one fresh process measured each condition. A trial takes the rounds in an order
of its own and, of each, one of the two unslowed processes as the base, both by chance; it judges the base in the place
of JAX against another condition in that of PyTorch, as a report does, paired by round. Where processes took turns, two
by two, a round has a ratio for each condition, with a base of its own.
"""

import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from harness.paths import PUBLISHED, Results
from harness.plan import BASES, CONDITIONS_IN_TURNS, FRAMEWORKS, PAIRS_IN_TURNS, SLOWDOWNS, Framework, Measurement
from harness.results.ratios import replicate_of, took_turns
from harness.results.record import Record, active_s
from harness.results.sequential import LogRatio, Verdict, estimate_sequentially, looks_of
from harness.results.statistics import median, percentile
from pipeline.markdown import markdown_table
from pipeline.report.compare import NAMES, device_of
from pipeline.report.conditions import uses_gpu
from pipeline.report.reading import read_records

COMMAND = "python main.py calibrate"
PUBLISHED_CALIBRATIONS = Results(root=PUBLISHED).calibration
MOST_PAIRS = 12
TRIALS = 1000
PERFECT_CALIBRATIONS, PERFECT_TRIALS = 200, 100
SEED_OF_TRIALS = 0
FLAGS_OF_OTHER_NUMBERS = frozenset({"too_few_latency_calls"})
"""A calibration takes few latency calls and shows none of them."""
FEWEST_ROUNDS = 4
A_A = "A/A"
"""The two unslowed conditions against each other."""

Answer = Literal["right", "wrong", "undecided"]
ANSWERS: tuple[Answer, ...] = ("right", "wrong", "undecided")

Round = Mapping[str, tuple[LogRatio, LogRatio]]
"""By A_A and the keys of SLOWDOWNS: with the one unslowed process as the base, and with the other."""


class Row(NamedTuple):
    """How often the verdict was right, over the trials of one condition."""

    condition: str
    """A_A, or a key of SLOWDOWNS."""
    shares: dict[Answer, float]
    ratio: float
    """Median over the trials."""
    pairs: float
    """Until the verdict, or the end: mean over the trials."""

    @property
    def true_ratio(self) -> float:
        return 1 + SLOWDOWNS.get(self.condition, 0.0)


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
    def device(self) -> str:
        return device_of(self.records[0].environment)

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
        """`short_blocks in 42 of 43 processes, throttled in 14`: those that bear on the throughput."""
        told = (flag for record in self.records for flag in record.flags)
        counts = Counter(flag for flag in told if flag not in FLAGS_OF_OTHER_NUMBERS)
        ordered = sorted(counts.items(), key=lambda flag: (-flag[1], flag[0]))
        words = [f"{flag} in {count}" for flag, count in ordered]
        return ", ".join([f"{words[0]} of {len(self.records)} processes", *words[1:]]) if words else ""

    @property
    def is_interleaved(self) -> bool:
        return self.measurement.variant.planted in CONDITIONS_IN_TURNS

    @cached_property
    def complete(self) -> list[Round]:
        """The rounds that have every condition of this calibration. Of processes that took turns, a pair of which one
        was lost, or measured again later, is none."""
        found: dict[int, dict[str, Record]] = defaultdict(dict)
        for record in self.records:
            if record.result and record.result.blocks:
                found[record.measurement.replicate][str(record.measurement.variant.planted)] = record
        of_round = _round_in_turns if self.is_interleaved else _round_one_by_one
        rounds = [of_round(found[number]) for number in sorted(found)]
        conditions = {name for one in rounds for name in one}
        return [one for one in rounds if one and one.keys() == conditions]

    @property
    def pair_minutes(self) -> float:
        """That a pair takes, on the average."""
        return 2 * math.fsum(map(active_s, self.records)) / len(self.records) / 60

    @property
    def rounds(self) -> int:
        return len(self.complete)

    @cached_property
    def rows(self) -> dict[str, Row]:
        return rows_of(self.complete)


def _log_ratio(base: Record, other: Record) -> LogRatio:
    return replicate_of(base, other).log_ratio


def swapped(one: LogRatio) -> LogRatio:
    return one._replace(value=-one.value, jax_first=not one.jax_first)


def _round_in_turns(found: Mapping[str, Record]) -> Round:
    pairs: dict[str, tuple[LogRatio, LogRatio]] = {}
    for name, (base, other) in PAIRS_IN_TURNS.items():
        if {base, other} <= found.keys() and took_turns(found[base], found[other]):
            one = _log_ratio(found[base], found[other])
            pairs |= {name: (one, one)} if name in SLOWDOWNS else {A_A: (one, swapped(one))}
    return pairs


def _round_one_by_one(found: Mapping[str, Record]) -> Round:
    if not set(BASES) <= found.keys():
        return {}
    first, second = (found[base] for base in BASES)
    alike = _log_ratio(first, second)
    return {A_A: (alike, swapped(alike))} | {
        name: (_log_ratio(first, found[name]), _log_ratio(second, found[name])) for name in SLOWDOWNS if name in found
    }


def read_calibrations(folders: Iterable[Path]) -> tuple[list[Calibration], tuple[str, ...]]:
    """Those of all folders, oldest first, and a sentence about each file that is no record."""
    # Unlike Path.resolve() of Python 3.11, realpath() takes a link that leads to itself.
    paths = {Path(os.path.realpath(path)) for folder in folders for path in folder.rglob("*.json")}
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


def most_pairs(rounds: int) -> int:
    return max(looks_of(min(rounds, MOST_PAIRS)), default=0)


def rows_of(rounds: Sequence[Round]) -> dict[str, Row]:
    """By condition: A/A, then each planted slowdown. Empty under FEWEST_ROUNDS."""
    conditions = (A_A, *SLOWDOWNS) if len(rounds) >= FEWEST_ROUNDS else ()
    return {name: _row(rounds, name) for name in conditions if all(name in one for one in rounds)}


def _row(rounds: Sequence[Round], condition: str, count: int = TRIALS) -> Row:
    planted = SLOWDOWNS.get(condition, 0.0)
    of_condition, at_most = [one[condition] for one in rounds], most_pairs(len(rounds))
    estimates = [estimate_sequentially(pairs_of(of_condition, one), at_most) for one in trials(len(rounds), count)]
    answers = Counter(judge(planted, estimate.verdict) for estimate in estimates)
    return Row(
        condition=condition,
        shares={answer: answers[answer] / len(estimates) for answer in ANSWERS},
        ratio=median([estimate.value for estimate in estimates]),
        pairs=math.fsum(estimate.replicates for estimate in estimates) / len(estimates),
    )


def pairs_of(rounds: Sequence[tuple[LogRatio, LogRatio]], trial: Sequence[tuple[int, bool]]) -> list[LogRatio]:
    """Of a trial. Where swapping the two processes swaps which was first, both orders take turns, as replicates do."""
    found = []
    for place, (number, takes_second) in enumerate(trial):
        one, other = rounds[number]
        if one.jax_first != other.jax_first:
            wants_first = (place % 2 == 0) == trial[0][1]
            chosen = one if one.jax_first == wants_first else other
        else:
            chosen = other if takes_second else one
        found.append(chosen._replace(replicate=place))
    return found


def trials(rounds: int, count: int = TRIALS) -> Iterator[list[tuple[int, bool]]]:
    """The rounds of each trial, and whether the second unslowed process is the base there; always the same ones.

    Only random() is drawn from: Python promises its sequence for a seed, and not that of sample() or shuffle().
    """
    draw = random.Random(SEED_OF_TRIALS)
    for _ in range(count):
        order = sorted((draw.random(), number) for number in range(rounds))
        yield [(number, draw.random() < 0.5) for _, number in order]


@cache
def perfect(rounds: int) -> tuple[float, float]:
    """Which shares of wrong verdicts in A/A a perfect instrument shows with so many rounds: the middle 95 % of
    calibrations whose log ratios are normal, with true ratio 1. Trials share rounds, so few rounds say little."""
    draw, found = random.Random(SEED_OF_TRIALS), []
    for _ in range(PERFECT_CALIBRATIONS):
        alike = [LogRatio(0, draw.gauss(0, 1), True) for _ in range(rounds)]
        row = _row([{A_A: (one, swapped(one))} for one in alike], A_A, PERFECT_TRIALS)
        found.append(row.shares["wrong"])
    return percentile(found, 0.025), percentile(found, 0.975)


def spread(rounds: Sequence[Round]) -> float:
    """Of the ratio of two unslowed processes of a round: root mean square of log(A / A'), as its true mean is 0."""
    return math.sqrt(math.fsum(one[A_A][0].value ** 2 for one in rounds) / len(rounds))


def in_percent(condition: str) -> str:
    """`+2 %`."""
    return f"+{SLOWDOWNS[condition] * 100:.0f} %"


# Tables.


def describe(calibrations: Iterable[Calibration]) -> str:
    """Markdown: of each, what was measured where in one paragraph on one line, and a table."""
    return "\n\n".join(map(_describe, calibrations))


def _describe(one: Calibration) -> str:
    headline = f"**{one.framework}**, {one.what}{', interleaved' if one.is_interleaved else ''}"
    if not one.rounds:
        return f"{headline}: no complete round yet."
    environment = one.records[0].environment
    cpu = environment.get("cpu") or {}
    of_cpus = f"{len(cpu.get('affinity') or [])} CPUs ({cpu.get('model') or 'of unknown model'})"
    device = one.device if uses_gpu(environment) else of_cpus
    version = (environment.get("framework") or {}).get("version")
    loads = [load for record in one.records for load in (record.environment.get("load_average") or [])[:1]]
    load = f"load average {min(loads):.1f} to {max(loads):.1f}" if loads else "load average not recorded"
    facts = [
        f"{headline}, on {device}, with {one.framework} {version} and Python {environment.get('python')}.",
        f"{one.rounds} rounds from {one.day}; {load}.",
        f"Two unslowed processes of a round differ by {spread(one.complete) * 100:.2f} % (root mean square).",
    ]
    if one.flags:
        facts.append(f"Flags: {one.flags}.")
    if one.quick:
        facts.append("A quick run: not a result to quote.")
    if not one.rows:
        return " ".join([*facts, f"The table needs {FEWEST_ROUNDS} complete rounds."])
    low, high = perfect(one.rounds)
    facts.append(
        f"Of at most {most_pairs(one.rounds)} pairs: from {one.rounds} rounds, a perfect instrument "
        f"shows {percent(low)} to {percent(high)} wrong in A/A."
    )
    return " ".join(facts) + "\n\n" + table(one.rows.values(), one.pair_minutes)


def table(rows: Iterable[Row], pair_minutes: float) -> str:
    header = ("planted", *ANSWERS, "median ratio", "its error", "pairs", "minutes")
    return markdown_table(header, (_cells(row, pair_minutes) for row in rows))


def _cells(row: Row, pair_minutes: float) -> list[str]:
    planted = in_percent(row.condition) if row.condition in SLOWDOWNS else row.condition
    shares = [percent(row.shares[answer]) for answer in ANSWERS]
    ratio = [f"{row.ratio:.4f}", f"{(row.ratio / row.true_ratio - 1) * 100:+.2f} %"]
    return [planted, *shares, *ratio, f"{row.pairs:.1f}", f"{row.pairs * pair_minutes:.1f}"]


# The devices of a report: can its verdicts be trusted there?

CalibratedDevices = Mapping[str, Sequence[Calibration]]
"""By the device's name; empty where there is no calibration."""


def calibrated_devices(calibrations: Sequence[Calibration], devices: Iterable[str]) -> CalibratedDevices:
    """Of each device what was calibrated on it, JAX before PyTorch, the newest first."""
    newest_first = sorted(reversed(calibrations), key=lambda one: FRAMEWORKS.index(one.framework))
    return {device: [one for one in newest_first if one.device == device] for device in sorted(set(devices))}


def trust_sentences(found: Sequence[Calibration]) -> list[str]:
    """Of the calibrations of one device: how far its verdicts can be trusted; of each pairing the newest of each
    framework. A sentence with the command where there are none."""
    lines = []
    for is_interleaved in (True, False):
        newest = {
            one.framework: one for one in reversed(found) if one.is_interleaved == is_interleaved and not one.quick
        }
        both = [newest[name] for name in FRAMEWORKS if name in newest and newest[name].rows]
        if not both:
            continue
        false = _each([(one.framework, one.rows[A_A].shares["wrong"]) for one in both])
        parts = [f"of two equal programs, a side was named in {false} of trials"]
        for slowdown in SLOWDOWNS:
            shares = [(one.framework, one.rows[slowdown].shares["right"]) for one in both if slowdown in one.rows]
            if shares:
                parts.append(f"a true difference of {in_percent(slowdown)[1:]} was found in {_each(shares)}")
        most = max(most_pairs(one.rounds) for one in both)
        how = "in turns" if is_interleaved else "one after the other"
        made = " and ".join(dict.fromkeys(f"{one.rounds} rounds from {one.day}" for one in both))
        flags = "".join(f" Flags of {NAMES[one.framework]} then: {one.flags}." for one in both if one.flags)
        lines.append(f"Measured on this device, {how}, {made}, within {most} pairs: {'; '.join(parts)}.{flags}")
    return lines or [f"Not calibrated on this device: `{COMMAND}` measures how often its verdicts are right."]


def _each(shares: Sequence[tuple[Framework, float]]) -> str:
    """`1.0 % (JAX) and 3.2 % (PyTorch)`, or `100 % (both)`"""
    words = {percent(share) for _, share in shares}
    if len(shares) == len(FRAMEWORKS) and len(words) == 1:
        return f"{words.pop()} (both)"
    return " and ".join(f"{percent(share)} ({NAMES[name]})" for name, share in shares)


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"
