"""How long jobs will take: from earlier records of the same kind, else from the protocol's settings."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.files import read_json
from harness.paths import Results, timestamp
from harness.plan import (
    JobPlan,
    Measurement,
    MeasurementSettings,
    Pair,
    Variant,
    of_screening,
)
from harness.results.looks import needed
from harness.results.record import SETTLED, find_settled_record
from harness.results.sequential import looks_of
from harness.results.statistics import median

START_S = 10.0
"""Of a process: import the framework, load, compile, check. An assumption, until there are records."""
SHARE_OF_LIMIT = 0.25
"""Share of max_time_s and latency_max_time_s that is needed: a step that is not slow is known well enough long before.
An assumption."""
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
    """Whether it also trains, for a time that is not known."""


def protocol_s(protocol: MeasurementSettings, *, starts: float) -> float:
    """Return the seconds of one measurement whose step is not slow.

    Args:
        starts: processes of a measurement, on the average over its replicates.
    """
    at_least_s = max(protocol.min_blocks * protocol.block_min_s, protocol.min_time_s)
    return (
        starts * START_S
        + 2 * protocol.idle_s
        + protocol.warmup_s
        + min(max(at_least_s, SHARE_OF_LIMIT * protocol.max_time_s), protocol.max_time_s)
        + SHARE_OF_LIMIT * protocol.latency_max_time_s
        + protocol.energy_window_s
    )


def estimate_of(plan: JobPlan, left: Left, durations: Durations) -> Estimate:
    otherwise_s = _by_protocol_s(plan) if durations.of_any is None else durations.of_any
    screening_s = durations.of_screening or protocol_s(of_screening(plan.protocol), starts=1)
    each_s = {key: durations.by_variant.get(key) or otherwise_s for key in left.replicates}
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
        trains=plan.cell.use_case_name == "train",
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


def _by_protocol_s(plan: JobPlan) -> float:
    """Return the seconds of a replicate. The first has two more processes where the warm start is measured."""
    replicates = plan.protocol.replicates
    has_warm_start = plan.cell.devices == 1 and not plan.quick and not plan.cell.is_calibration
    return protocol_s(plan.protocol, starts=(replicates + 2) / replicates if has_warm_start else 1.0)


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

    def of_plan(plan: JobPlan, pair: Pair) -> Estimate:
        folder = results.records(plan.cell, plan.framework)
        if not folder.parent.is_dir():
            return estimate_of(plan, expected(plan, alone=len(pair.jobs) == 1), NO_DURATIONS)
        return estimate_of(plan, _left(plan, pair, results, scheduler), read_durations(folder, quick=plan.quick))

    return [together([of_plan(plan, pair) for plan in pair.jobs]) for pair in pairs]


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
