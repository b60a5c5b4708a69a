"""Which devices a job has to itself, by the names of their locks."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.job import turn
from harness.job.turn import devices


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVML tells of the GPUs that a job sees."""
    monkeypatch.setattr(turn, "visible_gpu_count", lambda: 2)
    uuids = ["GPU-bb", "GPU-aa"]
    monkeypatch.setattr(turn, "open_gpu", lambda position: SimpleNamespace(describe=lambda: {"uuid": uuids[position]}))


@pytest.mark.usefixtures("two_gpus")
def test_in_slurm_each_gpu_is_a_device_and_else_the_machine_too() -> None:
    """In one order for all, so that no two jobs wait for each other."""
    assert devices({"SLURM_JOB_ID": "7"}) == ["GPU-aa", "GPU-bb"]
    assert devices({}) == ["machine", "GPU-aa", "GPU-bb"]


def test_a_gpu_of_which_nvml_says_nothing_has_the_schedulers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    absent: dict[str, Any] = {"absent": "no driver"}
    monkeypatch.setattr(turn, "visible_gpu_count", lambda: 1)
    monkeypatch.setattr(turn, "open_gpu", lambda _position: SimpleNamespace(describe=lambda: absent))
    variables = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "3"}
    assert devices(variables) == ["gpu-n1-3"]
