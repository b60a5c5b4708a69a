"""What became of each job: the records first, then the heartbeat, then Slurm.

A folder under results/jobs/ is a job. main.py makes one and leaves submission.json in it; one that is started by
hand makes its own, without. Both hold plan.json and, from the first beat on, heartbeat.json.
"""

import itertools
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from harness.errors import RecordError
from harness.files import in_words, read_json
from harness.job.progress import Heartbeat, Seconds, read_heartbeat
from harness.paths import JobFolder, Results
from harness.plan import Frozen, JobPlan, Pair
from harness.plan_file import read_plan
from harness.printable import printable
from harness.results.looks import needed
from harness.results.record import find_settled_record
from pipeline.watching import slurm_states
from pipeline.watching.slurm_states import SlurmSilentError, SlurmState

State = Literal["queued", "running", "requeued", "done", "failed", "cancelled", "lost", "stopped"]
ACTIVE: frozenset[State] = frozenset({"queued", "running", "requeued"})
"""Not over yet: the scheduler has it or will start it again."""

LOST_AFTER_S = 60.0
"""Without a sign of life from the scheduler or the heartbeat."""
GONE_AFTER_S = 15.0
"""Several beats late, and its process is not there."""
ASK_SLURM_EVERY_S = 5.0
TAIL_BYTES = 20_000
"""Of a log, whose last line is looked for."""

Model = TypeVar("Model", bound=Frozen)


class Submission(Frozen):
    """submission.json: how the job was handed over."""

    executor: Literal["slurm", "local"]
    job_id: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
    """Slurm's, or the process id of the local queue."""
    script: str
    command: tuple[str, ...]
    """The exact command line that took the job."""
    node: str
    """The machine it was submitted from; for a local job, the one it runs on."""
    submitted_at_unix_s: Seconds

    def names(self, known: SlurmState) -> bool:
        """Whether Slurm's job is this one: on another cluster, or after many jobs, its number means another. The job's
        folder, which is among the arguments of its script, says so."""
        arguments = self.slurm_arguments
        return known.command is None or not arguments or known.command.endswith(arguments)

    @property
    def slurm_arguments(self) -> str:
        """`slurm FOLDER`; empty where the command has none."""
        return slurm_arguments(self.command)


def slurm_arguments(command: Sequence[str]) -> str:
    """Of the sbatch that took a job, as Slurm keeps them."""
    return " ".join(command[command.index("slurm") :]) if "slurm" in command else ""


class LocalEnd(Frozen):
    """ended.json: the local queue's word on a job that it ran."""

    error: str | None
    """None when the job exited with 0."""
    ended_at_unix_s: Seconds


@dataclass(frozen=True, kw_only=True)
class JobState:
    folder: JobFolder
    pair: Pair | None
    """None when plan.json cannot be read; `reason` says why."""
    state: State
    submission: Submission | None = None
    """None for a job that was started by hand, and where submission.json cannot be read."""
    node: str | None = None
    heartbeat: Heartbeat | None = None
    reason: str | None = None
    """Why it failed, waits, or cannot be told."""
    is_another: bool = False
    """Slurm knows its number, and as that of another job."""

    @property
    def name(self) -> str:
        """`any/pair_cifar10_3`, or the folder's name without a plan."""
        return self.pair.name if self.pair else self.folder.root.name

    @property
    def plans(self) -> tuple[JobPlan, ...]:
        return self.pair.jobs if self.pair else ()

    @property
    def executor(self) -> Literal["slurm", "local", "by hand"]:
        return self.submission.executor if self.submission else "by hand"

    @property
    def job_id(self) -> str | None:
        if self.submission:
            return self.submission.job_id
        return self.heartbeat.slurm_job_id if self.heartbeat else None

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


@dataclass(frozen=True, kw_only=True)
class Files:
    """What a job's folder says, each part None where it is absent, and why where it is unreadable."""

    folder: JobFolder
    pair: Pair | None
    submission: Submission | None
    heartbeat: Heartbeat | None
    end: LocalEnd | None
    waits_for: str | None
    """What the job waits for in its local queue."""
    is_cancelled: bool
    problems: tuple[str, ...]

    @property
    def is_slurms(self) -> bool:
        """Whether Slurm has to be asked about it."""
        is_done = self.heartbeat is not None and self.heartbeat.state == "done"
        return self.submission is not None and self.submission.executor == "slurm" and not is_done


def job_states(results: Results, folders: Sequence[JobFolder] | None = None) -> list[JobState]:
    """The state of these jobs, or of all there ever were, oldest first. Slurm is asked once for all of
    them."""
    return JobReader(results).read(folders)


class JobReader:
    """Reads states again and again: heartbeats at each call, Slurm only every few seconds."""

    def __init__(self, results: Results, *, ask_slurm_every_s: float = ASK_SLURM_EVERY_S) -> None:
        self._results = results
        self._ask_slurm_every_s = ask_slurm_every_s
        self._states: dict[Path, JobState] = {}
        self._slurm: dict[str, SlurmState] | str = {}
        self._asked_at_s = float("-inf")
        self._asked_for: set[str] = set()

    def read(self, folders: Sequence[JobFolder] | None = None) -> list[JobState]:
        """What is over is not read again: it stays so."""
        folders = self._results.job_folders() if folders is None else folders
        open_files = [read_files(each) for each in folders if not self._is_over(each)]
        slurm = self._ask_slurm({each.submission.job_id for each in open_files if each.submission and each.is_slurms})
        for files in open_files:
            self._states[files.folder.root] = judge(files, files.folder.results, slurm, now_s=time.time())
        return [self._states[each.root] for each in folders]

    def _is_over(self, folder: JobFolder) -> bool:
        return folder.root in self._states and not self._states[folder.root].is_active

    def _ask_slurm(self, job_ids: set[str]) -> dict[str, SlurmState] | str:
        """The answer, at most a few seconds old, or why there is none."""
        age_s = time.monotonic() - self._asked_at_s
        if job_ids and (age_s >= self._ask_slurm_every_s or not job_ids <= self._asked_for):
            try:
                self._slurm = slurm_states.query(job_ids)
            except SlurmSilentError as error:
                self._slurm = str(error)
            self._asked_at_s, self._asked_for = time.monotonic(), job_ids
        return self._slurm


def read_files(folder: JobFolder) -> Files:
    """Never raises for a corrupt file: that one is None, and `problems` names it."""
    problems: list[str] = []
    beat = None
    try:
        beat = read_heartbeat(folder.heartbeat)
    except RecordError as error:
        problems.append(str(error))
    pair = None
    try:
        pair = read_plan(folder.plan)
    except RecordError as error:
        problems.append(str(error))
    submission = _read(folder.submission, Submission, problems)
    return Files(
        folder=folder,
        pair=pair,
        submission=submission,
        heartbeat=beat,
        end=_read(folder.local_end, LocalEnd, problems),
        waits_for=_waits_for(folder),
        is_cancelled=folder.cancelled.exists(),
        problems=tuple(problems),
    )


def _waits_for(folder: JobFolder) -> str | None:
    try:
        return printable(folder.waits_for.read_bytes()[:TAIL_BYTES].decode(errors="replace"), keep="") or None
    except OSError:
        return None


def _read(path: Path, model: type[Model], problems: list[str]) -> Model | None:
    try:
        return model.model_validate_json(read_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        problems.append(f"{path}: cannot be read: {in_words(error)}")
        return None


def judge(files: Files, results: Results, slurm: dict[str, SlurmState] | str, *, now_s: float) -> JobState:
    """`slurm`: its answer, or why it gave none."""
    submission, beat = files.submission, files.heartbeat
    known = slurm.get(submission.job_id) if submission and isinstance(slurm, dict) else None
    is_another = submission is not None and known is not None and not submission.names(known)
    if is_another:
        known, slurm = None, {}
    verdict, reason = _verdict(files, slurm, now_s)
    # A job can die after its last record and before its last heartbeat.
    if verdict in ("failed", "lost", "stopped") and files.pair and is_settled(files.pair, files, results):
        verdict, reason = "done", None
    return JobState(
        folder=files.folder,
        pair=files.pair,
        state=verdict,
        submission=submission,
        node=(known.node if known else None) or (beat.node if beat else None),
        heartbeat=beat,
        reason="; ".join([*files.problems, *([reason] if reason else [])]) or None,
        is_another=is_another,
    )


def is_settled(pair: Pair, files: Files, results: Results) -> bool:
    """Whether each measurement has a record that this job need not make again; with --force, one made
    since."""
    scheduler = files.submission.executor if files.submission else _scheduler_by_hand(files.heartbeat)
    job = files.folder.name if pair.force else None
    measurements = needed(pair.jobs, results, scheduler, job=job)
    return all(find_settled_record(each, results, scheduler, job=job) for each in measurements)


def _scheduler_by_hand(beat: Heartbeat | None) -> str:
    return "slurm" if beat and beat.slurm_job_id else "local"


Verdict = tuple[State, str | None]


def _verdict(files: Files, slurm: dict[str, SlurmState] | str, now_s: float) -> Verdict:
    beat = files.heartbeat
    if beat and beat.state == "done":  # written after the last record
        return ("failed", beat.last_error) if beat.measurements_failed else ("done", None)
    if files.is_cancelled:
        return "cancelled", None
    if files.submission is None:
        return _verdict_by_hand(files, now_s)
    if files.submission.executor == "local":
        return _verdict_of_local_queue(files, files.submission, now_s)
    if isinstance(slurm, str):
        return _verdict_without_slurm(files.heartbeat, slurm, now_s)
    return _verdict_of_slurm(files, files.submission, slurm.get(files.submission.job_id), now_s)


def _verdict_of_slurm(files: Files, submission: Submission, known: SlurmState | None, now_s: float) -> Verdict:
    beat = files.heartbeat
    if known is None:
        silent_s = now_s - max(submission.submitted_at_unix_s, beat.updated_at_unix_s if beat else 0.0)
        if silent_s < LOST_AFTER_S:  # squeue may lag behind a submission, or behind the end
            return ("running" if beat else "queued"), None
        if beat and beat.state == "stopped":
            return "stopped", STOPPED
        return "lost", f"Slurm no longer knows the job, and its last sign of life was {_age(silent_s)} ago"
    if known.reason and "held" in known.reason.lower() and known.phase in ("queued", "requeued"):
        return known.phase, f"{known.reason}: `scontrol release {submission.job_id}` lets it go on"
    if known.phase == "queued":
        if beat and beat.state == "running" and now_s - beat.updated_at_unix_s < 2 * ASK_SLURM_EVERY_S:
            return "running", None  # it has started since Slurm was asked
        return ("requeued" if beat else "queued"), known.reason
    if known.phase == "requeued":
        return "requeued", known.reason
    if known.phase == "running":
        return "running", _staleness(files.heartbeat, now_s)
    if known.name == "CANCELLED":
        return "cancelled", "not by main.py"
    if known.name == "PREEMPTED":
        return "stopped", f"preempted and not requeued; {STOPPED}"
    if beat and beat.state == "stopped" and beat.last_error is None:
        return "stopped", f"not requeued; {STOPPED}"
    return "failed", _why_failed(files, f"Slurm: {known.name}")


def _verdict_without_slurm(beat: Heartbeat | None, silence: str, now_s: float) -> Verdict:
    if beat is None:
        return "queued", f"not certain: {silence}"
    if beat.state == "stopped":
        return "requeued", f"not certain: {silence}"
    if beat.is_stale:
        return "lost", f"{_staleness(beat, now_s)}; {silence}"
    return "running", None


def _verdict_of_local_queue(files: Files, submission: Submission, now_s: float) -> Verdict:
    beat = files.heartbeat
    if beat and beat.state == "stopped":
        return "stopped", STOPPED
    if files.end:
        return "failed", files.end.error or "run.py ended without finishing its plan"
    if submission.node != socket.gethostname():  # its processes cannot be seen from here
        return _verdict_by_hand(files, now_s) if beat else ("queued", f"in the queue of {submission.node}")
    if is_local_queue(int(submission.job_id), files.folder):
        waits = f"waits for {files.waits_for or 'its turn in the local queue'}"
        return ("running", _staleness(beat, now_s)) if beat else ("queued", waits)
    if beat and now_s - beat.updated_at_unix_s < LOST_AFTER_S:
        return "running", None
    return "lost", f"its queue (process {submission.job_id}) is gone{_or_full(files.folder)}"


def _verdict_by_hand(files: Files, now_s: float) -> Verdict:
    """From the heartbeat alone."""
    beat = files.heartbeat
    if beat is None:
        try:
            age_s = now_s - files.folder.root.stat().st_mtime
        except FileNotFoundError:
            return "lost", "its folder is gone"
        return ("queued", "starting") if age_s < LOST_AFTER_S else ("lost", "it ended before its first heartbeat")
    if beat.state == "stopped":
        return "stopped", STOPPED
    if _is_gone_from_here(beat, files.folder, now_s):
        return "lost", f"its process {beat.pid} is gone{_or_full(files.folder)}"
    return ("lost" if beat.is_stale else "running"), _staleness(beat, now_s)


def _is_gone_from_here(beat: Heartbeat, folder: JobFolder, now_s: float) -> bool:
    """Whether a job that was started by hand on this machine is not there any more. One that beats is, whatever this
    machine can see of it."""
    is_silent = now_s - beat.updated_at_unix_s > GONE_AFTER_S
    if not is_silent or beat.state != "running" or beat.slurm_job_id or beat.node != socket.gethostname():
        return False
    return not any(word.endswith((b"run.py", b"harness.job")) for word in _words_of_process(beat.pid))


def _or_full(folder: JobFolder) -> str:
    """To be said of what ended without a word: whether its file system has no room for a user's files."""
    try:
        room = os.statvfs(folder.root)
    except OSError:
        return ""
    is_full = room.f_bavail == 0 or (room.f_files > 0 and room.f_favail == 0)
    return ", and its disk is full" if is_full else ""


STOPPED = "stopped before its end; submit it again and it goes on where it was"


def _staleness(beat: Heartbeat | None, now_s: float) -> str | None:
    return f"no heartbeat for {_age(now_s - beat.updated_at_unix_s)}" if beat and beat.is_stale else None


def _age(seconds: float) -> str:
    minutes = int(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def _why_failed(files: Files, otherwise: str) -> str:
    """The last error that the job told, else the last line that it wrote to its error log."""
    if files.heartbeat and files.heartbeat.last_error:
        return f"{otherwise}: {files.heartbeat.last_error}"
    words = last_words(files.folder)
    if words is None and files.submission and (arguments := files.submission.slurm_arguments):
        words = last_words(JobFolder(root=Path(arguments.removeprefix("slurm "))))  # of the job that has its node
    return f"{otherwise}: {words}" if words else otherwise


def error_log(folder: JobFolder) -> Path | None:
    """The newest."""
    return max(folder.root.glob("*_0_log.err"), key=lambda path: path.stat().st_mtime, default=None)


def last_words(folder: JobFolder) -> str | None:
    log = error_log(folder)
    return words_of(log) if log else None


def words_of(log: Path) -> str | None:
    """The last line, of a traceback too; None where it has said nothing.

    Of submitit's own lines only the one that says why a job is not started again. Of Slurm's errors the first: the
    others follow from it.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = printable(file.read().decode(errors="replace"))
    except OSError:
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if given_up := [line for line in lines if NOT_REQUEUED in line]:
        return given_up[-1][given_up[-1].index(NOT_REQUEUED) :]
    lines = [line for line in lines if not line.startswith("submitit ")]
    errors = list(itertools.takewhile(lambda line: line.startswith(("srun: ", "slurmstepd: ")), reversed(lines)))
    errors = [line for line in errors if ": error: " in line]
    if errors:
        return errors[-1]
    return lines[-1] if lines else None


NOT_REQUEUED = "Job not requeued because: "
"""submitit's words."""


def find_run(state: JobState) -> int | None:
    """The process of the job where it runs on this machine, whoever started it or left it behind; None where its number
    means another by now."""
    beat = state.heartbeat
    if beat is None or beat.state != "running":
        return None
    return beat.pid if str(state.folder.root).encode() in _words_of_process(beat.pid) else None


LOCAL_QUEUE = "pipeline.submission.local_queue"
"""The module that a local queue runs, with the folders of its jobs as arguments."""


def is_local_queue(pid: int, folder: JobFolder) -> bool:
    """Whether the process is there and is the local queue of this job: its number may mean another by now."""
    words = _words_of_process(pid)
    return LOCAL_QUEUE.encode() in words and str(folder.root).encode() in words


def results_of_local_queue(pid: int) -> Results | None:
    """Those that the process measures for; None where it is no local queue."""
    words = _words_of_process(pid)
    if LOCAL_QUEUE.encode() not in words:
        return None
    return JobFolder(root=Path(os.fsdecode(words[words.index(LOCAL_QUEUE.encode()) + 1]))).results


def _words_of_process(pid: int) -> list[bytes]:
    """Of its command line; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
