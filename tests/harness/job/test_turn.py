"""Which devices a job has to itself."""

from types import SimpleNamespace

import pytest

from harness.job import turn
from harness.job.turn import devices


def test_each_gpu_is_a_device_and_without_slurm_the_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one order for all, so that no two jobs wait for each other. One of which NVML reports nothing has the
    scheduler's name."""
    gpus = [{"uuid": "GPU-bb"}, {"absent": "no driver"}, {"uuid": "GPU-aa"}]
    monkeypatch.setattr(turn, "visible_gpu_count", lambda: len(gpus))
    monkeypatch.setattr(turn, "open_gpu", lambda position: SimpleNamespace(describe=lambda: gpus[position]))
    of_slurm = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "2,3,4"}
    assert devices(of_slurm) == ["GPU-aa", "GPU-bb", "gpu-n1-3"]
    del gpus[1]
    assert devices({}) == ["machine", "GPU-aa", "GPU-bb"]
    gpus.clear()
    assert (devices({"SLURM_JOB_ID": "7"}), devices({})) == (["slurm-7"], ["machine"])
