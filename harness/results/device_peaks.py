"""Device peaks: the fastest matrix products of each precision and the fastest traffic to a device's memory, as timed in
both frameworks. Formulas are pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from harness.errors import RecordError
from harness.files import in_words, read_json, way_out, write_atomically
from harness.plan import Framework, Precision
from harness.results.record import Blocks, Count, GpuState, Measured
from harness.results.statistics import step_time_s

Kind = Literal["product", "triad"]
DIFFER = 0.03
"""Of the larger one, from where on both frameworks' numbers are shown: that is a finding of its own."""


class Peak(Measured):
    """One kind of work, timed in blocks by the project's clock."""

    kind: Kind
    """`product`: two matrices of normal random numbers. `triad`: a = b + s c, element by element."""
    precision: Precision
    shape: tuple[Count, ...] = Field(min_length=1)
    """(m, k, n) of a product of [m, k] by [k, n]; the number of elements of a triad."""
    blocks: Blocks
    gpu_state: GpuState = {}
    """State after the last block."""

    @property
    def work(self) -> int:
        """Work of a call: floating-point operations of a product, two for each multiply-add; bytes of a triad, which
        reads two arrays of float32 and writes one (McCalpin, STREAM)."""
        return 2 * prod(self.shape) if self.kind == "product" else 3 * 4 * self.shape[0]

    @property
    def per_s(self) -> float:
        """Work per second in the median block."""
        return self.work / step_time_s(self.blocks)


class DevicePeaksRecord(Measured):
    """Peaks that one framework reached on one device."""

    schema_version: Literal[1] = 1
    framework: Framework
    started_at: str
    ended_at: str
    """ISO 8601, UTC."""
    environment: dict[str, Any]
    """As in a record of a measurement."""
    peaks: list[Peak]
    unsupported: dict[str, str] = {}
    """Precisions that this device does not have, and why."""


class Reached(NamedTuple):
    """Operations or bytes per second that each framework reached."""

    by_framework: Mapping[Framework, float]

    @property
    def best(self) -> float:
        return max(self.by_framework.values())

    @property
    def differ(self) -> bool:
        return min(self.by_framework.values()) < (1 - DIFFER) * self.best


@dataclass(frozen=True, kw_only=True)
class DevicePeaks:
    """Peaks of one device: the best of all shapes and frameworks."""

    operations_per_s: Mapping[Precision, Reached]
    bytes_per_s: Reached | None

    def peak(self, precision: Precision) -> float | None:
        """Return the peak of matrix products, in operations per second."""
        reached = self.operations_per_s.get(precision)
        return reached.best if reached else None


def device_peaks(records: Iterable[DevicePeaksRecord]) -> DevicePeaks:
    """
    Args:
        records: of one device; of each framework the newest counts.
    """
    newest = {record.framework: record for record in sorted(records, key=lambda record: record.ended_at)}
    products: dict[Precision, dict[Framework, float]] = {}
    traffic: dict[Framework, float] = {}
    for framework, record in newest.items():
        for peak in record.peaks:
            found = traffic if peak.kind == "triad" else products.setdefault(peak.precision, {})
            found[framework] = max(peak.per_s, found.get(framework, 0.0))
    return DevicePeaks(
        operations_per_s={precision: Reached(found) for precision, found in products.items()},
        bytes_per_s=Reached(traffic) if traffic else None,
    )


def has_device_peaks(folder: Path, framework: Framework, gpu: Mapping[str, Any], cpu: Mapping[str, Any]) -> bool:
    """Return whether a readable record in the folder is of this framework and this kind of device.

    Args:
        gpu: NVML's description, without a name where there is no GPU.
    """
    for path in folder.glob(f"{framework}-*.json"):
        try:
            recorded = read_device_peaks(path).environment
        except RecordError:
            continue
        of_gpu, of_cpu = recorded.get("gpu") or {}, recorded.get("cpu") or {}
        if all(of_gpu.get(key) == gpu.get(key) for key in ("name", "mig", "memory_total_bytes")) and (
            gpu.get("name") or of_cpu.get("model") == cpu.get("model")
        ):
            return True
    return False


def write_device_peaks(record: DevicePeaksRecord, path: Path) -> None:
    """Raises RecordError with the remedy when the disk is full or the folder cannot be written."""
    with way_out(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, record.model_dump_json(), replace=False)


def read_device_peaks(path: Path) -> DevicePeaksRecord:
    """Raises RecordError that names the file and what is wrong with it."""
    try:
        return DevicePeaksRecord.model_validate_json(read_json(path))
    except ValidationError as error:
        raise RecordError(f"{path}: not a record of device peaks: {in_words(error)}") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
