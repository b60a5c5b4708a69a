"""The heartbeat: what a job is doing now, in a small file that `main.py status` reads from any node."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import RecordError
from harness.files import in_words, read_json, write_atomically

STALE_AFTER_S = 120.0
"""A running job beats more often; silence longer than this means that it died or its node did."""
BEAT_EVERY_S = 3.0
BEAT_IN_SLURM_EVERY_S = 30.0
"""Hundreds of jobs write to one file system there. A measurement that ends is told at once all the same."""
PRINT_EVERY_S = 10.0

State = Literal["running", "stopped", "done"]
Count = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


class Heartbeat(BaseModel):
    """The job changes it as it goes on; whoever reads the file sees the last beat."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)  # one of an older job has more

    state: State = "running"
    """`stopped`: ended early on a signal, to be requeued or resumed. `done`: every measurement of the plan has a
    record."""
    measurements_total: Count
    measurements_done: Count = 0
    """With a record, whatever the outcome, and whichever job made it."""
    measurements_failed: Count = 0
    screenings_total: Count = 0
    """Of these measurements. When all have a record, the other ones become fewer."""
    screenings_done: Count = 0
    is_before_screening: bool = False
    """The headline pair comes first."""
    replicates_made: Count = 0
    """By this job, also before a requeue; without screenings."""
    measuring_s: Seconds = 0.0
    """What these took together."""
    current: str | None = None
    """Framework and key of the measurement that runs."""
    phase: str | None = None
    phase_done: float | None = None
    phase_total: float | None = None
    last_error: str | None = None
    node: str
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    slurm_job_id: str | None = None
    updated_at_unix_s: Seconds = Field(default_factory=time.time)

    def fraction(self, *, current: bool = False) -> str:
        """`screening 5/14`, and before and after that `17/23` of all. `current`: with the one that runs."""
        if self.screenings_done < self.screenings_total and not self.is_before_screening:
            return f"screening {self.screenings_done + current}/{self.screenings_total}"
        return f"{self.measurements_done + current}/{self.measurements_total}"

    @property
    def is_stale(self) -> bool:
        return self.state == "running" and time.time() - self.updated_at_unix_s > STALE_AFTER_S

    @property
    def eta_s(self) -> float | None:
        """Seconds until the whole plan is done, from the mean of the replicates so far; None before the first, and
        while a screening is to come, which is shorter and does not yet know how many there will be."""
        if self.screenings_done < self.screenings_total:
            return None
        left = self.measurements_total - self.measurements_done
        return left * self.measuring_s / self.replicates_made if self.replicates_made else None

    def set_phase(self, phase: str | None, done: float | None, total: float | None) -> None:
        self.phase, self.phase_done, self.phase_total = phase, done, total


def write_heartbeat(heartbeat: Heartbeat, path: Path) -> None:
    write_atomically(path, heartbeat.model_dump_json(), replace=True)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """None before the first beat. Raises RecordError for a corrupt file, naming it."""
    try:
        return Heartbeat.model_validate_json(read_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        raise RecordError(f"{path}: not a heartbeat: {in_words(error)}") from error


class Teller:
    """Tells what a job does: to the heartbeat's file again and again, and in plain lines on its output."""

    def __init__(self, heartbeat: Heartbeat, path: Path, name: str) -> None:
        """`name` begins every line."""
        self._heartbeat = heartbeat
        self._path = path
        self._name = name
        self._beat_every_s = BEAT_IN_SLURM_EVERY_S if heartbeat.slurm_job_id else BEAT_EVERY_S
        self._last_beat = self._last_line = 0.0
        self._said: set[str] = set()

    def beat(self, state: State = "running") -> None:
        """A heartbeat that cannot be written costs the display, not the measurement."""
        self._last_beat = time.monotonic()
        self._heartbeat.state = state
        self._heartbeat.updated_at_unix_s = time.time()
        try:
            write_heartbeat(self._heartbeat, self._path)
        except OSError as error:
            self.say(f"warning: cannot write {self._path}: {error.strerror or error}", once=True)

    def when_due(self) -> None:
        now = time.monotonic()
        if now - self._last_beat >= self._beat_every_s:
            self.beat()
        if now - self._last_line >= PRINT_EVERY_S:
            beat = self._heartbeat
            eta = "" if beat.eta_s is None else f", about {beat.eta_s / 60:.0f} min left"
            self.say(f"[{beat.fraction(current=True)}] {beat.current}: {beat.phase}{eta}")

    def say(self, line: str, *, once: bool = False) -> None:
        self._last_line = time.monotonic()
        if once and line in self._said:
            return
        self._said.add(line)
        print(f"{datetime.now(UTC):%H:%M:%S} {self._name} | {line}", flush=True)
