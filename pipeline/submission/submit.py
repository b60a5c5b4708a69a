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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import RecordError, SubmissionError
from harness.experiments.model import Config
from harness.files import write_atomically
from harness.job.staging import pack
from harness.locks import hold
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import Framework, JobPlan, Pair
from harness.plan_file import write_plan
from harness.printable import near, wrapped
from harness.results.looks import needed
from harness.results.record import find_settled
from harness.slurm_words import NO_ANSWER, PERHAPS_HEARD
from pipeline.report.software import software_of
from pipeline.submission.estimate import estimate_in_words, estimates_of
from pipeline.submission.render import time_limits
from pipeline.submission.whole_nodes import WholeNode, at_once_in_words
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
    pairs: list[Pair],
    config: Config,
    scripts: dict[str, Path],
    *,
    executor: Executor,
    results: Results,
    node: str | None = None,
    nodes: Sequence[WholeNode] = (),
    with_estimate: bool = True,
) -> list[JobFolder]:
    """Submit every job that is needed. Prints one line for each.

    Of a job of both frameworks only what is needed: where one is measured, queued or running already, the other one's
    records say that it was measured alone.

    Args:
        node: of a fleet: the only one that the jobs may run on, whose results lie beside those of the others.
        nodes: the jobs that have a whole node for several of the pairs.
        with_estimate: print how long all of it takes.

    Returns:
        The jobs to follow: the new ones, and those that were queued or running already.

    Raises:
        SubmissionError: one or more jobs were refused; the message has sbatch's words and what was submitted.
    """
    if executor == "slurm" and FILLED_IN.search(str(results.root)):
        raise SubmissionError(
            f"--results {str(results.root)!r}: submitit fills in %j, %t, %a and %A, and Slurm takes no line break; "
            f"choose a folder without these in its name"
        )
    with alone(results):
        return _submit(pairs, config, scripts, executor, results, node, nodes, with_estimate=with_estimate)


@contextmanager
def alone(results: Results) -> Iterator[None]:
    """Two commands at once would both find that a job is needed, or that none is there."""
    said: set[str] = set()

    def tell(who: str) -> None:
        if not said:
            print(f"waits for {who}, which submits to {results.root} or packs it just now", flush=True)
            said.add(who)

    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks
            stack.enter_context(hold(results.submit_lock, while_waiting=tell))
        yield


def _submit(
    pairs: list[Pair],
    config: Config,
    scripts: dict[str, Path],
    executor: Executor,
    results: Results,
    node: str | None,
    nodes: Sequence[WholeNode],
    *,
    with_estimate: bool,
) -> list[JobFolder]:
    """The states are read, and the jobs handed over, under one lock."""
    everywhere = [state for state in job_states(results) if state.is_active]
    results = results.of_node(node) if node else results
    following: list[JobFolder] = []
    needed_by_name = _needed(pairs, results, executor, everywhere, following)
    needed = [*needed_by_name.values()]
    if needed and with_estimate:
        limits = time_limits((part.cell for part in needed), config) if executor == "slurm" else []
        estimates = estimates_of(needed, results, executor)
        how = at_once_in_words(needed, estimates, nodes)
        print(wrapped(estimate_in_words(estimates, limits, requeue=config.cluster.requeue, at_once=bool(how))))
        for sentence in how:
            print(wrapped(sentence))
    if executor == "slurm":
        from pipeline.submission.slurm import variables_in_words

        if needed and (words := variables_in_words()):
            print(words)
        for framework in dict.fromkeys(framework for pair in needed for framework in pair.frameworks):
            if (launch := config.launch(framework)).stage_environment:
                pack(launch)
        submissions = [state.submission for state in everywhere if state.submission]
        submissions.sort(key=lambda submission: submission.submitted_at_unix_s)
        earlier = dict.fromkeys(submission.job_id for submission in submissions if submission.executor == "slurm")
        again = _needed([one.alone for one in nodes if one.alone], results.alone, executor, everywhere, following)
        jobs = _jobs_of_slurm(needed_by_name, again, nodes)
        return following + _submit_to_slurm(jobs, config, scripts, results, [*earlier], node)
    return following + _submit_to_local_queue(needed, scripts, results)


def _needed(
    pairs: Iterable[Pair],
    results: Results,
    executor: Executor,
    everywhere: Sequence[JobState],
    following: list[JobFolder],
) -> dict[str, Pair]:
    """What is neither measured nor under way, by the names of `pairs`, of which one framework may be left; the folders
    of what is under way are added to `following`."""
    active = [one for one in everywhere if one.folder.results.root.absolute() == results.root.absolute()]
    left: dict[str, Pair] = {}
    for pair in pairs:
        plans: list[JobPlan] = []
        for plan in pair.jobs:
            if job := job_that_measures(plan, active):
                print(f"{plan.name}: {job.state} already, {_who(job)}")
                following += [job.folder] if job.folder not in following else []
            else:
                plans.append(plan)
        releases = None if pair.force or not plans else measured_with(plans, results, executor)
        if releases is not None:
            for plan in plans:
                found = " and ".join(sorted(releases[plan.framework]))
                of = f", of {plan.framework} {found}" if found else ""
                print(f"{plan.name}: every measurement has a record{of} (measure again with --force)")
        elif plans:
            is_interleaved = pair.is_interleaved and len(plans) == 2
            left[pair.name] = pair.model_copy(update={"jobs": tuple(plans), "is_interleaved": is_interleaved})
    return left


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


def job_arguments(folder: JobFolder, results: Results) -> list[str]:
    """Of the job whose frozen plan is in the folder."""
    return ["--results", str(results.root.absolute()), "--job-folder", str(folder.root.absolute())]


def _new_folder(pair: Pair | str, results: Results) -> JobFolder:
    return Results(root=results.root.absolute()).new_job_folder(pair)


@dataclass(frozen=True, kw_only=True)
class _SlurmJob:
    """What one sbatch hands over."""

    name: str
    """Of its script."""
    pairs: Sequence[Pair]
    alone: Pair | None = None
    has_node: bool = False


def _jobs_of_slurm(
    needed: Mapping[str, Pair], again: Mapping[str, Pair], nodes: Sequence[WholeNode]
) -> list[_SlurmJob]:
    """`needed`, `again`: what is to be measured, and what once more alone, by the names of the nodes' pairs."""
    left, jobs = dict(needed), []
    for node in nodes:
        pairs = [left.pop(pair.name) for pair in node.pairs if pair.name in left]
        once_more = again.get(node.alone.name) if node.alone else None
        if pairs or once_more:
            jobs.append(_SlurmJob(name=node.name, pairs=pairs, alone=once_more, has_node=True))
    return [_SlurmJob(name=pair.name, pairs=[pair]) for pair in left.values()] + jobs


class _TakenBackError(SubmissionError):
    """What Slurm had taken could not be noted."""


@contextmanager
def _undone(folder: JobFolder, others: Iterable[JobFolder] = ()) -> Iterator[None]:
    """Whatever ends a submission before it is noted, a refusal, a full disk or Ctrl-C, leaves no folder, and no job of
    Slurm that nobody knows. `others`: the folders of what shares the job."""
    try:
        yield
    except BaseException as error:
        with _uninterrupted():
            is_refused = isinstance(error, SubmissionError) and not PERHAPS_HEARD.search(str(error))
            note = None if is_refused else _take_back(folder)
            for each in (folder, *others):
                shutil.rmtree(each.root, ignore_errors=True)
        if note is not None and isinstance(error, OSError):
            raise _TakenBackError(f"{_in_words(error)}; {note}") from error
        if note is not None and isinstance(error, SubmissionError):
            raise SubmissionError(f"{error}; {note}") from error
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


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot write {error.filename or 'the files of the job'}: {error.strerror or error}"
    return str(error)


def _out_of_room(name: str, error: Exception, submitted: Mapping[str, str]) -> SubmissionError:
    kept = ", ".join(f"{other} (job {job_id})" for other, job_id in submitted.items())
    way_out = "" if isinstance(error, RecordError) else ". Free space or choose another folder with --results DIR"
    return SubmissionError(
        f"{name}: {_in_words(error)}{way_out}\n{f'Submitted: {kept}.' if kept else 'Nothing was submitted.'} "
        f"Run the same command again."
    )


@dataclass
class _Refusals:
    """What sbatch said no to, and when to stop asking."""

    site_file: str
    words: dict[str, str] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    in_a_row: list[str] = field(default_factory=list)
    """The words of those since the last job that was taken."""

    @property
    def last_are_the_same(self) -> bool:
        last = self.in_a_row[-SAME_REFUSALS_BEFORE_GIVING_UP:]
        return len(last) == SAME_REFUSALS_BEFORE_GIVING_UP and len(set(last)) == 1

    def take(self, name: str, words: str) -> None:
        self.words[name] = words
        self.in_a_row.append(words)

    @property
    def is_silence(self) -> bool:
        """sbatch itself has tried for a minute or so; the next job would only wait as long."""
        return any(NO_ANSWER.search(words) for words in self.words.values())

    def error(self, submitted: dict[str, str]) -> SubmissionError:
        total = len(self.words) + len(self.untried) + len(submitted)
        what = "Slurm's controller did not answer for" if self.is_silence else "Slurm refused"
        lines = [f"{what} {len(self.words)} of {total} job{'' if total == 1 else 's'}."]
        lines += [f"  {name}: {words}" for name, words in self.words.items()]
        if self.untried:
            after = "that" if self.is_silence else f"the same answer {SAME_REFUSALS_BEFORE_GIVING_UP} times in a row"
            more = len(self.untried) - MOST_NAMED
            named = ", ".join([*self.untried[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
            lines.append(f"  not tried after {after}, {len(self.untried)} of {total}: {named}")
        kept = ", ".join(f"{name} (job {job_id})" for name, job_id in submitted.items())
        lines.append(f"Submitted: {kept}." if kept else "Nothing was submitted.")
        if self.is_silence:
            lines.append("Nothing has to be changed. Run the same command again when `sinfo` answers on this machine.")
        else:
            lines.append(
                f"Correct `cluster` or `gpus` in {self.site_file}, or wait for the end of some jobs if these are too "
                f"many, and run the same command again: {shlex.join(['python', *sys.argv])}"
            )
        return SubmissionError("\n".join(lines))


def _submit_to_slurm(
    jobs: Sequence[_SlurmJob],
    config: Config,
    scripts: dict[str, Path],
    results: Results,
    earlier: Sequence[str],
    node: str | None,
) -> list[JobFolder]:
    """`earlier`: this project's jobs that are not over, oldest first; `max_parallel_jobs` counts them."""
    following: list[JobFolder] = []
    submitted: dict[str, str] = {}
    refusals = _Refusals(site_file=config.site_file)
    for job in jobs:
        if refusals.is_silence or refusals.last_are_the_same:
            refusals.untried.append(job.name)
            continue
        after = _lane([*earlier, *submitted.values()], config.cluster.max_parallel_jobs)
        plans = {_new_folder(pair, results): pair for pair in job.pairs}
        alone = _new_folder(job.alone, results.alone) if job.alone else None
        folder = _new_folder(job.name, results) if job.has_node else next(iter(plans))
        arguments = job_arguments(folder, results)
        if job.has_node:
            own = [word for one in plans for word in ("--job-folder", str(one.root))]
            arguments = [*arguments[:2], "--lanes", *own]
        if alone is not None and job.alone is not None:
            plans[alone] = job.alone
            arguments += ["--alone", str(alone.root)]
        try:
            with _undone(folder, plans):
                for each, pair in plans.items():
                    write_plan(pair, each)
                submission = _sbatch(folder, scripts[job.name], config, arguments, after, node)
                for each in plans:
                    write_atomically(each.submission, submission.model_dump_json(indent=1), replace=False)
        except (OSError, RecordError, _TakenBackError) as error:
            raise _out_of_room(job.name, error, submitted) from error
        except SubmissionError as error:
            refusals.take(job.name, str(error))
            continue
        refusals.in_a_row.clear()
        what = f", with {', '.join(pair.name for pair in job.pairs)}" if job.has_node else ""
        print(f"{job.name}: submitted as job {submission.job_id}{f' on {node}' if node else ''}{what}")
        submitted[job.name] = submission.job_id
        following += plans
    if following:
        print(f"Their logs: {near(results.jobs)}")
    if refusals.words:
        raise refusals.error(submitted)
    return following


def _lane(job_ids: list[str], max_parallel_jobs: int | None) -> str | None:
    """The job whose end this one waits for, so that at most so many of the project run at the same time."""
    if max_parallel_jobs is None or len(job_ids) < max_parallel_jobs:
        return None
    return job_ids[-max_parallel_jobs]


def _sbatch(
    folder: JobFolder, script: Path, config: Config, arguments: Sequence[str], after: str | None, node: str | None
) -> Submission:
    """Raises SubmissionError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from pipeline.submission.slurm import RunJob, ScriptSlurm, sbatch_command

    executor = ScriptSlurm(folder.root, script, after=after, node=node)
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
        command=tuple(sbatch_command(script.resolve(), folder.root, after, node)),
        node=socket.gethostname(),
        submitted_at_unix_s=time.time(),
    )


def _submit_to_local_queue(pairs: Sequence[Pair], scripts: dict[str, Path], results: Results) -> list[JobFolder]:
    """Start one process of its own session that runs the jobs one after the other, and leave."""
    if not pairs:
        return []
    frozen = {_new_folder(pair, results): pair for pair in pairs}
    folders = list(frozen)
    try:
        with _ended_unless_noted(folders) as started:
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
    except (OSError, RecordError) as error:
        raise _out_of_room("the local queue", error, {}) from error
    _QUEUES.append(queue)
    jobs = f"{len(folders)} job{'' if len(folders) == 1 else 's'}"
    print(f"{jobs} in the local queue (process {queue.pid}), logs in {near(results.jobs)}")
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


@contextmanager
def _ended_unless_noted(folders: Sequence[JobFolder]) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """As `_undone`, of the local queue: whoever starts it puts it into the list."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    except BaseException:
        with _uninterrupted():
            for queue in started:
                queue.terminate()
                queue.wait()
            for folder in folders:
                shutil.rmtree(folder.root, ignore_errors=True)
        raise
