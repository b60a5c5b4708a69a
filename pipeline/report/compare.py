"""From records to sections, rows and ratios. Pure: what may be compared with what is decided here.

Only the same device, cell, variant, settings, data and length of run ever meet in one number, and a ratio exists
only where the parity gate has passed the pair.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from harness.plan import FRAMEWORKS, Cell, DataKind, Framework, Measurement, Scalar, Variant
from harness.results.busy import busy_in_words, is_busy
from harness.results.device_peaks import DevicePeaks
from harness.results.flags import WORTHLESS, quality_flags
from harness.results.parity import Judgement
from harness.results.predictions import agreement_in_words
from harness.results.quantities import COMPARED, THROUGHPUT, summary_numbers
from harness.results.ratios import estimate_of
from harness.results.record import SETTLED, Evaluation, Record
from harness.results.screening import chosen_mode, program_of
from harness.results.sequential import RatioEstimate, Verdict, geometric_mean_of_ratios, verdict_of
from harness.results.statistics import (
    CONFIDENCE,
    SAME_WITHIN,
    Interval,
    PairedRatio,
    benjamini_hochberg,
    median,
    paired_ratio,
    throughput_samples_per_s,
)
from harness.work.declared import headline_of, operations_of
from pipeline.report.conditions import Condition, conditions, conditions_of_one_framework, side, uses_gpu
from pipeline.report.software import Arms, Software, arms_of, cluster_of, run_of, software_of, words_apart

NAMES: dict[Framework, str] = {"jax": "JAX", "torch": "PyTorch"}
NO_COMMON_REPLICATE = "no replicate is common to both"
UNKNOWN_DEVICE = "a device that was not recorded"
SAME = Interval(1 / SAME_WITHIN, SAME_WITHIN)
"""Where an interval that lies in it says `same`; see harness/results/statistics.py."""
VERDICTS: tuple[Verdict, ...] = ("JAX faster", "PyTorch faster", "same", "undecided")

FLAGS_OF_EVERY_QUICK_RUN = frozenset({"imprecise", "too_few_latency_calls"})
"""What its section's heading says already."""

NOTHING_MEASURED: Mapping[str, DevicePeaks] = {}

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
    cluster: str = ""
    arms: Arms = (None, None)
    apart: str = field(default="", compare=False)
    """What tells it from others of the device, such as `cluster A, torch 2.15.0`; empty where they have the same
    software and are of one cluster."""

    @property
    def where(self) -> str:
        return f"{self.device} ({self.apart})" if self.apart else self.device

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why nothing here is a result to quote; empty for a full measurement on real data."""
        return (("quick run",) if self.quick else ()) + (("sample data",) if self.data == "sample" else ())

    @property
    def is_cpu(self) -> bool:
        return self.device.startswith("CPU: ")

    @property
    def devices(self) -> str:
        """`8 x NVIDIA H200, 2 nodes`, or `CPU: Xeon, 2 processes`."""
        cell, where = self.cell, self.where
        if cell.devices > 1:
            where = f"{where}, {cell.devices} processes" if self.is_cpu else f"{cell.devices} x {where}"
        return f"{where}, {cell.nodes} nodes" if cell.nodes > 1 else where

    @property
    def place(self) -> str:
        """`mnist, use case 2 (train), on 2 x NVIDIA H200 (quick run)`"""
        cell, doubts = self.cell, f" ({', '.join(self.doubts)})" if self.doubts else ""
        return f"{cell.benchmark}, use case {cell.use_case} ({cell.use_case_name}), on {self.devices}{doubts}"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One framework in one execution mode, over its replicates."""

    framework: Framework
    execution_mode: str
    records: tuple[Record, ...]
    """In the order of their replicates."""
    of_replicates: dict[int, dict[str, float]]
    """Of each replicate the numbers of harness/results/quantities.py, by name."""
    flags: dict[str, str]
    attainable_operations_per_s: float | None = None
    """Of matrix products in its precision on its device; None where that was not measured."""
    doubles: tuple[str, ...] = ()
    """Other execution modes that were compiled to the same program, so that this one stands for all."""

    @property
    def name(self) -> str:
        """`step.jit`, or `step.jit = step.jit_graph` for one program under two names."""
        return " = ".join([self.execution_mode, *self.doubles])

    @property
    def why_worthless(self) -> str | None:
        """Why its throughput is compared with nothing; None where it may be."""
        return next((f"{flag}: {self.flags[flag]}" for flag in WORTHLESS if flag in self.flags), None)

    @property
    def one_device_mode(self) -> str:
        """The mode that does the same on one device; its own name but for one process per node."""
        result = self.records[0].result
        return str(result.details.get("one_device_mode", self.execution_mode)) if result else self.execution_mode

    @cached_property
    def throughputs(self) -> dict[int, float]:
        """Samples per second of each replicate."""
        return {replicate: numbers[THROUGHPUT.name] for replicate, numbers in self.of_replicates.items()}

    @cached_property
    def replicates_with(self) -> Counter[str]:
        """How many replicates have a number; the others never reached the goal, say."""
        return Counter(name for numbers in self.of_replicates.values() for name in numbers)

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Medians over replicates, by name."""
        every = self.of_replicates.values()
        return {name: median([one[name] for one in every if name in one]) for name in self.replicates_with}

    @cached_property
    def throughput_samples_per_s(self) -> float:
        return median(list(self.throughputs.values()))

    @cached_property
    def throughput_interval(self) -> Interval | None:
        """Of the replicates' throughputs, by the same statistics as that of a ratio: a ratio to 1 sample/s."""
        values = list(self.throughputs.values())
        return paired_ratio(values, [1.0] * len(values)).interval


class ScreenedMode(NamedTuple):
    """One framework in one execution mode, by its one short measurement. It is in no ratio."""

    framework: Framework
    execution_mode: str
    throughput_samples_per_s: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Throughput of JAX over that of PyTorch, each in its fastest mode."""

    jax: Mode
    torch: Mode
    replicates: int
    """How many both sides have."""
    left_out: str | None
    """How many of them are not in the ratio, and why."""
    judgement: Judgement
    estimate: RatioEstimate | None
    """None where the gate has not passed the pair, or no replicate is common to both."""
    flags: Mapping[str, str]
    """Of the ratio: what would make it surer."""
    of_quantities: Mapping[str, PairedRatio]
    """JAX's over PyTorch's of other quantities, over the replicates in which both have it: of COMPARED, by name."""
    conditions: tuple[Condition, ...]
    """What was equal on both sides, replicate by replicate, and what was not."""
    busy: str | None = None
    """Why there is no estimate, where a busy machine is the reason."""
    predictions: str | None = None
    """How many predictions on the test set are the same, where both sides made any."""

    @property
    def why_no_ratio(self) -> str | None:
        if self.estimate is not None:
            return None
        if self.replicates == 0:
            return NO_COMMON_REPLICATE
        if self.busy is not None:
            return f"inconclusive: {self.busy}"
        return f"parity {self.judgement.state}: {self.judgement.sentence}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant, without its execution mode: what both frameworks did in the same way."""

    label: str
    variant: Variant
    """Of any of its records; its execution mode has no meaning here."""
    settings_digest: str
    """Four hex digits: rows that differ in it were measured with other settings of the use case."""
    data_id: str
    """Rows that differ in it were measured on other data; see `data_id`."""
    has_other_data: bool
    """The same was measured on other data too, which is in another row."""
    modes: tuple[Mode, ...]
    """JAX before PyTorch, the fastest first."""
    comparison: Comparison | None
    """None where one side has no number that may be compared."""
    screened: tuple[ScreenedMode, ...] = ()
    declared: Comparison | None = None
    """The same of the two modes that the use case declares as its headline; None where one of them has no number that
    may be compared."""
    q: float | None = None
    """Of the ratio, among those of all rows that were read; None where it is not judged."""
    declared_q: float | None = None

    def best(self, framework: Framework) -> Mode | None:
        """Of those that may be compared, the one that is (harness/results/screening.py)."""
        return _chosen(self.modes, self.screened, framework)

    @property
    def only_screened(self) -> tuple[ScreenedMode, ...]:
        measured = {(mode.framework, mode.execution_mode) for mode in self.modes}
        return tuple(one for one in self.screened if (one.framework, one.execution_mode) not in measured)

    def is_chosen_by_screening(self, framework: Framework) -> bool:
        """Else the choice is by the same numbers as the ratio, and leans."""
        return _first(self.screened, self.modes, framework) is not None

    @property
    def flags(self) -> dict[str, str]:
        """Of its ratio, and of the two modes in it."""
        modes = [mode for framework in FRAMEWORKS if (mode := self.best(framework))]
        of_modes = {name: text for mode in modes for name, text in mode.flags.items()}
        return of_modes | dict(self.comparison.flags if self.comparison else {})

    @property
    def many_steps_in_a_call(self) -> bool:
        return _runs_many_steps(self.modes[0].records[0])

    @property
    def ratio(self) -> RatioEstimate | None:
        return self.comparison.estimate if self.comparison else None

    @property
    def declared_ratio(self) -> RatioEstimate | None:
        return self.declared.estimate if self.declared else None

    @property
    def best_is_declared(self) -> bool:
        """The ratio is that of the declared pair."""
        return self.comparison is not None and self.declared is self.comparison

    @property
    def why_no_ratio(self) -> str | None:
        if self.comparison is not None:
            return self.comparison.why_no_ratio
        for mode in self.modes:
            if self.best(mode.framework) is None:
                return f"{NAMES[mode.framework]} {mode.execution_mode}: {mode.why_worthless}"
        missing = " and ".join(NAMES[framework] for framework in FRAMEWORKS if self.best(framework) is None)
        if self.has_other_data:
            return f"{missing} has no number on this data; records of different data are never compared"
        return f"{missing} has no number here"


@dataclass(frozen=True, kw_only=True)
class Section:
    setup: Setup
    rows: tuple[Row, ...]
    without_number: tuple[Record, ...]
    awaited: tuple[str, ...] = ()
    """Labels of what was screened so far, and has no replicate yet."""
    attainable: DevicePeaks | None = None
    """What the device can do; None where that was not measured."""
    alone: "OneDevice" = field(default_factory=dict, compare=False, repr=False)
    """What ran on one device, in any section: for the efficiency of several."""


class Tally(NamedTuple):
    verdicts: dict[Verdict, int]
    without_ratio: int
    mean: RatioEstimate | None
    """Geometric mean of the ratios without a doubt, which are its `replicates`; None without one."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Throughput on N devices over N times that of one; 1 is what nothing lost would give. None without a record."""

    strong: PairedRatio | None
    """The one device had the same batch, so N times the work of each of the N."""
    weak: PairedRatio | None
    """The one device had the batch that each of the N has."""
    communication: float | None
    """Share of the step's time that goes when nothing is moved between the devices; below zero by noise alone."""
    conditions: tuple[Condition, ...] = ()
    """What was equal on one device, whose value is first, and on N."""


MANY_STEPS = ", many steps in a call"

OneDevice = dict[tuple[object, ...], Mode]
"""What ran on one device, by `_scaling_key`."""


def device_name(record: Record) -> str:
    """What the framework computed on, if it came so far as to tell."""
    environment = record.environment
    is_told = uses_gpu(environment) or (environment.get("framework") or {}).get("platform") is not None
    return device_of(environment) if is_told or record.outcome == "ok" else UNKNOWN_DEVICE


def device_of(environment: Mapping[str, Any]) -> str:
    """A JAX for the CPU beside a GPU ran on the CPU. Where NVML is missing, the framework knows the GPU's name. A slice
    of a GPU is not the whole one."""
    gpu, framework = environment.get("gpu") or {}, environment.get("framework") or {}
    if uses_gpu(environment):
        own = str(framework.get("device") or gpu.get("name") or "GPU of unknown model")
        if not gpu.get("mig"):
            return str(gpu.get("name") or own)
        return own if "MIG" in own else f"{own} MIG {(gpu.get('memory_total_bytes') or 0) / 2**30:.1f} GiB"
    return f"CPU: {(environment.get('cpu') or {}).get('model') or 'of unknown model'}"


def placed(records: Iterable[Record]) -> dict[Setup, list[Record]]:
    """One record for each measurement in each setup: the newest that is settled, or else the newest.

    A later failure does not hide a number that was measured; a later number replaces an earlier one of the same cluster
    and software. What failed before its device was known counts only where nothing is settled on any.
    """
    of_places: dict[Setup, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record.outcome in SETTLED, record.ended_at)):
        of_places[_setup(record)].append(record)
    known = {place: of_place for place, of_place in of_places.items() if place.device != UNKNOWN_DEVICE}
    settled = {one.measurement_id for of_place in known.values() for one in of_place if one.outcome in SETTLED}
    found: dict[Setup, list[Record]] = {}
    for place, of_place in known.items():
        every = arms_of(of_place)
        for arms in every:
            of_arms = [one for one in of_place if _is_of(one, arms, is_newest=arms == every[-1])]
            if len(every) > 1:  # of a side that was measured with two partners, what ran with this one counts
                jax, torch = ({run_of(one) for one in of_arms if _side(one) == side} - {None} for side in (0, 1))
                of_arms.sort(key=lambda one: (one.outcome in SETTLED, run_of(one) in jax & torch))
            found[replace(place, arms=arms)] = list({one.measurement_id: one for one in of_arms}.values())
    for place, of_place in of_places.items():
        if place.device == UNKNOWN_DEVICE:
            left = {one.measurement_id: one for one in of_place if one.measurement_id not in settled}
            beside = [one for one in found if _is_beside(place, one)]
            if left:
                found.setdefault(beside[-1] if beside else place, []).extend(left.values())
    return found


def _is_beside(place: Setup, other: Setup) -> bool:
    """Of the same cell; what failed before its device was known may not say its cluster either."""
    cluster = place.cluster or other.cluster
    return replace(place, device=other.device, arms=other.arms, cluster=cluster) == other


def _is_of(record: Record, arms: Arms, *, is_newest: bool) -> bool:
    """What does not say its software goes with the newest."""
    software = software_of(record)
    return is_newest if software is None else software == arms[_side(record)]


def _side(record: Record) -> int:
    return FRAMEWORKS.index(record.measurement.framework)


def sections(
    records: Iterable[Record],
    judge: Judge,
    peaks: Mapping[str, DevicePeaks] = NOTHING_MEASURED,
    alone: "OneDevice | None" = None,
) -> list[Section]:
    """One for each setup, in the order of their names.

    Args:
        peaks: of devices, by their names.
        alone: what ran on one device; None where all of it is among the records.
    """
    by_setup = placed(records)
    apart: dict[Setup, str] = {}
    for device in {setup.device for setup in by_setup}:
        of_device = [setup for setup in by_setup if setup.device == device]
        words = words_apart((setup.cluster, setup.arms) for setup in of_device)
        apart |= {setup: words[setup.cluster, setup.arms] for setup in of_device}
    named = {replace(setup, apart=words): by_setup[setup] for setup, words in apart.items()}
    order = sorted(named, key=lambda one: (one.device, one.cell.name, one.quick, one.data, one.apart))
    found = _with_q([_section(setup, named[setup], judge, peaks.get(setup.device)) for setup in order])
    alone = _one_device(found) if alone is None else alone
    return [replace(section, alone=alone) for section in found]


def _with_q(found: Sequence[Section]) -> list[Section]:
    """A family is what one device has measured in one way with one software: other records change no mark of it."""
    families: dict[tuple[str, tuple[str, ...]], list[Row]] = defaultdict(list)
    for section in found:
        families[section.setup.where, section.setup.doubts] += section.rows
    marked = {family: iter(_marked(rows)) for family, rows in families.items()}
    return [
        replace(section, rows=tuple(next(marked[section.setup.where, section.setup.doubts]) for _ in section.rows))
        for section in found
    ]


def _marked(rows: Sequence[Row]) -> list[Row]:
    both = _q_values([row.ratio for row in rows]), _q_values([row.declared_ratio for row in rows])
    return [replace(row, q=q, declared_q=declared_q) for row, q, declared_q in zip(rows, *both, strict=True)]


def _q_values(ratios: Sequence[RatioEstimate | None]) -> list[float | None]:
    """None of what is not judged."""
    p_values = [one.p if one is not None and one.is_judged else None for one in ratios]
    found = iter(benjamini_hochberg([p for p in p_values if p is not None]))
    return [None if p is None else next(found) for p in p_values]


def may_be_chance(ratio: RatioEstimate | None, q: float | None) -> bool:
    """A side is named, and would not be if the share of false names were held to 5 %."""
    return ratio is not None and ratio.names_a_side and q is not None and q > 1 - CONFIDENCE


def tally(rows: Sequence[Row]) -> Tally:
    estimates = [row.ratio for row in rows if row.ratio is not None]
    found = Counter(estimate.verdict for estimate in estimates)
    mean = None
    if sound := [estimate for estimate in estimates if estimate.doubt is None]:
        value, interval = geometric_mean_of_ratios(sound)
        mean = RatioEstimate(value, interval, len(sound), verdict_of(interval))
    return Tally({verdict: found[verdict] for verdict in VERDICTS}, len(rows) - len(estimates), mean)


def _setup(record: Record) -> Setup:
    """Without its software."""
    of = record.measurement
    return Setup(device=device_name(record), cell=of.cell, data=of.data, quick=of.quick, cluster=cluster_of(record))


class RowKey(NamedTuple):
    """All that the records of a row share, within a section."""

    label: str
    settings_digest: str
    data_id: str

    @property
    def without_data(self) -> tuple[str, str]:
        return self.label, self.settings_digest


def row_labels(keys: Iterable[RowKey], records: Mapping[RowKey, Record] | None = None) -> dict[RowKey, str]:
    """`cnn-b100-fp32`, and behind it what alone tells it from another: `(learning rate 0.05)`, `(data 3c4d5e6f)`.

    Args:
        records: one of each; without them, settings have their digest, as `(settings 1a2b)`.
    """
    same: dict[str, list[RowKey]] = defaultdict(list)
    for key in keys:
        same[key.label].append(key)
    labels = {}
    for label, others in same.items():
        settings, data = ({getattr(key, name) for key in others} for name in ("settings_digest", "data_id"))
        of_each = _differing_settings({key: records[key].measurement for key in others}) if records else {}
        for key in others:
            apart = [of_each.get(key) or f"settings {key.settings_digest}"] if len(settings) > 1 else []
            apart += [f"data {key.data_id or 'not recorded'}"] if len(data) > 1 else []
            labels[key] = f"{label} ({', '.join(apart)})" if apart else label
    return labels


MOST_SETTINGS = 3
"""Of which a label has the values; what differs in more has a digest."""


def _differing_settings(measurements: Mapping[RowKey, Measurement]) -> dict[RowKey, str]:
    """`learning rate 0.05, epochs 2`, of those in which they differ."""
    facts = {key: {**one.settings, **one.sizes, **_protocol(one)} for key, one in measurements.items()}
    names = sorted({name for of_one in facts.values() for name in of_one})
    differing = [name for name in names if len({json.dumps(of_one.get(name)) for of_one in facts.values()}) > 1]
    if not 0 < len(differing) <= MOST_SETTINGS:
        return {}
    return {
        key: ", ".join(f"{name.replace('_', ' ')} {of_one.get(name, 'none')}" for name in differing)
        for key, of_one in facts.items()
    }


def _protocol(measurement: Measurement) -> dict[str, Any]:
    return measurement.protocol.model_dump(mode="json", exclude={"replicates", "timeout_s"})


def _section(setup: Setup, records: Sequence[Record], judge: Judge, attainable: DevicePeaks | None) -> Section:
    rows: dict[RowKey, list[Record]] = defaultdict(list)
    screened: dict[RowKey, list[Record]] = defaultdict(list)
    without_number = []
    for record in records:
        if record.outcome == "ok" and record.result is not None and record.result.blocks is not None:
            measurement = record.measurement
            found = screened if measurement.is_screening else rows
            found[RowKey(_work(record), settings_digest(measurement), data_id(record))].append(record)
        else:
            without_number.append(record)
    labels = row_labels(rows, {key: of[0] for key, of in rows.items()})
    data_sets = Counter(key.without_data for key in rows)
    return Section(
        setup=setup,
        rows=tuple(
            _row(labels[key], key, data_sets[key.without_data] > 1, rows[key], screened.get(key, ()), judge, attainable)
            for key in sorted(rows, key=lambda key: _row_order(rows[key][0], key))
        ),
        without_number=tuple(
            sorted(without_number, key=lambda record: (record.measurement.framework, record.measurement.key))
        ),
        awaited=tuple(sorted({key.label for key in screened.keys() - rows.keys()})),
        attainable=attainable,
    )


def _work(record: Record) -> str:
    """What a call does. One that runs many steps leaves no room between them to log, to check or to load data, so it is
    compared only with its like."""
    key = record.measurement.variant.comparison_key
    return f"{key}{MANY_STEPS}" if _runs_many_steps(record) else key


def _runs_many_steps(record: Record) -> bool:
    assert record.result is not None and record.result.blocks is not None, "only records with a number come here"
    return record.result.blocks.steps_per_call > 1


def _row_order(record: Record, key: RowKey) -> tuple[object, ...]:
    """A batch of 64 before one of 256."""
    variant = record.measurement.variant
    options = sorted((name, _value_order(value)) for name, value in variant.options.items())
    return variant.model, options, variant.precision, variant.batch_size, key


def _value_order(value: Scalar) -> tuple[bool, float, str]:
    """8 before 64, and numbers before words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return False, float(value), ""
    return True, 0.0, str(value)


def settings_digest(measurement: Measurement) -> str:
    """Of the use case's settings, the protocol and the benchmark's sizes, if it has any: with others it is another
    measurement, and has a row of its own."""
    sizes = [measurement.sizes] if measurement.sizes else []
    content = json.dumps([measurement.settings, _protocol(measurement), *sizes], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:4]


def data_id(record: Record) -> str:
    """The first eight digits of the data's SHA-256; their source where they are drawn on the device. Empty where the
    record does not say."""
    if record.data is None:
        return ""
    return record.data.sha256[:8] if record.data.sha256 else record.data.source


def _row(
    label: str,
    key: RowKey,
    has_other_data: bool,
    records: Sequence[Record],
    screened: Sequence[Record],
    judge: Judge,
    attainable: DevicePeaks | None,
) -> Row:
    by_mode: dict[tuple[Framework, str], list[Record]] = defaultdict(list)
    for record in records:
        by_mode[_mode_of(record)].append(record)
    doubles = _doubles({**{_mode_of(one): one for one in screened}, **{key: of[0] for key, of in by_mode.items()}})
    modes = []
    for of, of_mode in by_mode.items():
        if of not in doubles:
            of_it = tuple(other for (framework, other), one in doubles.items() if (framework, one) == of)
            modes.append(_mode(*of, of_mode, attainable, of_it))
    modes.sort(key=_order_of_modes)
    screened_modes = tuple(
        ScreenedMode(*_mode_of(one), throughput_samples_per_s(one.result.blocks))
        for one in screened
        if _mode_of(one) not in doubles and one.result and one.result.blocks
    )
    screened_modes = tuple(sorted(screened_modes, key=_order_of_modes))
    chosen = [_chosen(modes, screened_modes, framework) for framework in FRAMEWORKS]
    overruled = [
        f"{mode.execution_mode} of {NAMES[mode.framework]}"
        for mode in chosen
        if mode and _first(screened_modes, modes, mode.framework) not in (None, mode.execution_mode)
    ]
    declared = [_declared(modes, framework) for framework in FRAMEWORKS]
    comparison = _comparison(chosen, judge)
    if comparison and overruled:
        words = f"the replicates chose {' and '.join(overruled)}, against the screening, so the choice leans to it"
        comparison = replace(comparison, flags={**comparison.flags, "overruled": words})
    return Row(
        label=label,
        variant=records[0].measurement.variant,
        settings_digest=key.settings_digest,
        data_id=key.data_id,
        has_other_data=has_other_data,
        modes=tuple(modes),
        comparison=comparison,
        screened=screened_modes,
        declared=comparison if declared == chosen else _comparison(declared, judge),
    )


def _mode_of(record: Record) -> tuple[Framework, str]:
    return record.measurement.framework, record.measurement.variant.execution_mode


def _doubles(records: Mapping[tuple[Framework, str], Record]) -> dict[tuple[Framework, str], str]:
    """Modes that are the program of another one under a second name, and that other one: the headline, else what has
    replicates, else the first in the order of their names. The faster of equal modes would be so by luck."""

    def standing(item: tuple[tuple[Framework, str], Record]) -> tuple[bool, bool, str]:
        (framework, mode), record = item
        headline_mode = headline_of(record.measurement.cell.use_case_name).get(framework)
        return mode != headline_mode, record.measurement.is_screening, mode

    found: dict[tuple[Framework, str], str] = {}
    first: dict[tuple[Framework, str], str] = {}
    for (framework, mode), record in sorted(records.items(), key=standing):
        program = program_of(record)
        if program is not None and first.setdefault((framework, program), mode) != mode:
            found[framework, mode] = first[framework, program]
    return found


def _order_of_modes(mode: Mode | ScreenedMode) -> tuple[int, float]:
    return FRAMEWORKS.index(mode.framework), -mode.throughput_samples_per_s


def _comparable(modes: Iterable[Mode], framework: Framework) -> list[Mode]:
    return [mode for mode in modes if mode.framework == framework and not mode.why_worthless]


def _chosen(modes: Iterable[Mode], screened: Iterable[ScreenedMode], framework: Framework) -> Mode | None:
    """None where no mode may be compared."""
    candidates = {mode.execution_mode: mode for mode in _comparable(modes, framework)}
    if not candidates:
        return None
    by_screening = {one.execution_mode: one.throughput_samples_per_s for one in screened if one.framework == framework}
    return candidates[chosen_mode({name: mode.throughputs for name, mode in candidates.items()}, by_screening)]


def _first(screened: Iterable[ScreenedMode], modes: Iterable[Mode], framework: Framework) -> str | None:
    """The fastest by the screening; None where a mode that may be compared was not screened."""
    names = {mode.execution_mode for mode in _comparable(modes, framework)}
    found = {one.execution_mode: one.throughput_samples_per_s for one in screened if one.framework == framework}
    return max(names, key=lambda name: found[name]) if names and names <= found.keys() else None


def _declared(modes: Iterable[Mode], framework: Framework) -> Mode | None:
    """The use case's headline mode, where it may be compared."""
    of_framework = _comparable(modes, framework)
    names = {headline_of(mode.records[0].measurement.cell.use_case_name).get(framework) for mode in of_framework}
    return next((mode for mode in of_framework if mode.execution_mode in names), None)


def _mode(
    framework: Framework,
    execution_mode: str,
    records: Sequence[Record],
    attainable: DevicePeaks | None,
    doubles: tuple[str, ...] = (),
) -> Mode:
    records = sorted(records, key=lambda record: record.measurement.replicate)
    of_replicates: dict[int, dict[str, float]] = {}
    flags: dict[str, str] = {}
    for record in records:
        assert record.result is not None, "only records with a number come here"
        of_replicates[record.measurement.replicate] = summary_numbers(record.result, operations_of(record.measurement))
        # Today's rules over yesterday's samples; what only the job could see was recorded.
        protocol = record.measurement.protocol
        flags = record.flags | quality_flags(record.result, record.environment, protocol.latency_calls) | flags
    flags = _without_those_of_quick_runs(flags | _flags_of_all(records), records)
    return Mode(
        framework=framework,
        execution_mode=execution_mode,
        records=tuple(records),
        of_replicates=of_replicates,
        doubles=doubles,
        flags=flags,
        attainable_operations_per_s=attainable.peak(records[0].measurement.variant.precision) if attainable else None,
    )


def _without_those_of_quick_runs(flags: Mapping[str, str], records: Sequence[Record]) -> dict[str, str]:
    left_out = FLAGS_OF_EVERY_QUICK_RUN if records[0].measurement.quick else frozenset()
    return {name: sentence for name, sentence in flags.items() if name not in left_out}


def _flags_of_all(records: Sequence[Record]) -> dict[str, str]:
    """What only all replicates together show, or all ranks of one."""
    first, *others = [side(record) for record in records]
    flags = {}
    found = conditions_of_one_framework([(first, other) for other in others])
    mixed = "; ".join(f"{one.name}: {one.detail}" for one in found if one.state == "differs")
    if mixed:
        flags["mixed_environment"] = f"replicates of different environments: {mixed}"
    for record in records:
        gpu = record.environment.get("gpu") or {}
        names = {name for rank in record.ranks for name in rank.gpu_names} | set(gpu.get("names") or ())
        if len(names) > 1:
            flags["mixed_gpus"] = f"its devices are of different kinds: {', '.join(sorted(names))}"
    return flags


def _comparison(pair: Sequence[Mode | None], judge: Judge) -> Comparison | None:
    """None where one side has nothing that may be compared."""
    jax, torch = pair
    if jax is None or torch is None:
        return None
    common = sorted(jax.throughputs.keys() & torch.throughputs.keys())
    of_jax, of_torch = ({one.measurement.replicate: one for one in mode.records} for mode in (jax, torch))
    judgements = {replicate: judge(of_jax[replicate], of_torch[replicate]) for replicate in common}
    passed = [replicate for replicate in common if judgements[replicate].state == "passed"]
    judgement = _judgement(list(judgements.values()))
    estimate = left_out = busy = None
    if loud := [one for one in passed if is_busy(of_jax[one]) or is_busy(of_torch[one])]:
        busy = busy_in_words([side[one] for side in (of_jax, of_torch) for one in loud])
        passed = [replicate for replicate in passed if replicate not in loud]
    if judgement.state == "passed" and passed:
        unchecked = [one.sentence for one in judgements.values() if one.state != "passed"]
        about = f"{len(unchecked)} of {len(common)} replicates, parity unchecked: {unchecked[0]}" if unchecked else ""
        estimate = estimate_of([(of_jax[replicate], of_torch[replicate]) for replicate in passed])
        about_busy = f"{len(loud)} of {len(common)} replicates: {busy}" if loud else ""
        left_out = "; ".join(filter(None, [about, about_busy, estimate.left_out])) or None
    pairs = [(side(of_jax[replicate]), side(of_torch[replicate])) for replicate in (passed or common)]
    predicted = [one for one in common if not of_jax[one].measurement.is_short]  # of these alone it is asked
    return Comparison(
        jax=jax,
        torch=torch,
        replicates=len(common),
        left_out=left_out,
        judgement=judgement,
        estimate=estimate.ratio if estimate else None,
        flags=_without_those_of_quick_runs(estimate.flags, jax.records) if estimate else {},
        of_quantities=ratios_of(jax, torch, passed),
        conditions=conditions(pairs),
        busy=busy if estimate is None and judgement.state == "passed" else None,
        predictions=agreement_in_words(*(_evaluations(side, predicted) for side in (of_jax, of_torch))),
    )


def _evaluations(records: Mapping[int, Record], replicates: Sequence[int]) -> list[Evaluation]:
    """Of these replicates; empty where one has none."""
    results = [records[replicate].result for replicate in replicates]
    found = [result.evaluation for result in results if result is not None and result.evaluation is not None]
    return found if len(found) == len(replicates) else []


def ratios_of(jax: Mode, torch: Mode, replicates: Iterable[int]) -> dict[str, PairedRatio]:
    """Of each of COMPARED, over those of the replicates in which both sides have it."""
    numbers = [(jax.of_replicates[one], torch.of_replicates[one]) for one in replicates]
    found = {}
    for name in (quantity.name for quantity in COMPARED):
        both = [
            (ours[name], theirs[name]) for ours, theirs in numbers if ours.get(name, 0) > 0 and theirs.get(name, 0) > 0
        ]
        if both:
            found[name] = paired_ratio(*map(list, zip(*both, strict=True)))
    return found


def _judgement(judgements: Sequence[Judgement]) -> Judgement:
    """Of all replicates: one failure fails the row. What is unchecked is left out where anything has passed."""
    order = ("failed", "passed", "unchecked")
    none = Judgement(state="unchecked", sentence=NO_COMMON_REPLICATE)
    return min(judgements, key=lambda one: order.index(one.state), default=none)


def _one_device(compared: Sequence[Section]) -> OneDevice:
    return {
        _scaling_key(section.setup, row, mode, row.variant.batch_size, software): mode
        for section in compared
        if section.setup.cell.devices == 1
        for row in section.rows
        for mode in row.modes
        for software in (None, software_of(mode.records[0]))
        if not mode.why_worthless
    }


def scaling(section: Section, row: Row, mode: Mode) -> Scaling:
    setup, alone = section.setup, section.alone
    devices, batch_size = setup.cell.devices, row.variant.batch_size
    if devices == 1 or mode.why_worthless:
        return Scaling(strong=None, weak=None, communication=None)

    def efficiency(other: Mode | None) -> PairedRatio | None:
        """Replicates are paired by their numbers: both have their own noise, whichever is laid beside which."""
        common = sorted(mode.throughputs.keys() & other.throughputs.keys()) if other else []
        if other is None or not common:
            return None
        return paired_ratio(
            [mode.throughputs[one] / devices for one in common], [other.throughputs[one] for one in common]
        )

    strong, weak = (
        alone.get(_scaling_key(setup, row, mode, size, software_of(mode.records[0])))
        or alone.get(_scaling_key(setup, row, mode, size, None))
        for size in (batch_size, batch_size // devices)
    )
    pairs = [  # every record of both at least once, as all of them are in the two medians
        (side(one or other.records[0]), side(several or mode.records[0]))
        for other in (strong, weak)
        if other
        for one, several in zip_longest(other.records, mode.records)
    ]
    alone_s = mode.numbers.get("step_time_alone_s")
    return Scaling(
        strong=efficiency(strong),
        weak=efficiency(weak),
        communication=None if alone_s is None else 1 - alone_s / mode.numbers["step_time_s"],
        conditions=conditions_of_one_framework(pairs),
    )


def _scaling_key(setup: Setup, row: Row, mode: Mode, batch_size: int, software: Software | None) -> tuple[object, ...]:
    """All that must be the same on one device and on several; the use cases have numbers of their own. With None as the
    software, what has no number there of its own has that of another one, and the difference beside it."""
    cell, variant = setup.cell, row.variant
    what = (setup.device, setup.cluster, software, cell.benchmark, cell.use_case_name, setup.data, setup.quick)
    row_key = (row.settings_digest, row.data_id, variant.model, batch_size, variant.precision)
    options = tuple(sorted(variant.options.items()))
    return (*what, *row_key, options, mode.framework, mode.one_device_mode)
