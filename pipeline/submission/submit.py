"""Hands jobs over, to Slurm or to this machine's own queue, and leaves: no process has to stay for them.

What is measured already, and what is queued or running already, is not submitted again.
"""

import contextlib
import io
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from harness.errors import ProjectError, RecordError, SubmissionError
from harness.experiments.model import Config
from harness.files import way_out, write_atomically
from harness.locks import hold
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import Framework, JobPlan, Pair
from harness.plan_file import write_plan
from harness.printable import near, wrapped
from harness.results.looks import needed
from harness.results.record import find_settled
from harness.slurm_words import NO_ANSWER, PERHAPS_HEARD
from pipeline.report.software import software_of
from pipeline.submission.estimate import Estimate, estimate_in_words, estimates_of
from pipeline.submission.queue_job import QueueJob, pairs_of
from pipeline.submission.render import time_limits
from pipeline.submission.whole_nodes import whole_nodes_in_words
from pipeline.watching import slurm_states
from pipeline.watching.jobs import LOCAL_QUEUE, JobState, Submission, is_local_queue, job_states, slurm_arguments
from pipeline.watching.slurm_states import SlurmSilentError

Executor = Literal["slurm", "local"]

_QUEUES: list[subprocess.Popen[bytes]] = []
"""Local queues are left running on purpose; Python warns about a process whose object is let go."""

QUEUE_SHOWN_S = 5.0
"""At most, until the kernel shows a new process as what it is."""
SAME_REFUSALS_BEFORE_GIVING_UP = 3
"""When sbatch refuses so many jobs one after the other in the same words, it would refuse the others too: a wrong
account, say, or a limit of jobs that is reached."""
MOST_NAMED = 5

FILLED_IN = re.compile("%[jtAa]|[\x00-\x1f]")
"""What submitit or sbatch would make something else of, in the name of a folder."""


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
    jobs: Sequence[QueueJob], config: Config, scripts: Mapping[str, Path], *, executor: Executor, results: Results
) -> list[JobFolder]:
    """Submit every job that is needed. Prints one line for each, and how long all of it takes.

    Of a job of both frameworks only what is needed: where one is queued or running already, by --framework, the other
    one's records say that it was measured by itself.

    Args:
        scripts: by the names of write_scripts.

    Returns:
        The jobs to follow: the new ones, and those that were queued or running already.

    Raises:
        SubmissionError: one or more jobs were refused; the message has sbatch's words and what was submitted.
        RecordError: of the local queue: the disk is full.
    """
    if executor == "slurm" and FILLED_IN.search(str(results.root)):
        raise SubmissionError(
            f"--results {str(results.root)!r}: submitit fills in %j, %t, %a and %A, and Slurm takes no line break; "
            f"choose a folder without these in its name"
        )
    results = Results(root=results.root.absolute())
    with alone(results):  # the states are read, and the jobs handed over, under one lock
        active = [state for state in job_states(results) if state.is_active]
        following: list[JobFolder] = []
        left = [one for job in jobs if (one := _left_of(job, results, executor, active, following)) is not None]
        if pairs := pairs_of(left):
            estimates = estimates_of(pairs, results, executor)
            for sentence in time_in_words(left, estimates, config, executor):
                print(wrapped(sentence))
        if left and executor == "local":
            following += _to_local_queue(left, scripts, results)
        elif left:
            following += _to_slurm(left, config, scripts, results, active)
        return following


def time_in_words(jobs: Sequence[QueueJob], estimates: Sequence[Estimate], config: Config, executor: str) -> list[str]:
    """How long they take, and how they share out one selection, where they do.

    Args:
        estimates: of `pairs_of` the jobs.
    """
    pairs, of_nodes = pairs_of(jobs), [job for job in jobs if job.gpus]
    limits = time_limits((pair.cell for pair in pairs), config) if executor == "slurm" else []
    how = []
    if of_nodes:
        by_name = {pair.name: one for pair, one in zip(pairs, estimates, strict=True)}
        how = [whole_nodes_in_words(of_nodes, by_name)]
    return [estimate_in_words(estimates, limits, requeue=config.cluster.requeue, at_once=bool(how)), *how]


@contextmanager
def alone(results: Results) -> Iterator[None]:
    """Two commands at once would both find that a job is needed, or that none is there."""
    said: set[str] = set()

    def tell(who: str) -> None:
        if not said:
            print(f"waits for {who}, which submits to {results.root} just now", flush=True)
            said.add(who)

    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks
            stack.enter_context(hold(results.submit_lock, while_waiting=tell))
        yield


def _left_of(
    job: QueueJob, results: Results, executor: Executor, active: Sequence[JobState], following: list[JobFolder]
) -> QueueJob | None:
    """What of it is neither measured nor under way; the folders of what is under way are added to `following`."""

    def left(pair: Pair) -> Pair | None:
        plans: list[JobPlan] = []
        for plan in pair.jobs:
            if state := job_that_measures(plan, active):
                print(f"{plan.name}: {state.state} already, {_who(state)}")
                following.extend([] if state.folder in following else [state.folder])
            else:
                plans.append(plan)
        releases = None if pair.force or not plans else measured_with(plans, results, executor)
        if releases is not None:
            for plan in plans:
                found = " and ".join(sorted(releases[plan.framework]))
                of = f", of {plan.framework} {found}" if found else ""
                print(f"{plan.name}: every measurement has a record{of} (measure again with --force)")
        if not plans or releases is not None:
            return None
        is_interleaved = pair.is_interleaved and len(plans) == 2
        return pair.model_copy(update={"jobs": tuple(plans), "is_interleaved": is_interleaved})

    pairs = tuple(one for pair in job.pairs if (one := left(pair)) is not None)
    if not pairs:
        return None
    return replace(job, name=job.name if job.gpus else pairs[0].name, pairs=pairs)


def _who(job: JobState) -> str:
    if job.job_id is not None:
        return f"as job {job.job_id}"
    beat = job.heartbeat
    return f"started by hand{f' as process {beat.pid} on {beat.node}' if beat else ''}"


def measured_with(plans: Sequence[JobPlan], results: Results, executor: Executor) -> dict[Framework, set[str]] | None:
    """The releases of each framework that all records of the plans of one cell are of, as far as they say; None where
    one is missing."""
    releases: dict[Framework, set[str]] = {plan.framework: set() for plan in plans}
    for each in needed(plans, results, executor):
        found = find_settled(each, results, executor)
        if found is None:
            return None
        if software := software_of(found[1]):
            releases[each.framework].add(software.release)
    return releases


def job_that_measures(plan: JobPlan, active: Collection[JobState]) -> JobState | None:
    """The active job that makes all of these measurements, or None."""
    ids = {each.id for each in plan.measurements()}
    for state in active:
        for other in state.plans:
            is_same_work = (other.framework, other.cell) == (plan.framework, plan.cell)
            if is_same_work and ids <= {each.id for each in other.measurements()}:
                return state
    return None


def job_arguments(results: Results, folder: JobFolder) -> list[str]:
    """Return the arguments of the job that runs the frozen plan in this folder."""
    return ["--results", str(results.root.absolute()), "--job-folder", str(folder.root.absolute())]


@contextmanager
def _noted(folders: Sequence[JobFolder], take_back: Callable[[], str | None]) -> Iterator[None]:
    """Whatever ends a submission before it is noted, a refusal, a full disk or Ctrl-C, leaves none of the folders, and
    no job that nobody knows.

    Args:
        take_back: ends what was handed over, and returns what became of that.

    Raises RecordError where the folders cannot be written.
    """
    try:
        with way_out(folders[0].root):
            yield
    except BaseException as error:
        with _uninterrupted():
            is_refused = isinstance(error, SubmissionError) and not PERHAPS_HEARD.search(str(error))
            note = None if is_refused else take_back()
            for folder in folders:
                shutil.rmtree(folder.root, ignore_errors=True)
        if note is not None and isinstance(error, ProjectError):
            raise type(error)(f"{str(error).rstrip('.')}; {note}") from error
        if note is not None:
            print(note)
        raise


def _take_back(folder: JobFolder) -> str | None:
    """Cancel the job of this folder, if Slurm has taken it. Returns what became of it; None where there is none."""
    arguments = slurm_arguments(["slurm", str(folder.root)])
    try:
        job_ids = slurm_states.find_jobs(arguments)
        if not job_ids:
            return None
        answer = subprocess.run(["scancel", *job_ids], capture_output=True, text=True, timeout=60)
    except (SlurmSilentError, OSError, subprocess.TimeoutExpired):
        return "perhaps Slurm has taken the job all the same: `squeue --me` shows it, `scancel` ends it"
    if answer.returncode:
        return f"Slurm had taken it as job {' '.join(job_ids)}; end that with scancel: {answer.stderr.strip()}"
    return f"Slurm had taken it as job {' '.join(job_ids)}, which was cancelled"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C waits for the cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _to_slurm(
    jobs: Sequence[QueueJob],
    config: Config,
    scripts: Mapping[str, Path],
    results: Results,
    active: Sequence[JobState],
) -> list[JobFolder]:
    """`active`: this project's jobs that are not over; `max_parallel_jobs` counts them."""
    from pipeline.submission.slurm import variables_in_words

    if words := variables_in_words():
        print(words)
    of_slurm = [one.submission for one in active if one.submission and one.submission.executor == "slurm"]
    job_ids = [*dict.fromkeys(one.job_id for one in sorted(of_slurm, key=lambda one: one.submitted_at_unix_s))]
    folders: list[JobFolder] = []
    submitted: dict[str, str] = {}
    refused: dict[str, ProjectError] = {}
    last: deque[str] = deque(maxlen=SAME_REFUSALS_BEFORE_GIVING_UP)
    for job in jobs:
        if len(last) == SAME_REFUSALS_BEFORE_GIVING_UP and len(set(last)) == 1:
            break
        after = _lane(job_ids, config.cluster.max_parallel_jobs)
        try:
            found, job_id = _hand_over(job, scripts[job.name], config, results, after)
        except (RecordError, SubmissionError) as error:
            refused[job.name] = error
            last.append(str(error))
            if isinstance(error, RecordError) or NO_ANSWER.search(str(error)):
                break  # the disk is full, or sbatch has tried for a minute: with the next job it would be the same
            continue
        last.clear()
        what = f", with {', '.join(pair.name for pair in job.pairs)}" if job.gpus else ""
        print(f"{job.name}: submitted as job {job_id}{what}")
        submitted[job.name] = job_id
        job_ids.append(job_id)
        folders += found
    if folders:
        print(f"Their logs: {near(results.jobs)}")
    if refused:
        untried = [job.name for job in jobs if job.name not in submitted.keys() | refused.keys()]
        raise SubmissionError(_refusal(submitted, refused, untried, config.site_file))
    return folders


def _refusal(
    submitted: Mapping[str, str], refused: Mapping[str, ProjectError], untried: Sequence[str], site_file: str
) -> str:
    """What was submitted, by which numbers, what was not and why, and what to do."""
    kept = ", ".join(f"{name} (job {job_id})" for name, job_id in submitted.items())
    total = len(submitted) + len(refused) + len(untried)
    lines = [f"Submitted {len(submitted)} of {total} job{'' if total == 1 else 's'}{f': {kept}' if kept else ''}."]
    lines += [f"  {name}: {error}" for name, error in refused.items()]
    if untried:
        more = [f"and {len(untried) - MOST_NAMED} more"] if len(untried) > MOST_NAMED else []
        lines.append(f"  not tried after that: {', '.join([*untried[:MOST_NAMED], *more])}")
    last = [*refused.values()][-1]
    ways = f"Correct `cluster` or `gpus` in {site_file}, or wait for the end of some jobs if these are too many"
    if isinstance(last, RecordError):
        ways = "Make room"
    elif NO_ANSWER.search(str(last)):
        ways = "Nothing has to be changed. Wait until `sinfo` answers on this machine"
    return "\n".join([*lines, f"{ways}, and run the same command again: {shlex.join(['python', *sys.argv])}"])


def _hand_over(
    job: QueueJob, script: Path, config: Config, results: Results, after: str | None
) -> tuple[list[JobFolder], str]:
    """The folders of its pairs, and its number. Raises SubmissionError and RecordError; then nothing is left of it."""
    plans = {results.new_job_folder(pair): pair for pair in job.pairs}
    folder = results.new_job_folder(job.name) if job.gpus else next(iter(plans))
    with _noted([folder, *plans], partial(_take_back, folder)):
        for each, pair in plans.items():
            write_plan(pair, each)
        if job.gpus:
            write_atomically(folder.cells, "".join(f"{each.root}\n" for each in plans), replace=False)
        submission = _sbatch(folder, script, config, job_arguments(results, folder), after)
        for each in plans:
            write_atomically(each.submission, submission.model_dump_json(indent=1), replace=False)
    return [*plans], submission.job_id


def _lane(job_ids: list[str], max_parallel_jobs: int | None) -> str | None:
    """The job whose end this one waits for, so that at most so many of the project run at the same time."""
    if max_parallel_jobs is None or len(job_ids) < max_parallel_jobs:
        return None
    return job_ids[-max_parallel_jobs]


def _sbatch(folder: JobFolder, script: Path, config: Config, arguments: Sequence[str], after: str | None) -> Submission:
    """Raises SubmissionError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from pipeline.submission.slurm import RunJob, ScriptSlurm, sbatch_command

    executor = ScriptSlurm(folder.root, script, after=after)
    executor.update_parameters(time=config.cluster.time_limit_minutes)  # all else is in the script's header
    try:
        # submitit prints what sbatch complains about; it is said once, with all the refusals, at the end.
        with contextlib.redirect_stderr(io.StringIO()):
            job = executor.submit(RunJob(arguments))
    except (FailedJobError, FailedSubmissionError) as error:
        raise SubmissionError(str(error).strip() or "sbatch failed without a word") from error
    return Submission(
        executor="slurm",
        job_id=str(job.job_id),
        script=str(script.absolute()),
        command=tuple(sbatch_command(script.resolve(), folder.root, after)),
        node=socket.gethostname(),
        submitted_at_unix_s=time.time(),
    )


def _to_local_queue(jobs: Sequence[QueueJob], scripts: Mapping[str, Path], results: Results) -> list[JobFolder]:
    """Start one process of its own session that runs the jobs one after the other, and leave."""
    frozen = {results.new_job_folder(pair): pair for pair in pairs_of(jobs)}
    folders = [*frozen]
    started: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        for queue in started:
            queue.terminate()
            queue.wait()

    with _noted(folders, end):
        for folder, pair in frozen.items():
            write_plan(pair, folder)
            shutil.copyfile(scripts[pair.name], folder.script)
        queue, command = _start_queue(folders, results)
        started.append(queue)
        # The queue starts a job only when its submission.json is there.
        for folder, pair in frozen.items():
            submission = Submission(
                executor="local",
                job_id=str(queue.pid),
                script=str(scripts[pair.name].absolute()),
                command=tuple(command),
                node=socket.gethostname(),
                submitted_at_unix_s=time.time(),
            )
            write_atomically(folder.submission, submission.model_dump_json(indent=1), replace=False)
    _QUEUES.append(queue)
    count = f"{len(folders)} job{'' if len(folders) == 1 else 's'}"
    print(f"{count} in the local queue (process {queue.pid}), logs in {near(results.jobs)}")
    return folders


def _start_queue(folders: Sequence[JobFolder], results: Results) -> "tuple[subprocess.Popen[bytes], list[str]]":
    """The process and its command. Raises OSError."""
    command = [sys.executable, "-m", LOCAL_QUEUE, *(str(folder.root) for folder in folders)]
    with results.local_queue_log.open("ab") as output:
        queue = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C and the end of this shell do not reach it
        )
    # The kernel shows a new process without its command line at first, and whoever looked then would call it gone.
    shown_by = time.monotonic() + QUEUE_SHOWN_S
    while not is_local_queue(queue.pid, folders[0]) and queue.poll() is None and time.monotonic() < shown_by:
        time.sleep(0.001)
    return queue, command
