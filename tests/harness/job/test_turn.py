"""Who measures holds its machine's lock, from before the first process to after the last."""

import fcntl
import os
from contextlib import suppress

import pytest

from harness.job import turn as module
from harness.job.turn import MACHINE, turn
from harness.locks import machine_lock


def is_free(device: str) -> bool:
    """Whether another run on this machine could measure now."""
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
    devices = (MACHINE, "GPU-1")
    monkeypatch.setattr(module, "devices", lambda: list(devices))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ZeroDivisionError), turn(tell=pytest.fail, warn=pytest.fail):
        assert not any(map(is_free, devices))
        raise ZeroDivisionError
    assert all(map(is_free, devices))
