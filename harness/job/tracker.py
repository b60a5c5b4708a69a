"""Streams measurements to W&B, one run each, without ever holding up or ending a job.

The W&B client lives in a process of its own (harness/job/wandb_process.py). Here: what a run is called and holds
(pure), and the link to that process, where every wait has a bound.

Metrics are floats under keys with their unit. The family before the slash chooses the axis (`STEP_AXES` in
harness/job/wandb_process.py), whose value stands beside them: {"epoch": 3, "test/accuracy": 0.91}.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from harness.paths import REPOSITORY, Results, timestamp
from harness.plan import Measurement, WandbSettings
from harness.results.record import SETTLED, Record

INIT_TIMEOUT_S = 20.0
"""Of an online start. The client adds up to 10 s of its own where the server does not answer."""
FINISH_TIMEOUT_S = 45.0
END_TIMEOUT_S = 80.0
"""Longer than a whole start (20 + 10 s) and finish (45 s). A process that takes longer is killed."""
CLOSE_TIMEOUT_S = 15.0
"""Within the 30 s that Slurm leaves between SIGTERM and SIGKILL."""
MAX_TAG_LENGTH = 64
"""W&B refuses longer ones."""


class Tracker(Protocol):
    """No method raises. `begin` and `log` return at once; `end` and `close` wait for a bounded time."""

    url: str | None
    """Of the run that was begun last; None while it starts and when it is offline."""
    message: str | None
    """One line that the user should see; the newest one."""

    def begin(self, measurement: Measurement, environment: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, float]) -> None: ...

    def end(self, record: Record, summary: Mapping[str, float | str]) -> None: ...

    def close(self) -> None: ...


class NullTracker:
    """W&B is disabled."""

    url: str | None = None
    message: str | None = None

    def begin(self, measurement: Measurement, environment: dict[str, Any]) -> None:
        return

    def log(self, values: dict[str, float]) -> None:
        return

    def end(self, record: Record, summary: Mapping[str, float | str]) -> None:
        return

    def close(self) -> None:
        return


def open_tracker(settings: WandbSettings, results: Results) -> Tracker:
    """`auto` obeys the client's own WANDB_MODE if that is set, and is online otherwise.

    Without an API key an online start fails at once, and everything goes on offline.
    """
    mode = settings.mode
    if mode == "auto":
        wanted = os.environ.get("WANDB_MODE", "online")
        mode = "disabled" if wanted == "disabled" else "offline" if wanted in ("offline", "dryrun") else "online"
    return NullTracker() if mode == "disabled" else WandbTracker(settings, results, online=mode == "online")


def describe_run(
    measurement: Measurement, environment: dict[str, Any], *, tags: tuple[str, ...] = (), attempt: str
) -> dict[str, Any]:
    """The arguments of wandb.init: both frameworks' runs of one variant share a group and differ in job_type.

    Args:
        environment: of harness/results/environment.py, with the GPU's description under "gpu" if there is one.
        attempt: makes the run's id unique; a measurement that is repeated is a new run.
    """
    cell, variant = measurement.cell, measurement.variant
    kinds = (["sample"] if measurement.data == "sample" else []) + (["quick"] if measurement.quick else [])
    kinds += ["screening"] if measurement.is_screening else []
    gpu = environment.get("gpu")
    gpu_name = gpu.get("name") if isinstance(gpu, dict) else None
    all_tags = [
        measurement.framework,
        cell.benchmark,
        cell.use_case_name,
        variant.precision,
        *([str(gpu_name)] if gpu_name else []),
        *kinds,
        *tags,
    ]
    return {
        "id": f"{measurement.id}-{attempt}",
        "name": f"{measurement.framework}-{measurement.key}",
        "group": "/".join([cell.name, variant.comparison_key, *kinds]),
        "job_type": measurement.framework,
        "tags": list(dict.fromkeys(tag[:MAX_TAG_LENGTH] for tag in all_tags)),
        "config": {
            "measurement_id": measurement.id,
            "framework": measurement.framework,
            **cell.model_dump(mode="json"),
            **variant.model_dump(mode="json"),
            **measurement.model_dump(mode="json", exclude={"framework", "cell", "variant"}),
            "environment": environment,
        },
    }


def summarize_outcome(record: Record) -> dict[str, Any]:
    """What every run's summary holds besides the derived numbers."""
    stage = record.measurement.stage
    return {"stage": stage, "outcome": record.outcome, "reason": record.reason, "flags": record.flags}


def exit_code(record: Record) -> int:
    """W&B shows 0 as finished and 1 as failed. Out of memory and refused are findings, not failures."""
    return 0 if record.outcome in SETTLED else 1


class WandbTracker:
    def __init__(
        self,
        settings: WandbSettings,
        results: Results,
        *,
        online: bool,
        init_timeout_s: float = INIT_TIMEOUT_S,
        finish_timeout_s: float = FINISH_TIMEOUT_S,
        end_timeout_s: float = END_TIMEOUT_S,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.url: str | None = None
        self.message: str | None = None
        self._settings = settings
        self._root = results.wandb.resolve()
        self._away = results.wandb_away
        self._init_timeout_s = init_timeout_s
        self._finish_timeout_s = finish_timeout_s
        self._end_timeout_s = end_timeout_s
        self._close_timeout_s = close_timeout_s
        self._online = online
        self._process = self._start()

    def begin(self, measurement: Measurement, environment: dict[str, Any]) -> None:
        run = describe_run(measurement, environment, tags=self._settings.tags, attempt=timestamp())
        self.url = None
        self._send({"kind": "begin", "run": run})

    def log(self, values: dict[str, float]) -> None:
        self._send({"kind": "log", "values": values})

    def end(self, record: Record, summary: Mapping[str, float | str]) -> None:
        # By now the measurement's process has said what GPU and framework it found.
        run = describe_run(record.measurement, record.environment, tags=self._settings.tags, attempt="")
        self._send(
            {
                "kind": "end",
                "tags": run["tags"],
                "config": {"environment": record.environment},
                "summary": {**summarize_outcome(record), **summary},
                "exit_code": exit_code(record),
            }
        )
        if self._process is not None and not self._process.wait_for_end(self._end_timeout_s):
            self._give_up()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close(self._close_timeout_s)

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None:
            self._process.send(message)

    def _give_up(self) -> None:
        """The process hangs or died. After the first time a fresh one goes on offline, then none."""
        process, self._process = self._process, None
        if process is None:
            return
        how = process.kill()
        if how == "left":  # it could not start, and said why
            return
        if how == "hung":
            with contextlib.suppress(OSError):  # the next client then waits as well
                self._away.touch()
        going_on = "offline from here on" if self._online else "off from here on"
        self.message = (
            f"W&B {going_on}: its process {how}; the records are complete, "
            f"and `wandb sync` uploads what is in {self._root / 'wandb'}"
        )
        if self._online:
            self._online = False
            self._process = self._start()

    def _start(self) -> "_Process | None":
        arguments = [
            f"--root={self._root}",
            f"--mode={'online' if self._online else 'offline'}",
            f"--project={self._settings.project}",
            *([f"--entity={self._settings.entity}"] if self._settings.entity else []),
            f"--init-timeout-s={self._init_timeout_s}",
            f"--finish-timeout-s={self._finish_timeout_s}",
        ]
        try:
            return _Process([sys.executable, "-m", "harness.job.wandb_process", *arguments], self._receive)
        except OSError as error:
            self.message = f"W&B off: its process does not start: {error}"
            return None

    def _receive(self, reply: dict[str, Any]) -> None:
        """Called by the thread that reads the process's replies."""
        match reply["kind"]:
            case "url":
                self.url = reply["url"]
            case "message":
                self.message = reply["text"]


class _Process:
    """Two threads, so that neither a full nor an empty pipe ever blocks the job."""

    def __init__(self, command: list[str], receive: Any) -> None:
        # A session of its own: Ctrl-C in the terminal does not reach it, and one killpg takes the client's
        # helper processes too.
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._receive = receive
        self._outbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        for work in (self._write, self._read):
            threading.Thread(target=work, name=f"wandb-{work.__name__.strip('_')}", daemon=True).start()

    def send(self, message: dict[str, Any] | None) -> None:
        """None closes the pipe."""
        self._outbox.put(message)

    def wait_for_end(self, timeout_s: float) -> bool:
        """Whether the run that was ended last is finished, as opposed to a process that hangs or is gone."""
        try:
            return self._replies.get(timeout=timeout_s) == "ended"
        except queue.Empty:
            return False

    def close(self, timeout_s: float) -> None:
        self.send(None)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> str:
        """Ends what is left of it. Returns how it was: "left" (of its own will), "hung" or "died ..."."""
        self.send(None)
        try:
            # One that closed its stdout is about to be gone.
            code = self._process.wait(0.5)
            how = "left" if code == 0 else f"died (exit status {code})"
        except subprocess.TimeoutExpired:
            how = "hung"
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return how
        self._process.wait()
        return how

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # A broken pipe: the process is gone. `_read` sees that too, and it ends the wait.
        with contextlib.suppress(OSError), pipe:
            while (message := self._outbox.get()) is not None:
                # Values of the environment that JSON does not know (paths) become text.
                pipe.write(json.dumps(message, default=str) + "\n")
                pipe.flush()

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        with pipe:
            for line in pipe:
                reply = json.loads(line)
                self._receive(reply)
                if reply["kind"] == "ended":
                    self._replies.put("ended")
        self._replies.put("gone")
