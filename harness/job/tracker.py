"""Streams measurements to W&B, one run for each framework of a job, without ever holding up or ending the job.

The W&B client lives in a process of its own (harness/job/wandb_process.py). Here: what a run is called and holds
(pure), and the link to that process, where every wait has a bound.

Metrics are floats under keys with their unit, in three families (`STEP_AXES` in harness/job/wandb_process.py):
`train/` and `test/`, the curves, each under its measurement's name over `epoch`; `measurement/`, one row for each
measurement that is over; `live/`, whatever else arrives while one runs.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.job.wandb_process import ClientSettings
from harness.paths import REPOSITORY, Results
from harness.plan import WANDB_ROW, Cell, Framework, Measurement, WandbSettings
from harness.results.record import Record

INIT_TIMEOUT_S = 20.0
"""Of an online start. The client adds up to 10 s of its own where the server does not answer."""
FINISH_TIMEOUT_S = 45.0
END_TIMEOUT_S = 80.0
"""Longer than a whole start (20 + 10 s) and finish (45 s). A process that takes longer is killed."""
CLOSE_TIMEOUT_S = 15.0
"""Within the 30 s that Slurm leaves between SIGTERM and SIGKILL."""
REQUEST_INTERVAL_S = 30
"""Between two of a client's, in whole seconds: a job that runs both frameworks has two clients, one request in 15 s."""
MAX_TAG_LENGTH = 64
"""W&B refuses longer ones."""
CURVES = ("train/", "test/")


class Tracker:
    """W&B is disabled: nothing happens. No method raises. `begin` and `log` return at once; `end`, `finish` and `close`
    wait for a bounded time."""

    url: str | None = None
    """Of the run; None while it starts and when it is offline."""
    message: str | None = None
    """One line that the user should see; the newest one."""

    def begin(self, measurement: Measurement, environment: dict[str, Any]) -> None:
        """The first one starts the run."""

    def log(self, measurement: Measurement, values: dict[str, float]) -> None:
        """Of a measurement that goes on."""

    def end(self, record: Record, numbers: Mapping[str, float | str]) -> None:
        """Of a measurement."""

    def finish(self, *, ratios: Sequence[Mapping[str, Any]], has_failed: bool) -> None:
        """All is measured: the run gets its table of ratios and its records. Without this, `close` leaves it as one
        that was cut off, to be continued by the same job."""

    def close(self) -> None:
        """No process is left."""


def open_tracker(settings: WandbSettings, results: Results, job: str) -> Tracker:
    """`job`: the name of its folder, by which a requeued job finds its run.

    `auto` obeys the client's own WANDB_MODE if that is set, and is online otherwise.
    Without an API key an online start fails at once, and everything goes on offline.
    """
    mode = settings.mode
    if mode == "auto":
        wanted = os.environ.get("WANDB_MODE", "online")
        mode = "disabled" if wanted == "disabled" else "offline" if wanted in ("offline", "dryrun") else "online"
    return Tracker() if mode == "disabled" else WandbTracker(settings, results, job, online=mode == "online")


def describe_run(
    measurement: Measurement,
    environment: dict[str, Any],
    *,
    tags: tuple[str, ...] = (),
    job: str,
) -> dict[str, Any]:
    """The arguments of wandb.init: both frameworks' runs of one cell share a group and differ in job_type.

    Args:
        measurement: any one of the run's.
        environment: of harness/results/environment.py, with the GPU's description under "gpu" if there is one.
    """
    framework, cell = measurement.framework, measurement.cell
    kinds = (["sample"] if measurement.data == "sample" else []) + (["quick"] if measurement.quick else [])
    gpu = environment.get("gpu")
    gpu_name = gpu.get("name") if isinstance(gpu, dict) else None
    all_tags = [framework, cell.benchmark, cell.use_case_name, *([str(gpu_name)] if gpu_name else []), *kinds, *tags]
    of_one = {"cell", "variant", "replicate", "stage"}
    return {
        "id": f"{framework}-{job}",
        "name": f"{framework} {cell.name}",
        "group": "/".join([cell.name, *kinds]),
        "job_type": framework,
        "tags": list(dict.fromkeys(tag[:MAX_TAG_LENGTH] for tag in all_tags)),
        "config": {
            **cell.model_dump(mode="json"),
            **measurement.model_dump(mode="json", exclude=of_one),
            "job": job,
            "environment": environment,
        },
    }


def live_values(measurement: Measurement, values: Mapping[str, float]) -> dict[str, float]:
    """What arrives while it runs, by W&B's key: curves under its name, so that one run holds those of all."""
    return {
        f"{key}/{measurement.key}" if key.startswith(CURVES) else key if key == "epoch" else f"live/{key}": value
        for key, value in values.items()
    }


def row_of(record: Record, numbers: Mapping[str, float | str]) -> dict[str, Any]:
    """One measurement that is over, by W&B's key."""
    measurement = record.measurement
    own = {
        "name": measurement.key,
        "id": measurement.id,
        "mode": measurement.variant.execution_mode,
        "replicate": measurement.replicate,
        "stage": measurement.stage,
        "outcome": record.outcome,
        "reason": record.reason or "",
        "flags": ", ".join(record.flags),
        "node": record.environment.get("node") or "",
    }
    return {f"{WANDB_ROW}{name}": value for name, value in (own | dict(numbers)).items()}


def artifact_of(results: Results, cell: Cell, framework: Framework) -> dict[str, Any]:
    """All records of a cell by one framework, and what a report reads beside them, by their paths in the results
    folder: so several can be fetched into one."""
    folder = results.records(cell, framework)
    files: Iterable[Path] = (*folder.glob("*.json"), *folder.glob("*.npz"))
    return {
        "name": "-".join(["records", *cell.name.split("/"), framework]),
        "files": [[str(path.absolute()), path.relative_to(results.root).as_posix()] for path in sorted(files)],
    }


class WandbTracker(Tracker):
    def __init__(
        self,
        settings: WandbSettings,
        results: Results,
        job: str,
        *,
        online: bool,
        request_interval_s: int = REQUEST_INTERVAL_S,
        init_timeout_s: float = INIT_TIMEOUT_S,
        finish_timeout_s: float = FINISH_TIMEOUT_S,
        end_timeout_s: float = END_TIMEOUT_S,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._client = ClientSettings(
            root=results.wandb.resolve(),
            mode="online" if online else "offline",
            project=settings.project,
            entity=settings.entity,
            init_timeout_s=init_timeout_s,
            finish_timeout_s=finish_timeout_s,
            request_interval_s=request_interval_s,
        )
        self._tags, self._results, self._job = settings.tags, results, job
        self._followed: Measurement | None = None
        """One of those that the run holds."""
        self._end_timeout_s, self._close_timeout_s = end_timeout_s, close_timeout_s
        self._process = self._start()

    def begin(self, measurement: Measurement, environment: dict[str, Any]) -> None:
        self._followed = measurement
        self._send({"kind": "begin", "run": self._run(measurement, environment)})

    def log(self, measurement: Measurement, values: dict[str, float]) -> None:
        self._send({"kind": "log", "values": live_values(measurement, values)})

    def end(self, record: Record, numbers: Mapping[str, float | str]) -> None:
        # By now the measurement's process has said what GPU and framework it found.
        run = self._run(record.measurement, record.environment)
        self._send(
            {
                "kind": "end",
                "tags": run["tags"],
                "config": {"environment": record.environment},
                "row": row_of(record, numbers),
            }
        )
        self._wait()

    def finish(self, *, ratios: Sequence[Mapping[str, Any]], has_failed: bool) -> None:
        if (one := self._followed) is not None:  # else all had a record
            artifact = artifact_of(self._results, one.cell, one.framework)
            content = {"ratios": ratios, "artifact": artifact, "exit_code": int(has_failed)}
            self._send({"kind": "finish", **content})
            self._wait()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close(self._close_timeout_s)

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None:
            self._process.send(message)

    def _run(self, measurement: Measurement, environment: dict[str, Any]) -> dict[str, Any]:
        return describe_run(measurement, environment, tags=self._tags, job=self._job)

    def _wait(self) -> None:
        if self._process is not None and not self._process.wait_for_end(self._end_timeout_s):
            self._give_up()

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
                self._results.wandb_away.touch()
        is_online = self._client.mode == "online"
        going_on = "offline from here on" if is_online else "off from here on"
        self.message = (
            f"W&B {going_on}: its process {how}; the records are complete, "
            f"and `wandb sync --include-online` in {self._client.root} uploads the rest"
        )
        if is_online:
            self._client = self._client.model_copy(update={"mode": "offline"})
            self._process = self._start()

    def _start(self) -> "_Process | None":
        command = [sys.executable, "-m", "harness.job.wandb_process", self._client.model_dump_json()]
        try:
            return _Process(command, self._receive)
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
        writer, self._reader = (
            threading.Thread(target=work, name=f"wandb-{work.__name__.strip('_')}", daemon=True)
            for work in (self._write, self._read)
        )
        writer.start()
        self._reader.start()

    def send(self, message: dict[str, Any] | None) -> None:
        """None closes the pipe."""
        self._outbox.put(message)

    def wait_for_end(self, timeout_s: float) -> bool:
        """Whether all that was sent is dealt with, as opposed to a process that hangs or is gone."""
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
            # One that closed its stdout is about to be gone, which on a busy machine takes seconds.
            code = self._process.wait(0.5 if self._reader.is_alive() else 10)
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
