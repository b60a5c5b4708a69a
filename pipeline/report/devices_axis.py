"""Device against device: what the same variant does on each, in both frameworks. A CPU is a device like any other.

Pure. Each framework is in the mode that is its fastest on that device, which may be another on another.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.plan import Framework
from harness.results.quantities import BY_NAME, number
from pipeline.report.compare import MANY_STEPS, Row, RowKey, Section, Setup, row_labels
from pipeline.report.wording import WHOSE_SIDE, bracket, times, use_case_title

ENERGY = BY_NAME["energy_gross_joules_per_sample"]
HEADS = (
    "device",
    "JAX samples / s",
    "PyTorch samples / s",
    "JAX / PyTorch",
    "JAX mJ / sample",
    "PyTorch mJ / sample",
)
ABOUT = (
    "The same variant, settings and data on each device; each framework in the mode that is its fastest there. Samples "
    f"per second and ratio as in the sections. {WHOSE_SIDE} Energy is that of the GPU's board, gross; a CPU has none."
)


class OnDevice(NamedTuple):
    """What one device has of a panel."""

    setup: Setup
    row: Row


@dataclass(frozen=True, kw_only=True)
class DevicePanel:
    """The same variant, settings and data, on two devices at the least."""

    place: str
    """`cifar10, train`"""
    label: str
    """Of the variant."""
    devices: Mapping[str, OnDevice]
    """By the device's name, the slowest first."""


class PlaceKey(NamedTuple):
    """All of a setup but its device, and what the scheduler was asked for."""

    benchmark: str
    use_case: int
    use_case_name: str
    devices: int
    nodes: int
    data: str
    quick: bool


def device_panels(compared: Sequence[Section]) -> tuple[DevicePanel, ...]:
    """In the order of benchmarks and use cases. Where one device was asked for by two names, the row with a ratio
    counts, else the first."""
    found: dict[PlaceKey, dict[RowKey, dict[str, OnDevice]]] = defaultdict(lambda: defaultdict(dict))
    for section in compared:
        setup = section.setup
        for row in section.rows:
            of_devices = found[_place(setup)][_key(row)]
            known = of_devices.get(setup.devices)
            if known is None or (known.row.ratio is None and row.ratio is not None):
                of_devices[setup.devices] = OnDevice(setup, row)
    panels = []
    for place in sorted(found, key=lambda place: (place.benchmark, place.use_case, place)):
        labels = row_labels(found[place])
        for key, of_devices in found[place].items():
            if len(of_devices) > 1:
                devices = dict(sorted(of_devices.items(), key=lambda one: (_fastest(one[1].row), one[0])))
                panels.append(DevicePanel(place=_in_words(devices.values()), label=labels[key], devices=devices))
    return tuple(panels)


def _place(setup: Setup) -> PlaceKey:
    cell = setup.cell
    return PlaceKey(
        cell.benchmark, cell.use_case, cell.use_case_name, cell.devices, cell.nodes, setup.data, setup.quick
    )


def _in_words(devices: Iterable[OnDevice]) -> str:
    """What they have in common."""
    setups = [one.setup for one in devices]
    first = setups[0]
    title = use_case_title(first.cell, *(one.device for one in setups))
    doubts = [*(["quick run"] if first.quick else []), *(["sample data"] if first.data == "sample" else [])]
    return f"{first.cell.benchmark}, {title}" + (f" ({', '.join(doubts)})" if doubts else "")


def _key(row: Row) -> RowKey:
    label = row.variant.comparison_key + (MANY_STEPS if row.many_steps_in_a_call else "")
    return RowKey(label, row.settings_digest, row.data_id)


def _fastest(row: Row) -> float:
    """Samples per second of the faster framework."""
    return max(mode.throughput_samples_per_s for mode in row.modes)


def cells(device: str, row: Row) -> list[str]:
    """A line of the table, under HEADS."""
    ratio = row.ratio
    return [
        device,
        _throughput(row, "jax"),
        _throughput(row, "torch"),
        f"{times(ratio.value)}{bracket(ratio.interval)}" if ratio else "none",
        _energy(row, "jax"),
        _energy(row, "torch"),
    ]


def _throughput(row: Row, framework: Framework) -> str:
    mode = row.best(framework)
    return f"{number(mode.throughput_samples_per_s)} ({mode.execution_mode})" if mode else "none"


def _energy(row: Row, framework: Framework) -> str:
    mode = row.best(framework)
    value = mode.numbers.get(ENERGY.name) if mode else None
    return "" if value is None else number(ENERGY.scaled(value))
