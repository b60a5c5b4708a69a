"""Submission through submitit; the only file that knows submitit.

submitit would write its own batch script. Here the rendered script of slurm_scripts/ is what Slurm gets, so that its
#SBATCH header stays the only place where resources are written. With the arguments `slurm FOLDER` the script becomes
submitit's worker, which reads the pickled RunJob from FOLDER and calls it: the worker is the job. The script of a whole
node starts its jobs itself, as steps, and requeues itself (templates/node.sh.j2).

The overridden methods are submitit's interface for plugins (abstract methods of PicklingExecutor), but they
carry an underscore. pyproject.toml therefore pins submitit to 1.5, and test_submit.py checks that
they are still there.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from submitit.core.utils import DelayedSubmission
from submitit.slurm.slurm import SlurmExecutor

MAX_TIMEOUTS = 5
"""How often a job that reached its time limit goes on in a new start. submitit counts every preemption of a
job of at most ten minutes as a timeout, so this is more than a long job needs."""


class RunJob:
    """The job, in the process of submitit's worker. It is pickled into the job's folder, so it holds nothing but its
    arguments."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)

    def __call__(self) -> None:
        """Exits with the job's status, unless that is 0."""
        from harness.job.main import main

        # By SIGTERM Slurm says that it will kill the job. One that ended by itself before that would not be requeued.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if status := main(arguments=list(self.arguments)):
            sys.exit(status)

    def checkpoint(self) -> DelayedSubmission:
        """submitit calls this in its signal handler, shortly before the time limit or on preemption, and requeues."""
        return DelayedSubmission(self)


def sbatch_command(script: Path, folder: Path, after: str | None = None) -> list[str]:
    """The exact command that submits `script` with the job's folder.

    Options here beat the script's header. `after`: the id of a job whose end, of whatever kind, this one
    waits for.
    """
    logs = str(folder).replace("%", "%%")  # sbatch fills in patterns such as %j
    return [
        "sbatch",
        f"--output={logs}/%j_0_log.out",
        f"--error={logs}/%j_0_log.err",
        *([f"--dependency=afterany:{after}"] if after else []),
        str(script),
        "slurm",
        str(folder),
    ]


def is_in_a_job() -> bool:
    return "SLURM_JOB_ID" in os.environ


def variables_of_sbatch() -> list[str]:
    """Defaults of sbatch's options, such as SBATCH_ACCOUNT. Slurm lets them beat what a script's header says."""
    return sorted(name for name in os.environ if name.startswith("SBATCH_"))


def variables_in_words() -> str | None:
    """What becomes of them; None where there are none."""
    names = ", ".join(variables_of_sbatch())
    if not names:
        return None
    if is_in_a_job():
        return f"Kept from sbatch, as the job in which this runs may have set them: {names}"
    return f"Options of sbatch from this shell, which beat experiments.yaml: {names}"


def without_inherited_job() -> list[str]:
    """`env -u NAME ...`: a command that forgets the Slurm job that this process itself may run in.

    A leaked SLURM_CPU_BIND, for one, would pin every task of the new job to a few cores. SLURM_CONF names
    the cluster. Outside of a job, what sbatch is told by SBATCH_ACCOUNT and the like is the user's own.
    """
    leaked = [name for name in os.environ if name.startswith(("SLURM_", "SRUN_")) and name != "SLURM_CONF"]
    if is_in_a_job():
        leaked += variables_of_sbatch()
    return ["env", *(word for name in sorted(leaked) for word in ("-u", name))]


class ScriptSlurm(SlurmExecutor):
    """Submits one rendered script as one job. No arrays: submitit hard-codes its own classes for those."""

    def __init__(self, folder: Path, script: Path, *, after: str | None = None) -> None:
        """Raises RuntimeError where srun is not on PATH."""
        super().__init__(folder, max_num_timeout=MAX_TIMEOUTS)
        self.script = script.resolve()
        self.after = after

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        """Kept in the job's folder as <id>_submission.sh."""
        return self.script.read_text()

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*without_inherited_job(), *sbatch_command(self.script, self.folder, self.after)]
