"""Scaling: the same work on one device and on more, in both frameworks, with what each number of devices keeps of the
throughput of one. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.plan import FRAMEWORKS, Framework
from harness.results.quantities import number
from harness.results.statistics import PairedRatio
from pipeline.report.ceilings import DeviceCeilings
from pipeline.report.charts import Chart, devices_chart
from pipeline.report.compare import MANY_STEPS, NAMES, Mode, Row, Section, Setup, one_device, scaling
from pipeline.report.table import Column, Line, Table, group, numbers, texts
from pipeline.report.wording import WHOSE_SIDE, bracket, share_text, times, use_case_title

KINDS = {"strong": "in all", "weak": "on each device"}
"""Where a panel's batch size is the same."""


class Side(NamedTuple):
    """One framework on one number of devices, in the mode that is its fastest there."""

    mode: Mode
    efficiency: PairedRatio | None
    """Throughput over that of the same mode on one device, times the number of devices; replicates are paired. None on
    one device, and where that was not measured."""


class OnDevices(NamedTuple):
    setup: Setup
    row: Row
    sides: Mapping[Framework, Side]


@dataclass(frozen=True, kw_only=True)
class ScalingPanel:
    """The same variant, settings and data on two numbers of the same device at the least."""

    label: str
    """`mnist, Train, cnn-b256-fp32 in all, on NVIDIA H100`"""
    kind: str
    """A key of KINDS."""
    points: Mapping[int, OnDevices]
    """By the number of devices, which rises."""


def scaling_panels(compared: Sequence[Section]) -> list[ScalingPanel]:
    alone = one_device(compared)
    found: dict[tuple[object, ...], dict[int, OnDevices]] = defaultdict(dict)
    for setup, row in ((section.setup, row) for section in compared for row in section.rows):
        devices, whole = setup.cell.devices, row.variant.batch_size
        for kind, size in (("strong", whole), *((("weak", whole // devices),) if whole % devices == 0 else ())):
            sides = {}
            for framework in FRAMEWORKS:
                if mode := row.best(framework):
                    sides[framework] = Side(mode, getattr(scaling(setup, row, mode, alone), kind))
            if sides:
                found[_key(setup, row, kind, size)].setdefault(devices, OnDevices(setup, row, sides))
    return [
        ScalingPanel(label=_label(points[max(points)], *key[:2]), kind=str(key[0]), points=dict(sorted(points.items())))
        for key, points in sorted(found.items(), key=lambda one: [str(part) for part in one[0][2:]])
        if len(points) > 1
    ]


def _key(setup: Setup, row: Row, kind: str, size: int) -> tuple[object, ...]:
    """All that the points of a panel share; a use case has another number on several devices."""
    cell, variant = setup.cell, row.variant
    place = (cell.benchmark, cell.use_case_name, setup.where, setup.data, setup.quick)
    return (kind, size, *place, variant.model_copy(update={"batch_size": size}).comparison_key, *_work(row))


def _work(row: Row) -> tuple[object, ...]:
    return row.settings_digest, row.data_id, row.many_steps_in_a_call


def _label(largest: OnDevices, kind: object, size: object) -> str:
    setup, row = largest.setup, largest.row
    title = use_case_title(setup.cell)
    variant = row.variant.model_copy(update={"batch_size": size}).comparison_key
    doubts = f" ({', '.join(setup.doubts)})" if setup.doubts else ""
    steps = MANY_STEPS if row.many_steps_in_a_call else ""
    return f"{setup.cell.benchmark}, {title}, {variant} {KINDS[str(kind)]}{steps}, on {setup.where}{doubts}"


def scaling_over_devices(compared: Sequence[Section], ceilings: DeviceCeilings) -> Table:
    lines = []
    for panel in scaling_panels(compared):
        lines.append(group(panel.label))
        for devices, point in panel.points.items():
            ratio = point.row.ratio
            sides = [point.sides.get(framework) for framework in FRAMEWORKS]
            numbers_of = [cell for side in sides for cell in (_cells(side, devices) if side else ["none", ""])]
            shown = f"{times(ratio.value)}{bracket(ratio.interval)}" if ratio else "none"
            modes = [side.mode.execution_mode if side else "" for side in sides]
            network = _all_reduce(ceilings, point.setup.device, devices)
            lines.append(Line([str(devices), *numbers_of, shown, *modes, network]))
    return Table(
        name="scaling_over_devices",
        title="Scaling over the number of devices",
        caption=(
            "Each framework in its fastest mode on that number of devices. Efficiency: throughput over that "
            "of the same mode on one device times the number of devices, paired by replicate, with its 95 % interval. "
            f"The batch size is the same in all (strong) or on each device (weak scaling). {WHOSE_SIDE} "
            "All-reduce: bus bandwidth of the largest vector, of JAX and of PyTorch (`main.py ceilings --devices N`)."
        ),
        columns=[
            *texts("devices"),
            *(column for one in FRAMEWORKS for column in numbers(f"{NAMES[one]} samples / s", f"{NAMES[one]} keeps")),
            *numbers("JAX / PyTorch"),
            *(Column(f"{NAMES[one]} mode", is_detail=True) for one in FRAMEWORKS),
            Column("all-reduce, GB/s", is_detail=True),
        ],
        lines=lines,
    )


def _all_reduce(ceilings: DeviceCeilings, device: str, devices: int) -> str:
    """`210 / 232`; empty where nobody has measured it."""
    found = ceilings[device].all_reduce if device in ceilings else {}
    of_sizes = [reached.by_framework for (count, _), reached in found.items() if count == devices]
    largest = of_sizes[-1] if of_sizes else {}
    return " / ".join(number(largest[one] / 1e9) if one in largest else "-" for one in FRAMEWORKS) if largest else ""


def _cells(side: Side, devices: int) -> list[str]:
    return [number(side.mode.throughput_samples_per_s), share_text(side.efficiency) if devices > 1 else "100%"]


def scaling_chart(compared: Sequence[Section]) -> Chart:
    """A point for each panel, number of devices, framework and of throughput and efficiency."""
    return devices_chart([point for panel in scaling_panels(compared) for point in _points(panel)])


def _points(panel: ScalingPanel) -> Iterable[dict[str, Any]]:
    for devices, point in panel.points.items():
        for framework, (mode, efficiency) in point.sides.items():
            common = {"framework": NAMES[framework], "mode": mode.execution_mode, "devices": devices}
            shown = [("samples / s", mode.throughput_samples_per_s, mode.throughput_interval, 1)]
            if devices == 1:
                shown.append(("efficiency, %", 1.0, None, 100))
            elif efficiency is not None:
                shown.append(("efficiency, %", efficiency.value, efficiency.interval, 100))
            for what, value, interval, unit in shown:
                low, high = interval or (value, value)
                ends = {"value": value * unit, "low": low * unit, "high": high * unit}
                label = panel.label.replace(", on ", " | on ")
                yield {
                    "group": f"{label} | {what}",
                    **common,
                    **{name: float(f"{one:.5g}") for name, one in ends.items()},
                }
