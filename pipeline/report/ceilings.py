"""What the devices of a report can do at most, beside what their makers say. Pure but for `read_all_ceilings`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.errors import RecordError
from harness.plan import FRAMEWORKS, Precision
from harness.printable import printable
from harness.results.ceilings import Attainable, CeilingsRecord, Reached, attainable, datasheet, read_ceilings
from harness.results.quantities import number
from pipeline.report.compare import NAMES, device_of
from pipeline.report.table import Line, Table, numbers, texts

PRECISIONS: tuple[Precision, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16")

DeviceCeilings = Mapping[str, Attainable]
"""By the device's name in the report."""


class CeilingLine(NamedTuple):
    """Of one device: a precision's products, or the memory."""

    device: str
    what: str
    differ: bool
    attainable: str
    by_framework: tuple[str, ...]
    """In the order of FRAMEWORKS; empty where there is none."""
    datasheet: str
    """`989 TFLOP/s (79%)`: the share of it that is attainable."""


def _scaled(per_second: float, unit: str) -> str:
    """`989 TFLOP/s`, and below 1 TFLOP/s `104 GFLOP/s`."""
    prefix, factor = ("T", 1e12) if per_second >= 1e12 else ("G", 1e9)
    return f"{number(per_second / factor)} {prefix}{unit}"


def attainable_of_devices(records: Iterable[CeilingsRecord]) -> DeviceCeilings:
    by_device: dict[str, list[CeilingsRecord]] = defaultdict(list)
    for record in records:
        by_device[device_of(record.environment)].append(record)
    return {device: attainable(found) for device, found in sorted(by_device.items())}


def read_all_ceilings(*folders: Path) -> tuple[DeviceCeilings, list[str]]:
    records, refused = [], []
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        try:
            records.append(read_ceilings(path))
        except RecordError as error:
            refused.append(printable(str(error)))
    return attainable_of_devices(records), refused


def _lines(ceilings: DeviceCeilings) -> list[CeilingLine]:
    lines = []
    for device, found in ceilings.items():
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
            lines.append(
                CeilingLine(
                    device=device,
                    what=what,
                    differ=reached.differ,
                    attainable=_scaled(reached.best, unit),
                    by_framework=tuple(_scaled(sides[one], unit) if one in sides else "" for one in FRAMEWORKS),
                    datasheet=f"{_scaled(of_sheet, unit)} ({reached.best / of_sheet:.0%})" if of_sheet else "",
                )
            )
    return lines


def ceiling_lines(ceilings: DeviceCeilings) -> list[str]:
    """`NVIDIA H200: matrix products, bf16: 780 TFLOP/s attainable; datasheet 989 TFLOP/s (79%)`"""
    found = []
    for line in _lines(ceilings):
        sides = (f"{NAMES[one]} {reached}" for one, reached in zip(FRAMEWORKS, line.by_framework, strict=True))
        text = f"{line.device}: {line.what}: {line.attainable} attainable"
        text += f" ({', '.join(sides)})" if line.differ else ""
        found.append(text + (f"; datasheet {line.datasheet}" if line.datasheet else ""))
    return found


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
        lines=[
            Line(
                [
                    line.device,
                    line.what + ("; the frameworks differ" if line.differ else ""),
                    line.attainable,
                    *line.by_framework,
                    line.datasheet,
                ]
            )
            for line in _lines(ceilings)
        ],
    )
