"""A job has devices to itself, and holds their locks from before its first process to after its last."""

import fcntl
import os
from contextlib import suppress
from types import SimpleNamespace

import pytest

from harness.job import turn as module
from harness.job.turn import MACHINE, devices, turn
from harness.locks import machine_lock


def is_free(device: str) -> bool:
    """Return whether another run on this machine could measure now."""
    path = machine_lock(f"turn-{device}")
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
    return True


def test_machine_and_its_gpu_are_locked_while_a_job_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it ends by an error. Outside of Slurm a job has the whole machine."""
    locked = (MACHINE, "GPU-1")
    monkeypatch.setattr(module, "devices", lambda: list(locked))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ZeroDivisionError), turn(tell=pytest.fail, warn=pytest.fail):
        assert not any(map(is_free, locked))
        raise ZeroDivisionError
    assert all(map(is_free, locked))


def test_each_gpu_is_a_device_and_without_slurm_the_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one order for all, so that no two jobs wait for each other. One of which NVML reports nothing has the
    scheduler's name."""
    gpus = [{"uuid": "GPU-bb"}, {"absent": "no driver"}, {"uuid": "GPU-aa"}]
    monkeypatch.setattr(module, "visible_gpu_count", lambda: len(gpus))
    monkeypatch.setattr(module, "open_gpu", lambda position: SimpleNamespace(describe=lambda: gpus[position]))
    of_slurm = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "2,3,4"}
    assert devices(of_slurm) == ["GPU-aa", "GPU-bb", "gpu-n1-3"]
    del gpus[1]
    assert devices({}) == ["machine", "GPU-aa", "GPU-bb"]
    gpus.clear()
    assert (devices({"SLURM_JOB_ID": "7"}), devices({})) == (["slurm-7"], ["machine"])
