"""`main.py report --baseline`: each framework against itself at an earlier time, release by release. Pure.

Replicates of two times are no neighbours, so the ratio is unpaired: Welch's interval of the logarithms of their
throughputs. It holds what processes differ by; another node or driver stands beside the ratio, in words.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plan import FRAMEWORKS, Framework
from harness.results.flags import comparable_throughput
from harness.results.record import Record
from harness.results.statistics import Interval, geometric_mean, unpaired_interval
from pipeline.report.compare import NAMES, SAME, RowKey, Setup, data_id, device_name, row_labels, settings_digest
from pipeline.report.conditions import differing_names
from pipeline.report.csv_files import csv_of
from pipeline.report.software import Software, cluster_of, software_of
from pipeline.report.table import Line, Table, group, texts
from pipeline.report.wording import of_how_many

NOTHING_IN_COMMON = (
    "Nothing was measured both in the baseline and here: the same row, mode, settings and data on the same device. "
    "`python main.py --force` measures again what has a record."
)
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Change:
    """One framework in one mode of one row, now against then."""

    framework: Framework
    place: str
    """`mnist, use case 1 (train), on NVIDIA H200`"""
    mode: str
    """With its variant: `cnn-b100-fp32-step.jit`."""
    releases: tuple[str, str]
    """Then and now, as the other pairs below."""
    throughputs_samples_per_s: tuple[float, float]
    """Geometric means over the replicates."""
    replicates: tuple[int, int]
    interval: Interval | None
    """Of 95 %, of now over then; None where a side has one replicate."""
    not_the_same: tuple[str, ...]
    """Names of what else differs."""

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


Key = tuple[object, ...]
Made = tuple[str, Software | None]
"""Cluster and software."""


def changes_of(then: Iterable[Record], now: Iterable[Record]) -> tuple[list[Change], list[str]]:
    """Return the change of each mode that both results folders have, and the names of the modes that only the baseline
    has. The newest replicates of each cluster and software are compared with the newest software of the
    baseline."""
    before, after = _by_software(then), _by_software(now)
    pairs: list[tuple[list[Record], list[Record]]] = []
    alone: list[list[Record]] = []
    for key, of_then in before.items():
        old = [*[*of_then.values()][-1].values()]
        pairs += [(old, [*new.values()]) for new in after.get(key, {}).values()]
        alone += [] if key in after else [old]
    names = _names([new[0] for _, new in pairs] + [old[0] for old in alone])
    found = [_change(*both, *name) for both, name in zip(pairs, names[: len(pairs)], strict=True)]
    missing = [
        f"{place}: {NAMES[old[0].measurement.framework]} {mode}"
        for old, (place, mode) in zip(alone, names[len(pairs) :], strict=True)
    ]
    order = sorted(found, key=lambda one: (one.place, FRAMEWORKS.index(one.framework), one.mode, one.releases[1]))
    return order, sorted(missing)


def _by_software(records: Iterable[Record]) -> dict[Key, dict[Made, dict[int, Record]]]:
    """The newest record of each replicate that may be compared; the software with the newest of all is last."""
    found: dict[Key, dict[Made, dict[int, Record]]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.ended_at):
        measurement = record.measurement
        if comparable_throughput(record) is None or measurement.is_screening:
            continue
        work = measurement.model_copy(update={"replicate": 0}).id
        key = work, device_name(record), data_id(record)
        made = cluster_of(record), software_of(record)
        of_made = found[key].pop(made, {})
        found[key][made] = of_made | {measurement.replicate: record}
    return found


def _names(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Place and mode of each, in as few words as tell different work apart."""
    keys = []
    for one in records:
        of = one.measurement
        setup = Setup(device=device_name(one), cell=of.cell, data=of.data, quick=of.quick)
        label = f"{setup.place}: {NAMES[of.framework]} {of.variant.key}"
        keys.append((setup.place, RowKey(label, settings_digest(of), data_id(one))))
    labels = row_labels([key for _, key in keys], {key: one for (_, key), one in zip(keys, records, strict=True)})
    return [
        (place, one.measurement.variant.key + labels[key].removeprefix(key.label))
        for (place, key), one in zip(keys, records, strict=True)
    ]


def _change(then: Sequence[Record], now: Sequence[Record], place: str, mode: str) -> Change:
    first = now[0]
    speeds = [[speed for one in records if (speed := comparable_throughput(one))] for records in (then, now)]
    return Change(
        framework=first.measurement.framework,
        place=place,
        mode=mode,
        releases=(_release(then[0]), _release(first)),
        throughputs_samples_per_s=(geometric_mean(speeds[0]), geometric_mean(speeds[1])),
        replicates=(len(then), len(now)),
        interval=unpaired_interval(speeds[1], speeds[0]),
        not_the_same=tuple(differing_names(then[0], first)),
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
                lines.append(Line([one.name, _in_time(one), _ratio(one), one.verdict], one.framework))
    notes = []
    if missing:
        more = f"; and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        notes.append(f"In the baseline, and not measured since: {'; '.join(missing[:MOST_NAMED])}{more}.")
    if few := sum(one.interval is None for one in changes):
        notes.append(f"Without interval and verdict, as a side has one process: {few} of {len(changes)}.")
    if differing := Counter(name for one in changes for name in one.not_the_same):
        notes.append(f"Not the same then and now: {of_how_many(differing, len(changes))}.")
    if fail_above is not None:
        notes += [
            f"Slower by more than {fail_above * 100:g} %: {one.place}: {one.name}: {_ratio(one)}, {_in_time(one)}"
            + (f"; not the same: {', '.join(one.not_the_same)}." if one.not_the_same else ".")
            for one in changes
            if one.is_slower_by(fail_above)
        ] or [f"Nothing is slower by more than {fail_above * 100:g} % with 95 % confidence."]
    return Table(
        name="baseline",
        title="Each framework against itself",
        caption=(
            "Throughput now over throughput then, each the geometric mean over processes with one software. Above 1 it "
            "is faster now; same: the whole interval lies within 1 % of 1. The 95 % intervals are Welch's, for two "
            "groups of processes of which no two ran side by side. They hold what processes differ by, and not what "
            "another node or driver does."
        ),
        columns=texts("mode", "release", "now / then", "verdict"),
        lines=lines,
        notes=notes,
    )


def _in_time(one: Change) -> str:
    return " -> ".join(dict.fromkeys(one.releases))


def _ratio(one: Change) -> str:
    interval = f" ({one.interval.low:.3f} to {one.interval.high:.3f})" if one.interval else ""
    return f"{one.ratio:.3f}{interval}"


TIMES = ("then", "now")


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
        lines.append(line | {"verdict": one.verdict, "not_the_same": ", ".join(one.not_the_same)})
    return csv_of(lines)
