"""The job: works through a plan, each measurement in a fresh child process, one record each. Imports no framework.

On several devices a measurement has a child for each; this process is the parent of rank 0's, and an agent
(harness/agent.py) that of every other. In a Slurm step this process is rank 0's task, and the other tasks are agents.

    python jax_runner/run.py --benchmark cifar10 --use_case 3          by hand, or from a rendered script
    python jax_runner/run.py ... --job-folder DIR                      from main.py: DIR/plan.json is what runs
    python jax_runner/run.py ... --replicate 0                         one replicate: an arm of a pair

What has a good record already is skipped, so a requeued or repeated job goes on where it was. On SIGINT, SIGTERM or
SIGUSR2 the measurement at hand is given up, everything recorded stays, and the exit status is 75 (to be resumed).
"""

import argparse
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from harness import data
from harness.agent import run_agent
from harness.catalog import process_per_node
from harness.child import CompilerCaches, Event
from harness.environment import describe_environment, describe_slurm
from harness.errors import ConfigError, ProjectError, RecordError
from harness.files import write_atomically
from harness.heartbeat import Heartbeat, write_heartbeat
from harness.measure import compile_time_s
from harness.parity_job import ParityRun
from harness.paths import REPOSITORY, JobFolder, Results, stamp_of
from harness.plan import PLAN_SCHEMA_VERSION, JobPlan, Measurement
from harness.ranks import Ranks, RanksReport
from harness.record import Record, Result, find_settled_record, read_record, write_record
from harness.rendezvous import slurm_rendezvous
from harness.session import ChildTask, run_child
from harness.settings import Framework
from harness.statistics import median, quality_flags, summary_numbers
from harness.team import Events, RankLostError, Team, rendezvous_of_started_agent, send_home
from harness.tracking import Tracker, open_tracker

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later
BEAT_EVERY_S = 3.0
PRINT_EVERY_S = 10.0


class Stopped(BaseException):
    """A signal asked the job to end early."""


def main(framework: Framework, arguments: list[str] | None = None) -> int:
    """Entry of both runners' run.py. Returns the exit status: 0, 1 a measurement failed, 2 usage, 75 stopped early."""
    parsed = _parse_arguments(framework, arguments)
    if parsed.child is not None:
        return run_child(parsed.child, framework)
    if parsed.agent:
        return run_agent(framework, rendezvous_of_started_agent())
    rendezvous = slurm_rendezvous()
    if rendezvous is not None and rendezvous.rank > 0:
        return run_agent(framework, rendezvous)
    try:
        plan, folder, results = _plan_of(framework, parsed)
        data.load(plan.cell.benchmark, plan.data, Path(plan.data_dir))  # fail now, not in every child
        job = Job(
            plan=plan,
            folder=folder,
            results=results,
            replicate=_checked_replicate(plan, parsed.replicate),
            pairing=describe_pairing(parsed.position, parsed.pair, is_submitted=parsed.job_folder is not None),
        )
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        if rendezvous is not None:
            send_home(rendezvous)
        return EXIT_USAGE
    try:
        return job.run()
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _parse_arguments(framework: str, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{framework}_runner/run.py",
        description=f"Measure one cell of experiments.yaml with {framework}, here and now.",
        epilog="Example: %(prog)s --benchmark cifar10 --use_case 3 --data sample --quick",
        allow_abbrev=False,
    )
    parser.add_argument("--benchmark", help="a name under `benchmarks` in experiments.yaml")
    parser.add_argument("--use_case", "--use-case", type=int, help="a number under `use_cases`")
    parser.add_argument(
        "--gpu", default="any", help="a name under `gpus` (default: any); only a label when run by hand"
    )
    parser.add_argument("--data", choices=("real", "sample"), default="real", help="sample needs no download")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few steps, one replicate")
    parser.add_argument("--force", action="store_true", help="measure again what has a good record")
    parser.add_argument("--replicate", type=int, metavar="N", help="only this one, from 0 (default: all)")
    parser.add_argument(
        "--position", type=int, metavar="N", help="place among the arms of a pair, from 0; recorded, no more"
    )
    parser.add_argument("--pair", metavar="ID", help="the run of the pair that it is an arm of; recorded, no more")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "experiments.yaml", metavar="FILE")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", metavar="DIR")
    parser.add_argument("--job-folder", type=Path, metavar="DIR", help="run DIR/plan.json (main.py uses this)")
    parser.add_argument("--child", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--agent", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    given = (parsed.benchmark is not None and parsed.use_case is not None) or parsed.job_folder
    given = given or parsed.child or parsed.agent
    if not given:
        parser.error("--benchmark and --use_case are needed, such as --benchmark cifar10 --use_case 3")
    return parsed


def _plan_of(framework: Framework, parsed: argparse.Namespace) -> tuple[JobPlan, JobFolder, Results]:
    """The frozen plan of a submitted job, or one made now from experiments.yaml, in a job folder of its own."""
    results = Results(root=parsed.results.resolve())
    if parsed.job_folder:
        folder = JobFolder(root=parsed.job_folder.resolve())
        plan = read_plan(folder.plan)
        if plan.framework != framework:
            raise ConfigError(
                f"{folder.plan}: is a plan for {plan.framework}. Run it with {plan.framework}_runner/run.py."
            )
        return plan, folder, results
    from harness.config import load_config
    from harness.matrix import Selection, expand

    selection = Selection(
        gpus=(parsed.gpu,),
        benchmarks=(parsed.benchmark,),
        use_cases=(parsed.use_case,),
        frameworks=(framework,),
        data=parsed.data,
        quick=parsed.quick,
        force=parsed.force,
    )
    pairs = expand(load_config(parsed.config), selection)
    plan = pairs[0].jobs[0]
    folder = results.new_job_folder(plan)
    write_plan(plan, folder)
    return plan, folder, results


def _checked_replicate(plan: JobPlan, replicate: int | None) -> int | None:
    """Raises ConfigError for one that the plan does not have."""
    last = plan.protocol.replicates - 1
    if replicate is not None and not 0 <= replicate <= last:
        raise ConfigError(
            f"--replicate {replicate}: the plan has {plan.protocol.replicates} replicates; valid: 0 to {last}. "
            f"measurement.replicates in experiments.yaml sets how many there are."
        )
    return replicate


def describe_pairing(
    position: int | None, pair: str | None = None, *, is_submitted: bool
) -> dict[str, str | int | None]:
    """For the record: how near the other framework's run of the same replicate was.

    `together`: in turn with it, in one allocation or on one machine. `separate`: main.py gave it a job of its own.

    Args:
        pair: names one run of the arms. In a Slurm job it may be left out: the job and its restart are the run.
    """
    if position is None:
        return {"kind": "separate" if is_submitted else "by hand", "position": None}
    slurm = describe_slurm()
    if pair is None and slurm is not None:
        pair = f"{slurm['job_id']}.{slurm['restart_count']}"
    return {"kind": "together", "position": position, "pair": pair}


def write_plan(plan: JobPlan, folder: JobFolder) -> None:
    try:
        write_atomically(folder.plan, plan.model_dump_json(indent=1), replace=False)
    except OSError as error:
        raise RecordError(
            f"cannot write {folder.plan}: {error.strerror or error}. "
            f"Free space, or choose another folder with --results DIR."
        ) from error


def read_plan(path: Path) -> JobPlan:
    """Raises RecordError that names the file when it is missing, truncated or of another schema."""
    try:
        plan = JobPlan.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RecordError(f"{path}: not a job plan: {where}: {first['msg']}. Submit the job again.") from error
    if plan.schema_version != PLAN_SCHEMA_VERSION:
        raise RecordError(
            f"{path}: a job plan of schema version {plan.schema_version}; this code reads {PLAN_SCHEMA_VERSION}. "
            f"Submit the job again."
        )
    return plan


@dataclass
class Progress:
    """What the heartbeat and the plain lines tell."""

    total: int
    done: int = 0
    failed: int = 0
    skipped: int = 0
    measured: int = 0
    measured_s: float = 0.0
    current: str | None = None
    phase: str | None = None
    phase_done: float | None = None
    phase_total: float | None = None
    last_error: str | None = None
    wandb_url: str | None = None
    started_at_unix_s: float = field(default_factory=time.time)

    @property
    def eta_s(self) -> float | None:
        return (self.total - self.done) * self.measured_s / self.measured if self.measured else None


class Job:
    """One run of one plan, or of one replicate of it."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        folder: JobFolder,
        results: Results,
        replicate: int | None = None,
        pairing: dict[str, str | int | None] | None = None,
    ) -> None:
        """`replicate`: the only one to measure; the progress is that of the whole plan all the same."""
        self.plan = plan
        self.folder = folder
        self.results = results
        self.team = Team(plan.framework, plan.cell)
        self.process_per_node = process_per_node(REPOSITORY / f"{plan.framework}_runner", plan.cell.use_case_name)
        self.environment = describe_environment() | {"pairing": pairing or describe_pairing(None, is_submitted=False)}
        self.parity = ParityRun(
            plan=plan,
            folder=folder,
            results=results,
            team=self.team,
            process_per_node=self.process_per_node,
            environment=self.environment,
            listen=self._listen,
        )
        measurements = list(plan.measurements())
        self.measurements = [each for each in measurements if replicate in (None, each.replicate)]
        self.progress = Progress(total=len(measurements))
        for other in measurements:
            if replicate not in (None, other.replicate):
                self._count(other)
        self._last_beat = self._last_line = 0.0
        self._printed: set[str] = set()

    def _count(self, measurement: Measurement) -> None:
        """One that this run leaves to others: with a record that it need not make again, or one that this job made in
        an earlier run, it is done."""
        progress = self.progress
        path = self._settled_record(measurement)
        made_by_this_job = [each for each in self.results.record_files(measurement) if self._is_of_this_job(each)]
        if path is None and not made_by_this_job:
            return
        try:
            record = read_record(path or made_by_this_job[-1])
        except RecordError:
            return
        progress.done += 1
        if record.outcome in ("failed", "timeout"):
            progress.failed += 1
            progress.last_error = f"{measurement.key}: {record.reason}"
        if path is not None and not self._is_of_this_job(path):
            progress.skipped += 1
            return
        progress.measured += 1
        lasted = datetime.fromisoformat(record.ended_at) - datetime.fromisoformat(record.started_at)
        progress.measured_s += lasted.total_seconds()

    def _is_of_this_job(self, record: Path) -> bool:
        return stamp_of(record) >= self.folder.stamp

    def _settled_record(self, measurement: Measurement) -> Path | None:
        """With --force only one that this job made: once is enough, also after a requeue."""
        path = find_settled_record(measurement, self.results, self.environment["scheduler"])
        return None if path and self.plan.force and not self._is_of_this_job(path) else path

    def run(self) -> int:
        here, total = len(self.measurements), self.progress.total
        count = f"{here} measurements" if here == total else f"{here} of {total} measurements"
        self._print(f"{self.plan.name}: {count}, records in {self.results.records()}")
        before = replace(self.progress)
        tracker = open_tracker(self.plan.wandb, self.results)
        try:
            with _stop_on_signal():
                self._beat("running")
                self._set_phase("waiting for the other ranks", 0, 1)
                self.team.gather(while_waiting=self._beat_when_due)
                self._compute_parity()
                for measurement in self.measurements:
                    self._measure_unless_settled(measurement, tracker)
        except Stopped:
            self._beat("stopped")
            self._print(
                f"stopped by a signal after {self.progress.done} of {self.progress.total}; a later run goes on here"
            )
            return EXIT_STOPPED
        except RankLostError as error:
            self.progress.last_error = str(error)
            self._beat("stopped")
            self._print(f"error: {error}")
            return EXIT_FAILED
        except ProjectError as error:
            self.progress.last_error = str(error)
            self._beat("stopped")
            raise
        finally:
            self.team.close()
            tracker.close()
            self._tell(tracker)
        progress = self.progress
        if progress.done < progress.total:
            progress.current = None
            self._set_phase("waits for its turn", None, None)
        self._beat("done" if progress.done == progress.total else "waiting")
        failed = progress.failed - before.failed
        self._print(
            f"done: {progress.measured - before.measured} measured, {progress.skipped - before.skipped} had a record, "
            f"{failed} failed"
        )
        return EXIT_FAILED if failed else 0

    def _compute_parity(self) -> None:
        """For what will be measured. A program that fails here has no ratio later, and is measured all the same."""
        self.progress.current = "parity gate"
        self.parity.compute(each for each in self.measurements if self._settled_record(each) is None)
        for variant, reason in self.parity.failures.items():
            self._print(f"no parity numbers, so no ratio: {variant}: {reason}")

    def _measure_unless_settled(self, measurement: Measurement, tracker: Tracker) -> None:
        progress = self.progress
        progress.current = measurement.key
        if self._settled_record(measurement):
            progress.skipped += 1
            progress.done += 1
            return
        start = time.monotonic()
        record = self._measure(measurement, tracker)
        progress.measured_s += time.monotonic() - start
        progress.measured += 1
        progress.done += 1
        if record.outcome in ("failed", "timeout"):
            progress.failed += 1
            progress.last_error = f"{measurement.key}: {record.reason}"
        self._print(f"[{progress.done}/{progress.total}] {_describe_outcome(record)}")
        self._beat("running")

    def _measure(self, measurement: Measurement, tracker: Tracker) -> Record:
        """Run the child, and leave a record whatever becomes of it."""
        path = self.results.new_record(measurement)
        started_at = _now()
        tracker.begin(measurement, self.environment)
        log = self.results.log_of(path)
        task = ChildTask(measurement=measurement, data_dir=self.plan.data_dir)
        report = self._run_children(task, log, tracker)
        result = report.result
        try:
            if result is not None and has_warm_start(measurement):
                result = result.model_copy(update={"compile_time_warm_absent": "the job ended before it was measured"})
                result = with_warm_start(result, self._start_twice(task, log, tracker))
        finally:  # also where a signal ends the job meanwhile: what was measured is recorded
            environment = self.environment | report.environment
            record = Record(
                measurement_id=measurement.id,
                measurement=measurement,
                outcome=report.outcome,
                reason=report.reason,
                flags=quality_flags(result, environment, measurement.protocol.target_noise) if result else {},
                started_at=started_at,
                ended_at=_now(),
                environment=environment | {"wandb_url": tracker.url},
                result=result,
                ranks=report.ranks,
                parity=self.parity.file_of(measurement),
            )
            write_record(record, path)
        tracker.end(record, summary_numbers(result) if result else {})
        self._tell(tracker)
        return record

    def _start_twice(self, task: ChildTask, log: Path, tracker: Tracker) -> RanksReport:
        """The cold calls in two new processes with the same caches: the first fills them, and the second, which is
        reported, finds them. Both frameworks' caches are on here, whatever their defaults."""
        cold_calls = task.model_copy(update={"cold_calls_only": True})
        log = log.with_name(f"{log.stem}-warm-start{log.suffix}")
        with CompilerCaches() as caches:
            first = self._run_children(cold_calls, log, tracker, caches)
            return first if first.result is None else self._run_children(cold_calls, log, tracker, caches)

    def _run_children(
        self, task: ChildTask, log: Path, tracker: Tracker, caches: CompilerCaches | None = None
    ) -> RanksReport:
        def hear(event: Event) -> None:
            if event["kind"] == "metrics":
                tracker.log(event["content"])

        measurement = task.measurement
        timeout_s = measurement.protocol.timeout_s
        per_node = measurement.variant.execution_mode in self.process_per_node
        with self.team.measuring(task, log, per_node=per_node, caches=caches) as (events, worlds):
            deadline = time.monotonic() + timeout_s
            ranks = Ranks([world.node or self.team.node for world in worlds], log)
            return self._listen(events, ranks, hear, lambda: deadline, f"not done after {timeout_s:g} s; log: {log}")

    def _listen(
        self,
        events: Events,
        ranks: Ranks,
        hear: Callable[[Event], None],
        deadline: Callable[[], float],
        timeout: str,
    ) -> RanksReport:
        """Until every rank's result is here, or the first failure. Rank 0's events are shown live, and `hear` gets
        them."""
        self._set_phase("start", 0, 1)
        while not ranks.are_over(time.monotonic()):
            if time.monotonic() > deadline():
                return ranks.report(timeout=timeout)
            self._beat_when_due()
            try:
                rank, event = events.get(timeout=0.2 if ranks.have_failed else 1.0)
            except queue.Empty:
                continue
            ranks.take(rank, event, time.monotonic())
            if rank > 0:
                continue
            if event["kind"] == "progress":
                content = event["content"]
                self._set_phase(content["phase"], content["done"], content["total"])
            hear(event)
        return ranks.report()

    def _tell(self, tracker: Tracker) -> None:
        """What W&B has to say: where the run is, or why it is offline."""
        self.progress.wandb_url = tracker.url
        if tracker.message:
            self._print(tracker.message, once=True)

    def _set_phase(self, phase: str, done: float | None, total: float | None) -> None:
        self.progress.phase, self.progress.phase_done, self.progress.phase_total = phase, done, total

    def _beat_when_due(self) -> None:
        now = time.monotonic()
        if now - self._last_beat >= BEAT_EVERY_S:
            self._beat("running")
        if now - self._last_line >= PRINT_EVERY_S:
            progress = self.progress
            eta = "" if progress.eta_s is None else f", about {progress.eta_s / 60:.0f} min left"
            self._print(f"[{progress.done + 1}/{progress.total}] {progress.current}: {progress.phase}{eta}")

    def _beat(self, state: str) -> None:
        """A heartbeat that cannot be written costs the display, not the measurement."""
        self._last_beat = time.monotonic()
        progress = self.progress
        slurm = self.environment.get("slurm") or {}
        heartbeat = Heartbeat.model_validate(
            {
                "state": state,
                "measurements_total": progress.total,
                "measurements_done": progress.done,
                "measurements_failed": progress.failed,
                "measurements_skipped": progress.skipped,
                "current": progress.current,
                "phase": progress.phase,
                "phase_done": progress.phase_done,
                "phase_total": progress.phase_total,
                "eta_s": progress.eta_s,
                "last_error": progress.last_error,
                "node": self.environment.get("node") or socket.gethostname(),
                "pid": os.getpid(),
                "slurm_job_id": slurm.get("job_id"),
                "wandb_url": progress.wandb_url,
                "restart_count": int(slurm.get("restart_count") or 0),
                "started_at_unix_s": progress.started_at_unix_s,
                "updated_at_unix_s": time.time(),
            }
        )
        try:
            write_heartbeat(heartbeat, self.folder.heartbeat)
        except OSError as error:
            self._print(f"warning: cannot write {self.folder.heartbeat}: {error.strerror or error}", once=True)

    def _print(self, line: str, *, once: bool = False) -> None:
        self._last_line = time.monotonic()
        if once and line in self._printed:
            return
        self._printed.add(line)
        print(f"{datetime.now(UTC):%H:%M:%S} {self.plan.framework} | {line}", flush=True)


def has_warm_start(measurement: Measurement) -> bool:
    """Once for each variant, as it costs two more starts of the framework. On several devices each rank would need what
    rank 0 has cached, so there it is not measured."""
    return measurement.replicate == 0 and measurement.cell.devices == 1 and not measurement.quick


def with_warm_start(result: Result, again: RanksReport) -> Result:
    """`again`: of a process that did the cold calls only, and found the caches filled."""
    if again.result is None or result.latency is None:
        reason = (again.reason or "no reason").splitlines()[0]
        return result.model_copy(update={"compile_time_warm_absent": f"{again.outcome}: {reason}"})
    times_s = again.result.cold_call_times_s
    warm_s = compile_time_s(times_s, median(result.latency.call_times_s))
    measured = {"compile_time_warm_s": warm_s, "warm_start_call_times_s": times_s, "compile_time_warm_absent": None}
    return result.model_copy(update=measured)


@contextmanager
def _stop_on_signal() -> Iterator[None]:
    """Raise Stopped on the signals that end a job; a signal that the caller ignores stays ignored (submitit's
    worker)."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)  # once is enough; cleaning up is not to be interrupted
        raise Stopped

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _describe_outcome(record: Record) -> str:
    key = record.measurement.key
    if record.outcome != "ok" or record.result is None:
        return f"{key}: {record.outcome}: {record.reason}"
    numbers = summary_numbers(record.result)
    flags = f"  flags: {', '.join(record.flags)}" if record.flags else ""
    return (
        f"{key}: {numbers['throughput_samples_per_s']:,.0f} samples/s, "
        f"p50 {numbers['step_time_p50_s'] * 1e3:.3g} ms, compile {numbers['compile_time_s']:.3g} s{flags}"
    )
