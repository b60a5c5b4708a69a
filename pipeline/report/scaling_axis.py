"""Scaling: the same work on one device and on more, in both frameworks, with what each number of devices keeps of the
throughput of one. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.plan import FRAMEWORKS, Framework
from harness.results.quantities import number
from harness.results.statistics import PairedRatio
from pipeline.report.charts import Chart, devices_chart
from pipeline.report.compare import (
    MANY_STEPS,
    NAMES,
    Mode,
    Row,
    RowKey,
    Section,
    Setup,
    row_labels,
    scaling,
)
from pipeline.report.table import Line, Table, group, numbers, texts
from pipeline.report.wording import WHOSE_SIDE, bracket, share_text, times, use_case_title

KINDS = {"strong": "strong: batch {} over all devices", "weak": "weak: batch {} on each device"}
"""What all points of a panel share."""


class Side(NamedTuple):
    """One framework on one number of devices, in the mode that is its fastest there."""

    mode: Mode
    efficiency: PairedRatio | None
    """Throughput over that of the same mode on one device, times the number of devices; replicates are paired. None on
    one device, and where that was not measured."""


class OnDevices(NamedTuple):
    section: Section
    row: Row
    sides: Mapping[Framework, Side]


Count = tuple[int, int]
"""Devices, and the nodes that hold them."""


@dataclass(frozen=True, kw_only=True)
class ScalingPanel:
    """The same variant, settings and data on two numbers of the same device at the least, or on two of nodes."""

    label: str
    """`mnist, Train, cnn-b256-fp32; strong: batch 256 over all devices; on NVIDIA H100`"""
    kind: str
    """A key of KINDS."""
    points: Mapping[Count, OnDevices]
    """The fewest devices first."""


class _Key(NamedTuple):
    """All that the points of a panel share; a use case has another number on several devices."""

    place: tuple[str, str, str, str, bool]
    work: tuple[str, str, str, bool]
    kind: str
    batch_size: int


def scaling_panels(compared: Sequence[Section]) -> list[ScalingPanel]:
    found: dict[_Key, dict[Count, OnDevices]] = defaultdict(dict)
    for section, row in ((one, row) for one in compared for row in one.rows):
        setup = section.setup
        devices, whole = setup.cell.devices, row.variant.batch_size
        for kind, size in (("strong", whole), *((("weak", whole // devices),) if whole % devices == 0 else ())):
            sides = {}
            for framework in FRAMEWORKS:
                if mode := row.best(framework):
                    sides[framework] = Side(mode, getattr(scaling(section, row, mode), kind))
            points, count = found[_key(setup, row, kind, size)], (devices, setup.cell.nodes)
            # One device may have been asked for by two names: the row with a ratio counts, else the first.
            if sides and (count not in points or (points[count].row.ratio is None and row.ratio is not None)):
                points[count] = OnDevices(section, row, sides)
    panels = {key: dict(sorted(found[key].items())) for key in sorted(found) if len(found[key]) > 1}
    largest = {key: [*points.values()][-1] for key, points in panels.items()}
    keys = {key: RowKey(_label(largest[key], key), *key.work[1:3]) for key in panels}
    labels = row_labels(keys.values(), {keys[key]: one.row.modes[0].records[0] for key, one in largest.items()})
    return [ScalingPanel(label=labels[keys[key]], kind=key.kind, points=points) for key, points in panels.items()]


def _key(setup: Setup, row: Row, kind: str, size: int) -> _Key:
    cell, work = setup.cell, row.variant.model_copy(update={"batch_size": 0}).comparison_key
    return _Key(
        (cell.benchmark, cell.use_case_name, setup.where, setup.data, setup.quick),
        (work, row.settings_digest, row.data_id, row.many_steps_in_a_call),
        kind,
        size,
    )


def _label(largest: OnDevices, key: _Key) -> str:
    setup, row = largest.section.setup, largest.row
    title = use_case_title(setup.cell)
    variant = row.variant.model_copy(update={"batch_size": key.batch_size}).comparison_key
    doubts = f" ({', '.join(setup.doubts)})" if setup.doubts else ""
    steps = MANY_STEPS if row.many_steps_in_a_call else ""
    kind = KINDS[key.kind].format(key.batch_size)
    return f"{setup.cell.benchmark}, {title}, {variant}{steps}; {kind}; on {setup.where}{doubts}"


def scaling_over_devices(compared: Sequence[Section]) -> Table:
    lines = []
    for panel in scaling_panels(compared):
        lines.append(group(panel.label))
        for (devices, nodes), point in panel.points.items():
            ratio = point.row.ratio
            sides = [point.sides.get(framework) for framework in FRAMEWORKS]
            numbers_of = [cell for side in sides for cell in (_cells(side, devices) if side else ["none", ""])]
            shown = f"{times(ratio.value)}{bracket(ratio.interval)}" if ratio else "none"
            modes = [side.mode.execution_mode if side else "" for side in sides]
            count = f"{devices} on {nodes} nodes" if nodes > 1 else str(devices)
            lines.append(Line([count, *numbers_of, shown, *modes]))
    return Table(
        name="scaling_over_devices",
        title="Scaling over the number of devices",
        caption=(
            "Each framework in its fastest mode on that number of devices; on a CPU, of processes. Keeps: throughput "
            "over that of the same mode on one device times the number of devices, paired by replicate, with its "
            "95 % interval. Strong scaling keeps the batch over all devices, weak scaling that of each. "
            f"{WHOSE_SIDE}"
        ),
        columns=[
            *texts("devices"),
            *(column for one in FRAMEWORKS for column in numbers(f"{NAMES[one]} samples / s", f"{NAMES[one]} keeps")),
            *numbers("JAX / PyTorch"),
            *texts(*(f"{NAMES[one]} mode" for one in FRAMEWORKS)),
        ],
        lines=lines,
    )


def _cells(side: Side, devices: int) -> list[str]:
    return [number(side.mode.throughput_samples_per_s), share_text(side.efficiency) if devices > 1 else "100%"]


def scaling_chart(compared: Sequence[Section]) -> Chart:
    """A point for each panel, number of devices, framework and of throughput and efficiency."""
    return devices_chart([point for panel in scaling_panels(compared) for point in _points(panel)])


def _points(panel: ScalingPanel) -> Iterable[dict[str, Any]]:
    label = panel.label.replace("; ", " | ")
    for (devices, nodes), point in panel.points.items():
        for framework, (mode, efficiency) in point.sides.items():
            common = {"framework": NAMES[framework], "mode": mode.execution_mode, "devices": devices, "nodes": nodes}
            shown = [("samples / s", mode.throughput_samples_per_s, mode.throughput_interval, 1)]
            if devices == 1:
                shown.append(("efficiency, %", 1.0, None, 100))
            elif efficiency is not None:
                shown.append(("efficiency, %", efficiency.value, efficiency.interval, 100))
            for what, value, interval, unit in shown:
                low, high = interval or (value, value)
                ends = {"value": value * unit, "low": low * unit, "high": high * unit}
                yield {
                    "group": f"{label} | {what}",
                    **common,
                    **{name: float(f"{one:.5g}") for name, one in ends.items()},
                }
