"""The heartbeat: what a job is doing now, in a small file that `main.py status` reads from any node."""

import time
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from harness.errors import RecordError
from harness.files import write_atomically
from harness.settings import Frozen

STALE_AFTER_S = 120.0
"""A running job beats every few seconds; silence longer than this means that it died or its node did."""


class Heartbeat(Frozen):
    state: Literal["running", "waiting", "stopped", "done"]
    """`waiting`: went through the one replicate that it was asked for, and others have no record yet. `stopped`: ended
    early on a signal, to be requeued or resumed. `done`: every measurement of the plan has a record."""
    measurements_total: int
    measurements_done: int
    """With a record, whatever the outcome; skipped ones included."""
    measurements_failed: int
    measurements_skipped: int
    """Had a good record already."""
    current: str | None = None
    """Key of the measurement that runs."""
    phase: str | None = None
    phase_done: float | None = None
    phase_total: float | None = None
    eta_s: float | None = None
    """Seconds until the whole plan is done, from the mean of the measurements so far; None before the first."""
    last_error: str | None = None
    node: str
    pid: int
    slurm_job_id: str | None = None
    restart_count: int = 0
    wandb_url: str | None = None
    started_at_unix_s: float
    updated_at_unix_s: float

    @property
    def is_stale(self) -> bool:
        return self.state == "running" and time.time() - self.updated_at_unix_s > STALE_AFTER_S


def write_heartbeat(heartbeat: Heartbeat, path: Path) -> None:
    write_atomically(path, heartbeat.model_dump_json(), replace=True)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """None before the first beat. Raises RecordError for a corrupt file, naming it."""
    try:
        return Heartbeat.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        raise RecordError(f"{path}: not a heartbeat: {str(error).splitlines()[0]}") from error
