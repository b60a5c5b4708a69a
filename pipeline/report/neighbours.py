"""What neighbours cost: cells that shared a node with others (`cluster.whole_nodes`), beside the same alone. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from harness.plan import FRAMEWORKS, Framework
from harness.results.flags import comparable_throughput
from harness.results.record import Record
from harness.results.statistics import geometric_mean, unpaired_interval
from pipeline.report.compare import NAMES, device_name
from pipeline.report.table import Line, Table, group, texts

Mode = tuple[Framework, str]
Throughputs = Mapping[int, float]
"""In samples/s, of each replicate."""
Rows = dict[str, dict[Mode, dict[int, float]]]
"""By the work and its device, in words."""


def neighbours_table(alone: Iterable[Record], beside: Iterable[Record]) -> Table:
    """
    Args:
        alone: the records of what was measured once more without neighbours.
        beside: all others; only what is among `alone` too, and had a neighbour, is shown.
    """
    before, _ = _rows(alone)
    after, counts = _rows(record for record in beside if record.environment.get("neighbours"))
    lines: list[Line] = []
    for row, of_alone in before.items():
        modes = [mode for mode in of_alone if mode in after.get(row, {})]
        if modes:
            lines.append(group(f"{row}, {counts[row]} neighbour{'' if counts[row] == 1 else 's'}"))
        best = {
            framework: max(own, key=lambda mode: geometric_mean([*after[row][mode].values()]))
            for framework in FRAMEWORKS
            if (own := [mode for mode in modes if mode[0] == framework])
        }
        for mode in sorted(modes):
            name, is_pale = f"{NAMES[mode[0]]} {mode[1]}", mode != best[mode[0]]
            lines.append(Line([name, *_change(of_alone[mode], after[row][mode])], mode[0], is_pale=is_pale))
        if len(best) == len(FRAMEWORKS):
            jax, torch = best.values()
            ratios = [_ratio(side[jax], side[torch]) for side in (of_alone, after[row])]
            if all(ratios):
                lines.append(Line(["JAX / PyTorch", *_change(*ratios)]))
    return Table(
        name="neighbours",
        title="What neighbours on the node cost",
        caption=(
            "Throughput, and its ratio, beside other measurements on the same node over that of the same measurement "
            "alone on it; geometric means over the replicates, with Welch's 95 % interval. JAX / PyTorch: of the modes "
            "that are faster here. Neighbours: the most that measured at the same time, each on a GPU of its own."
        ),
        columns=texts("mode", "beside / alone", "replicates"),
        lines=lines,
    )


def _rows(records: Iterable[Record]) -> tuple[Rows, dict[str, int]]:
    """The newest of each replicate, and how many neighbours a row had at most."""
    rows: Rows = defaultdict(lambda: defaultdict(dict))
    counts: dict[str, int] = defaultdict(int)
    for record in sorted(records, key=lambda one: one.ended_at):
        measurement, environment = record.measurement, record.environment
        throughput = comparable_throughput(record)
        if throughput is None or measurement.is_screening:
            continue
        row = f"{measurement.cell.words}, {measurement.variant.comparison_key}, on {device_name(record)}"
        mode = measurement.framework, measurement.variant.execution_mode
        rows[row][mode][measurement.replicate] = throughput
        counts[row] = max(counts[row], int(environment.get("neighbours") or 0))
    return rows, counts


def _ratio(jax: Throughputs, torch: Throughputs) -> Throughputs:
    """Of each replicate that both have."""
    return {replicate: jax[replicate] / torch[replicate] for replicate in jax if replicate in torch}


def _change(alone: Throughputs, beside: Throughputs) -> list[str]:
    then, now = [*alone.values()], [*beside.values()]
    interval = unpaired_interval(now, then)
    ends = f" ({_percent(interval.low)} to {_percent(interval.high)})" if interval else ""
    return [f"{_percent(geometric_mean(now) / geometric_mean(then))}{ends}", f"{len(now)} and {len(then)}"]


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
