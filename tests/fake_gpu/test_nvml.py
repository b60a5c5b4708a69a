"""harness/measure/gpu.py on the fake NVML, by the real pynvml: each question in a process of its own."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.measure.gpu import READINGS
from tests.fake_gpu.conftest import Environment
from tests.made.processes import output_of

Ask = Callable[..., Any]


@pytest.fixture
def nvml(on_card: Environment) -> Ask:
    def in_a_process(
        lines: str, name: str = "a100", devices: int = 1, with_cuda: bool = False, **variables: str
    ) -> Any:
        """What the last of them gives, by JSON. `name`: of the card."""
        *first, last = lines.split("; ")
        program = ["import json, time", "from harness.measure.gpu import *", *first, f"print(json.dumps({last}))"]
        given = on_card(name, devices)
        if not with_cuda:
            del given["LD_PRELOAD"]
        return json.loads(output_of("-c", "\n".join(program), env=given | variables, quiet_s=30))

    return in_a_process


def test_an_a100_has_every_reading(nvml: Ask) -> None:
    described, state = nvml("[open_gpu().describe(), open_gpu().state()]")
    assert described == {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-face0000-0000-0000-0000-000000000001",
        "index": 0,
        "mig": False,
        "driver_version": "580.00.fake",
        "cuda_driver_version": "13.0",
        "compute_capability": "8.0",
        "memory_total_bytes": 85_100_068_864,
        "power_limit_watts": 400.0,
        "max_sm_clock_mhz": 1410,
        "max_memory_clock_mhz": 1200,
        "ecc": True,
        "compute_mode": "default",
        "pcie_generation": 4,
        "pcie_width": 16,
        "numa_node": 0,
        "nvlinks": {},
        "warnings": [],
        "absent": {},
    }
    assert state == {
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1200,
        "temperature_c": 50,
        "power_watts": 200.0,
        "throttle_reasons": [],
        "other_processes": 0,
    }
    assert set(state) == {reading.name for reading in READINGS}


def test_energy_is_half_the_limit_times_the_time(nvml: Ask) -> None:
    """An A100's 400 W halved. The counter ticks every 0.1 s, so a window of 1 s is one tick longer or shorter."""
    joules, seconds, at_once = nvml(
        "gpu = open_gpu(); start, before = time.monotonic(), gpu.energy_joules(); time.sleep(1); "
        "after, end = gpu.energy_joules(), time.monotonic(); "
        "[after - before, end - start, [gpu.energy_joules() for _ in range(50)]]"
    )
    assert joules == pytest.approx(200 * seconds, abs=21)
    assert joules / 20 == pytest.approx(round(joules / 20), abs=1e-3)
    assert len(set(at_once)) < 25


def test_a_slice_has_the_readings_of_its_board_but_no_energy(nvml: Ask) -> None:
    slice_uuid = "MIG-face0000-0000-0000-0000-000000000201"
    described, state, counters = nvml(
        "[open_gpu().describe(), open_gpu().state(), open_gpu().held_back_counters()]",
        FAKE_CUDA_MIG="1",
        CUDA_VISIBLE_DEVICES=slice_uuid,
    )
    assert (described["uuid"], described["mig"], described["index"]) == (slice_uuid, True, 0)
    assert described["memory_total_bytes"] == 42_550_034_432  # half of the board's
    assert described["absent"] == {"energy_joules": "MIG: the counter is that of the whole board, with all its slices"}
    assert state["sm_clock_mhz"] == 1410
    assert counters != [{}]


def test_clocks_held_back_are_half_of_the_window(nvml: Ask) -> None:
    seconds, window_s = nvml(
        "gpu = open_gpu(); start, before = time.monotonic(), gpu.held_back_counters(); time.sleep(0.5); "
        "after, window_s = gpu.held_back_counters(), time.monotonic() - start; "
        "[held_back_s(before, after, window_s), window_s]",
        FAKE_NVML="held_back",
    )
    assert seconds.pop("sw_power_cap") == pytest.approx(window_s / 2, rel=0.1)
    assert set(seconds.values()) == {0.0}


# ---- the same device by PyTorch

SAME_GPU = (
    "import torch; from torch_runner.device import Device; device, gpu = Device(), open_gpu(); "
    "kept = torch.ones(1, device='cuda'); "
    "[device.describe(), gpu.describe(), gpu.process_bytes(), gpu.device_used_bytes(), torch.cuda.memory_reserved()]"
)


def test_its_uuid_picks_the_same_gpu_in_cuda(nvml: Ask) -> None:
    """And NVML charges the process with what PyTorch has taken there."""
    second = "GPU-face0000-0000-0000-0000-000000000002"
    of_torch, of_nvml, charged, used, reserved = nvml(SAME_GPU, devices=8, with_cuda=True, CUDA_VISIBLE_DEVICES=second)
    assert (of_torch["device_uuid"], of_nvml["uuid"]) == (second, second)
    assert (of_torch["device_count"], of_nvml["index"]) == (1, 1)
    assert charged == used == reserved == 2 * 2**20  # the allocator's smallest segment


def test_a_slice_is_the_same_in_cuda(nvml: Ask) -> None:
    slice_uuid = "MIG-face0000-0000-0000-0000-000000000202"
    of_torch, of_nvml, charged, _, reserved = nvml(
        SAME_GPU, devices=2, with_cuda=True, FAKE_CUDA_MIG="1", CUDA_VISIBLE_DEVICES=slice_uuid
    )
    assert of_nvml["uuid"] == slice_uuid
    assert (of_torch["device_count"], of_torch["device"]) == (1, "NVIDIA A100-SXM4-80GB MIG 3g.40gb")
    assert charged == reserved == 2 * 2**20


def test_of_two_boards_with_slices_cuda_shows_one_slice(nvml: Ask) -> None:
    """By what the doctor asks PyTorch."""
    lines = "import sys; from pipeline.doctor import PROBES, ask; ask([sys.executable, '-c', PROBES['torch']])"
    found = nvml(lines, devices=2, with_cuda=True, FAKE_CUDA_MIG="1")
    assert (found["gpus"], found["cudnn"]) == (["NVIDIA A100-SXM4-80GB MIG 3g.40gb"], 92_400)
