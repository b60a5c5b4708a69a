"""The phases of a step, for use cases that time them apart (`details.phases` of a record), and the whole step. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.results.record import Latency, Record
from harness.results.statistics import SampleSummary, median, sample_summary
from pipeline.report.compare import NAMES, Mode, Row, Section

WHOLE_STEP = "whole_step"
"""Beside the phases: one step, waited for."""
STATISTICS = SampleSummary._fields
OF_SEVERAL_STEPS = ("mean", "p50")
"""What is said of calls that hold several steps: anything else of their means is not that of a step."""

Summary = Mapping[str, float]
"""Seconds by a name of STATISTICS: the median over replicates of what each replicate's runs give."""


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Of one row's framework and execution mode."""

    row: Row
    mode: Mode

    @cached_property
    def phases(self) -> Mapping[str, Summary]:
        """By the phase's name, in the order of the step; empty where the use case has none."""
        of_phase: dict[str, list[Summary]] = defaultdict(list)
        for record in self.mode.records:
            for name, samples in _samples(record).items():
                if samples:
                    of_phase[name].append(sample_summary(samples)._asdict())
        return {name: _medians(summaries) for name, summaries in of_phase.items()}

    @cached_property
    def whole_step(self) -> Summary:
        """Empty without a waited-for call."""
        latencies = [record.result.latency for record in self.mode.records if record.result]
        return _medians([_of_step(latency) for latency in latencies if latency and latency.call_times_s])

    @property
    def with_whole_step(self) -> Mapping[str, Summary]:
        return {**self.phases, **({WHOLE_STEP: self.whole_step} if self.whole_step else {})}


def all_times(section: Section) -> list[PhaseTimes]:
    return [PhaseTimes(row=row, mode=mode) for row in section.rows for mode in row.modes]


def phases_of(times: Sequence[PhaseTimes]) -> list[str]:
    """All names once, in the order in which they run: those of the longest list, then each other one behind the name
    that it follows."""
    merged: list[str] = []
    for names in sorted((list(one.phases) for one in times), key=len, reverse=True):
        place = 0
        for name in names:
            if name not in merged:
                merged.insert(place, name)
            place = merged.index(name) + 1
    return merged


def phases_absent(times: Sequence[PhaseTimes]) -> list[str]:
    """Why a mode has no phases."""
    found = [
        f"{NAMES[one.mode.framework]} {one.row.label} {one.mode.execution_mode}: {reason}"
        for one in times
        for record in one.mode.records
        if record.result and (reason := record.result.details.get("phases_absent"))
    ]
    return list(dict.fromkeys(found))


def _of_step(latency: Latency) -> Summary:
    found = sample_summary([time_s / latency.steps_per_call for time_s in latency.call_times_s])._asdict()
    return found if latency.steps_per_call == 1 else {name: found[name] for name in OF_SEVERAL_STEPS}


def _medians(summaries: Sequence[Summary]) -> Summary:
    names = [name for name in STATISTICS if any(name in summary for summary in summaries)]
    return {name: median([summary[name] for summary in summaries if name in summary]) for name in names}


def _samples(record: Record) -> dict[str, list[float]]:
    phases = record.result.details.get("phases") if record.result else None
    return phases if isinstance(phases, dict) else {}
