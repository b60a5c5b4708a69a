"""The process that talks to W&B: `python -m harness.job.wandb_process SETTINGS`, started by harness/job/tracker.py.

It is a process of its own, so that whatever the W&B client does (hang, crash, wait for a server) can neither
hold up nor end a job: its parent waits for a bounded time and then kills it.

Both directions are JSON, one message a line.
    in, on stdin:    {"kind": "begin", "run": {...}}   {"kind": "log", "values": {...}}
                     {"kind": "end", "tags": [...], "config": {...}, "row": {...}}   of a measurement
                     {"kind": "finish", "ratios": [...], "artifact": {...}, "exit_code": 0}
                     end of file: leave; a run that is open was cut off
    out, on stdout:  {"kind": "url", "url": ...}   {"kind": "message", "text": ...}   {"kind": "ended"}
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from harness.paths import Results, timestamp
from harness.plan import WANDB_INDEX, WANDB_RATIOS, WANDB_ROW, Frozen

if TYPE_CHECKING:
    import wandb

README_HINT = "see docs/clusters.md, W&B"
IN_VAIN_S = 5.0
"""A start that fails sooner, for want of a key or of a right to the project, costs nobody anything."""
ASK_AGAIN_AFTER_S = 600.0
"""Each framework of each job has a client of its own, and would wait for the same server."""

STEP_AXES = {"epoch": ("train/*", "test/*"), WANDB_INDEX: (f"{WANDB_ROW}*",)}
"""The x axis of families of metrics: each `log` carries its value too. The others count their logs."""

ENVIRONMENT = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
"""Read when the client is imported: nothing on the job's output, no reports of errors to its maker."""

SETTINGS: dict[str, Any] = {
    # Nothing runs beside the timed loop that does not have to: no samples of the system's state, no capture
    # of the console, no copy of code, of the list of packages or of git's state. The record has all of that.
    "console": "off",
    "silent": True,
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 2,
    # A finish that ran out of time raises, so that it can be told from one that did not.
    "finish_timeout_raises": True,
}
"""Names that begin with `x_` are private to the client and may go; those that it lacks are left out."""


class Reply(Protocol):
    def __call__(self, kind: str, **content: str | None) -> None: ...


class ClientSettings(Frozen):
    """The argument of the process, as JSON."""

    root: Path
    """W&B makes its `wandb` folder below this."""
    mode: Literal["online", "offline"]
    project: str
    entity: str | None
    init_timeout_s: float
    finish_timeout_s: float
    request_interval_s: int


class Publisher:
    """Keeps one W&B run open at most: online, or offline where the server fails at its start."""

    def __init__(self, client: ClientSettings) -> None:
        self._client, self._mode = client, client.mode
        self._run: wandb.Run | None = None
        self._away = Results(root=client.root).wandb_away

    def begin(self, run: dict[str, Any], reply: Reply) -> None:
        if self._run is not None:
            return
        if self._mode == "online" and (age_s := self._waited_in_vain_s_ago()) is not None:
            self._mode = "offline"
            reply(
                "message",
                text=f"W&B offline: another run waited for its server in vain {age_s / 60:.0f} min ago; jobs ask again "
                f"after {ASK_AGAIN_AFTER_S / 60:.0f} min. `wandb sync` uploads what is kept",
            )
        if self._mode == "online":
            began_at, before = time.monotonic(), self._folders_of(run)
            try:
                self._run = self._init(run, mode="online")
            except Exception as error:  # the client raises many classes here, some of them not its own
                self._mode = "offline"
                if time.monotonic() - began_at > IN_VAIN_S:
                    self._note_that_it_is_away()
                reply("message", text=f"W&B offline: {_why_not_online(error)}; {README_HINT}")
                for remains in self._folders_of(run) - before:
                    shutil.rmtree(remains, ignore_errors=True)  # or `wandb sync` would upload an empty run
        if self._run is None:
            # Nobody can ask what the run has already: each part that is kept offline is a run of its own.
            self._run = self._init({**run, "id": f"{run['id']}-offline-{timestamp()}"}, mode="offline")
        for axis, families in STEP_AXES.items():
            self._run.define_metric(axis, hidden=True)
            for family in families:
                self._run.define_metric(family, step_metric=axis)
        reply("url", url=self._run.url if self._mode == "online" else None)

    def log(self, values: dict[str, float]) -> None:
        if self._run is not None:
            self._run.log(values)

    def end(self, message: dict[str, Any]) -> None:
        """Of a measurement."""
        if self._run is not None:
            self._run.tags = tuple(message["tags"])
            self._run.config.update(message["config"], allow_val_change=True)  # type: ignore[no-untyped-call]
            before = self._run.summary.get(WANDB_INDEX) or 0  # type: ignore[no-untyped-call]
            self._run.log({WANDB_INDEX: before + 1, **message["row"]})

    def conclude(self, message: dict[str, Any], reply: Reply) -> None:
        """All is measured."""
        if self._run is None:
            return
        try:
            self._log_at_end(self._run, message)
        except Exception as error:  # it asks the server; what W&B lacks is in the results folder
            reply("message", text=f"W&B lacks the records of a run: {_one_line(error)}")
        self.finish(message["exit_code"], reply)

    def _log_at_end(self, run: "wandb.Run", message: dict[str, Any]) -> None:
        import wandb

        ratios, records = message["ratios"], message["artifact"]
        if ratios:
            table = wandb.Table(columns=list(ratios[0]), data=[list(row.values()) for row in ratios])
            run.log({WANDB_RATIOS: table})
        artifact = wandb.Artifact(records["name"], type="records")
        for path, name in records["files"]:
            # A record never changes: it is uploaded from where it is, and copied to no cache in a home.
            artifact.add_file(path, name, policy="immutable", skip_cache=True)
        run.log_artifact(artifact)

    def finish(self, exit_code: int, reply: Reply) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        files = Path(run.settings.sync_dir)
        try:
            run.finish(exit_code=exit_code)
        except TimeoutError:
            self._mode = "offline"
            self._note_that_it_is_away()
            reply(
                "message",
                text=f"W&B offline: the server did not take the last data of {files.name} within "
                f"{self._client.finish_timeout_s:g} s; `wandb sync --include-online` uploads it later",
            )
        else:  # what nobody reads of a run that ended well: six files and folders of nine
            for name in ("logs", "tmp"):
                shutil.rmtree(files / name, ignore_errors=True)

    def _folders_of(self, run: dict[str, Any]) -> set[Path]:
        return set((self._client.root / "wandb").glob(f"run-*-{run['id']}"))

    def _waited_in_vain_s_ago(self) -> float | None:
        """None where nobody did, or where it is long ago."""
        try:
            age_s = max(0.0, time.time() - self._away.stat().st_mtime)
        except OSError:
            return None
        return age_s if age_s < ASK_AGAIN_AFTER_S else None

    def _note_that_it_is_away(self) -> None:
        with contextlib.suppress(OSError):  # the next client then waits as well
            self._away.touch()

    def _init(self, run: dict[str, Any], *, mode: str) -> "wandb.Run":
        import wandb

        wanted = {
            **SETTINGS,
            "init_timeout": self._client.init_timeout_s,
            "finish_timeout": self._client.finish_timeout_s,
            "x_file_stream_transmit_interval": self._client.request_interval_s,
        }
        settings = {name: value for name, value in wanted.items() if name in wandb.Settings.model_fields}
        return wandb.init(
            project=self._client.project,
            entity=self._client.entity,
            dir=str(self._client.root),
            mode=mode,  # type: ignore[arg-type]
            resume="allow" if mode == "online" else None,  # a requeued job goes on with its run
            settings=wandb.Settings(**settings),
            **run,
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _why_not_online(error: Exception) -> str:
    text = _one_line(error)
    return "no API key is configured" if "No API key configured" in text else f"the online start failed: {text}"


def require_writable(root: Path) -> None:
    """The client would fall back to the system's temporary folder, where a node's results are lost.

    Raises:
        OSError: nothing can be written to `root`/wandb.
    """
    folder = root / "wandb"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def serve(messages: Iterable[str], publisher: Publisher, reply: Reply) -> None:
    """Answers every `end` and `finish` with `ended`, whatever failed: the parent waits for that."""
    for line in messages:
        message = json.loads(line)
        try:
            match message["kind"]:
                case "begin":
                    publisher.begin(message["run"], reply)
                case "log":
                    publisher.log(message["values"])
                case "end":
                    publisher.end(message)
                case "finish":
                    publisher.conclude(message, reply)
        except Exception as error:  # what is lost must not lose what comes later
            reply("message", text=f"W&B lost a part ({_one_line(error)}); the records are complete")
        if message["kind"] in ("end", "finish"):
            reply("ended")


def main() -> None:
    # The scheduler signals every process of a job. The parent handles these signals and closes our stdin; a
    # run must not be lost because we died first. (W&B's stop button is a SIGINT to us: it stops nothing.)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    # The client prints to stdout now and then; that must not mix with the messages.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(kind: str, **content: str | None) -> None:
        # Where the parent is gone, what is left to do is to finish the open run.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"kind": kind, **content}), file=replies, flush=True)

    client = ClientSettings.model_validate_json(sys.argv[1])
    os.environ.update(ENVIRONMENT)
    try:
        import wandb

        require_writable(client.root)
    except (ImportError, OSError) as error:
        reply("message", text=f"W&B off: {error}; {README_HINT}")
        return
    publisher = Publisher(client)
    serve(sys.stdin, publisher, reply)
    # The parent is done or dead. A run that is still open was cut off; the alarm ends us if the client hangs.
    signal.alarm(int(client.finish_timeout_s) + 10)
    publisher.finish(1, reply)
    wandb.teardown()


if __name__ == "__main__":
    main()
