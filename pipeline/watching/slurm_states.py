"""What Slurm says about jobs: one squeue for all of them, and one sacct where there is accounting.

Many clusters have no accounting database, and squeue forgets a job some minutes after its end (MinJobAge).
So an absent job is no news about its end; pipeline/watching/jobs.py decides from the records and the heartbeat what
became of it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

TERMINAL = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ]
)
CALL_TIMEOUT_S = 30.0

Phase = Literal["queued", "requeued", "running", "over"]


@dataclass(frozen=True, kw_only=True)
class SlurmState:
    """One job as Slurm sees it."""

    name: str
    """As Slurm writes it: PENDING, RUNNING, ..."""
    node: str | None = None
    reason: str | None = None
    """Why it waits or ended, in Slurm's words."""
    command: str | None = None
    """The script with its arguments, empty for a job without a script of its own (sbatch --wrap); None where it is not
    told."""

    @property
    def phase(self) -> Phase:
        if self.name in TERMINAL:
            return "over"
        if self.name == "PENDING":
            return "queued"
        return "requeued" if self.name.startswith("REQUEUE") else "running"


class SlurmSilentError(Exception):
    """Slurm did not answer; nothing is known about any job, which says nothing about the jobs themselves."""


def query(job_ids: Iterable[str]) -> dict[str, SlurmState]:
    """The jobs that Slurm still knows. The queue wins over the database, which lags and keeps what a
    requeue undid.

    Raises:
        SlurmSilentError: the controller is busy, down, or not to be reached from this machine.
    """
    wanted = sorted(set(job_ids))
    if not wanted:
        return {}
    queued = _ask_squeue(["--states=all", f"--jobs={','.join(wanted)}"])
    forgotten = [job_id for job_id in wanted if job_id not in queued]
    return {**_query_accounting(forgotten), **queued}


def find_jobs(arguments: str) -> list[str]:
    """The ids of this user's jobs, of those that are not over, whose command ends with these arguments. Raises
    SlurmSilentError."""
    found = _ask_squeue([f"--user={os.getuid()}"])
    return [job_id for job_id, state in found.items() if state.command and state.command.endswith(arguments)]


def _ask_squeue(which: list[str]) -> dict[str, SlurmState]:
    command = ["squeue", "--noheader", "--format=%i|%T|%N|%r|%o", *which]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
    except FileNotFoundError as error:
        raise SlurmSilentError("squeue is not on PATH on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmSilentError(f"squeue did not answer within {CALL_TIMEOUT_S:.0f} s") from error
    # A single id that is long gone is an error to squeue, many of them are not.
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise SlurmSilentError(f"squeue: {answer.stderr.strip() or f'exit status {answer.returncode}'}")
    return parse(answer.stdout)


def _query_accounting(job_ids: list[str]) -> dict[str, SlurmState]:
    """Empty where accounting is off; that is a valid way to run a cluster and no error."""
    if not job_ids or shutil.which("sacct") is None:
        return {}
    command = [
        "sacct",
        "-X",
        "-n",
        "-P",
        "--format=JobID,State,NodeList,Reason",
        f"--jobs={','.join(job_ids)}",
    ]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {}
    return parse(answer.stdout) if answer.returncode == 0 else {}


def parse(answer: str) -> dict[str, SlurmState]:
    """Lines of ID|STATE|NODES|REASON, from squeue with |COMMAND, by id. sacct writes `CANCELLED by 1000`; the state is
    its first word."""
    states = {}
    for line in answer.splitlines():
        fields = [each.strip() for each in line.split("|", 4)]
        if len(fields) < 4 or not fields[1]:
            continue
        job_id, name, node, reason, *command = fields
        states[job_id] = SlurmState(
            name=name.split()[0],
            node=node if node and node != "None assigned" else None,
            reason=reason if reason not in ("", "None") else None,
            command=next(("" if each == "(null)" else each for each in command), None),
        )
    return states
