"""From records to sections, rows and ratios. Pure: what may be compared with what is decided here.

Only the same device, cell, variant, settings, data and length of run ever meet in one number, and a ratio exists
only where the parity gate has passed the pair.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from harness.parity import Judgement
from harness.plan import Cell, Measurement, Variant
from harness.record import SETTLED, Record
from harness.settings import FRAMEWORKS, DataKind, Framework
from harness.statistics import (
    Interval,
    RatioEstimate,
    Verdict,
    estimate_ratio,
    geometric_mean_of_ratios,
    median,
    quality_flags,
    summary_numbers,
)
from pipeline.report.conditions import Condition, conditions, side

NAMES: dict[Framework, str] = {"jax": "JAX", "torch": "PyTorch"}
REPLICATES_FOR_AN_INTERVAL = 3
NO_COMMON_REPLICATE = "no replicate is common to both"
UNKNOWN_DEVICE = "a device that was not recorded"
SAME = Interval(0.99, 1.01)
"""Where an interval that lies in it says `same`; see harness/statistics.py."""
VERDICTS: tuple[Verdict, ...] = ("JAX faster", "PyTorch faster", "same", "undecided")

FLAGS_OF_EVERY_QUICK_RUN = frozenset({"few_replicates", "imprecise", "too_few_latency_calls"})
"""What its section's heading says already."""

Judge = Callable[[Record, Record], Judgement]
"""The parity gate, asked about a record of JAX and one of PyTorch."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a reader must know of a whole table. Records of different setups never meet."""

    device: str
    """The GPU's own name, or the CPU's: what it really ran on, whatever the cell asked for."""
    cell: Cell
    data: DataKind
    quick: bool

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why nothing here is a result to quote; empty for a full measurement on real data."""
        return (("quick run",) if self.quick else ()) + (("sample data",) if self.data == "sample" else ())

    @property
    def devices(self) -> str:
        return f"{self.cell.devices} x {self.device}" if self.cell.devices > 1 else self.device


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One framework in one execution mode, over its replicates."""

    framework: Framework
    execution_mode: str
    records: tuple[Record, ...]
    """In the order of their replicates."""
    throughputs: dict[int, float]
    """Samples per second of each replicate."""
    numbers: dict[str, float]
    """Median over replicates of each of harness.statistics.summary_numbers."""
    replicates_with: dict[str, int]
    """How many replicates have that number; the others never reached the goal, say."""
    flags: dict[str, str]

    @property
    def one_device_mode(self) -> str:
        """The mode that does the same on one device; its own name but for one process per node."""
        result = self.records[0].result
        return str(result.details.get("one_device_mode", self.execution_mode)) if result else self.execution_mode

    @cached_property
    def throughput_samples_per_s(self) -> float:
        return median(list(self.throughputs.values()))

    @cached_property
    def throughput_interval(self) -> Interval | None:
        """Of the replicates' throughputs, by the same statistics as that of a ratio: a ratio to 1 sample/s."""
        values = list(self.throughputs.values())
        return estimate_ratio(values, [1.0] * len(values)).interval


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Throughput of JAX over that of PyTorch, each in its fastest mode."""

    jax: Mode
    torch: Mode
    replicates: int
    """How many both sides have."""
    judgement: Judgement
    estimate: RatioEstimate | None
    """None where the gate has not passed the pair, or no replicate is common to both."""
    conditions: tuple[Condition, ...]
    """What was equal on both sides, replicate by replicate, and what was not."""

    @property
    def why_no_ratio(self) -> str | None:
        if self.estimate is not None:
            return None
        if self.replicates == 0:
            return NO_COMMON_REPLICATE
        return f"parity {self.judgement.state}: {self.judgement.sentence}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant, without its execution mode: what both frameworks did in the same way."""

    label: str
    variant: Variant
    """Of any of its records; its execution mode has no meaning here."""
    settings: str
    """Four hex digits: rows that differ in it were measured with other settings of the use case."""
    modes: tuple[Mode, ...]
    """JAX before PyTorch, the fastest first."""
    comparison: Comparison | None
    """None where one side has no number."""

    def best(self, framework: Framework) -> Mode | None:
        return next((mode for mode in self.modes if mode.framework == framework), None)

    @property
    def ratio(self) -> RatioEstimate | None:
        return self.comparison.estimate if self.comparison else None

    @property
    def why_no_ratio(self) -> str | None:
        if self.comparison is not None:
            return self.comparison.why_no_ratio
        missing = [NAMES[framework] for framework in FRAMEWORKS if self.best(framework) is None]
        return f"{' and '.join(missing)} has no number here"


@dataclass(frozen=True, kw_only=True)
class Section:
    """All rows of one setup, and what has no number there."""

    setup: Setup
    rows: tuple[Row, ...]
    without_number: tuple[Record, ...]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What many rows say together."""

    verdicts: dict[Verdict, int]
    without_ratio: int
    mean: float | None
    """Geometric mean of the ratios; None without one."""
    interval: Interval | None

    @property
    def ratios(self) -> int:
        return sum(self.verdicts.values())


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Throughput on N devices over N times that of one; 1 is what nothing lost would give. None without a record."""

    strong: float | None
    """The one device had the same batch, so N times the work of each of the N."""
    weak: float | None
    """The one device had the batch that each of the N has."""
    communication: float | None
    """Share of the step's time that goes when nothing is moved between the devices; below zero by noise alone."""


OneDevice = dict[tuple[object, ...], Mode]
"""What ran on one device, by `_scaling_key`."""


def headline(setup: Setup) -> str:
    """What this was measured on, and whether it may be quoted."""
    cell = setup.cell
    line = f"{cell.benchmark}, use case {cell.use_case} ({cell.use_case_name}), on {setup.devices}"
    doubts = " on ".join(setup.doubts).capitalize()
    return f"{line}. {doubts}: not a result to quote." if doubts else f"{line}."


def device_name(record: Record) -> str:
    """What the framework computed on, if it came so far as to tell."""
    environment = record.environment
    is_told = (environment.get("gpu") or {}).get("name") or (environment.get("framework") or {}).get("platform")
    return device_of(environment) if is_told or record.outcome == "ok" else UNKNOWN_DEVICE


def device_of(environment: Mapping[str, Any]) -> str:
    """A JAX for the CPU beside a GPU ran on the CPU."""
    gpu = (environment.get("gpu") or {}).get("name")
    if gpu and (environment.get("framework") or {}).get("platform") != "cpu":
        return str(gpu)
    return f"CPU: {(environment.get('cpu') or {}).get('model') or 'of unknown model'}"


def newest(records: Iterable[Record]) -> list[Record]:
    """One record for each measurement on each device: the newest that is settled, or else the newest.

    A later failure does not hide a number that was measured; a later number replaces an earlier one. What failed before
    its device was known counts only where nothing is settled on any.
    """
    chosen: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: (record.outcome in SETTLED, record.ended_at)):
        chosen[device_name(record), record.measurement_id] = record
    settled = {record.measurement_id for record in chosen.values() if record.outcome in SETTLED}
    return [
        record
        for (device, measurement_id), record in chosen.items()
        if device != UNKNOWN_DEVICE or measurement_id not in settled
    ]


def sections(records: Iterable[Record], judge: Judge) -> list[Section]:
    """One for each setup, in the order of their names."""
    by_setup: dict[Setup, list[Record]] = defaultdict(list)
    unplaced = []
    for record in newest(records):
        setup = _setup(record)
        if setup.device == UNKNOWN_DEVICE:
            unplaced.append(record)
        else:
            by_setup[setup].append(record)
    for record in unplaced:  # failed before its device was known: told beside its cell's other records
        setup = _setup(record)
        beside = [other for other in by_setup if replace(other, device=UNKNOWN_DEVICE) == setup]
        by_setup[beside[0] if beside else setup].append(record)
    return [_section(setup, by_setup[setup], judge) for setup in sorted(by_setup, key=_setup_order)]


def tally(rows: Iterable[Row]) -> Tally:
    rows = list(rows)
    estimates = [row.ratio for row in rows if row.ratio is not None]
    verdicts = Counter(estimate.verdict for estimate in estimates)
    mean, interval = geometric_mean_of_ratios(estimates) if estimates else (None, None)
    return Tally(
        verdicts={verdict: verdicts[verdict] for verdict in VERDICTS},
        without_ratio=len(rows) - len(estimates),
        mean=mean,
        interval=interval,
    )


def _setup(record: Record) -> Setup:
    measurement = record.measurement
    return Setup(device=device_name(record), cell=measurement.cell, data=measurement.data, quick=measurement.quick)


def _setup_order(setup: Setup) -> tuple[Any, ...]:
    return setup.device, setup.cell.name, setup.quick, setup.data


def _section(setup: Setup, records: Sequence[Record], judge: Judge) -> Section:
    rows: dict[tuple[str, str], list[Record]] = defaultdict(list)
    without_number = []
    for record in records:
        if record.outcome == "ok" and record.result is not None and record.result.blocks is not None:
            key = record.measurement.variant.comparison_key
            rows[key, settings_digest(record.measurement)].append(record)
        else:
            without_number.append(record)
    settings_of = Counter(key for key, _ in rows)
    return Section(
        setup=setup,
        rows=tuple(
            _row(f"{key} (settings {digest})" if settings_of[key] > 1 else key, digest, rows[key, digest], judge)
            for key, digest in sorted(rows, key=lambda place: _row_order(rows[place][0], *place))
        ),
        without_number=tuple(
            sorted(without_number, key=lambda record: (record.measurement.framework, record.measurement.key))
        ),
    )


def _row_order(record: Record, label: str, digest: str) -> tuple[object, ...]:
    """A batch of 64 before one of 256."""
    variant = record.measurement.variant
    options = sorted((name, str(value)) for name, value in variant.options.items())
    return variant.model, options, variant.precision, variant.batch_size, label, digest


def settings_digest(measurement: Measurement) -> str:
    """Of the use case's settings and the protocol: with others it is another measurement, and has a row of its own."""
    protocol = measurement.protocol.model_dump(mode="json", exclude={"replicates", "timeout_s"})
    content = json.dumps([measurement.settings, protocol], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:4]


def _row(label: str, settings: str, records: Sequence[Record], judge: Judge) -> Row:
    by_mode: dict[tuple[Framework, str], list[Record]] = defaultdict(list)
    for record in records:
        measurement = record.measurement
        by_mode[measurement.framework, measurement.variant.execution_mode].append(record)
    modes = [_mode(framework, mode, of_mode) for (framework, mode), of_mode in by_mode.items()]
    modes.sort(key=lambda mode: (FRAMEWORKS.index(mode.framework), -mode.throughput_samples_per_s))
    fastest: dict[Framework, Mode] = {}
    for mode in modes:
        fastest.setdefault(mode.framework, mode)
    both = len(fastest) == len(FRAMEWORKS)
    return Row(
        label=label,
        variant=records[0].measurement.variant,
        settings=settings,
        modes=tuple(modes),
        comparison=_comparison(fastest["jax"], fastest["torch"], judge) if both else None,
    )


def _mode(framework: Framework, execution_mode: str, records: Sequence[Record]) -> Mode:
    records = sorted(records, key=lambda record: record.measurement.replicate)
    throughputs: dict[int, float] = {}
    values: dict[str, list[float]] = defaultdict(list)
    flags: dict[str, str] = {}
    for record in records:
        assert record.result is not None, "only records with a number come here"
        numbers = summary_numbers(record.result)
        throughputs[record.measurement.replicate] = numbers["throughput_samples_per_s"]
        for name, value in numbers.items():
            values[name].append(value)
        # Today's rules over yesterday's samples; what only the job could see was recorded.
        flags = (
            quality_flags(record.result, record.environment, record.measurement.protocol.target_noise)
            | record.flags
            | flags
        )
    if len(throughputs) < REPLICATES_FOR_AN_INTERVAL:
        count = len(throughputs)
        flags["few_replicates"] = f"{count} replicate{'s' if count > 1 else ''}: an interval takes 3"
    if records[0].measurement.quick:
        flags = {name: sentence for name, sentence in flags.items() if name not in FLAGS_OF_EVERY_QUICK_RUN}
    return Mode(
        framework=framework,
        execution_mode=execution_mode,
        records=tuple(records),
        throughputs=throughputs,
        numbers={name: median(of_replicates) for name, of_replicates in values.items()},
        replicates_with={name: len(of_replicates) for name, of_replicates in values.items()},
        flags=flags,
    )


def _comparison(jax: Mode, torch: Mode, judge: Judge) -> Comparison:
    common = sorted(jax.throughputs.keys() & torch.throughputs.keys())
    of_jax, of_torch = _by_replicate(jax), _by_replicate(torch)
    pairs = [(of_jax[replicate], of_torch[replicate]) for replicate in common]
    judgement = _judgement([judge(ours, theirs) for ours, theirs in pairs])
    estimate = None
    if judgement.state == "passed":
        estimate = estimate_ratio(
            [jax.throughputs[replicate] for replicate in common],
            [torch.throughputs[replicate] for replicate in common],
        )
    return Comparison(
        jax=jax,
        torch=torch,
        replicates=len(pairs),
        judgement=judgement,
        estimate=estimate,
        conditions=conditions([(side(ours), side(theirs)) for ours, theirs in pairs]),
    )


def _judgement(judgements: Sequence[Judgement]) -> Judgement:
    """Of all replicates: one failure fails the row. All have the same weights and program, so one pass will do."""
    for state in ("failed", "passed"):
        for judgement in judgements:
            if judgement.state == state:
                return judgement
    return judgements[0] if judgements else Judgement(state="unchecked", sentence=NO_COMMON_REPLICATE)


def _by_replicate(mode: Mode) -> Mapping[int, Record]:
    return {record.measurement.replicate: record for record in mode.records}


def one_device(compared: Sequence[Section]) -> OneDevice:
    return {
        _scaling_key(section.setup, row, mode, row.variant.batch_size): mode
        for section in compared
        if section.setup.cell.devices == 1
        for row in section.rows
        for mode in row.modes
    }


def scaling(setup: Setup, row: Row, mode: Mode, alone: OneDevice) -> Scaling:
    devices, batch_size = setup.cell.devices, row.variant.batch_size

    def efficiency(batch_size_alone: int) -> float | None:
        other = alone.get(_scaling_key(setup, row, mode, batch_size_alone))
        return mode.throughput_samples_per_s / (devices * other.throughput_samples_per_s) if other else None

    if devices == 1:
        return Scaling(strong=None, weak=None, communication=None)
    alone_s = mode.numbers.get("step_time_alone_s")
    return Scaling(
        strong=efficiency(batch_size),
        weak=efficiency(batch_size // devices),
        communication=None if alone_s is None else 1 - alone_s / mode.numbers["step_time_s"],
    )


def _scaling_key(setup: Setup, row: Row, mode: Mode, batch_size: int) -> tuple[object, ...]:
    """All that must be the same on one device and on several; the use cases have numbers of their own."""
    cell, variant = setup.cell, row.variant
    what = (setup.device, cell.benchmark, cell.use_case_name, setup.data, setup.quick, row.settings)
    options = tuple(sorted(variant.options.items()))
    return (*what, variant.model, batch_size, variant.precision, options, mode.framework, mode.one_device_mode)
