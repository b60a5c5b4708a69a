"""How long jobs will take: from earlier records of the same kind, else from the protocol's settings and from what the
declared operations take at the device's peak."""

import itertools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from harness.errors import DataError
from harness.files import read_json
from harness.measure.gpu import usable_gpu_count
from harness.paths import Results, timestamp
from harness.plan import (
    Cell,
    DataKind,
    JobPlan,
    Measurement,
    MeasurementSettings,
    Pair,
    Precision,
    Variant,
    of_screening,
)
from harness.results.device_peaks import DevicePeaks, Reached
from harness.results.looks import needed
from harness.results.record import SETTLED, find_settled_record
from harness.results.sequential import looks_of
from harness.results.statistics import median
from harness.work.declared import benchmark, operations_of

START_S = 10.0
"""Of a process: import the framework, load, compile, check. An assumption, until there are records."""
SHARE_OF_LIMIT = 0.25
"""Of max_time_s and latency_max_time_s: a step that is not slow is known well enough long before. An assumption."""
CPU_CORE_OPERATIONS_PER_S = 6e10
"""Peak of one core of a CPU, in floating-point operations. An assumption where peaks are not measured."""
FEWEST_CALLS = 3
"""Of a step: cold calls, blocks and waited-for calls are at least so many each, however long they take."""
STOPS_BEFORE_LIMIT_S = 90.0
"""A job of Slurm stops so long before its limit (templates/base.sh.j2)."""
LENGTH_OF_TIMESTAMP = len(timestamp())
NEWEST = 60
"""Records that are read of each framework and cell."""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """What earlier measurements of a cell and framework took, in seconds; medians. None without a record."""

    by_variant: dict[str, float]
    """By the variant's key; of replicates, as the next."""
    of_any: float | None
    of_screening: float | None = None


NO_DURATIONS = Durations(by_variant={}, of_any=None)


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is to be measured of a plan."""

    screenings: int
    replicates: Mapping[str, int]
    """By the key of a variant."""
    more: int = 0
    """That each of these may have after them, while its ratio is open."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one job, or of the two that run in turn."""

    measurements: int
    """Without those that have a record."""
    screenings: int
    """How many of them are short, and choose the modes that have replicates."""
    from_records: int
    """How many of them are known from records of the same cell and framework."""
    seconds: float
    """Until the first look of each ratio, or the end where there is none."""
    most_seconds: float
    """Until the last one."""
    longest_s: float
    """Of a measurement."""
    devices: int
    trains: bool
    """Whether it is training for a time that is not known."""


class Least(NamedTuple):
    """What a variant takes at the least, in seconds."""

    step_s: float = 0.0
    training_s: float | None = None
    """All epochs, without their evaluation. None where it is not known."""


def protocol_s(protocol: MeasurementSettings, *, starts: float, step_s: float = 0.0) -> float:
    """Seconds of one measurement.

    Args:
        starts: processes of a measurement, on the average over its replicates.
        step_s: what a step takes at the least, in seconds.
    """
    at_least_s = max(protocol.min_blocks * max(protocol.block_min_s, step_s), protocol.min_time_s)
    blocks_s = max(at_least_s, SHARE_OF_LIMIT * protocol.max_time_s)
    latency_s = min(protocol.latency_calls * step_s, protocol.latency_max_time_s)
    few_steps_s = FEWEST_CALLS * step_s
    return (
        starts * (START_S + few_steps_s)
        + 2 * protocol.idle_s
        + max(protocol.warmup_s, protocol.warmup_min_calls * step_s)
        + min(blocks_s, max(protocol.max_time_s, few_steps_s))
        + max(SHARE_OF_LIMIT * protocol.latency_max_time_s, latency_s, few_steps_s)
        + max(protocol.energy_window_s, step_s)
    )


def estimate_of(
    plan: JobPlan, left: Left, durations: Durations, least: Mapping[str, Least] = MappingProxyType({})
) -> Estimate:
    """`least`: by the variant's key; where it is known."""

    def otherwise_s(key: str) -> float:
        return _by_protocol_s(plan, least.get(key, Least())) if durations.of_any is None else durations.of_any

    screened: Sequence[Variant] = plan.screened_variants() if left.screenings and least else ()
    screened_s = [least.get(one.key, Least()).step_s for one in screened] or [0.0]
    by_protocol_s = (protocol_s(of_screening(plan.protocol), starts=1, step_s=step_s) for step_s in screened_s)
    screening_s = durations.of_screening or sum(by_protocol_s) / len(screened_s)
    each_s = {key: durations.by_variant.get(key) or otherwise_s(key) for key in left.replicates}
    replicates = sum(left.replicates.values())
    seconds = left.screenings * screening_s + sum(each_s[key] * count for key, count in left.replicates.items())
    longest_s = max((each_s[key] for key, count in left.replicates.items() if count), default=0.0)
    return Estimate(
        measurements=left.screenings + replicates,
        screenings=left.screenings,
        from_records=(0 if durations.of_any is None else replicates)
        + (0 if durations.of_screening is None else left.screenings),
        seconds=seconds,
        most_seconds=seconds + sum(each_s.values()) * left.more,
        longest_s=max(longest_s, screening_s if left.screenings else 0.0),
        devices=plan.cell.devices,
        trains=_trains(plan) and any(least.get(key, Least()).training_s is None for key in left.replicates),
    )


def expected(plan: JobPlan, *, alone: bool = False) -> Left:
    """Before anything is measured. After a screening, those of its modes that always have replicates go on, and one
    other of each comparison: how many really do is what the screening says.

    Args:
        alone: the job has no other framework, and so no look.
    """
    screened = {variant.key for variant in plan.screened_variants()}
    going_on: list[Variant] = []
    for contest in plan.contests():
        others = [one for one in contest if plan.screening and one.execution_mode not in plan.screening.always]
        is_screened = contest[0].key in screened
        going_on += [one for one in contest if not is_screened or one not in others[1:]]
    most = plan.protocol.replicates
    first = next(iter(() if alone or plan.cell.is_calibration else looks_of(most)), most)
    return Left(screenings=len(screened), replicates={one.key: first for one in going_on}, more=most - first)


def _trains(plan: JobPlan) -> bool:
    return plan.cell.use_case_name == "train"


def _by_protocol_s(plan: JobPlan, least: Least) -> float:
    """Of a replicate. The first has two more processes where the warm start is measured."""
    replicates = plan.protocol.replicates
    has_warm_start = plan.cell.devices == 1 and not plan.quick and not plan.cell.is_calibration
    starts = (replicates + 2) / replicates if has_warm_start else 1.0
    return protocol_s(plan.protocol, starts=starts, step_s=least.step_s) + (least.training_s or 0.0)


def together(estimates: Sequence[Estimate]) -> Estimate:
    """Of jobs that run in turn."""
    return Estimate(
        measurements=sum(one.measurements for one in estimates),
        screenings=sum(one.screenings for one in estimates),
        from_records=sum(one.from_records for one in estimates),
        seconds=sum(one.seconds for one in estimates),
        most_seconds=sum(one.most_seconds for one in estimates),
        longest_s=max(one.longest_s for one in estimates),
        devices=estimates[0].devices,
        trains=any(one.trains for one in estimates),
    )


def requeues(estimate: Estimate, time_limit_minutes: int) -> int | None:
    """How often its job is cut off and goes on: each time the measurement at hand is lost, the longest at most. None
    where no measurement fits into the limit."""
    limit_s = 60 * time_limit_minutes - STOPS_BEFORE_LIMIT_S
    if estimate.most_seconds <= limit_s:
        return 0
    useful_s = limit_s - estimate.longest_s
    return math.ceil((estimate.most_seconds - limit_s) / useful_s) if useful_s > 0 else None


def estimates_of(pairs: Iterable[Pair], results: Results, scheduler: str) -> list[Estimate]:
    """Return the estimate of each pair."""
    peaks_by_device = read_peaks(results)
    is_here_without_gpu = scheduler == "local" and usable_gpu_count() == 0
    of_cores = Reached({"jax": CPU_CORE_OPERATIONS_PER_S * len(os.sched_getaffinity(0))})
    on_cpus = DevicePeaks(operations_per_s=dict.fromkeys(get_args(Precision), of_cores), bytes_per_s=None)

    def of_plan(plan: JobPlan, pair: Pair) -> Estimate:
        alone, peaks = len(pair.jobs) == 1, peaks_for(plan.cell, peaks_by_device)
        if peaks is None and (plan.cell.is_for_cpu or is_here_without_gpu):
            peaks = on_cpus
        folder = results.records(plan.cell, plan.framework)
        if not folder.parent.is_dir():
            return estimate_of(plan, expected(plan, alone=alone), NO_DURATIONS, least_times(plan, peaks))
        durations = read_durations(folder, quick=plan.quick)
        return estimate_of(plan, _left(plan, pair, results, scheduler), durations, least_times(plan, peaks))

    return [together([of_plan(plan, pair) for plan in pair.jobs]) for pair in pairs]


def read_peaks(results: Results) -> Mapping[str, DevicePeaks]:
    """Return the peaks by the device's name; none where no job has measured them yet."""
    if not results.device_peaks.is_dir():
        return {}
    from pipeline.report.device_peaks import read_all_device_peaks

    return read_all_device_peaks(results.device_peaks)[0]


def peaks_for(cell: Cell, peaks_by_device: Mapping[str, DevicePeaks]) -> DevicePeaks | None:
    """Return those of the one device that may be meant: by its name, or for `any` the only device that was measured."""
    found = [
        peaks
        for device, peaks in peaks_by_device.items()
        if cell.gpu == "any" or cell.gpu.lower() in device.lower().replace(" ", "")
    ]
    return found[0] if len(found) == 1 else None


def least_times(plan: JobPlan, peaks: DevicePeaks | None) -> dict[str, Least]:
    """Return by the key of a variant the time of its operations at the peak of matrix products, for the variants whose
    operations and peak are known."""
    if peaks is None:
        return {}
    found = {}
    for each in itertools.islice(plan.replicates(), len(plan.variants)):
        variant, peak, of_sample = each.variant, peaks.peak(each.variant.precision), operations_of(each)
        if peak and of_sample:
            step_s = of_sample * variant.batch_size / (peak * plan.cell.devices)
            steps = _training_steps(plan, variant.batch_size) if _trains(plan) else None
            found[variant.key] = Least(step_s, None if steps is None else steps * step_s)
    return found


def _training_steps(plan: JobPlan, batch_size: int) -> int | None:
    """None where the data, or the settings, are not there."""
    from harness.work.use_cases.train import Settings, steps_in_epoch

    count = _train_count(plan.cell.benchmark, plan.data, plan.data_dir)
    if count is None or "epochs" not in plan.settings:
        return None
    settings = Settings.model_validate(plan.settings)
    return settings.epochs * steps_in_epoch(settings, count, batch_size)


@cache
def _train_count(name: str, data: DataKind, data_dir: str) -> int | None:
    """Samples of the training set; None where it is not here, which is reported elsewhere."""
    from harness.work.datasets import load

    try:
        return load(benchmark(name).data, data, Path(data_dir)).train_count
    except DataError:
        return None


def _left(plan: JobPlan, pair: Pair, results: Results, scheduler: str) -> Left:
    """Without what has a record. Until the screening is over, what is expected of it."""

    def is_open(measurement: Measurement) -> bool:
        return plan.force or find_settled_record(measurement, results, scheduler) is None

    screenings = sum(is_open(measurement) for measurement in plan.screenings())
    if screenings:
        return replace(expected(plan, alone=len(pair.jobs) == 1), screenings=screenings)
    asked = [one for one in needed(pair.jobs, results, scheduler) if one.framework == plan.framework]
    found = Counter(one.variant.key for one in asked if not one.is_screening and is_open(one))
    more = plan.protocol.replicates - 1 - max(one.replicate for one in asked)
    return Left(screenings=0, replicates=found, more=more)


def read_durations(folder: Path, *, quick: bool) -> Durations:
    """Of the newest records in a folder. What cannot be read tells nothing here; the report complains about it."""
    found: dict[str, list[float]] = defaultdict(list)
    screenings: list[float] = []
    for path in newest_files(folder):
        try:
            content = json.loads(read_json(path))
            measurement = content["measurement"]
            seconds = duration_s(content)
            if content["outcome"] not in SETTLED or measurement["quick"] != quick:
                continue
            if measurement.get("stage") == "screening":
                screenings.append(seconds)
            else:
                found[Variant.model_validate(measurement["variant"]).key].append(seconds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    everything = [seconds for of_variant in found.values() for seconds in of_variant]
    return Durations(
        by_variant={key: median(of_variant) for key, of_variant in found.items()},
        of_any=median(everything) if everything else None,
        of_screening=median(screenings) if screenings else None,
    )


def newest_files(folder: Path) -> list[Path]:
    """Of its records, the newest first."""
    files = sorted(folder.rglob("*.json"), key=lambda path: (path.stem[-LENGTH_OF_TIMESTAMP:], path), reverse=True)
    return files[:NEWEST]


def duration_s(content: Mapping[str, Any]) -> float:
    """Of a record as it is read from its file, without what it waited for its turn. Raises ValueError, KeyError,
    TypeError or AttributeError where it is no record."""
    lasted = datetime.fromisoformat(content["ended_at"]) - datetime.fromisoformat(content["started_at"])
    pairing = content.get("environment", {}).get("pairing") or {}
    return float(pairing.get("active_s") or lasted.total_seconds())


def estimate_in_words(
    estimates: Sequence[Estimate], limits: Sequence[int | None] = (), *, requeue: bool = True, at_once: bool = False
) -> str:
    """Some sentences: how long, what is not known, how many, and how that fits the limits.

    Args:
        limits: of each, in minutes; None where the partition's is not known here. Empty where no scheduler ends what
            takes longer.
        requeue: whether what is cut off comes back by itself.
        at_once: the cells share nodes, so they run at the same time.
    """
    by_devices: dict[int, list[Estimate]] = defaultdict(list)
    for one in estimates:
        by_devices[one.devices].append(one)
    is_plain = by_devices.keys() <= {1}
    times = [
        from_to(of_devices) + ("" if is_plain else f" on {devices} device{'s' if devices > 1 else ''}")
        for devices, of_devices in sorted(by_devices.items())
    ]
    in_a_row = f", {'all jobs added up' if at_once else 'one job after the other'}" if len(estimates) > 1 else ""
    sentences = [f"Estimate: {' and '.join(times)}{in_a_row}, {_known_from(estimates)}; {_how_many(estimates)}."]
    if any(one.most_seconds > one.seconds for one in estimates):
        sentences.append("The shorter time is up to the first look at each ratio, where most are decided.")
    if limited := [(one, limit) for one, limit in zip(estimates, limits, strict=False) if limit]:
        sentences.append(_limits_in_words(limited, requeue=requeue))
    if limits and not requeue:
        sentences.append(NO_REQUEUE)
    return " ".join(sentences)


def from_to(estimates: Sequence[Estimate]) -> str:
    """`12 min`, or `12 min to 40 min`."""
    least, most = (in_time(sum(getattr(one, name) for one in estimates)) for name in ("seconds", "most_seconds"))
    return least if least == most else f"{least} to {most}"


def _how_many(estimates: Iterable[Estimate]) -> str:
    """`42 measurements`, or, where a screening will say how many, `about 630 measurements, 351 of them a short
    screening`."""
    count, screenings = (sum(getattr(one, name) for one in estimates) for name in ("measurements", "screenings"))
    measurements = f"{count:,} measurement{'' if count == 1 else 's'}"
    return f"about {measurements}, {screenings:,} of them a short screening" if screenings else measurements


def _known_from(estimates: Sequence[Estimate]) -> str:
    """`from earlier records`, or `plus compiling and training (unknown until measured once)`."""
    known, count = (sum(getattr(one, name) for one in estimates) for name in ("from_records", "measurements"))
    if known == count:
        return "from earlier records"
    trains = any(one.trains and one.from_records < one.measurements for one in estimates)
    unknown = f"plus compiling{' and training' if trains else ''} (unknown until measured once)"
    return f"{known} of {count} measurements from earlier records, {unknown}" if known else unknown


NO_REQUEUE = (
    "Nothing is requeued (cluster.requeue: false): at a preemption, and 90 s before its time limit, a job ends, and "
    "what it has measured stays. The same command then submits what is missing, which goes on from there."
)


def _limits_in_words(limited: Sequence[tuple[Estimate, int]], *, requeue: bool) -> str:
    limit = f"time_limit_minutes ({' and '.join(map(str, sorted({limit for _, limit in limited})))})"
    needed = [requeues(one, limit) for one, limit in limited]
    if None in needed:
        return f"A measurement may take longer than {limit} allows: raise it."
    most = max(count or 0 for count in needed)
    longest = in_time(max(one.most_seconds for one, _ in limited))
    if most == 0:
        return f"The longest job takes {longest}, within {limit}."
    over = sum(1 for count in needed if count)
    return (
        f"{over} of {len(needed)} jobs {'takes' if over == 1 else 'take'} longer than {limit}, up to {longest}: "
        f"cut off, they are {'requeued' if requeue else 'to be submitted again'}, at most {most} "
        f"time{'' if most == 1 else 's'}, and go on where they were."
    )


def in_time(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
