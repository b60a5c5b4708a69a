"""The peaks of a report's devices. Pure but for `read_all_device_peaks`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.errors import RecordError
from harness.plan import FRAMEWORKS, Precision
from harness.printable import printable
from harness.results.device_peaks import DevicePeaks, DevicePeaksRecord, Reached, device_peaks, read_device_peaks
from harness.results.quantities import number
from pipeline.report.compare import NAMES, Section, device_of
from pipeline.report.table import Line, Table, numbers, texts

PRECISIONS: tuple[Precision, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16")

PeaksByDevice = Mapping[str, DevicePeaks]
"""By the device's name in the report."""


def _scaled(per_second: float, unit: str) -> str:
    """`989 TFLOP/s`, and below 1 TFLOP/s `104 GFLOP/s`."""
    prefix, factor = ("T", 1e12) if per_second >= 1e12 else ("G", 1e9)
    return f"{number(per_second / factor)} {prefix}{unit}"


def peaks_by_device(records: Iterable[DevicePeaksRecord]) -> PeaksByDevice:
    by_device: dict[str, list[DevicePeaksRecord]] = defaultdict(list)
    for record in records:
        by_device[device_of(record.environment)].append(record)
    return {device: device_peaks(found) for device, found in sorted(by_device.items())}


def peaks_of_sections(compared: Sequence[Section]) -> PeaksByDevice:
    return {one.setup.device: one.attainable for one in compared if one.attainable}


def read_all_device_peaks(folder: Path) -> tuple[PeaksByDevice, list[str]]:
    records, refused = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(read_device_peaks(path))
        except RecordError as error:
            refused.append(printable(str(error)))
    return peaks_by_device(records), refused


def _cells(device: str, found: DevicePeaks) -> Iterator[list[str]]:
    """Yield the table's rows: the products of each precision, and the memory."""
    rates: list[tuple[str, str, Reached]] = [
        (f"matrix products, {one}", "FLOP/s", found.operations_per_s[one])
        for one in PRECISIONS
        if one in found.operations_per_s
    ]
    if found.bytes_per_s is not None:
        rates.append(("memory", "B/s", found.bytes_per_s))
    for what, unit, reached in rates:
        sides = reached.by_framework
        yield [
            device,
            what + ("; the frameworks differ" if reached.differ else ""),
            _scaled(reached.best, unit),
            *(_scaled(sides[one], unit) if one in sides else "" for one in FRAMEWORKS),
        ]


def device_peaks_table(peaks: PeaksByDevice) -> Table:
    return Table(
        name="device_peaks",
        title="Device peaks",
        caption=(
            "Peak: the fastest of a few large matrix products of normal random numbers, and of a triad "
            "(a = b + s c) over arrays far larger than any cache, by the same clock, the better of both frameworks."
        ),
        columns=[*texts("device", "what"), *numbers("peak", *(NAMES[one] for one in FRAMEWORKS))],
        lines=[Line(cells) for device, found in peaks.items() for cells in _cells(device, found)],
    )
