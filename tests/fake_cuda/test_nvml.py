"""harness/measure/gpu.py on the fake NVML, by the real pynvml: each question in a process of its own."""

from typing import Any

import pytest

from harness.measure.gpu import READINGS
from tests.fake_cuda.conftest import Started
from tests.made.gpu_specs import GPU_SPECS

GPU_OF = "GPU-face0000-0000-0000-0000-00000000000"
"""The place of the board follows."""


@pytest.fixture
def nvml(ask: Started) -> Started:
    def in_a_process(lines: str, devices: int = 1, **variables: str) -> Any:
        """What the last of them gives, by JSON. The process ends as that of rank.py does."""
        *first, last = lines.split("; ")
        given = ["import json, os, time", "from harness.measure.gpu import *"]
        program = [*given, *first, f"print(json.dumps({last}), flush=True)", "os._exit(0)"]
        return ask("-c", "\n".join(program), devices=devices, **variables)

    return in_a_process


def test_an_a100_has_every_reading(nvml: Started) -> None:
    described, state = nvml("[open_gpu().describe(), open_gpu().state()]")
    assert (described["name"], described["uuid"]) == (GPU_SPECS["a100"].device_name, GPU_OF + "1")
    assert (described["memory_total_bytes"], described["power_limit_watts"]) == (85_100_068_864, 400.0)
    assert (described["nvlinks"], described["warnings"], described["absent"]) == ({}, [], {})
    assert state == {
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1200,
        "temperature_c": 50,
        "power_watts": 200.0,
        "throttle_reasons": [],
        "other_processes": 0,
    }
    assert set(state) == {reading.name for reading in READINGS}


def test_time_of_clocks_held_back_is_what_the_driver_counts(nvml: Started) -> None:
    """In nanoseconds, for each reason; the fake counts for the power limit alone."""
    (before,), (after,), seconds = nvml(
        "gpu = open_gpu(); before, after = gpu.held_back_counters(), gpu.held_back_counters(); "
        "[before, after, held_back_s(before, after, 1e9)]",
        FAKE_NVML="held_back",
    )
    counted = {field: (after[field] - before[field]) / 1e9 for field in after}
    assert {field for field, held_s in counted.items() if held_s} == {"74"}
    assert seconds.pop("sw_power_cap") == counted["74"]
    assert set(seconds.values()) == {0.0}


# ---- the same device by PyTorch

SAME_GPU = (
    "import torch; from torch_runner.device import Device; device, gpu = Device(), open_gpu(); "
    "kept = torch.ones(1, device='cuda'); memory = (gpu.process_bytes(), torch.cuda.memory_reserved()); "
    "[device.describe(), gpu.describe(), memory, gpu.device_used_bytes(), gpu.state(), gpu.held_back_counters()]"
)
SMALLEST = 2 * 2**20
"""Segment of PyTorch's allocator: NVML charges the process with it."""


def test_its_uuid_picks_the_same_gpu_in_cuda(nvml: Started) -> None:
    second = GPU_OF + "2"
    of_torch, of_nvml, memory, used, *_ = nvml(SAME_GPU, devices=8, CUDA_VISIBLE_DEVICES=second)
    assert (of_torch["device_uuid"], of_nvml["uuid"]) == (second, second)
    assert (of_torch["device_count"], of_nvml["index"]) == (1, 1)
    assert (*memory, used) == (SMALLEST,) * 3


def test_a_slice_is_the_same_in_cuda_and_has_the_readings_of_its_board_but_no_energy(nvml: Started) -> None:
    second = "MIG-face0000-0000-0000-0000-000000000202"
    of_torch, of_nvml, memory, _, state, counters = nvml(
        SAME_GPU, devices=2, FAKE_CUDA_MIG="1", CUDA_VISIBLE_DEVICES=second
    )
    assert (of_torch["device_count"], of_torch["device"]) == (1, "NVIDIA A100-SXM4-80GB MIG 3g.40gb")
    assert (of_nvml["uuid"], of_nvml["mig"], of_nvml["index"]) == (second, True, 1)
    assert of_nvml["memory_total_bytes"] == 42_550_034_432  # half of the board's
    assert of_nvml["absent"] == {"energy_joules": "MIG: the counter is that of the whole board, with all its slices"}
    assert tuple(memory) == (SMALLEST,) * 2
    assert state["sm_clock_mhz"] == 1410
    assert counters != [{}]


@pytest.mark.nightly
def test_of_two_boards_with_slices_cuda_shows_one_slice(nvml: Started) -> None:
    """By what the doctor asks PyTorch."""
    lines = "import sys; from pipeline.doctor import PROBES, ask; ask([sys.executable, '-c', PROBES['torch']])"
    found = nvml(lines, devices=2, FAKE_CUDA_MIG="1")
    assert (found["gpus"], found["cudnn"]) == (["NVIDIA A100-SXM4-80GB MIG 3g.40gb"], 92_400)
