"""The phases of a step, for use cases that time them apart (`details.phases` of a record). Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.record import Record
from harness.statistics import median
from pipeline.report.compare import NAMES, Mode, Row, Section


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Of one row's framework and execution mode."""

    row: Row
    mode: Mode
    times_s: Mapping[str, float]
    """Median over replicates of the median over a replicate's runs, by the phase's name."""


@dataclass(frozen=True, kw_only=True)
class PhaseTable:
    phases: tuple[str, ...]
    """In the order in which they run; what only one framework has stands where that one has it."""
    times: tuple[PhaseTimes, ...]
    absent: tuple[str, ...]
    """Why a mode has no phases."""

    @property
    def by_row(self) -> list[tuple[Row, list[PhaseTimes]]]:
        groups: dict[str, tuple[Row, list[PhaseTimes]]] = {}
        for times in self.times:
            groups.setdefault(times.row.label, (times.row, []))[1].append(times)
        return list(groups.values())


def phase_table(section: Section) -> PhaseTable | None:
    """None where nothing was timed in phases."""
    places = [(row, mode) for row in section.rows for mode in row.modes]
    all_times = [PhaseTimes(row=row, mode=mode, times_s=_medians(mode.records)) for row, mode in places]
    times = tuple(of_mode for of_mode in all_times if of_mode.times_s)
    absent = dict.fromkeys(line for row, mode in places for line in _absent(row, mode))
    if not times and not absent:
        return None
    return PhaseTable(phases=_in_order([list(one.times_s) for one in times]), times=times, absent=tuple(absent))


def _medians(records: Sequence[Record]) -> dict[str, float]:
    of_phase: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, samples in _samples(record).items():
            if samples:
                of_phase[name].append(median(samples))
    return {name: median(medians) for name, medians in of_phase.items()}


def _samples(record: Record) -> dict[str, list[float]]:
    phases = record.result.details.get("phases") if record.result else None
    return phases if isinstance(phases, dict) else {}


def _absent(row: Row, mode: Mode) -> Iterator[str]:
    for record in mode.records:
        reason = record.result.details.get("phases_absent") if record.result else None
        if reason:
            yield f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}: {reason}"


def _in_order(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All names once: those of the longest list, then each other one behind the name that it follows."""
    merged: list[str] = []
    for names in sorted(lists, key=len, reverse=True):
        place = 0
        for name in names:
            if name not in merged:
                merged.insert(place, name)
            place = merged.index(name) + 1
    return tuple(merged)
