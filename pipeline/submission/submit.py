"""Hands jobs over, to Slurm or to this machine's own queue, and leaves: no process has to stay for them.

What is measured already, and what is queued or running already, is not submitted again.
"""

import contextlib
import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import RecordError, SubmissionError
from harness.experiments.model import Config
from harness.files import write_atomically
from harness.locks import hold
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import JobPlan, Pair, Pairing
from harness.plan_file import write_plan
from harness.results.environment import code_digests
from harness.results.parity_file import ParityFiles
from harness.results.record import find_settled
from harness.results.screening import needed
from harness.slurm_words import NO_ANSWER, PERHAPS_HEARD
from pipeline.submission.estimate import estimate_in_words, estimates_of
from pipeline.submission.pairing import Arm, arms_of
from pipeline.watching import slurm_states
from pipeline.watching.jobs import LOCAL_QUEUE, JobState, Submission, is_local_queue, job_states, slurm_arguments
from pipeline.watching.slurm_states import SlurmSilentError

Executor = Literal["slurm", "local"]

_QUEUES: list[subprocess.Popen[bytes]] = []
"""Local queues are left running on purpose; Python warns about a process whose object is let go."""

QUEUE_SHOWN_S = 5.0
"""At most, until the kernel shows a new process as what it is."""
SAME_REFUSALS_BEFORE_GIVING_UP = 3
"""When sbatch refuses the first jobs in the same words, it would refuse the others too (a wrong account,
say)."""

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
    pairing: Pairing,
    executor: Executor,
    results: Results,
) -> list[JobFolder]:
    """Submit every job of these pairs that is needed. Prints one line for each.

    Unless the pairing is `separate`, two jobs of a cell that are both needed share an allocation. Where one framework
    is measured, queued or running already, or not asked for, the other gets a job of its own, and its records say so.

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
    with _alone(results):
        return _submit(pairs, config, scripts, pairing=pairing, executor=executor, results=results)


@contextmanager
def _alone(results: Results) -> Iterator[None]:
    """Two commands at once would both find that a job is needed."""
    said: set[str] = set()

    def tell(who: str) -> None:
        if not said:
            print(f"waits for {who}, which submits to {results.root} just now", flush=True)
            said.add(who)

    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks
            stack.enter_context(hold(results.submit_lock, while_waiting=tell))
        yield


def _submit(
    pairs: list[Pair],
    config: Config,
    scripts: dict[str, Path],
    *,
    pairing: Pairing,
    executor: Executor,
    results: Results,
) -> list[JobFolder]:
    """The states are read, and the jobs handed over, under one lock."""
    active = [state for state in job_states(results) if state.is_active]
    following: list[JobFolder] = []
    needed: list[Pair] = []
    for pair in pairs:
        plans: list[JobPlan] = []
        for plan in pair.jobs:
            if twin := find_twin(plan, active):
                print(f"{plan.name}: {twin.state} already, {_who(twin)}")
                following.append(twin.folder)
            elif not plan.force and is_measured(plan, results, executor):
                print(f"{plan.name}: every measurement has a record (measure again with --force)")
            else:
                plans.append(plan)
        needed += split(pair.model_copy(update={"jobs": tuple(plans)}), pairing)
    if needed:
        estimates, limit = estimates_of(needed, results, executor), config.cluster.time_limit_minutes
        print(estimate_in_words(estimates, limit, has_limit=executor == "slurm"))
    if executor == "slurm":
        from pipeline.submission.slurm import variables_in_words

        if needed and (words := variables_in_words()):
            print(words)
        submissions = [state.submission for state in active if state.submission]
        submissions.sort(key=lambda submission: submission.submitted_at_unix_s)
        earlier = [submission.job_id for submission in submissions if submission.executor == "slurm"]
        return following + _submit_to_slurm(needed, config, scripts, results, list(dict.fromkeys(earlier)))
    return following + _submit_to_local_queue(needed, scripts, results)


def _who(twin: JobState) -> str:
    if twin.job_id is not None:
        return f"as job {twin.job_id}"
    beat = twin.heartbeat
    return f"started by hand{f' as process {beat.pid} on {beat.node}' if beat else ''}"


def split(pair: Pair, pairing: Pairing) -> list[Pair]:
    """The parts of a pair that are submitted each by itself: a part of two jobs runs them in turn."""
    if pairing != "separate" and len(pair.jobs) == 2:
        return [pair]
    return [pair.model_copy(update={"jobs": (plan,)}) for plan in pair.jobs]


def script_name(part: Pair) -> str:
    """The key of its script in what write_scripts returns."""
    return part.name if len(part.jobs) > 1 else part.jobs[0].name


def is_measured(plan: JobPlan, results: Results, executor: Executor) -> bool:
    """Also that the parity gate can read what it needs of each record: a job computes anew what it cannot."""
    files, code = ParityFiles(results), code_digests(plan.framework)
    for each in needed(plan, results, executor):
        found = find_settled(each, results, executor)
        if found is None or files.can_be_repaired(found[1], code):
            return False
    return True


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


def run_script(plan: JobPlan) -> str:
    """From the repository's root."""
    return f"{plan.framework}_runner/run.py"


def run_arguments(
    folder: JobFolder,
    results: Results,
    arm: Arm | None = None,
    pair: str | None = None,
    *,
    partner: JobFolder | None = None,
) -> list[str]:
    """run.py's arguments for the job whose frozen plan is in the folder.

    Args:
        arm: of a job that runs in turn with the other framework's.
        pair: names that run of both, where it is no Slurm job.
        partner: the other framework's, where the arm is of both.
    """
    return [
        *("--results", str(results.root.absolute())),
        *("--job-folder", str(folder.root.absolute())),
        *(("--replicate", str(arm.share), "--position", str(arm.position)) if arm else ()),
        *(("--pair", pair) if pair else ()),
        *(("--interleaved", str(partner.root.absolute())) if partner else ()),
    ]


def _new_folder(plan: JobPlan, results: Results) -> JobFolder:
    return Results(root=results.root.absolute()).new_job_folder(plan)


def _freeze(part: Pair, folders: Sequence[JobFolder]) -> None:
    """Each plan in its folder, where no later edit of experiments.yaml changes it."""
    for plan, folder in zip(part.jobs, folders, strict=True):
        write_plan(plan, folder)


class _TakenBackError(SubmissionError):
    """What Slurm had taken could not be noted."""


@contextmanager
def _undone(folders: Sequence[JobFolder]) -> Iterator[None]:
    """Whatever ends a submission before it is noted, a refusal, a full disk or Ctrl-C, leaves no folder, and no job of
    Slurm that nobody knows."""
    try:
        yield
    except BaseException as error:
        with _uninterrupted():
            is_refused = isinstance(error, SubmissionError) and not PERHAPS_HEARD.search(str(error))
            note = None if is_refused else _take_back(folders)
            for folder in folders:
                shutil.rmtree(folder.root, ignore_errors=True)
        if note is not None and isinstance(error, OSError):
            raise _TakenBackError(f"{_in_words(error)}; {note}") from error
        if note is not None and isinstance(error, SubmissionError):
            raise SubmissionError(f"{error}; {note}") from error
        if note is not None:
            print(note)
        raise


def _take_back(folders: Sequence[JobFolder]) -> str | None:
    """Cancel the job of these folders, if Slurm has taken it. Returns what became of it; None where there is none."""
    arguments = slurm_arguments(["slurm", *(str(folder.root) for folder in folders)])
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

    words: dict[str, str] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)

    @property
    def all_the_same(self) -> bool:
        return len(self.words) >= SAME_REFUSALS_BEFORE_GIVING_UP and len(set(self.words.values())) == 1

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
            count = len(self.words)
            lines.append(
                f"  not tried after {'that' if count == 1 else f'the same answer {count} times'}: "
                f"{', '.join(self.untried)}"
            )
        kept = ", ".join(f"{name} (job {job_id})" for name, job_id in submitted.items())
        lines.append(f"Submitted: {kept}." if kept else "Nothing was submitted.")
        if self.is_silence:
            lines.append("Nothing has to be changed. Run the same command again when `sinfo` answers on this machine.")
        else:
            lines.append("Correct `cluster` or `gpus` in experiments.yaml and run the same command again.")
        return SubmissionError("\n".join(lines))


def _submit_to_slurm(
    parts: Sequence[Pair],
    config: Config,
    scripts: dict[str, Path],
    results: Results,
    earlier: Sequence[str],
) -> list[JobFolder]:
    """`earlier`: this project's jobs that are not over, oldest first; `max_parallel_jobs` counts them."""
    following: list[JobFolder] = []
    submitted: dict[str, str] = {}
    refusals = _Refusals()
    for part in parts:
        name = script_name(part)
        if refusals.is_silence or (refusals.all_the_same and not submitted):
            refusals.untried.append(name)
            continue
        after = _lane([*earlier, *submitted.values()], config.cluster.max_parallel_jobs)
        folders = [_new_folder(plan, results) for plan in part.jobs]
        try:
            with _undone(folders):
                _freeze(part, folders)
                submissions = _sbatch(part, folders, scripts, config, results, after)
                for folder, submission in zip(folders, submissions, strict=True):
                    write_atomically(folder.submission, submission.model_dump_json(indent=1), replace=False)
        except (OSError, RecordError, _TakenBackError) as error:
            raise _out_of_room(name, error, submitted) from error
        except SubmissionError as error:
            refusals.words[name] = str(error)
            continue
        for plan, folder, submission in zip(part.jobs, folders, submissions, strict=True):
            log = folder.root / f"{submission.job_id}_0_log.out"
            where = f"in turn with the other framework, logs in {folder.root}" if submission.partner else f"log {log}"
            print(f"{plan.name}: submitted as job {submission.job_id}, {where}")
        submitted[name] = submissions[0].job_id
        following += folders
    if refusals.words:
        raise refusals.error(submitted)
    return following


def _lane(job_ids: list[str], max_parallel_jobs: int | None) -> str | None:
    """The job whose end this one waits for, so that at most so many of the project run at the same time."""
    if max_parallel_jobs is None or len(job_ids) < max_parallel_jobs:
        return None
    return job_ids[-max_parallel_jobs]


def _sbatch(
    part: Pair,
    folders: Sequence[JobFolder],
    scripts: dict[str, Path],
    config: Config,
    results: Results,
    after: str | None,
) -> list[Submission]:
    """One job for all of `part`. Raises SubmissionError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from pipeline.submission.slurm import sbatch_command

    script = scripts[script_name(part)].absolute()
    submit_part = _submit_pair if len(part.jobs) > 1 else _submit_single
    try:
        # submitit prints what sbatch complains about; it is said once, with all the refusals, at the end.
        with contextlib.redirect_stderr(io.StringIO()):
            job_id = submit_part(part, folders, scripts, config, results, after)
    except (FailedJobError, FailedSubmissionError) as error:
        raise SubmissionError(str(error).strip() or "sbatch failed without a word") from error
    command = sbatch_command(script.resolve(), *(folder.root for folder in folders), after=after)
    return [
        Submission(
            executor="slurm",
            job_id=job_id,
            script=str(script),
            command=tuple(command),
            node=socket.gethostname(),
            submitted_at_unix_s=time.time(),
            partner=_partner(folder, folders),
        )
        for folder in folders
    ]


def _partner(folder: JobFolder, folders: Sequence[JobFolder]) -> str | None:
    """The folder of the other framework's job in the same allocation."""
    return next((str(other.root) for other in folders if other is not folder), None)


def _submit_single(
    part: Pair,
    folders: Sequence[JobFolder],
    scripts: dict[str, Path],
    config: Config,
    results: Results,
    after: str | None,
) -> str:
    from pipeline.submission.slurm import RunScript, ScriptSlurm

    [plan], [folder] = part.jobs, folders
    executor = ScriptSlurm(folder.root, scripts[plan.name], after=after)
    executor.update_parameters(time=config.cluster.time_limit_minutes)  # all else is in the script's header
    return str(executor.submit(RunScript(run_script(plan), run_arguments(folder, results))).job_id)


def _submit_pair(
    part: Pair,
    folders: Sequence[JobFolder],
    scripts: dict[str, Path],
    config: Config,
    results: Results,
    after: str | None,
) -> str:
    from pipeline.submission.slurm import PairSlurm, RunScript

    sides = {plan.framework: (plan, folder) for plan, folder in zip(part.jobs, folders, strict=True)}
    for plan, folder in sides.values():
        # sbatch keeps a copy of the pair's script only; those that it calls are frozen here.
        shutil.copyfile(scripts[plan.name], folder.script)
    runs = {}
    for arm in arms_of(part):
        plan, folder = sides[arm.framework]
        arm_folder = folder.arm(arm.share)
        arm_folder.mkdir()
        partner = sides[arm.partner][1] if arm.partner else None
        arguments = run_arguments(folder, results, arm, partner=partner)
        runs[arm_folder] = RunScript(run_script(plan), arguments, stop_marker=arm_folder / "stopped")
    executor = PairSlurm([folder.root for folder in folders], scripts[part.name], after=after)
    return executor.submit_arms(runs, time_limit_minutes=config.cluster.time_limit_minutes)


def _submit_to_local_queue(parts: Sequence[Pair], scripts: dict[str, Path], results: Results) -> list[JobFolder]:
    """Start one process of its own session that runs the jobs one after the other, or two in turn, and leave."""
    if not parts:
        return []
    frozen = [(part, [_new_folder(plan, results) for plan in part.jobs]) for part in parts]
    everything = [folder for _, folders in frozen for folder in folders]
    try:
        with _ended_unless_noted(everything) as started:
            for part, folders in frozen:
                _freeze(part, folders)
                for plan, folder in zip(part.jobs, folders, strict=True):
                    shutil.copyfile(scripts[plan.name], folder.script)
            queue, command = _start_queue(everything, results)
            started.append(queue)
            # The queue starts a job only when its submission.json is there.
            for part, folders in frozen:
                for plan, folder in zip(part.jobs, folders, strict=True):
                    submission = Submission(
                        executor="local",
                        job_id=str(queue.pid),
                        script=str(scripts[plan.name].absolute()),
                        command=tuple(command),
                        node=socket.gethostname(),
                        submitted_at_unix_s=time.time(),
                        partner=_partner(folder, folders),
                    )
                    write_atomically(folder.submission, submission.model_dump_json(indent=1), replace=False)
    except (OSError, RecordError) as error:
        raise _out_of_room("the local queue", error, {}) from error
    _QUEUES.append(queue)
    for part, folders in frozen:
        for plan, folder in zip(part.jobs, folders, strict=True):
            print(f"{plan.name}: in the local queue (process {queue.pid}), logs in {folder.root}")
    return everything


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
