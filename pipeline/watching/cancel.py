"""`main.py status --cancel`: ends the jobs that main.py submitted, each by its own id, and nothing else."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress

from harness.files import write_atomically
from harness.paths import Results
from pipeline.watching.jobs import JobState, find_run, is_local_queue, job_states

LOCAL_PATIENCE_S = 40.0
"""A local queue gives a job 20 s to end its measurement."""
SIGNAL_TIMEOUT_S = 15.0
"""scancel tries for minutes to signal a job whose node does not answer."""
SCANCEL_TIMEOUT_S = 60.0


def cancel(results: Results) -> int:
    """Prints what it ended. Returns 1 when something could not be ended."""
    active = [state for state in job_states(results) if state.is_active]
    if not active:
        print(f"no job of {results.root} is queued or running")
        return 0
    local = [state for state in active if state.executor == "local"]
    slurm = [state for state in active if state.executor == "slurm"]
    for state in active:
        if state.executor == "by hand":
            print(f"{state.name}: started by hand, so it is left alone; end it where it was started")
    return max(_cancel_local(local), _cancel_slurm(slurm))  # the second also when the first one fails


def _cancel_slurm(states: list[JobState]) -> int:
    for state in states:
        if state.is_another:
            print(f"{state.name}: nothing to end, as job {state.job_id} of Slurm is another job by now")
    states = [state for state in states if not state.is_another]
    if not states:
        return 0
    job_ids = sorted({state.job_id for state in states if state.job_id})  # those of a whole node share one
    # First a SIGINT to the batch script, which has become the job: it ends its measurement, and records what it has.
    # Slurm alone would send SIGTERM also to the ranks. Jobs that still wait have no script yet.
    try:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["scancel", "--quiet", "--batch", "--signal=INT", "--state=RUNNING", *job_ids],
                capture_output=True,
                timeout=SIGNAL_TIMEOUT_S,
            )
        answer = subprocess.run(["scancel", *job_ids], capture_output=True, text=True, timeout=SCANCEL_TIMEOUT_S)
    except FileNotFoundError:
        print(f"scancel is not on PATH on this machine; not ended: {', '.join(job_ids)}")
        return 1
    except subprocess.TimeoutExpired:
        print(
            f"scancel did not answer within {SCANCEL_TIMEOUT_S:.0f} s; run the same command again: {', '.join(job_ids)}"
        )
        return 1
    if answer.returncode:
        print(f"scancel: {answer.stderr.strip()}")
        return 1
    for state in states:
        _mark(state)
        print(f"{state.name}: cancelled job {state.job_id} ({state.state} until now)")
    return 0


def _cancel_local(states: list[JobState]) -> int:
    here = [state for state in states if _node(state) == socket.gethostname()]
    for state in states:
        if state not in here:
            print(f"{state.name}: runs on {_node(state)}; run `main.py status --cancel` there")
    # All are marked first, so that a queue does not start the next one when its running job ends.
    for state in here:
        _mark(state)
    left = [state for state in here if not _end_queue(state)]
    # A queue that was killed leaves its running job behind.
    stray = [state for state in here if not _end_run(state)]
    for state in here:
        is_left = state in stray or state in left
        outcome = "could not be ended" if is_left else "cancelled"
        print(f"{state.name}: {outcome} in the local queue, process {state.job_id} ({state.state} until now)")
    return 1 if left or stray or len(here) < len(states) else 0


def _node(state: JobState) -> str | None:
    return state.submission.node if state.submission else None


def _end_queue(state: JobState) -> bool:
    """True when the job's queue, and with it its jobs, is gone."""
    pid = int(state.job_id or 0)
    if not is_local_queue(pid, state.folder):
        return True
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + LOCAL_PATIENCE_S
    while is_local_queue(pid, state.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not is_local_queue(pid, state.folder)


def _end_run(state: JobState) -> bool:
    """True when the job is gone."""
    pid = find_run(state)
    if pid is None:
        return True
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + LOCAL_PATIENCE_S
    while find_run(state) and time.monotonic() < deadline:
        time.sleep(0.1)
    return find_run(state) is None


def _mark(state: JobState) -> None:
    write_atomically(state.folder.cancelled, "by main.py status --cancel\n", replace=True)
