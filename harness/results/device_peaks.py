"""Device peaks: the fastest matrix products of each precision and the fastest traffic to a device's memory, as timed in
both frameworks, beside the figures of its maker's datasheet. Formulas are pure."""

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
    """By each framework: operations or bytes per second."""

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


class Datasheet(NamedTuple):
    """What the maker says of a GPU, dense and not 2:4-sparse. In 10^12 operations and bytes per second; None where it
    is not known here."""

    name: str
    fp32: float | None
    tf32: float | None
    bf16: float | None
    terabytes_per_s: float | None
    source: str

    def per_s(self, precision: Precision) -> float | None:
        tera = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16}.get(precision)
        return None if tera is None else tera * 1e12


_A100 = "NVIDIA's datasheet, as glennklockwood.com/garden/processors/A100 quotes it"
_HOPPER = (
    "NVIDIA's datasheet, halved where it has sparsity, as torchtitan (torchtitan/tools/utils.py) and levanter "
    "(levanter/utils/flop_utils.py) quote it"
)
_BOOST = "2 x multiply-adds per clock and SM x SMs x boost clock"
DATASHEETS: Mapping[str, Datasheet] = {
    "A100-SXM4-40GB": Datasheet("A100 SXM 40 GB", 19.5, 156, 312, 1.555, _A100),
    "A100-SXM4-80GB": Datasheet("A100 SXM 80 GB", 19.5, 156, 312, 2.039, _A100),
    "H100 PCIe": Datasheet("H100 PCIe", 51, 378, 756, 2.0, _HOPPER),
    "H100 80GB HBM3": Datasheet("H100 SXM", 67, 494.7, 989, 3.35, _HOPPER),
    "H200": Datasheet("H200 SXM", 67, 494.7, 989, 4.8, _HOPPER),
    "GeForce RTX 2080 Ti": Datasheet("RTX 2080 Ti", 13.4, None, None, None, f"{_BOOST}: 64 x 68 x 1.545 GHz"),
    "RTX A5000": Datasheet("RTX A5000", 27.8, 55.5, 111, None, f"{_BOOST}: 128/256/512 x 64 x 1.695 GHz"),
}
"""By the end of the name that NVML gives."""


def datasheet(device: str) -> Datasheet | None:
    """None where the GPU is not in the table, and for a slice of one."""
    return next((sheet for ending, sheet in DATASHEETS.items() if device.endswith(ending)), None)
