"""Parity numbers for behave.py; tests/test_parity_job.py puts this where a runner has its own."""

import os
import signal
import time

import numpy as np
from numpy.typing import NDArray

from harness.errors import Refused
from harness.session import Session


def parity_numbers(session: Session) -> dict[str, NDArray[np.float64]]:
    variant = session.measurement.variant
    print(f"rank {session.world.rank} computes {variant.key}")
    session.agree(0.0)  # hangs or fails unless all ranks take part
    if session.world.rank == session.world.size - 1:
        fail_as(variant.execution_mode)
    return {"logits": np.arange(4.0), "loss": np.array(session.world.size)}


def fail_as(execution_mode: str) -> None:
    if execution_mode == "parity_is_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if execution_mode == "parity_raises":
        raise KeyError("conv9")
    if execution_mode == "parity_is_refused":
        raise Refused("this mode needs an NVIDIA GPU")
    if execution_mode == "parity_sleeps":
        time.sleep(120)
