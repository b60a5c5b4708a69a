"""harness/measure/gpu.py against an autospecced NVML (its real signatures, no GPU), and against this machine's."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from harness.measure.gpu import (
    HELD_BACK,
    READINGS,
    VALUE_TYPES,
    held_back_s,
    open_gpu,
    open_gpus,
    usable_gpu_count,
    visible_gpu_count,
)
from tests.made.nvml import CLOCKS_MHZ, NOT_SUPPORTED, UUIDS, counter, process, two_gpus

Counters = list[dict[int, float]]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    mock = two_gpus()
    monkeypatch.setitem(sys.modules, "pynvml", mock)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return mock


def test_several_gpus_add_energy_and_tell_the_worst_state(nvml: Any) -> None:
    nvml.nvmlDeviceGetTotalEnergyConsumption.side_effect = [1_000_000, 2_500_000].__getitem__
    nvml.nvmlDeviceGetPowerUsage.side_effect = [100_000, 150_000].__getitem__
    nvml.nvmlDeviceGetClockInfo.side_effect = lambda handle, kind: CLOCKS_MHZ[kind] - 100 * handle
    nvml.nvmlDeviceGetTemperatureV.side_effect = lambda handle, kind: [61, 70][handle]
    nvml.nvmlDeviceGetCurrentClocksEventReasons.side_effect = [0x4, 0x40].__getitem__
    processes = [[process(os.getpid(), 10)], [process(os.getpid(), 30), process(1, 5)]]
    nvml.nvmlDeviceGetComputeRunningProcesses.side_effect = processes.__getitem__
    both = open_gpus(0, 2)
    assert (both.energy_joules(), both.process_bytes()) == (3500.0, 30)
    assert [(gpu.energy_joules(), gpu.process_bytes()) for gpu in both.each] == [(1000.0, 10), (2500.0, 30)]
    assert both.state() == dict(
        sm_clock_mhz=1310,
        memory_clock_mhz=1115,
        temperature_c=70,
        power_watts=250.0,
        throttle_reasons=("hw_thermal_slowdown", "sw_power_cap"),
        other_processes=1,
    )
    described = both.describe()
    assert (described["uuid"], described["uuids"]) == (UUIDS[0], UUIDS)
    assert described["names"] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert len(both.held_back_counters()) == 2


def test_the_first_visible_gpu(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_gpu().describe()["uuid"] == UUIDS[0]
    for visible, index in (("1,0", 1), (" 0 ", 0), ("GPU-2222", 1), (f"{UUIDS[0]},{UUIDS[1]}", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert open_gpu().describe()["uuid"] == UUIDS[index], visible


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        *((hidden, f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU") for hidden in ("", "-1", "NoDevFiles")),
        ("1,2", "NVML has no GPU '2' (from CUDA_VISIBLE_DEVICES='1,2')"),
        ("1,GPU-3333", "NVML has no GPU 'GPU-3333' (from CUDA_VISIBLE_DEVICES='1,GPU-3333')"),
        ("1", "CUDA_VISIBLE_DEVICES='1' shows no GPU at position 1"),
    ],
)
def test_a_gpu_that_is_missing_is_named(nvml: Any, monkeypatch: pytest.MonkeyPatch, visible: str, reason: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_gpus(0, 2).absent == reason


def test_an_index_among_gpus_of_several_kinds_warns(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.nvmlDeviceGetName.side_effect = lambda handle: ["NVIDIA L4", "NVIDIA A100-SXM4-80GB"][handle]
    (warning,) = open_gpu().describe()["warnings"]
    assert "NVIDIA A100-SXM4-80GB, NVIDIA L4" in warning and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in warning
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert open_gpu().describe()["warnings"] == []


def test_an_a100_in_its_units(nvml: Any) -> None:
    gpu = open_gpu()
    assert gpu.absent is None
    assert (gpu.energy_joules(), gpu.process_bytes()) == (1234.567, 1_500_000_000)
    assert gpu.state() == dict(
        sm_clock_mhz=1410,
        memory_clock_mhz=1215,
        temperature_c=61,
        power_watts=251.5,
        throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"),
        other_processes=0,
    )
    assert gpu.describe() == {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-11111111-aaaa",
        "index": 0,
        "mig": False,
        "driver_version": "580.65.06",
        "cuda_driver_version": "13.2",
        "compute_capability": "8.0",
        "memory_total_bytes": 85_899_345_920,
        "power_limit_watts": 400.0,
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 2619,
        "ecc": True,
        "compute_mode": "exclusive_process",
        "pcie_generation": 4,
        "pcie_width": 16,
        "numa_node": 65,
        "nvlinks": {},
        "warnings": [],
        "absent": {},
    }
    nvml.nvmlDeviceGetMemoryAffinity.side_effect = lambda handle, words, scope: [0b11] + [0] * (words - 1)
    assert "numa_node" not in open_gpu().describe(), "two nodes are as near"


def test_active_links_are_counted_by_their_other_end(nvml: Any) -> None:
    """Of four links the second is off; an A100 has no fifth, and says so."""
    nvml.nvmlDeviceGetNvLinkState.side_effect = [1, 0, 1, 1, pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)]
    ends = {0: b"00000000:3B:00.0", 2: b"00000000:C5:00.0", 3: b"00000000:3B:00.0"}
    nvml.nvmlDeviceGetNvLinkRemotePciInfo.side_effect = lambda _, link: pynvml.nvmlPciInfo_t(busId=ends[link])
    assert open_gpu().describe()["nvlinks"] == {"00000000:3B:00.0": 2, "00000000:C5:00.0": 1}


def test_older_drivers_have_the_older_names(nvml: Any) -> None:
    missing = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    nvml.nvmlDeviceGetCurrentClocksEventReasons.side_effect = missing
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons.return_value = 0x2 | 0x20 | 0x800
    nvml.nvmlDeviceGetTemperatureV.side_effect = missing
    nvml.nvmlDeviceGetTemperature.return_value = 55
    state = open_gpu().state()
    assert state["throttle_reasons"] == ("applications_clocks_setting", "sw_thermal_slowdown", "0x800")
    assert state["temperature_c"] == 55


def test_other_processes(nvml: Any) -> None:
    """1 exists here and is not this process; in a container one is the host's number of this very process."""
    for pids, others in (([os.getpid(), 1], 1), ([1], 1), ([], 0), ([999_999_991, 999_999_992], 1)):
        nvml.nvmlDeviceGetComputeRunningProcesses.return_value = [process(pid, 1) for pid in pids]
        assert open_gpu().other_processes() == others, pids


@pytest.mark.parametrize(
    ("function", "lost"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", {"energy_joules"}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz", "memory_clock_mhz"}),
        ("nvmlDeviceGetPowerUsage", {"power_watts"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes", "other_processes", "device_used_bytes"}),
        ("nvmlDeviceGetEccMode", {"ecc"}),
        ("nvmlDeviceGetMigMode", {"mig"}),
        ("nvmlDeviceGetMaxPcieLinkGeneration", {"pcie_generation"}),
    ],
)
def test_what_a_card_or_an_older_driver_refuses_costs_itself_alone(nvml: Any, function: str, lost: set[str]) -> None:
    for error, count in ((NOT_SUPPORTED, 2), (pynvml.NVMLLibraryMismatchError("Not Supported"), 1)):
        getattr(nvml, function).side_effect = error
        gpu = open_gpus(0, count)
        assert (gpu.process_bytes() is None) == ("processes" in lost)
        assert (gpu.energy_joules() is None) == ("energy_joules" in lost)
        state, described = gpu.state(), gpu.describe()
        assert state is not None and state.keys() == {reading.name for reading in READINGS} - lost
        assert described["absent"] == dict.fromkeys(lost, "Not Supported")
        assert not any(described.get(name) for name in lost)


def test_what_one_of_several_gpus_refuses_all_lack(nvml: Any) -> None:
    """The first has energy and power, and the second refuses."""

    def read(handle: int) -> int:
        if handle == 1:
            raise NOT_SUPPORTED
        return 1_000_000

    nvml.nvmlDeviceGetTotalEnergyConsumption.side_effect = nvml.nvmlDeviceGetPowerUsage.side_effect = read
    both = open_gpus(0, 2)
    assert both.energy_joules() is None
    assert [gpu.energy_joules() for gpu in both.each] == [1000.0, None]
    assert both.why_no_energy() == "the GPU gives no energy: Not Supported"
    state = both.state()
    assert state is not None and "power_watts" not in state and state["temperature_c"] == 61
    assert both.describe()["absent"] == dict.fromkeys(("energy_joules", "power_watts"), "Not Supported")


def test_a_mig_slice_has_its_own_memory_and_no_energy(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-3333")
    nvml.nvmlDeviceGetHandleByUUID.side_effect = {"MIG-3333": "slice"}.__getitem__
    nvml.nvmlDeviceIsMigDeviceHandle.return_value = SimpleNamespace(value=1)
    nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle.side_effect = {"slice": 1}.__getitem__
    nvml.nvmlDeviceGetUUID.side_effect = {"slice": "MIG-3333"}.__getitem__
    nvml.nvmlDeviceGetMemoryInfo.side_effect = {"slice": SimpleNamespace(total=10_737_418_240)}.__getitem__
    gpu = open_gpu()
    assert gpu.energy_joules() is None
    description = gpu.describe()
    expected = {"uuid": "MIG-3333", "index": 1, "mig": True, "memory_total_bytes": 10_737_418_240}
    assert description | expected == description
    assert "whole board" in description["absent"]["energy_joules"]
    nvml.nvmlDeviceGetTotalEnergyConsumption.assert_not_called()
    nvml.nvmlDeviceGetClockInfo.assert_called_with(1, pynvml.NVML_CLOCK_MEM)  # of the board, not of the slice


def test_the_fields_are_those_of_the_binding() -> None:
    """By its names, the newest number first; pynvml follows the newest nvml.h."""
    names = {
        "sw_power_cap": "PERF_POLICY_POWER",
        "thermal": "PERF_POLICY_THERMAL",
        "sw_thermal_slowdown": "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
        "hw_thermal_slowdown": "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        "hw_power_brake_slowdown": "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    }
    numbers = {reason: getattr(pynvml, f"NVML_FI_DEV_{name}") for reason, name in names.items()}
    assert {reason: fields[0] for reason, fields in HELD_BACK.items()} == numbers
    types = {number: name for name, number in vars(pynvml).items() if name.startswith("NVML_VALUE_TYPE_")}
    short = {"DOUBLE": "d", "UNSIGNED_INT": "ui", "UNSIGNED_LONG": "ul", "UNSIGNED_LONG_LONG": "ull"}
    short |= {"SIGNED_LONG_LONG": "sll", "SIGNED_INT": "si", "UNSIGNED_SHORT": "us"}
    for number, name in enumerate(VALUE_TYPES):
        assert name == f"{short[types[number].removeprefix('NVML_VALUE_TYPE_')]}Val"


def test_seconds_held_back_are_the_growth_of_the_drivers_counters(nvml: Any) -> None:
    """CUDA 12's driver: 251 to 253 count, and 269 to 271 are settings that stand still."""
    counts = {74: 5_000_000_000, 75: 0, 251: 7_000_000_000, 252: 0, 253: 0, 269: 40, 270: 1, 271: 2}
    nvml.nvmlDeviceGetFieldValues.side_effect = lambda handle, fields: [counter(f, counts[f]) for f in fields]
    gpu = open_gpu()
    before = gpu.held_back_counters()
    counts |= {74: 6_500_000_000, 251: 7_250_000_000}
    found = held_back_s(before, gpu.held_back_counters(), 5.0)
    assert found == dict.fromkeys(HELD_BACK, 0.0) | {"sw_power_cap": 1.5, "sw_thermal_slowdown": 0.25}
    assert "held_back" not in str(gpu.describe()["absent"])


def test_a_refused_counter_costs_itself_alone(nvml: Any) -> None:
    """One that the driver refuses in its answer, one that it does not know, and one with a single number left."""

    def read(handle: int, fields: list[int]) -> list[Any]:
        if fields == [75]:
            raise NOT_SUPPORTED
        refused = fields[0] in (74, 251)
        return [counter(field, 10**9, pynvml.NVML_ERROR_NOT_SUPPORTED if refused else 0) for field in fields]

    nvml.nvmlDeviceGetFieldValues.side_effect = read
    gpu = open_gpu()
    (counters,) = gpu.held_back_counters()
    assert set(counters) == {252, 253, 269, 270, 271}
    assert set(held_back_s([counters], [counters], 1.0)) == set(HELD_BACK) - {"sw_power_cap", "thermal"}
    refused = dict.fromkeys(("held_back sw_power_cap", "held_back thermal"), "Not Supported")
    assert gpu.describe()["absent"] == refused


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        *(([{74: 0.0}], [{74: growth_ns}], {}) for growth_ns in (-1.0, 2_100_000_001.0)),  # no time within the window
        ([{74: 0.0}], [{74: 2_050_000_000.0}], {"sw_power_cap": 2.0}),  # the reads take time too
        ([{74: 0.0, 75: 0.0}, {74: 3e9}], [{74: 1e9, 75: 0.0}, {74: 3.5e9}], {"sw_power_cap": 1.0}),  # the most of two
        ([], [], {}),
    ],
)
def test_what_counts_in_a_window_of_two_seconds(before: Counters, after: Counters, seconds: dict[str, float]) -> None:
    assert held_back_s(before, after, 2.0) == seconds


@pytest.mark.parametrize(
    ("before", "after", "used", "why"),
    [
        (0, 1, 1_400, None),  # the process itself, by the host's number
        (1, 2, None, "there were processes on the GPU before this one"),
        (0, 2, None, "other processes were on the GPU at the end"),
        (0, None, None, "Not Supported"),  # whether others came cannot be told
    ],
)
def test_in_a_container_memory_is_what_the_device_has_more_in_use(
    nvml: Any, before: int, after: int | None, used: int | None, why: str | None
) -> None:
    """Processes of other namespaces: so many before this one makes its context, and at the end."""
    foreign = [process(999_999_990 + number, None) for number in range(2)]
    listed = nvml.nvmlDeviceGetComputeRunningProcesses
    listed.return_value = foreign[:before]
    nvml.nvmlDeviceGetMemoryInfo.return_value = SimpleNamespace(total=1, used=600)
    gpu = open_gpu()
    listed.return_value = foreign[:after]
    listed.side_effect = NOT_SUPPORTED if after is None else None
    nvml.nvmlDeviceGetMemoryInfo.return_value = SimpleNamespace(total=1, used=2_000)
    assert (gpu.process_bytes(), gpu.device_used_bytes()) == (None, used)
    assert gpu.describe()["absent"].get("device_used_bytes") == why
    listed.side_effect, listed.return_value = None, [process(os.getpid(), None)]
    assert gpu.process_bytes() is None, "the driver does not tell"


def test_forbidden_and_broken_gpus_cost_nothing(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three is another job's, the second is lost, and the third is ours: CUDA's 1, as it sees two."""
    errors = {0: pynvml.NVML_ERROR_NO_PERMISSION, 1: pynvml.NVML_ERROR_GPU_IS_LOST}

    def handle(index: int) -> int:
        if index in errors:
            raise pynvml.NVMLError(errors[index])
        return index

    nvml.nvmlDeviceGetCount.return_value = 3
    nvml.nvmlDeviceGetHandleByIndex.side_effect = handle
    nvml.nvmlDeviceGetUUID.side_effect = lambda handle: f"GPU-{handle}"
    for visible in ("1", "GPU-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        description = open_gpu().describe()
        assert (description["index"], description["warnings"]) == (2, [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert open_gpu().absent == "NVML does not open GPU '0': GPU is lost"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert open_gpu().absent == "NVML has no GPU '2' (from CUDA_VISIBLE_DEVICES='2')"


def test_no_driver_and_no_binding(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.nvmlInit.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    gpu = open_gpu()
    assert gpu.absent == "NVML does not start: NVML Shared Library Not Found"
    assert gpu.energy_joules() is gpu.state() is gpu.process_bytes() is None  # type: ignore[func-returns-value]
    assert gpu.describe() == {"absent": gpu.absent}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (open_gpu().absent or "").startswith("nvidia-ml-py is not installed")


def test_a_variable_alone_makes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sets one for whatever gres.conf names."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("harness.measure.gpu._count_of_nvml", lambda: None)
    assert (visible_gpu_count(), usable_gpu_count()) == (2, 0)
    monkeypatch.setattr("harness.measure.gpu._count_of_nvml", lambda: 4)
    assert usable_gpu_count() == 2
