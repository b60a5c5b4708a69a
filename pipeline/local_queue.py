"""Runs jobs on this machine one at a time, so that two of them never share the GPU.

    python -m pipeline.local_queue FOLDER...

main.py starts it and leaves. A second queue of the same results folder waits for the first one to end.
SIGTERM ends the job that runs, in order, and the queue with it (`main.py cancel`).
"""

import argparse
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from submitit.core.core import Job
from submitit.core.utils import JobPaths

from harness.errors import RecordError
from harness.files import write_atomically
from harness.heartbeat import read_heartbeat
from harness.paths import JobFolder, Results
from harness.plan import JobPlan
from pipeline.executors import STOP_GRACE_S, RunScript, ScriptLocal
from pipeline.jobs import LocalEnd, last_words, read_files
from pipeline.submit import run_arguments

SUBMISSION_TIMEOUT_S = 30.0
"""main.py writes submission.json within milliseconds of starting the queue, or it has died."""


class Cancelled(BaseException):
    """SIGTERM came. Not an Exception, so that nothing on the way takes it for an error of the job."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.local_queue", description=__doc__)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path)
    folders = [JobFolder(root=path.absolute()) for path in parser.parse_args(arguments).folders]
    signal.signal(signal.SIGTERM, _raise_cancelled)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of the shell is not the end of the queue
    try:
        for folder in folders:
            _wait_for_submission(folder)
        with _alone(_results_of(folders[0])):
            for folder in folders:
                run_job(folder)
    except Cancelled:
        _say("cancelled")
        return 1
    return 0


def run_job(folder: JobFolder) -> None:
    """Run one job to its end and leave ended.json. A job that cannot even start does not stop the others."""
    files = read_files(folder)
    if files.is_cancelled or files.submission is None:
        _say(f"{folder.root.name}: left out, {'cancelled' if files.is_cancelled else 'never submitted'}")
        return
    error = "; ".join(files.problems) or None
    if files.plan is not None and error is None:
        error = _run(files.plan, folder)
    end = LocalEnd(error=error, ended_at_unix_s=time.time())
    write_atomically(folder.local_end, end.model_dump_json(), replace=True)
    _say(f"{folder.root.name}: {error or 'done'}")


def _run(plan: JobPlan, folder: JobFolder) -> str | None:
    """Why the job failed, or None."""
    executor = ScriptLocal(folder.root, folder.local_script)
    _say(f"{folder.root.name}: starts")
    try:
        job = executor.submit(RunScript(run_arguments(plan, folder, _results_of(folder))))
    except OSError as error:
        return f"cannot be started: {error}"
    try:
        while not job.done():
            time.sleep(0.2)
    except Cancelled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        _stop(job, folder)
        raise
    return _error_of(job.paths, folder)


def _error_of(paths: JobPaths, folder: JobFolder) -> str | None:
    """submitit's worker leaves a result whatever happened; without one the script itself ended before it."""
    import pickle

    if not paths.result_pickle.exists():
        return last_words(folder) or f"the script ended before the run; see {paths.stderr}"
    outcome, result = pickle.loads(paths.result_pickle.read_bytes())
    if outcome == "success":
        return None
    return last_words(folder) or str(result).strip().splitlines()[-1]


def _stop(job: "Job[int]", folder: JobFolder) -> None:
    """Ask run.py to end its measurement, and end submitit's controller if that does not help."""
    try:
        beat = read_heartbeat(folder.heartbeat)
    except RecordError:
        beat = None
    if beat is not None and beat.state == "running":
        _signal_run(beat.pid, folder)
        if _ends_within(job, STOP_GRACE_S):
            return
    job.cancel()
    if not _ends_within(job, 5.0):
        os.killpg(0, signal.SIGKILL)  # the queue's own session: itself, the controller, the worker


def _signal_run(pid: int, folder: JobFolder) -> None:
    """SIGINT to run.py, if the process of that number still is this job's."""
    try:
        is_ours = str(folder.root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        if is_ours:
            os.kill(pid, signal.SIGINT)
    except (FileNotFoundError, ProcessLookupError):
        return


def _ends_within(job: "Job[int]", patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not job.done() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(job.done())


def _results_of(folder: JobFolder) -> Results:
    """`results/jobs/<gpu>/<job>` belongs to `results`."""
    return Results(root=folder.root.parents[2])


@contextmanager
def _alone(results: Results) -> Iterator[None]:
    """Hold the lock of this results folder; the kernel frees it when this process ends, however it ends."""
    with results.local_queue_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wait_for_submission(folder: JobFolder) -> None:
    deadline = time.monotonic() + SUBMISSION_TIMEOUT_S
    while not folder.submission.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _raise_cancelled(_signal: int, _frame: FrameType | None) -> None:
    raise Cancelled


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} queue {os.getpid()} | {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
