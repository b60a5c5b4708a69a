"""What the devices of a report can do at most, beside what their makers say. Pure but for `read_all_ceilings`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.plan import FRAMEWORKS, Precision
from harness.printable import printable
from harness.results.ceilings import (
    Attainable,
    CeilingsRecord,
    Datasheet,
    Reached,
    attainable,
    datasheet,
    read_ceilings,
)
from harness.results.quantities import number
from pipeline.report.compare import NAMES, device_of

COMMAND = "python main.py ceilings"
ABOUT = (
    "Attainable: the fastest of a few large matrix products of normal random numbers, and of a triad (a = b + s c) "
    "over arrays far larger than any cache, by the same clock, the better of both frameworks. Datasheet: what the "
    "maker says, dense. All-reduce: bus bandwidth, which is 2 (n - 1) / n of the vector's bytes over the time."
)

DeviceCeilings = Mapping[str, Attainable]
"""By the device's name in the report."""


@dataclass(frozen=True, kw_only=True)
class CeilingLine:
    """Of one device: a precision's products, or the memory."""

    device: str
    what: str
    unit: str
    reached: Reached
    of_datasheet: float | None
    """In operations or bytes per second."""
    sheet: Datasheet | None

    @property
    def attainable(self) -> str:
        return _scaled(self.reached.best, self.unit)

    @property
    def by_framework(self) -> list[str]:
        """In the order of FRAMEWORKS; empty where there is none."""
        found = self.reached.by_framework
        return [_scaled(found[one], self.unit) if one in found else "" for one in FRAMEWORKS]

    @property
    def datasheet(self) -> str:
        """`989 TFLOP/s (79%)`: the share of it that is attainable."""
        if self.of_datasheet is None:
            return ""
        return f"{_scaled(self.of_datasheet, self.unit)} ({self.reached.best / self.of_datasheet:.0%})"


def _scaled(per_second: float, unit: str) -> str:
    """`989 TFLOP/s`, and below 1 TFLOP/s `104 GFLOP/s`."""
    prefix, factor = ("T", 1e12) if per_second >= 1e12 else ("G", 1e9)
    return f"{number(per_second / factor)} {prefix}{unit}"


def attainable_of_devices(records: Iterable[CeilingsRecord]) -> DeviceCeilings:
    by_device: dict[str, list[CeilingsRecord]] = defaultdict(list)
    for record in records:
        by_device[device_of(record.environment)].append(record)
    return {device: attainable(found) for device, found in sorted(by_device.items())}


def read_all_ceilings(folder: Path) -> tuple[DeviceCeilings, list[str]]:
    """With a sentence for each file that is no record of ceilings."""
    records, refused = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(read_ceilings(path))
        except RecordError as error:
            refused.append(printable(str(error)))
    return attainable_of_devices(records), refused


def ceiling_table(ceilings: DeviceCeilings) -> list[CeilingLine]:
    lines = []
    for device, found in ceilings.items():
        sheet = datasheet(device)
        order: tuple[Precision, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16")
        for precision in order:
            if precision in found.operations_per_s:
                lines.append(
                    CeilingLine(
                        device=device,
                        what=f"matrix products, {precision}",
                        unit="FLOP/s",
                        reached=found.operations_per_s[precision],
                        of_datasheet=sheet.per_s(precision) if sheet else None,
                        sheet=sheet,
                    )
                )
        if found.bytes_per_s is not None:
            terabytes = sheet.terabytes_per_s if sheet else None
            lines.append(
                CeilingLine(
                    device=device,
                    what="memory",
                    unit="B/s",
                    reached=found.bytes_per_s,
                    of_datasheet=None if terabytes is None else terabytes * 1e12,
                    sheet=sheet,
                )
            )
        lines += [
            CeilingLine(
                device=device,
                what=f"all-reduce over {devices} devices, {size / 2**20:g} MiB",
                unit="B/s",
                reached=reached,
                of_datasheet=None,
                sheet=None,
            )
            for (devices, size), reached in found.all_reduce.items()
        ]
    return lines


def ceiling_lines(ceilings: DeviceCeilings) -> list[str]:
    """`NVIDIA H200: matrix products, bf16: 780 TFLOP/s attainable; datasheet 989 TFLOP/s (79%)`"""
    found = []
    for line in ceiling_table(ceilings):
        text = f"{line.device}: {line.what}: {line.attainable} attainable"
        if line.reached.differ:
            sides = zip(FRAMEWORKS, line.by_framework, strict=True)
            text += f" ({', '.join(f'{NAMES[one]} {reached}' for one, reached in sides)})"
        found.append(text + (f"; datasheet {line.datasheet}" if line.datasheet else ""))
    return found


def ceiling_cells(ceilings: DeviceCeilings) -> list[list[str]]:
    """A line of the report's table for each: device, what, attainable, by each framework, datasheet."""
    return [
        [
            line.device,
            line.what + ("; the frameworks differ" if line.reached.differ else ""),
            line.attainable,
            *line.by_framework,
            line.datasheet,
        ]
        for line in ceiling_table(ceilings)
    ]


def sources(ceilings: DeviceCeilings) -> list[str]:
    """A sentence for each datasheet that is shown."""
    sheets = dict.fromkeys(line.sheet for line in ceiling_table(ceilings) if line.sheet)
    return [f"{sheet.name}: {sheet.source}." for sheet in sheets]
