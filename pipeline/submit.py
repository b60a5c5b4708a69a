"""Hands jobs over, to Slurm or to this machine's own queue, and leaves: no process has to stay for them.

What is measured already, and what is queued or running already, is not submitted again.
"""

import contextlib
import io
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.config import Config
from harness.errors import SubmissionError
from harness.files import write_atomically
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import JobPlan, Pair
from harness.record import find_settled_record
from pipeline.jobs import JobState, Submission, job_states

Executor = Literal["slurm", "local"]

_QUEUES: list[subprocess.Popen[bytes]] = []
"""Local queues are left running on purpose; Python warns about a process whose object is let go."""

SAME_REFUSALS_BEFORE_GIVING_UP = 3
"""When sbatch refuses the first jobs in the same words, it would refuse the others too (a wrong account,
say)."""


def choose_executor(wanted: Literal["auto", "slurm", "local"]) -> Executor:
    """`auto`: Slurm where sbatch is on PATH, else this machine. Raises SubmissionError for a Slurm that is
    not here."""
    has_slurm = all(shutil.which(program) for program in ("sbatch", "srun"))
    if wanted == "slurm" and not has_slurm:
        raise SubmissionError(
            "--executor slurm: sbatch and srun are not both on PATH. Run main.py on a login node of the "
            "cluster (perhaps after `module load slurm`), or on this machine's GPU with --executor local."
        )
    if wanted == "auto":
        return "slurm" if has_slurm else "local"
    return wanted


def submit(
    pairs: list[Pair], config: Config, scripts: dict[str, Path], *, executor: Executor, results: Results
) -> list[JobFolder]:
    """Submit every job of these pairs that is needed. Prints one line for each job.

    Returns:
        The jobs to follow: the new ones, and those that were queued or running already.

    Raises:
        SubmissionError: one or more jobs were refused; the message has sbatch's words and what was submitted.
    """
    active = [state for state in job_states(results) if state.is_active]
    following: list[JobFolder] = []
    needed: list[JobPlan] = []
    for plan in (plan for pair in pairs for plan in pair.jobs):
        if twin := find_twin(plan, active):
            print(f"{plan.name}: {twin.state} already as job {twin.job_id}")
            following.append(twin.folder)
        elif not plan.force and is_measured(plan, results, executor):
            print(f"{plan.name}: every measurement has a record (measure again with --force)")
        else:
            needed.append(plan)
    if executor == "slurm":
        submissions = [state.submission for state in active if state.submission]
        submissions.sort(key=lambda submission: submission.submitted_at_unix_s)
        earlier = [submission.job_id for submission in submissions if submission.executor == "slurm"]
        return following + _submit_to_slurm(needed, config, scripts, results, earlier)
    return following + _submit_to_local_queue(needed, scripts, results)


def is_measured(plan: JobPlan, results: Results, executor: Executor) -> bool:
    return all(find_settled_record(each, results, executor) for each in plan.measurements())


def find_twin(plan: JobPlan, active: Sequence[JobState]) -> JobState | None:
    """The active job that makes the same measurements, or None."""
    ids = {each.id for each in plan.measurements()}
    for state in active:
        other = state.plan
        if (
            other
            and (other.framework, other.cell) == (plan.framework, plan.cell)
            and {each.id for each in other.measurements()} == ids
        ):
            return state
    return None


def run_arguments(plan: JobPlan, folder: JobFolder, results: Results) -> list[str]:
    """Python's arguments for the job, from the repository's root. The frozen plan in the folder rules over
    the flags, which are there for the reader of a process list."""
    return [
        "-u",
        f"{plan.framework}_runner/run.py",
        *("--benchmark", plan.cell.benchmark),
        *("--use_case", str(plan.cell.use_case)),
        *("--results", str(results.root.absolute())),
        *("--job-folder", str(folder.root.absolute())),
    ]


def _freeze(plan: JobPlan, results: Results) -> JobFolder:
    """A folder of its own with the plan in it, which no later edit of experiments.yaml changes."""
    folder = Results(root=results.root.absolute()).new_job_folder(plan)
    write_atomically(folder.plan, plan.model_dump_json(indent=1), replace=False)
    return folder


@dataclass
class _Refusals:
    """What sbatch said no to, and when to stop asking."""

    words: dict[str, str] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)

    @property
    def all_the_same(self) -> bool:
        return len(self.words) >= SAME_REFUSALS_BEFORE_GIVING_UP and len(set(self.words.values())) == 1

    def error(self, submitted: dict[str, str]) -> SubmissionError:
        lines = [f"Slurm refused {len(self.words)} of {len(self.words) + len(self.untried) + len(submitted)} jobs."]
        lines += [f"  {name}: {words}" for name, words in self.words.items()]
        if self.untried:
            lines.append(f"  not tried after the same answer {len(self.words)} times: {', '.join(self.untried)}")
        kept = ", ".join(f"{name} (job {job_id})" for name, job_id in submitted.items())
        lines.append(f"Submitted: {kept}." if kept else "Nothing was submitted.")
        lines.append("Correct `cluster` or `gpus` in experiments.yaml and run the same command again.")
        return SubmissionError("\n".join(lines))


def _submit_to_slurm(
    plans: Sequence[JobPlan],
    config: Config,
    scripts: dict[str, Path],
    results: Results,
    earlier: Sequence[str],
) -> list[JobFolder]:
    """`earlier`: this project's jobs that are not over, oldest first; `max_parallel_jobs` counts them."""
    folders: list[JobFolder] = []
    submitted: dict[str, str] = {}
    refusals = _Refusals()
    for plan in plans:
        if refusals.all_the_same and not submitted:
            refusals.untried.append(plan.name)
            continue
        after = _lane([*earlier, *submitted.values()], config.cluster.max_parallel_jobs)
        folder = _freeze(plan, results)
        try:
            submission = _sbatch(plan, folder, scripts[plan.name], config, results, after)
        except SubmissionError as error:
            shutil.rmtree(folder.root)  # nothing but the plan was in it
            refusals.words[plan.name] = str(error)
            continue
        write_atomically(folder.submission, submission.model_dump_json(indent=1), replace=False)
        submitted[plan.name] = submission.job_id
        folders.append(folder)
        log = folder.root / f"{submission.job_id}_0_log.out"
        print(f"{plan.name}: submitted as job {submission.job_id}, log {log}")
    if refusals.words:
        raise refusals.error(submitted)
    return folders


def _lane(job_ids: list[str], max_parallel_jobs: int | None) -> str | None:
    """The job whose end this one waits for, so that at most so many of the project run at the same time."""
    if max_parallel_jobs is None or len(job_ids) < max_parallel_jobs:
        return None
    return job_ids[-max_parallel_jobs]


def _sbatch(
    plan: JobPlan, folder: JobFolder, script: Path, config: Config, results: Results, after: str | None
) -> Submission:
    """Raises SubmissionError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from pipeline.executors import RunScript, ScriptSlurm, sbatch_command

    executor = ScriptSlurm(folder.root, script, after=after)
    # What submitit itself has to know; the resources are in the script's header.
    executor.update_parameters(
        time=config.cluster.time_limit_minutes,
        nodes=plan.cell.nodes,
        ntasks_per_node=plan.cell.devices // plan.cell.nodes,
    )
    try:
        # submitit prints what sbatch complains about; it is said once, with all the refusals, at the end.
        with contextlib.redirect_stderr(io.StringIO()):
            job = executor.submit(RunScript(run_arguments(plan, folder, results)))
    except (FailedJobError, FailedSubmissionError) as error:
        raise SubmissionError(str(error).strip() or "sbatch failed without a word") from error
    return Submission(
        executor="slurm",
        job_id=job.job_id,
        script=str(script.absolute()),
        command=tuple(sbatch_command(script.resolve(), folder.root, after=after)),
        node=socket.gethostname(),
        submitted_at_unix_s=time.time(),
    )


def _submit_to_local_queue(plans: Sequence[JobPlan], scripts: dict[str, Path], results: Results) -> list[JobFolder]:
    """Start one process of its own session that runs the jobs one after the other, and leave."""
    if not plans:
        return []
    folders = []
    for plan in plans:
        folder = _freeze(plan, results)
        shutil.copyfile(scripts[plan.name], folder.local_script)
        folders.append(folder)
    command = [sys.executable, "-m", "pipeline.local_queue", *(str(folder.root) for folder in folders)]
    log = results.local_queue_log
    with log.open("ab") as output:
        queue = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C and the end of this shell do not reach it
        )
    _QUEUES.append(queue)
    # The queue starts a job only when its submission.json is there.
    for plan, folder in zip(plans, folders, strict=True):
        submission = Submission(
            executor="local",
            job_id=str(queue.pid),
            script=str(scripts[plan.name].absolute()),
            command=tuple(command),
            node=socket.gethostname(),
            submitted_at_unix_s=time.time(),
        )
        write_atomically(folder.submission, submission.model_dump_json(indent=1), replace=False)
        print(f"{plan.name}: in the local queue (process {queue.pid}), logs in {folder.root}")
    return folders
