"""What the devices of a report can do at most, beside what their makers say. Pure but for `read_all_ceilings`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.errors import RecordError
from harness.plan import FRAMEWORKS, Precision
from harness.printable import printable
from harness.results.ceilings import Attainable, CeilingsRecord, Reached, attainable, datasheet, read_ceilings
from harness.results.quantities import number
from pipeline.report.compare import NAMES, Section, device_of
from pipeline.report.table import Line, Table, numbers, texts

PRECISIONS: tuple[Precision, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16")

DeviceCeilings = Mapping[str, Attainable]
"""By the device's name in the report."""


def _scaled(per_second: float, unit: str) -> str:
    """`989 TFLOP/s`, and below 1 TFLOP/s `104 GFLOP/s`."""
    prefix, factor = ("T", 1e12) if per_second >= 1e12 else ("G", 1e9)
    return f"{number(per_second / factor)} {prefix}{unit}"


def attainable_of_devices(records: Iterable[CeilingsRecord]) -> DeviceCeilings:
    by_device: dict[str, list[CeilingsRecord]] = defaultdict(list)
    for record in records:
        by_device[device_of(record.environment)].append(record)
    return {device: attainable(found) for device, found in sorted(by_device.items())}


def ceilings_of(compared: Sequence[Section]) -> DeviceCeilings:
    return {one.setup.device: one.attainable for one in compared if one.attainable}


def read_all_ceilings(*folders: Path) -> tuple[DeviceCeilings, list[str]]:
    records, refused = [], []
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        try:
            records.append(read_ceilings(path))
        except RecordError as error:
            refused.append(printable(str(error)))
    return attainable_of_devices(records), refused


def _cells(device: str, found: Attainable) -> Iterator[list[str]]:
    """Of each precision's products, of the memory and of the all-reduces, as the table's columns."""
    sheet = datasheet(device)
    rates: list[tuple[str, str, Reached, float | None]] = [
        (f"matrix products, {one}", "FLOP/s", found.operations_per_s[one], sheet.per_s(one) if sheet else None)
        for one in PRECISIONS
        if one in found.operations_per_s
    ]
    if found.bytes_per_s is not None:
        terabytes = sheet.terabytes_per_s if sheet else None
        rates.append(("memory", "B/s", found.bytes_per_s, None if terabytes is None else terabytes * 1e12))
    rates += [
        (f"all-reduce over {devices} devices, {size / 2**20:g} MiB", "B/s", reached, None)
        for (devices, size), reached in found.all_reduce.items()
    ]
    for what, unit, reached, of_sheet in rates:
        sides = reached.by_framework
        yield [
            device,
            what + ("; the frameworks differ" if reached.differ else ""),
            _scaled(reached.best, unit),
            *(_scaled(sides[one], unit) if one in sides else "" for one in FRAMEWORKS),
            f"{_scaled(of_sheet, unit)} ({reached.best / of_sheet:.0%})" if of_sheet else "",
        ]


def ceiling_lines(ceilings: DeviceCeilings) -> list[str]:
    """`NVIDIA H200: memory: 4.3 TB/s attainable (JAX 4.2 TB/s, PyTorch 4.3 TB/s); datasheet 4.8 TB/s (90%)`"""
    lines = []
    for device, what, best, jax, torch, sheet in (line.cells for line in ceilings_table(ceilings).lines):
        sides = ", ".join(f"{name} {side}" for name, side in zip(NAMES.values(), (jax, torch), strict=True) if side)
        lines.append(f"{device}: {what}: {best} attainable ({sides})" + (f"; datasheet {sheet}" if sheet else ""))
    return lines


def ceilings_table(ceilings: DeviceCeilings) -> Table:
    sheets = dict.fromkeys(sheet for device in ceilings if (sheet := datasheet(device)))
    return Table(
        name="ceilings",
        title="Ceilings: what the devices can do",
        caption=" ".join(
            [
                "Attainable: the fastest of a few large matrix products of normal random numbers, and of a triad "
                "(a = b + s c) over arrays far larger than any cache, by the same clock, the better of both "
                "frameworks. Datasheet: what the maker says, dense. All-reduce: bus bandwidth, which is 2 (n - 1) / n "
                "of the vector's bytes over the time.",
                *(f"{sheet.name}: {sheet.source}." for sheet in sheets),
            ]
        ),
        columns=[
            *texts("device", "what"),
            *numbers("attainable", *(NAMES[one] for one in FRAMEWORKS), "datasheet (reached)"),
        ],
        lines=[Line(cells) for device, found in ceilings.items() for cells in _cells(device, found)],
    )
