"""Runs jobs on this machine one at a time, so that two of them never share the GPU.

    python -m pipeline.submission.local_queue FOLDER...

main.py starts it and leaves. A second queue on this machine waits for the first one to end, whatever their results
folders are.
SIGTERM ends the job that runs, in order, and the queue with it (`main.py status --cancel`).
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from harness.files import write_atomically
from harness.locks import hold, holding_processes, machine_lock
from harness.paths import JobFolder
from pipeline.submission.slurm import without_inherited_job
from pipeline.submission.submit import job_arguments
from pipeline.watching.jobs import LocalEnd, read_files, results_of_local_queue, words_of

SUBMISSION_TIMEOUT_S = 30.0
"""main.py writes submission.json within milliseconds of starting the queue, or it has died."""
STOP_GRACE_S = 20.0
"""For a job to end its measurement and write a last heartbeat, before it is killed."""


class Cancelled(BaseException):
    """SIGTERM came. Not an Exception, so that nothing on the way takes it for an error of the job."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.submission.local_queue", description=__doc__)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path)
    folders = [JobFolder(root=path.absolute()) for path in parser.parse_args(arguments).folders]
    signal.signal(signal.SIGTERM, _raise_cancelled)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of the shell is not the end of the queue
    try:
        for folder in folders:
            _wait_for_submission(folder)
        with _alone(folders):
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
        _say(f"{folder.name}: left out, {'cancelled' if files.is_cancelled else 'never submitted'}")
        return
    _end(folder, "; ".join(files.problems) or _run(folder))


def _end(folder: JobFolder, error: str | None) -> None:
    """A disk that is full, or a results folder that somebody has removed, costs the note, and no job that is still to
    come."""
    _say(f"{folder.name}: {error or 'done'}")
    end = LocalEnd(error=error, ended_at_unix_s=time.time())
    with suppress(OSError):
        if folder.root.exists():
            write_atomically(folder.local_end, end.model_dump_json(), replace=True)


def _run(folder: JobFolder) -> str | None:
    """Why the job failed, or None."""
    _say(f"{folder.name}: starts")
    command = ["bash", str(folder.script), *job_arguments(folder.results, folder)]
    log = folder.root / f"{os.getpid()}_0_log.err"
    try:
        with log.with_suffix(".out").open("w") as output, log.open("w") as errors:
            # A session of its own, so that one killpg takes what the script starts before it becomes the job.
            job = subprocess.Popen(
                [*without_inherited_job(), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
    except OSError as error:
        return f"cannot be started: {error}"
    try:
        status = job.wait()
    except Cancelled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        _stop(job)
        raise
    return (words_of(log) or _explain(status)) if status else None


def _explain(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    meaning = {1: "some measurements failed", 2: "wrong usage or configuration", 75: "stopped before its end"}
    return f"exit status {status}" + (f" ({meaning[status]})" if status in meaning else "")


def _stop(job: "subprocess.Popen[bytes]") -> None:
    """Ask the job to end its measurement, and kill it if that does not help; its ranks end with it."""
    job.terminate()
    try:
        job.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


@contextmanager
def _alone(folders: Sequence[JobFolder]) -> Iterator[None]:
    """Hold the lock of these jobs' results folder, which other machines may see, and that of this machine. Meanwhile
    the jobs' folders say what they wait for."""
    said = ""

    def tell(path: Path, who: str) -> None:
        nonlocal said
        words = f"{who}, {_queue_in_words(path)}"
        if words != said:
            _say(f"waits for {words}")
            said = words
            for folder in folders:
                with suppress(OSError):  # a full disk costs the words only
                    write_atomically(folder.waits_for, words, replace=True)

    with ExitStack() as stack:
        for path in (folders[0].results.local_queue_lock, machine_lock("queue")):
            try:
                stack.enter_context(hold(path, while_waiting=partial(tell, path)))
            except OSError as error:
                _say(f"no lock, so another queue would not wait for this one: {error}")
        for folder in folders:
            with suppress(OSError):
                folder.waits_for.unlink(missing_ok=True)
        yield


def _queue_in_words(lock: Path) -> str:
    """Whoever holds it."""
    for pid in holding_processes(lock):
        if results := results_of_local_queue(pid):
            return f"the local queue of {results.root}"
    return "an earlier local queue"


def _wait_for_submission(folder: JobFolder) -> None:
    deadline = time.monotonic() + SUBMISSION_TIMEOUT_S
    while not folder.submission.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _raise_cancelled(_signal: int, _frame: FrameType | None) -> None:
    raise Cancelled


def _say(line: str) -> None:
    with suppress(OSError):  # its log is on the disk that may be full
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} queue {os.getpid()} | {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
