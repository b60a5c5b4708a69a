"""Submission through submitit; the only file that knows submitit.

submitit would write its own batch script. Here the rendered script of slurm_scripts/ is what Slurm gets, so
that its #SBATCH header stays the only place where resources are written. The script takes two arguments,
`slurm FOLDER` or `local FOLDER`; it then runs submitit's worker, which reads the pickled RunScript from
FOLDER and calls it. The script of a pair takes a folder for each framework and runs such a worker for each of
its arms, one after the other.

The overridden methods are submitit's interface for plugins (abstract methods of PicklingExecutor), but they
carry an underscore. pyproject.toml therefore pins submitit to 1.5, and tests/test_submit.py checks that
they are still there.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher, SlurmJob

from pipeline import slurm_states

STOP_GRACE_S = 20.0
"""For run.py to end its measurement and write a last heartbeat, before it is killed."""
LOST_AFTER_S = 60.0
"""A job that neither squeue nor sacct has known for this long will not come back."""
MAX_TIMEOUTS = 5
"""How often a job that reached its time limit goes on in a new start. submitit counts every preemption of a
job of at most ten minutes as a timeout, so this is more than a long job needs."""
NO_TIME_LIMIT_MINUTES = 60 * 24 * 365
"""submitit's local executor knows no `unlimited`."""


class RunScript:
    """What a job runs: a framework's run.py, in a child process that only this object stops.

    It is pickled into the job's folder, so it holds nothing but its arguments until it is called.
    """

    def __init__(self, arguments: Sequence[str], *, stop_marker: Path | None = None) -> None:
        """`arguments`: those of Python, such as `-u torch_runner/run.py ...`. The interpreter is the
        worker's own, so that the script alone decides which one a framework gets.

        `stop_marker`: made when the job is to stop and come back, so that a pair starts no further arm.
        """
        self.arguments = tuple(arguments)
        self.stop_marker = stop_marker
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Raises RuntimeError for every exit status but 0; submitit then marks the job as failed."""
        command = [sys.executable, *self.arguments]
        self._child = subprocess.Popen(command, start_new_session=True, preexec_fn=_ignore_signals_of_the_job)
        try:
            status = self._child.wait()
        finally:
            self._stop()
        if status:
            raise RuntimeError(f"{shlex.join(command)}: {_explain(status)}")
        return status

    def checkpoint(self) -> DelayedSubmission:
        """submitit calls this in its signal handler, shortly before the time limit or on preemption, and
        requeues."""
        if self.stop_marker is not None:
            self.stop_marker.touch()
        self._stop()
        return DelayedSubmission(RunScript(self.arguments, stop_marker=self.stop_marker))

    def _stop(self) -> None:
        """SIGINT, and SIGKILL if that is not heeded. Does nothing to a child that has ended."""
        for number, patience_s in ((signal.SIGINT, STOP_GRACE_S), (signal.SIGKILL, 5.0)):
            if self._child is None or not self._is_running(self._child):
                return
            os.killpg(self._child.pid, number)
            deadline = time.monotonic() + patience_s
            while self._is_running(self._child) and time.monotonic() < deadline:
                time.sleep(0.05)

    @staticmethod
    def _is_running(child: "subprocess.Popen[bytes]") -> bool:
        """Not child.poll(): when a signal interrupts child.wait(), that wait still holds the lock that
        poll() needs, and poll() then answers "running" for ever."""
        if child.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False


def _ignore_signals_of_the_job() -> None:
    """Slurm signals every process of a step. What a signal means is the worker's to decide, and it tells
    run.py by SIGINT; run.py would otherwise end at once and look as if it had finished."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _explain(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    meaning = {1: "some measurements failed", 2: "wrong usage or configuration", 75: "stopped before its end"}
    return f"exit status {status}" + (f" ({meaning[status]})" if status in meaning else "")


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


def without_inherited_job() -> list[str]:
    """`env -u NAME ...`: a command that forgets the Slurm job that this process itself may run in.

    A leaked SLURM_CPU_BIND, for one, would pin every task of the new job to a few cores. SLURM_CONF names
    the cluster.
    """
    prefixes = ("SLURM_", "SRUN_", "SBATCH_")
    leaked = [name for name in os.environ if name.startswith(prefixes) and name != "SLURM_CONF"]
    return ["env", *(word for name in sorted(leaked) for word in ("-u", name))]


class Watcher(SlurmInfoWatcher):
    """The states of all jobs for submitit's Job.done() and Job.state, also on a cluster without accounting.

    submitit's own asks sacct alone, and waits for ever where there is no accounting and a job dies without
    a result.
    """

    def __init__(self, delay_s: int) -> None:
        super().__init__(delay_s=delay_s)
        self._unseen_since_s: dict[str, float] = {}

    def update(self) -> None:
        waiting = self._registered - self._finished
        now = self._last_status_check = time.time()
        self._num_calls += 1
        try:
            known = slurm_states.query(waiting)
        except slurm_states.SlurmSilentError:
            return  # no news
        for job_id in waiting:
            state = known.get(job_id)
            if state is None:
                since = self._unseen_since_s.setdefault(job_id, now)
                if now - since >= LOST_AFTER_S:
                    self._finish(job_id, "LOST", node=None)
                continue
            self._unseen_since_s.pop(job_id, None)
            if state.phase == "over" and state.name != "PREEMPTED":
                self._finish(job_id, state.name, node=state.node)
            else:
                self._info_dict[job_id] = {"JobID": job_id, "State": state.name, "NodeList": state.node or ""}

    def _finish(self, job_id: str, state: str, *, node: str | None) -> None:
        self._info_dict[job_id] = {"JobID": job_id, "State": state, "NodeList": node or ""}
        self._finished.add(job_id)


class Job(SlurmJob[Any]):
    watcher = Watcher(delay_s=30)


class ScriptSlurm(SlurmExecutor):
    """Submits one rendered script as one job. No arrays: submitit hard-codes its own classes for those."""

    job_class = Job

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
        """Returns the job's id. `arms`: what each runs, by its folder, which is there already: srun opens its logs
        in it. The pickles carry the id in their names, so they come after it; a worker waits for its own."""
        job = self._submit_command("")
        for folder, run in arms.items():
            delayed = DelayedSubmission(run)
            delayed.set_timeout(time_limit_minutes, MAX_TIMEOUTS)
            delayed.dump(JobPaths(folder, job_id=job.job_id).submitted_pickle)
        return str(job.job_id)


class ScriptLocal(LocalExecutor):
    """Runs one rendered script on this machine."""

    def __init__(self, folder: Path, script: Path) -> None:
        super().__init__(folder, max_num_timeout=MAX_TIMEOUTS)
        self.script = script.resolve()
        self.update_parameters(timeout_min=NO_TIME_LIMIT_MINUTES)

    @property
    def _submitit_command_str(self) -> str:
        """submitit hides all GPUs from local jobs; ours are to see what this process sees."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = ["-u", "CUDA_VISIBLE_DEVICES"] if visible is None else [f"CUDA_VISIBLE_DEVICES={visible}"]
        return shlex.join([*without_inherited_job(), *gpus, "bash", str(self.script), "local", str(self.folder)])
