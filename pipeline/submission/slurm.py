"""Submission through submitit; the only file that knows submitit.

submitit would write its own batch script. Here the rendered script of slurm_scripts/ is what Slurm gets, so that its
#SBATCH header stays the only place where resources are written. With the arguments `slurm FOLDER` the script becomes
submitit's worker, which reads the pickled RunScript from FOLDER and calls it: the worker is the job. The script of a
pair takes a folder for each framework and runs such a worker for each of its arms, one after the other.

The overridden methods are submitit's interface for plugins (abstract methods of PicklingExecutor), but they
carry an underscore. pyproject.toml therefore pins submitit to 1.5, and test_submit.py checks that
they are still there.
"""

import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmExecutor

MAX_TIMEOUTS = 5
"""How often a job that reached its time limit goes on in a new start. submitit counts every preemption of a
job of at most ten minutes as a timeout, so this is more than a long job needs."""


class RunScript:
    """What a job runs: a framework's run.py, in the process of submitit's worker. It is pickled into the job's folder,
    so it holds nothing but its arguments."""

    def __init__(self, script: str, arguments: Sequence[str], *, stop_marker: Path | None = None) -> None:
        """`script`: from the repository's root. `stop_marker`: made when the job is to stop and come back, so that a
        pair starts no further arm."""
        self.script = script
        self.arguments = tuple(arguments)
        self.stop_marker = stop_marker

    def __call__(self) -> None:
        """Exits with the script's status, unless that is 0."""
        # By SIGTERM Slurm says that it will kill the job. One that ended by itself before that would not be requeued.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.argv = [self.script, *self.arguments]
        try:
            runpy.run_path(self.script, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise

    def checkpoint(self) -> DelayedSubmission:
        """submitit calls this in its signal handler, shortly before the time limit or on preemption, and
        requeues."""
        if self.stop_marker is not None:
            self.stop_marker.touch()
        return DelayedSubmission(self)


def sbatch_command(script: Path, *folders: Path, after: str | None = None) -> list[str]:
    """The exact command that submits `script` with `folders`: the job's, or of a pair one for each framework.

    Options here beat the script's header. `after`: the id of a job whose end, of whatever kind, this one
    waits for.
    """
    logs = str(folders[0]).replace("%", "%%")  # sbatch fills in patterns such as %j
    # The arms of a pair have logs of their own; what is left tells which arm ran when.
    names = ("_0_log.out", "_0_log.err") if len(folders) == 1 else ("_pair.out", "_pair.err")
    return [
        "sbatch",
        f"--output={logs}/%j{names[0]}",
        f"--error={logs}/%j{names[1]}",
        *([f"--dependency=afterany:{after}"] if after else []),
        str(script),
        "slurm",
        *map(str, folders),
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
        return [*without_inherited_job(), *sbatch_command(self.script, self.folder, after=self.after)]


class PairSlurm(ScriptSlurm):
    """Submits the script of a pair as one job, in which a worker runs each arm."""

    def __init__(self, folders: Sequence[Path], script: Path, *, after: str | None = None) -> None:
        """`folders`: one for each framework, in the order in which the script takes them."""
        super().__init__(folders[0], script, after=after)
        self.folders = tuple(folders)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*without_inherited_job(), *sbatch_command(self.script, *self.folders, after=self.after)]

    def submit_arms(self, arms: Mapping[Path, RunScript], *, time_limit_minutes: int) -> str:
        """Returns the job's id. `arms`: what each runs, by its folder. The pickles carry the id in their names, so they
        come after it; a worker waits for its own."""
        job = self._submit_command("")
        for folder, run in arms.items():
            delayed = DelayedSubmission(run)
            delayed.set_timeout(time_limit_minutes, MAX_TIMEOUTS)
            delayed.dump(JobPaths(folder, job_id=job.job_id).submitted_pickle)
        return str(job.job_id)
