"""The GPU that this process uses, or the GPUs, as NVML sees them: energy, power, clocks, memory, who else is there.

NVML reads counters of the driver; it launches nothing on the GPU and makes no CUDA context. What it refuses
(a consumer card without an energy counter, a MIG slice) is missing, never zero: `describe()["absent"]` says why.
READINGS has what is read between two blocks. A new one is a row there, and one in harness/results/quantities.py for
its number in the report. HELD_BACK has the driver's counters of throttling, which are read around a window.
A machine without a GPU or a driver gets `NoGpu`, which answers the same questions.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from harness.results.record import GpuState
from harness.results.statistics import sum_of_all

T = TypeVar("T")

THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*)."""

HELD_BACK = {
    "sw_power_cap": (74,),
    "thermal": (75,),
    "sw_thermal_slowdown": (269, 251),
    "hw_thermal_slowdown": (270, 252),
    "hw_power_brake_slowdown": (271, 253),
}
"""Fields of nvmlDeviceGetFieldValues that count the nanoseconds for which the driver has held the clocks back:
NVML_FI_DEV_PERF_POLICY_POWER and _THERMAL, and NVML_FI_DEV_CLOCKS_EVENT_REASON_*. The last three have two numbers: CUDA
13's nvml.h moved them from the second to the first and gave the old ones to settings of Blackwell's power smoothing.
Which of the two a driver understands does not show in its answer, so both are read: a setting stands still."""
COUNTER_SLACK = 1.05
"""No counter of time runs faster than time. One that does, by more than the reads themselves take, counts something
else."""
VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Of nvmlFieldValue_t, by nvmlValueType_t."""

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
"""nvmlComputeMode_t."""
EXCLUSIVE_MODES = ("exclusive_thread", "exclusive_process")
"""A second process finds no device."""

NODE_WORDS = 16
"""Of 64 bits each, a bit for each NUMA node; Linux has 1,024 of these at the most."""

NO_ENERGY = "the GPU gives no energy"

HIDDEN = ("", "-1", "NoDevFiles")
"""In CUDA_VISIBLE_DEVICES: no GPU from here on. The last is what Slurm sets for a job without one."""


class NoGpu:
    """There is no GPU to ask: the same methods, and no numbers."""

    each: Sequence["Gpu"] = ()

    def __init__(self, absent: str) -> None:
        self.absent: str = absent

    def energy_joules(self) -> None:
        return None

    def why_no_energy(self) -> str:
        return self.absent

    def state(self) -> None:
        return None

    def process_bytes(self) -> None:
        return None

    def device_used_bytes(self) -> None:
        return None

    def held_back_counters(self) -> list[dict[int, float]]:
        return []

    def describe(self) -> dict[str, Any]:
        return {"absent": self.absent}


class Gpu:
    """One GPU, or one MIG slice of it. Opened by `open_gpu`."""

    absent: None = None
    """As in NoGpu; single quantities that are missing stand in `describe()["absent"]`."""

    def __init__(self, nvml: ModuleType, handle: Any, *, warnings: Sequence[str] = ()) -> None:
        self.nvml = nvml
        self._handle = handle
        self._refused: dict[str, str] = {}
        self._warnings = tuple(warnings)
        self._is_mig_handle = bool(self._ask("mig", lambda: _number(nvml.nvmlDeviceIsMigDeviceHandle(handle))))
        # Clocks, temperature and power exist for the whole board only.
        self.board = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if self._is_mig_handle else handle
        modes = self._ask("mig", lambda: nvml.nvmlDeviceGetMigMode(self.board))
        self._is_sliced = self._is_mig_handle or bool(modes and modes[0])
        self._used_before_bytes = self._ask("device_used_bytes", self._used_by_nobody_bytes)

    def energy_joules(self) -> float | None:
        """Since the driver was loaded; ticks about every 0.1 s. None for MIG: only the board has one."""
        if self._is_sliced:
            self._refused["energy_joules"] = "MIG: the counter is that of the whole board, with all its slices"
            return None
        millijoules = self._ask("energy_joules", lambda: self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.board))
        return None if millijoules is None else millijoules / 1000

    @property
    def each(self) -> Sequence["Gpu"]:
        """The GPUs of this process; here one."""
        return (self,)

    def why_no_energy(self) -> str:
        """For who has found `energy_joules` to be None."""
        why = self._refused.get("energy_joules")
        return f"{NO_ENERGY}: {why}" if why else NO_ENERGY

    def state(self) -> GpuState | None:
        """Every reading that this card gives; None if there is none."""
        found = {reading.name: self._ask(reading.name, partial(reading.ask, self)) for reading in READINGS}
        return {name: value for name, value in found.items() if value is not None} or None

    def other_processes(self) -> int:
        """Processes with a CUDA context on this GPU besides this one. Raises NVMLError."""
        pids = {process.pid for process in self._processes()}
        if os.getpid() in pids or any(Path(f"/proc/{pid}").exists() for pid in pids):
            return len(pids - {os.getpid()})
        # In a container with its own process numbers NVML answers with the host's: one is this process.
        return max(0, len(pids) - 1)

    def process_bytes(self) -> int | None:
        """GPU memory that the driver charges to this process: context, kernels and pool.

        None where it is not listed: no context yet, or a container with its own process numbers.
        """
        for process in self._ask("processes", self._processes) or ():
            if process.pid == os.getpid():
                return None if process.usedGpuMemory is None else int(process.usedGpuMemory)
        return None

    def device_used_bytes(self) -> int | None:
        """What is in use on the device more than when this object was made, before the process had a context: the same
        as `process_bytes`, also in a container, where the driver lists the host's process numbers.

        None where others were on the device at either time: their memory cannot be told from this process's.
        """
        if self._used_before_bytes is None:
            self._refused.setdefault("device_used_bytes", "there were processes on the GPU before this one")
            return None
        others = self._ask("device_used_bytes", self.other_processes)
        used = self._ask("device_used_bytes", self._used_bytes) if others == 0 else None
        if others:
            self._refused["device_used_bytes"] = "other processes were on the GPU at the end"
        return None if used is None else max(0, used - self._used_before_bytes)

    def held_back_counters(self) -> list[dict[int, float]]:
        """Of each GPU, here of one: the fields of HELD_BACK that it has, in nanoseconds since the driver was loaded.
        `held_back_s` makes seconds of two such readings."""
        found: dict[int, float] = {}
        for reason, fields in HELD_BACK.items():
            answers = {field: self._ask(f"held_back {reason}", partial(self._field, field)) for field in fields}
            given = {field: value for field, value in answers.items() if value is not None}
            if given:
                self._refused.pop(f"held_back {reason}", None)  # one of its numbers is enough
            found |= given
        return [found]

    def describe(self) -> dict[str, Any]:
        """What stays the same for the process's life, and under "absent" what this GPU refuses and why."""
        nvml, handle, board = self.nvml, self._handle, self.board
        self.energy_joules()
        self.held_back_counters()
        self.state()

        def asked(quantities: dict[str, Callable[[], Any]]) -> dict[str, Any]:
            return {name: self._ask(name, ask) for name, ask in quantities.items()}

        names = {
            "name": lambda: nvml.nvmlDeviceGetName(board),
            "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
            "index": lambda: nvml.nvmlDeviceGetIndex(board),
        }
        others = {
            "driver_version": nvml.nvmlSystemGetDriverVersion,
            "cuda_driver_version": self._cuda_driver_version,
            "compute_capability": lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(board)),
            "memory_total_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "power_limit_watts": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board) / 1000,
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(board, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(board, nvml.NVML_CLOCK_MEM),
            "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(board)[0]),
            "compute_mode": lambda: COMPUTE_MODES.get(mode := nvml.nvmlDeviceGetComputeMode(board), str(mode)),
        }
        of_place = {
            "pcie_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(board),  # the current one idles
            "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(board),
            "numa_node": self._numa_node,
            "nvlinks": self._nvlinks,
        }
        return {
            **asked(names),
            "mig": self._is_sliced,
            **asked(others),
            "warnings": list(self._warnings),
            **{name: value for name, value in asked(of_place).items() if value is not None},
            "absent": dict(self._refused),
        }

    def _numa_node(self) -> int | None:
        """Of the host's memory that is nearest to the board; None where that is no single node."""
        nvml = self.nvml
        words = nvml.nvmlDeviceGetMemoryAffinity(self.board, NODE_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE)
        mask = sum(word << 64 * place for place, word in enumerate(words))
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None

    def _nvlinks(self) -> dict[str, int]:
        """How many active links lead to each other end, by its PCI bus id: a GPU's, or a switch's, which GPUs share.
        Empty for a card without NVLink. Raises NVMLError."""
        nvml, ends = self.nvml, Counter[str]()
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                is_active = nvml.nvmlDeviceGetNvLinkState(self.board, link) == nvml.NVML_FEATURE_ENABLED
            except nvml.NVMLError as error:
                if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    break  # there are no more of them
                raise
            if is_active:
                ends[str(nvml.nvmlDeviceGetNvLinkRemotePciInfo(self.board, link).busId)] += 1
        return dict(ends)

    def _ask(self, quantity: str, read: Callable[[], T]) -> T | None:
        """None, and the reason kept, where NVML (or the installed driver's older NVML) refuses."""
        try:
            value = read()
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError) as error:
            self._refused[quantity] = str(error)
            return None
        self._refused.pop(quantity, None)
        return value

    def _used_bytes(self) -> int:
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def _used_by_nobody_bytes(self) -> int | None:
        """None where any process is there: this one has no context yet."""
        return None if self._processes() else self._used_bytes()

    def _field(self, field: int) -> float:
        """Raises NVMLError where the driver does not know it: each has its own verdict."""
        (answer,) = self.nvml.nvmlDeviceGetFieldValues(self.board, [field])
        if answer.nvmlReturn != self.nvml.NVML_SUCCESS:
            raise self.nvml.NVMLError(answer.nvmlReturn)
        return float(getattr(answer.value, VALUE_TYPES[answer.valueType]))

    def _processes(self) -> list[Any]:
        return list(self.nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))

    def _cuda_driver_version(self) -> str:
        version = self.nvml.nvmlSystemGetCudaDriverVersion_v2()
        return f"{version // 1000}.{version % 1000 // 10}"


class SeveralGpus:
    """The GPUs of one process that uses them together. Energy and power are those of all; of memory and states it tells
    the worst, as a record does for several processes."""

    absent: None = None

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.each = gpus

    def energy_joules(self) -> float | None:
        return sum_of_all([gpu.energy_joules() for gpu in self.each])

    def why_no_energy(self) -> str:
        """Of the first that gives none."""
        return next((gpu.why_no_energy() for gpu in self.each if gpu.energy_joules() is None), NO_ENERGY)

    def state(self) -> GpuState | None:
        """Of each reading that all of them give, what its row makes of them."""
        states = [gpu.state() or {} for gpu in self.each]
        of_all = {reading: [state.get(reading.name) for state in states] for reading in READINGS}
        given = {reading: values for reading, values in of_all.items() if None not in values}
        return {reading.name: reading.combine(values) for reading, values in given.items()} or None

    def process_bytes(self) -> int | None:
        """On the GPU where it is most."""
        return _largest_of_all([gpu.process_bytes() for gpu in self.each])

    def device_used_bytes(self) -> int | None:
        """On the GPU where it is most."""
        return _largest_of_all([gpu.device_used_bytes() for gpu in self.each])

    def held_back_counters(self) -> list[dict[int, float]]:
        return [counters for gpu in self.each for counters in gpu.held_back_counters()]

    def describe(self) -> dict[str, Any]:
        """The first's, the UUIDs and names of all, and what any of them refuses."""
        descriptions = [gpu.describe() for gpu in self.each]
        of_all = {f"{name}s": [description[name] for description in descriptions] for name in ("uuid", "name")}
        refused = {quantity: why for description in descriptions for quantity, why in description["absent"].items()}
        return descriptions[0] | of_all | {"absent": refused}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is asked of a GPU between two blocks."""

    name: str
    """With its unit; the key in GpuState, and in `describe()["absent"]` where a card refuses it."""
    ask: Callable[[Gpu], Any]
    """A number, or a tuple of words. Raises NVMLError. Of the whole board, where a slice has none of its own."""
    combine: Callable[[Sequence[Any]], Any]
    """What stands for several GPUs of one process: of most readings the worst."""


def _asked(gpu: Gpu, function: str, older: str, *arguments: Any) -> Any:
    """Of the board. `older` goes with CUDA 14; drivers before 570 (temperature) and 535 (reasons) have nothing else."""
    try:
        return getattr(gpu.nvml, function)(gpu.board, *arguments)
    except (AttributeError, gpu.nvml.NVMLError):
        return getattr(gpu.nvml, older)(gpu.board, *arguments)


def _temperature_c(gpu: Gpu) -> int:
    sensor = gpu.nvml.NVML_TEMPERATURE_GPU
    return int(_asked(gpu, "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", sensor))


def _throttle_reasons(gpu: Gpu) -> tuple[str, ...]:
    names = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    return decode_throttle_reasons(_asked(gpu, *names))


def _union(words: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({word for of_one in words for word in of_one}))


READINGS = (
    Reading(
        name="sm_clock_mhz",
        ask=lambda gpu: gpu.nvml.nvmlDeviceGetClockInfo(gpu.board, gpu.nvml.NVML_CLOCK_SM),
        combine=min,
    ),
    Reading(
        name="memory_clock_mhz",
        ask=lambda gpu: gpu.nvml.nvmlDeviceGetClockInfo(gpu.board, gpu.nvml.NVML_CLOCK_MEM),
        combine=min,
    ),
    Reading(name="temperature_c", ask=_temperature_c, combine=max),
    Reading(
        # The mean over one second on most cards since Ampere, an instant on others.
        name="power_watts",
        ask=lambda gpu: gpu.nvml.nvmlDeviceGetPowerUsage(gpu.board) / 1000,
        combine=sum,
    ),
    Reading(name="throttle_reasons", ask=_throttle_reasons, combine=_union),
    Reading(name="other_processes", ask=Gpu.other_processes, combine=max),
)


def held_back_s(
    before: Sequence[dict[int, float]], after: Sequence[dict[int, float]], window_s: float
) -> dict[str, float]:
    """By the reasons of HELD_BACK: for how many seconds of a window the clocks were held back, on the GPU where it was
    most. What one of the GPUs does not count, or what cannot be a count of time, is not among them."""
    of_each = [_counted_s(*counters, window_s) for counters in zip(before, after, strict=True)]
    common = [reason for reason in HELD_BACK if of_each and all(reason in seconds for seconds in of_each)]
    return {reason: max(seconds[reason] for seconds in of_each) for reason in common}


def _counted_s(before: dict[int, float], after: dict[int, float], window_s: float) -> dict[str, float]:
    """Of one GPU."""
    found = {}
    for reason, fields in HELD_BACK.items():
        counts = [(after[field] - before[field]) / 1e9 for field in fields if field in before and field in after]
        possible = [seconds for seconds in counts if 0 <= seconds <= COUNTER_SLACK * window_s]
        if possible:
            found[reason] = min(max(possible), window_s)
    return found


def decode_throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the set bits, lowest first; a bit that is newer than this table stands as its number."""
    single = (1 << position for position in range(bits.bit_length()))
    return tuple(THROTTLE_REASONS.get(bit, hex(bit)) for bit in single if bits & bit)


def open_gpu(position: int = 0) -> Gpu | NoGpu:
    """The GPU at `position` in CUDA_VISIBLE_DEVICES (an index, a GPU-UUID or a MIG-UUID), that GPU without it.

    NVML counts in the order of the PCI bus, CUDA by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID. Where a node's
    GPUs differ in kind and the variable holds an index, `describe()["warnings"]` says so.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = [str(position)] if visible is None else [name.strip() for name in visible.split(",")][position:]
    if not shown:
        return NoGpu(f"CUDA_VISIBLE_DEVICES={visible!r} shows no GPU at position {position}")
    wanted = shown[0]
    if wanted in HIDDEN:
        return NoGpu(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
    try:
        import pynvml as nvml
    except ImportError as error:
        return NoGpu(f"nvidia-ml-py is not installed ({error})")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NoGpu(f"NVML does not start: {error}")
    try:
        handle = _find(nvml, wanted)
        if handle is None:
            return NoGpu(f"NVML has no GPU {wanted!r} (from CUDA_VISIBLE_DEVICES={visible!r})")
        return Gpu(nvml, handle, warnings=_order_warnings(nvml, wanted))
    except nvml.NVMLError as error:
        return NoGpu(f"NVML does not open GPU {wanted!r}: {error}")


Gpus = Gpu | SeveralGpus | NoGpu
"""Of one process."""


def open_gpus(first: int, count: int) -> Gpus:
    """`count` GPUs from the position `first` on, as `open_gpu` counts; NoGpu where any is missing."""
    gpus = [open_gpu(position) for position in range(first, first + count)]
    found = [gpu for gpu in gpus if isinstance(gpu, Gpu)]
    missing = [gpu for gpu in gpus if isinstance(gpu, NoGpu)]
    if missing:
        return missing[0]
    return found[0] if count == 1 else SeveralGpus(found)


def visible_gpu_count() -> int | None:
    """How many GPUs CUDA shows to this process, without asking CUDA; None where that cannot be told.

    Of several MIG slices CUDA shows the first only (docs.nvidia.com/datacenter/tesla/mig-user-guide).
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = list(itertools.takewhile(lambda name: name not in HIDDEN, map(str.strip, visible.split(","))))
        return min(1, len(names)) if any(name.startswith("MIG-") for name in names) else len(names)
    return _count_of_nvml()


def usable_gpu_count() -> int:
    """The same, and none where the driver has no GPU at all: a scheduler's variable alone makes none."""
    return (visible_gpu_count() or 0) if _count_of_nvml() else 0


def _count_of_nvml() -> int | None:
    """None where it cannot be asked."""
    try:
        import pynvml as nvml
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return None


def _find(nvml: ModuleType, wanted: str) -> Any:
    """A handle, or None. CUDA takes the beginning of a GPU's UUID too, NVML only the whole."""
    if wanted.isdecimal():
        return next(itertools.islice(_permitted(nvml), int(wanted), None), lambda: None)()
    if wanted.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(wanted)
    found = (handle for handle in _in_order(nvml) if nvml.nvmlDeviceGetUUID(handle).startswith(wanted))
    return next(found, None)


def _permitted(nvml: ModuleType) -> Iterator[Callable[[], Any]]:
    """How to open each GPU that this process may open. NVML counts those too that a job's cgroup forbids, and CUDA does
    not: its indices are places in this order."""

    def is_forbidden(index: int) -> bool:
        try:
            nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            return bool(error.value == nvml.NVML_ERROR_NO_PERMISSION)
        return False

    for index in range(nvml.nvmlDeviceGetCount()):
        if not is_forbidden(index):
            yield partial(nvml.nvmlDeviceGetHandleByIndex, index)


def _in_order(nvml: ModuleType) -> Iterator[Any]:
    """Handles of all GPUs that can be opened: a broken one is no reason not to find another."""
    for open_one in _permitted(nvml):
        with suppress(nvml.NVMLError):
            yield open_one()


def _order_warnings(nvml: ModuleType, wanted: str) -> list[str]:
    if not wanted.isdecimal() or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    names = {nvml.nvmlDeviceGetName(handle) for handle in _in_order(nvml)}
    if len(names) < 2:
        return []
    return [
        f"this node has GPUs of several kinds ({', '.join(sorted(names))}): CUDA's GPU {wanted} may be "
        "another one than NVML's. Set CUDA_DEVICE_ORDER=PCI_BUS_ID."
    ]


def _largest_of_all(values: Sequence[int | None]) -> int | None:
    return None if None in values else max(value for value in values if value is not None)


def _number(value: Any) -> int:
    """nvidia-ml-py gives some answers as ctypes objects."""
    return int(getattr(value, "value", value))
