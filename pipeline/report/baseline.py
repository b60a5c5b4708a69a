"""`main.py report --baseline`: each framework against itself at an earlier time, release by release. Pure.

Replicates of two times are no neighbours, so the ratio is unpaired: Welch's interval of the logarithms of their
throughputs. It holds what processes differ by; another node or driver stands beside the ratio, in words.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plan import FRAMEWORKS, Framework
from harness.results.flags import comparable_throughput
from harness.results.quantities import number
from harness.results.record import Record
from harness.results.statistics import Interval, geometric_mean, unpaired_interval
from pipeline.report.compare import NAMES, SAME, data_id, device_name
from pipeline.report.conditions import conditions_of_another_time, side
from pipeline.report.csv_files import csv_of
from pipeline.report.software import Lab, Software, lab_of, software_of
from pipeline.report.table import Column, Line, Table, group, texts

MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
NOTHING_IN_COMMON = (
    "Nothing was measured both in the baseline and later: the same row, mode, settings and data on the same device."
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One framework in one mode of one row, now against then."""

    framework: Framework
    place: str
    """Benchmark, use case and device."""
    mode: str
    releases: tuple[str, str]
    """Then and now, as the other pairs below."""
    throughputs_samples_per_s: tuple[float, float]
    """Geometric means over the replicates."""
    replicates: tuple[int, int]
    interval: Interval | None
    """Of 95 %, of now over then; None where a side has one replicate."""
    not_the_same: str
    """What else differs."""

    @property
    def ratio(self) -> float:
        then, now = self.throughputs_samples_per_s
        return now / then

    @property
    def name(self) -> str:
        return f"{NAMES[self.framework]} {self.mode}"

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "no interval"
        if self.interval.low >= SAME.low and self.interval.high <= SAME.high:
            return "same"
        return "faster" if self.interval.low > 1 else "slower" if self.interval.high < 1 else "undecided"

    def is_slower_by(self, limit: float) -> bool:
        """By more than it, with 95 % confidence: the whole interval lies below 1 less the limit."""
        return self.interval is not None and self.interval.high < 1 - limit


def before_and_after(records: Iterable[Record], month: str) -> tuple[list[Record], list[Record]]:
    """Those that ended in this month (`2026-10`) or before, and the later ones."""
    records = list(records)
    return [one for one in records if one.ended_at[:7] <= month], [one for one in records if one.ended_at[:7] > month]


Key = tuple[object, ...]
Made = tuple[Lab, Software | None]


def changes_of(then: Iterable[Record], now: Iterable[Record], *, same_lab: bool) -> tuple[list[Change], list[str]]:
    """Of each mode that both have: each lab's and software's newest replicates against the newest software of then; and
    the names of those that only the baseline has.

    Args:
        same_lab: a lab is compared with itself alone. Else `then` is a folder of its own, whoever filled it.
    """
    before, after = _by_software(then, same_lab), _by_software(now, same_lab)
    found, missing = [], []
    for key, of_then in before.items():
        *_, old = of_then.values()
        found += [_change([*old.values()], [*new.values()]) for new in after.get(key, {}).values()]
        if key not in after:
            measurement = next(iter(old.values())).measurement
            missing.append(f"{NAMES[measurement.framework]} {measurement.variant.key} of {measurement.cell.short_name}")
    order = sorted(found, key=lambda one: (one.place, FRAMEWORKS.index(one.framework), one.mode, one.releases[1]))
    return order, missing


def _by_software(records: Iterable[Record], same_lab: bool) -> dict[Key, dict[Made, dict[int, Record]]]:
    """The newest record of each replicate that may be compared; the software with the newest of all is last."""
    found: dict[Key, dict[Made, dict[int, Record]]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.ended_at):
        measurement = record.measurement
        if comparable_throughput(record) is None or measurement.is_screening:
            continue
        work = measurement.model_copy(update={"replicate": 0}).id
        key = work, device_name(record), data_id(record), lab_of(record) if same_lab else None
        made = lab_of(record), software_of(record)
        of_made = found[key].pop(made, {})
        found[key][made] = of_made | {measurement.replicate: record}
    return found


def _change(then: Sequence[Record], now: Sequence[Record]) -> Change:
    first = now[0]
    speeds = [[comparable_throughput(one) or 0.0 for one in records] for records in (then, now)]
    cell, lab = first.measurement.cell, lab_of(first).results_folder
    on = f"{device_name(first)} ({lab})" if lab else device_name(first)
    differing = [one for one in conditions_of_another_time([(side(then[0]), side(first))]) if one.state == "differs"]
    return Change(
        framework=first.measurement.framework,
        place=f"{cell.benchmark}, use case {cell.use_case} ({cell.use_case_name}), on {on}",
        mode=first.measurement.variant.key,
        releases=(_release(then[0]), _release(first)),
        throughputs_samples_per_s=(geometric_mean(speeds[0]), geometric_mean(speeds[1])),
        replicates=(len(then), len(now)),
        interval=unpaired_interval(speeds[1], speeds[0]),
        not_the_same=", ".join(one.name for one in differing),
    )


def _release(record: Record) -> str:
    software = software_of(record)
    return software.release if software else "not recorded"


def baseline_table(changes: Sequence[Change], missing: Sequence[str], fail_above: float | None) -> Table:
    """
    Args:
        missing: what the baseline has and nobody measured since.
        fail_above: the slowdown from which on a line is named below the table: 0.03 is 3 %.
    """
    lines: list[Line] = []
    for place in dict.fromkeys(one.place for one in changes):
        lines.append(group(place))
        for one in changes:
            if one.place == place:
                then, now = map(number, one.throughputs_samples_per_s)
                counts = " and ".join(map(str, one.replicates))
                cells = [one.name, _in_time(one), then, now, counts, _ratio(one), one.verdict, one.not_the_same]
                lines.append(Line(cells, one.framework))
    notes = [f"Without a number since: {', '.join(missing)}."] if missing else []
    if few := sum(one.interval is None for one in changes):
        notes.append(f"No interval, and so no verdict: {few} of {len(changes)}, of one process on a side.")
    if fail_above is not None:
        notes += [
            f"Slower by more than {fail_above * 100:g} %: {one.place}: {one.name}: {_ratio(one)}, {_in_time(one)}"
            f"{f'; not the same: {one.not_the_same}' if one.not_the_same else ''}."
            for one in changes
            if one.is_slower_by(fail_above)
        ] or [f"Nothing is slower by more than {fail_above * 100:g} % with 95 % confidence."]
    return Table(
        name="baseline",
        title="Each framework against itself",
        caption=(
            "Throughput now over then, geometric means over the processes of one software on each side. The 95 % "
            "intervals are Welch's, as processes of two times are no neighbours; they hold what processes differ by, "
            "and not what another node or driver does."
        ),
        columns=[
            *texts("mode", "release"),
            *(Column(title, is_number=True, is_detail=True) for title in ("then, samples/s", "now, samples/s")),
            Column("processes, then and now", is_detail=True),
            *texts("now / then", "now"),
            Column("not the same", is_detail=True),
        ],
        lines=lines,
        notes=notes,
    )


def _in_time(one: Change) -> str:
    return " > ".join(dict.fromkeys(one.releases))


def _ratio(one: Change) -> str:
    interval = f" ({one.interval.low:.3f} to {one.interval.high:.3f})" if one.interval else ""
    return f"{one.ratio:.3f}{interval}"


def baseline_csv(changes: Sequence[Change]) -> str:
    lines: list[dict[str, Any]] = []
    for one in changes:
        pairs: dict[str, tuple[Any, Any]] = {
            "release": one.releases,
            "throughput_samples_per_s": one.throughputs_samples_per_s,
            "replicates": one.replicates,
        }
        low, high = one.interval or (None, None)
        line: dict[str, Any] = {"place": one.place, "framework": one.framework, "mode": one.mode}
        line |= {f"{name}_{time}": pair[place] for name, pair in pairs.items() for place, time in enumerate(TIMES)}
        line |= {"ratio_now_over_then": one.ratio, "ratio_low": low, "ratio_high": high}
        lines.append(line | {"verdict": one.verdict, "not_the_same": one.not_the_same})
    return csv_of(lines)


TIMES = ("then", "now")
