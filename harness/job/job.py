"""The job: the loop over a plan's measurements, each in fresh processes, one record each. Imports no framework.

What has a good record already is skipped, so a requeued or repeated job goes on where it was. On SIGINT, SIGTERM or
SIGUSR2 the measurement at hand is given up, and everything recorded stays.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from harness.errors import ProjectError, RecordError
from harness.job.caches import remove_leftovers
from harness.job.children import JOB_SIGNALS, Children, RanksStuckError
from harness.job.cut_offs import LAST_AFTER, TIMEOUT_AFTER, CutOffs
from harness.job.interleaved import Candidate, Side, SideReport, counterparts, work_in_turns
from harness.job.parity_run import ParityRun
from harness.job.progress import Heartbeat, Teller
from harness.job.ranks import RanksReport
from harness.job.tracker import NullTracker, Tracker, open_tracker
from harness.job.turn import turn
from harness.job.warm_start import explains_itself, has_warm_start, start_twice, with_warm_start
from harness.measure.channel import ChildTask, Event
from harness.measure.gpu import EXCLUSIVE_MODES, open_gpu
from harness.paths import JobFolder, Results, timestamp
from harness.plan import PARTNERS, First, JobPlan, Measurement, Share
from harness.results.environment import code_digests, describe_environment, load_average
from harness.results.fake_gpu import HEADLINE, is_of_a_fake
from harness.results.flags import quality_flags
from harness.results.parity_file import ParityFiles
from harness.results.parity_gate import ParityGate
from harness.results.partner import ratio_so_far
from harness.results.quantities import summary_numbers
from harness.results.record import (
    DataIdentity,
    Record,
    WeightsIdentity,
    active_s,
    find_settled_record,
    read_record,
    write_record,
)
from harness.results.screening import describe_choice, going_on, screened, screening_records
from harness.work.declared import operations_of, use_case
from harness.work.registration import first_replicates, first_variant

EXIT_FAILED = 1
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Stopped(BaseException):
    """A signal asked the job to end early. Not an Exception, so that nothing on the way takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """A measurement that goes on."""

    measurement: Measurement
    path: Path
    """Of its record."""
    is_followed: bool
    """W&B has its run from the beginning: a job has one at a time."""
    log: Path
    task: ChildTask


class Job:
    """One run of one plan, or of one share of it: the screening, a replicate, or one of the headline alone."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        folder: JobFolder,
        results: Results,
        data: DataIdentity | None,
        weights: Mapping[str, WeightsIdentity],
        share: Share | None,
        pairing: dict[str, str | int | None],
    ) -> None:
        """
        Args:
            weights: pretrained ones, by model.
            share: the only one to take; the progress is that of the whole plan all the same.

        Raises:
            ConfigError: the ranks of the plan's cell cannot be started from here.
        """
        self.plan = plan
        self.folder = folder
        self.results = results
        self.data = data
        self.weights = weights
        self.environment = describe_environment() | {"pairing": pairing}
        self.share = share
        self._first = first_variant(plan)
        self.screenings = list(plan.screenings())
        self.replicates = list(plan.replicates())
        """Those of the modes that can still be the fastest, once that is known."""
        slurm = self.environment["slurm"] or {}
        self.progress = Heartbeat(
            measurements_total=len(self.screenings) + len(self.replicates),
            screenings_total=len(self.screenings),
            is_before_screening=isinstance(share, First),
            node=self.environment["node"],
            pid=os.getpid(),
            slurm_job_id=slurm.get("job_id"),
            restart_count=int(slurm.get("restart_count") or 0),
        )
        self.teller = Teller(self.progress, folder.heartbeat, plan.framework)
        self.children = Children(plan.framework, plan.cell, while_waiting=self._when_waiting, tell=self._tell_of_wait)
        self._jobs: tuple[Job, ...] = (self,)
        self.cut_offs = CutOffs(folder.cut_offs)
        self._at_hand: Measurement | None = None
        self.tracker: Tracker = NullTracker()
        self.gate = ParityGate(results)
        self.parity = ParityRun(
            plan=plan,
            job=folder.name,
            results=results,
            environment=self.environment,
            work=self._work,
            is_per_node=self.children.is_per_node,
        )
        if not self._takes("screening"):
            for other in self.screenings:
                self._count(other)
            self._choose()

    @property
    def _is_on_fake(self) -> bool:
        """A GPU that computes nothing: a test of this project itself."""
        return is_of_a_fake(self.environment)

    def _takes(self, share: Share) -> bool:
        return self.share in (None, share)

    def _takes_replicate(self, measurement: Measurement) -> bool:
        """An arm of a replicate leaves out what an arm before the screening has measured."""
        if self.share is None or self.share == "screening":
            return self.share is None
        is_first = measurement.variant == self._first and measurement.replicate in first_replicates(self.plan)
        if isinstance(self.share, First):
            return is_first and measurement.replicate == self.share.replicate
        is_here = measurement.replicate == self.share
        return is_here and not (is_first and self._is_made(measurement))

    def _is_made(self, measurement: Measurement) -> bool:
        """By this job, also where it failed: an arm before the screening tries it again after a requeue. What others
        have made is skipped, and counted so."""
        records = map(_read, self.results.record_files(measurement))
        return any(record.job == self.folder.name for record in records if record is not None)

    def _choose(self) -> None:
        """Of the replicates, keep those of the modes that can still be the fastest. Without a screening that is all."""
        plan, job = self.plan, self.folder.name if self.plan.force else None
        screened = screening_records(plan, self.results, self.environment["scheduler"], job=job)
        kept = going_on(plan, screened)
        self.replicates = list(plan.replicates(kept))
        self.progress.measurements_total = len(self.screenings) + len(self.replicates)
        for other in self.replicates:
            if not self._takes_replicate(other):
                self._count(other)
        if self._takes("screening"):
            for line in describe_choice(plan, screened, kept):
                self.teller.say(line)

    def _candidates(self) -> Iterator[Candidate]:
        plan = self.plan
        job = self.folder.name if plan.force else None
        records = screening_records(plan, self.results, self.environment["scheduler"], job=job)
        of_use_case = use_case(plan.cell.use_case_name)
        for measurement in self._taken():
            variant = measurement.variant
            found = screened(records[variant.key].result) if variant.key in records else None
            yield Candidate(
                measurement=measurement,
                many_steps=of_use_case.mode(plan.framework, variant.execution_mode).several_steps,
                samples_per_s=found.throughput_samples_per_s if found else 0.0,
            )

    def _count(self, measurement: Measurement) -> None:
        """One that this run leaves to others: with a record that it need not make again, or one that this job made in
        an earlier run, it is done."""
        settled = self._settled_record(measurement)
        paths = [settled] if settled else self.results.record_files(measurement)
        records = [record for path in paths if (record := _read(path)) is not None]
        records = records if settled else [record for record in records if record.job == self.folder.name]
        if not records:
            return
        record = records[-1]
        self._count_record(record)
        if record.job != self.folder.name:
            self.progress.measurements_skipped += 1
            return
        self._count_made(measurement, active_s(record))

    def _count_made(self, measurement: Measurement, lasted_s: float) -> None:
        self.progress.measurements_made += 1
        if not measurement.is_screening:
            self.progress.replicates_made += 1
            self.progress.measuring_s += lasted_s

    def _count_record(self, record: Record) -> None:
        self.progress.measurements_done += 1
        self.progress.screenings_done += record.measurement.is_screening
        if record.outcome in ("failed", "timeout"):
            self.progress.measurements_failed += 1
            self.progress.last_error = f"{record.measurement.key}: {record.reason}"

    def _settled_record(self, measurement: Measurement) -> Path | None:
        """With --force only one that this job made: once is enough, also after a requeue."""
        job = self.folder.name if self.plan.force else None
        return find_settled_record(measurement, self.results, self.environment["scheduler"], job=job)

    def run(self, other: "Job | None" = None) -> int:
        """The exit status: 0, or 1 where a measurement failed or the job cannot go on.

        Args:
            other: the other framework's job, of the same replicate. Both are run: their processes take turns.

        Raises:
            Stopped: by a signal. No process is left, and everything that was measured is recorded.
            ProjectError: the records cannot be written.
        """
        jobs = (self,) if other is None else (self, other)
        before = [job._open(jobs) for job in jobs]
        try:
            with stop_on_signal(), turn(tell=self._tell_of_wait, warn=self.teller.say):
                if self._takes("screening"):
                    for measurement in self._in_order(self.screenings):
                        self._measure_unless_settled(measurement)
                    self._choose()
                for job in jobs:
                    job._compute_parity(job._taken())
                for step in _steps(jobs):
                    if len(step) == 1:
                        [(job, measurement)] = step
                        job._measure_unless_settled(measurement)
                    else:
                        _measure_in_turns(*step)
        except Stopped as stopped:
            for job in jobs:
                job._tell_of_stop(stopped)
            raise
        except ProjectError as error:
            for job in jobs:
                job.progress.last_error = str(error)
                job.teller.beat("stopped")
            if not isinstance(error, RanksStuckError):
                raise
            self.teller.say(f"error: {error}")
            return EXIT_FAILED
        finally:
            for job in jobs:
                job._close()
        return max([job._sum_up(progress) for job, progress in zip(jobs, before, strict=True)])

    def _open(self, jobs: "tuple[Job, ...]") -> Heartbeat:
        """Returns the progress before this run."""
        self._jobs = jobs
        self.teller.say(f"{self.plan.name}: {self._what_is_to_do()}, records in {self.results.records(self.plan.cell)}")
        remove_leftovers()
        before = self.progress.model_copy()
        self.tracker = NullTracker() if self._is_on_fake else open_tracker(self.plan.wandb, self.results)
        self.progress.current = "its turn"
        self.teller.beat()
        return before

    def _close(self) -> None:
        self.children.close()
        self.tracker.close()
        self._tell_of_tracker()

    def _tell_of_stop(self, stopped: Stopped) -> None:
        if stopped.number == signal.SIGUSR2 and self._at_hand is not None:
            self.cut_offs.note(self._at_hand, warn=self.teller.say)
        self.teller.beat("stopped")
        done, total = self.progress.measurements_done, self.progress.measurements_total
        self.teller.say(f"stopped by a signal after {done} of {total}; a later run goes on here")

    def _sum_up(self, before: Heartbeat) -> int:
        """The exit status."""
        progress = self.progress
        is_done = progress.measurements_done == progress.measurements_total
        if not is_done:
            progress.current = None
            progress.set_phase("waits for its turn", None, None)
        self.teller.beat("done" if is_done else "waiting")
        failed = progress.measurements_failed - before.measurements_failed
        self.teller.say(
            f"done: {progress.measurements_made - before.measurements_made} measured, "
            f"{progress.measurements_skipped - before.measurements_skipped} had a record, {failed} failed"
        )
        return EXIT_FAILED if failed else 0

    def _when_waiting(self) -> None:
        for job in self._jobs:
            job.teller.when_due()

    def _taken(self) -> list[Measurement]:
        """The replicates of this run."""
        return [each for each in self.replicates if self._takes_replicate(each)]

    def _tell_of_wait(self, words: str) -> None:
        self.progress.set_phase(words, None, None)
        self.teller.say(words, once=True)
        self.teller.when_due()

    def _what_is_to_do(self) -> str:
        here = [
            *(self.screenings if self._takes("screening") else ()),
            *self._taken(),
        ]
        total = self.progress.measurements_total
        of_all = f"{len(here)} measurements" if len(here) == total else f"{len(here)} of {total} measurements"
        return f"at most {of_all}" if self.screenings and self.share is None else of_all

    def _compute_parity(self, measurements: Iterable[Measurement]) -> None:
        """For what will be measured, and for records whose numbers cannot be read any more. A program that fails here
        has no ratio later, and is measured all the same."""
        if self._is_on_fake:
            return
        self.progress.current = "parity gate"
        files, code = ParityFiles(self.results), code_digests(self.plan.framework)

        def lacks(measurement: Measurement) -> bool:
            path = self._settled_record(measurement)
            record = _read(path) if path else None
            return record is None or files.can_be_repaired(record, code)

        self.parity.compute(each for each in measurements if lacks(each))
        for variant, reason in self.parity.failures.items():
            self.teller.say(f"no parity numbers, so no ratio: {variant}: {reason}")

    def _measure_unless_settled(self, measurement: Measurement) -> None:
        progress = self.progress
        progress.current = measurement.key
        if self._settled_record(measurement):
            progress.measurements_skipped += 1
            progress.measurements_done += 1
            progress.screenings_done += measurement.is_screening
            return
        start = time.monotonic()
        if self.cut_offs.of(measurement) < TIMEOUT_AFTER:
            self._at_hand = measurement
            record = self._measure(measurement)
            self._at_hand = None
        else:
            record = self._own_timeout(measurement) or self._give_up(measurement)
        self._count_new(record, time.monotonic() - start)

    def _count_new(self, record: Record, lasted_s: float) -> None:
        self._count_made(record.measurement, lasted_s)
        self._count_record(record)
        self.teller.say(f"[{self.progress.fraction()}] {_describe_outcome(record)}")
        self.teller.beat()

    def may_take_turns(self, measurement: Measurement) -> bool:
        """One that was cut off again and again is shorter by itself."""
        return self.cut_offs.of(measurement) < LAST_AFTER and not self._settled_record(measurement)

    def _in_order(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """As given; what was cut off more than once comes last, so that it blocks nothing."""
        return sorted(measurements, key=lambda measurement: self.cut_offs.of(measurement) >= LAST_AFTER)

    def _own_timeout(self, measurement: Measurement) -> Record | None:
        """Which an earlier run of this job has left."""
        records = [_read(path) for path in self.results.record_files(measurement)]
        own = [record for record in records if record and record.job == self.folder.name]
        return next((record for record in own if record.outcome == "timeout"), None)

    def _give_up(self, measurement: Measurement) -> Record:
        times = self.cut_offs.of(measurement)
        now = _now()
        record = Record(
            measurement_id=measurement.id,
            measurement=measurement,
            outcome="timeout",
            reason=f"cut off {times} times by the end of the job's time, or by a preemption. Raise time_limit_minutes "
            f"in experiments.yaml, or make it shorter",
            job=self.folder.name,
            data=self.data,
            weights=self.weights.get(measurement.variant.model),
            registration=self.plan.registration,
            started_at=now,
            ended_at=now,
            environment=self.environment,
        )
        write_record(record, self.results.new_record(measurement))
        return record

    def _measure(self, measurement: Measurement) -> Record:
        """Leave a record, whatever becomes of the measurement's processes."""
        attempt, started_at = self._begin(measurement), _now()
        report = self._work(attempt.task, attempt.log)
        return self._conclude(attempt, report, started_at)

    def _begin(self, measurement: Measurement, *, is_followed: bool = True) -> _Attempt:
        path = self.results.new_record(measurement)
        self.environment["load_average"] = load_average()
        if is_followed:
            self.tracker.begin(measurement, self.environment)
        task = ChildTask(
            measurement=measurement,
            data_dir=self.plan.data_dir,
            explain=explains_itself(measurement),
            timeline=str(self.results.timeline_of(path)),
        )
        log = self.results.log_of(path)
        return _Attempt(measurement=measurement, path=path, is_followed=is_followed, log=log, task=task)

    def _conclude(
        self, attempt: _Attempt, report: RanksReport, started_at: str, pairing: Mapping[str, Any] | None = None
    ) -> Record:
        """The warm start, and the record. `pairing`: what it has beside the job's own."""
        measurement, timing = attempt.measurement, attempt.measurement.timing
        report = self._without_a_fake_s(report)
        result = report.result
        if not attempt.is_followed:
            self.tracker.begin(measurement, self.environment)
        try:
            if result is not None and has_warm_start(measurement):
                result = result.model_copy(update={"compile_time_warm_absent": "the job ended before it was measured"})
                result = with_warm_start(result, start_twice(attempt.task, attempt.log, self._work))
        finally:  # also where a signal ends the job meanwhile: what was measured is recorded
            environment = self.environment | report.environment
            if pairing is not None:
                environment["pairing"] = environment["pairing"] | pairing
            record = Record(
                measurement_id=measurement.id,
                measurement=measurement,
                outcome=report.outcome,
                reason=report.reason,
                flags=quality_flags(result, environment, timing.target_noise, timing.latency_calls) if result else {},
                job=self.folder.name,
                data=self.data,
                weights=self.weights.get(measurement.variant.model),
                registration=self.plan.registration,
                started_at=started_at,
                ended_at=_now(),
                environment=environment | {"wandb_url": self.tracker.url},
                result=result,
                ranks=report.ranks,
                parity=self.parity.file_of(measurement),
            )
            write_record(record, attempt.path)
        summary = summary_numbers(result, operations_of(measurement)) if result else {}
        self.tracker.end(record, summary | ratio_so_far(record, self.results, self.gate))
        self._tell_of_tracker()
        return record

    def _without_a_fake_s(self, report: RanksReport) -> RanksReport:
        """The job itself does not begin on a fake GPU; it does not load all that its processes load."""
        if not is_of_a_fake(report.environment) or self.results.fake_gpu.is_file():
            return report
        return RanksReport(outcome="failed", reason=HEADLINE, environment=report.environment)

    def _side(self, attempt: _Attempt) -> Side:
        def pass_over(_event: Event) -> None:
            """What the other run of this job is told of, if anything."""

        hear = self._hear if attempt.is_followed else pass_over
        return Side(children=self.children, task=attempt.task, log=attempt.log, hear=hear)

    def _conclude_side(
        self, attempt: _Attempt, side: SideReport, started_at: str, other: Measurement, turns: str | None
    ) -> Record:
        """
        Args:
            turns: names these two processes; None where they did not take turns to the end.
        """
        report, active_s = side.report, side.active_s
        pairing: dict[str, Any] = {"not_interleaved": f"{other.framework} {other.key} was over before"}
        if turns is not None:
            pairing = {"kind": "interleaved", "partner": other.id, "turns": turns}
        if report.outcome == "out_of_memory" and side.was_beside:
            self.teller.say(f"{attempt.measurement.key}: out of memory beside the other process; once more, alone")
            start = time.monotonic()
            report = self._work(attempt.task, attempt.log)
            active_s += time.monotonic() - start
            pairing = {"not_interleaved": f"it ran out of memory beside {other.framework} {other.key}"}
        return self._conclude(attempt, report, started_at, pairing | {"active_s": active_s})

    def _work(self, task: ChildTask, log: Path, hear: Callable[[Event], None] = lambda _event: None) -> RanksReport:
        """Do it on every rank; rank 0's events are shown live, and `hear` gets them."""

        def hear_all(event: Event) -> None:
            self._hear(event)
            hear(event)

        self.progress.set_phase("start", 0, 1)
        return self.children.work(task, log, hear_all)

    def _hear(self, event: Event) -> None:
        match event:
            case {"kind": "progress", "content": content}:
                self.progress.set_phase(content["phase"], content["done"], content["total"])
            case {"kind": "metrics", "content": values}:
                self.tracker.log(values)

    def _tell_of_tracker(self) -> None:
        """What W&B has to say: where the run is, or why it is offline."""
        self.progress.wandb_url = self.tracker.url
        if self.tracker.message:
            self.teller.say(self.tracker.message, once=True)


Step = tuple[tuple[Job, Measurement], ...]
"""A measurement alone, or two whose processes take turns, the first of them first."""


def _steps(jobs: Sequence[Job]) -> Iterator[Step]:
    """All measurements of this run; what was cut off more than once comes last."""
    first, *others = jobs
    taken = [(job, each) for job in jobs for each in job._taken()]
    taken.sort(key=lambda one: one[0].cut_offs.of(one[1]) >= LAST_AFTER)
    partners = _counterparts(first, others[0]) if others else _planted_partners(first)
    mode = None if first.plan.cell.is_for_cpu or not partners else open_gpu().describe().get("compute_mode")
    if mode in EXCLUSIVE_MODES:
        first.teller.say(f"one process after the other, not in turns: the GPU takes one at a time (it is {mode})")
        partners = {}
    of_id = {each.id: (job, each) for job, each in taken}
    seen: set[str] = set()
    for job, measurement in taken:
        if measurement.id in seen:
            continue
        pair = [(job, measurement)]
        if (partner := of_id.get(partners.get(measurement.id, ""))) is not None:
            pair.append(partner)
            if not all(one.may_take_turns(each) for one, each in pair):
                pair.pop()
            elif others and measurement.replicate % 2:
                pair.reverse()
        seen |= {each.id for _, each in pair}
        yield tuple(pair)


def _counterparts(one: Job, other: Job) -> dict[str, str]:
    """By the ids of measurements: with which of the other framework's each takes turns."""
    pairs = [(ours.id, theirs.id) for ours, theirs in counterparts(one._candidates(), other._candidates())]
    return dict(pairs) | {theirs: ours for ours, theirs in pairs}


def _planted_partners(job: Job) -> dict[str, str]:
    """The same of a calibration, in one framework."""
    by_planted = {(each.replicate, each.variant.planted): each.id for each in job._taken()}
    return {
        id_: by_planted[replicate, PARTNERS[planted]]
        for (replicate, planted), id_ in by_planted.items()
        if planted in PARTNERS
    }


def _measure_in_turns(first: tuple[Job, Measurement], second: tuple[Job, Measurement]) -> None:
    """Leave two records, whatever becomes of the processes; where a signal ends the job, none."""
    pairs = (first, second)
    attempts: list[_Attempt] = []
    followed: list[Job] = []
    for job, measurement in pairs:
        job.children.require_none_stuck()
        job.progress.current = measurement.key
        job.progress.set_phase("start", 0, 1)
        job._at_hand = measurement
        attempts.append(job._begin(measurement, is_followed=job not in followed))
        followed.append(job)
    started_at = _now()
    sides = [job._side(attempt) for (job, _), attempt in zip(pairs, attempts, strict=True)]
    reports, took_turns = work_in_turns(sides, first[0]._when_waiting)
    turns = timestamp() if took_turns else None
    for (job, _), attempt, report, (_, other) in zip(pairs, attempts, reports, pairs[::-1], strict=True):
        record = job._conclude_side(attempt, report, started_at, other, turns)
        job._at_hand = None
        job._count_new(record, active_s(record))


@contextmanager
def stop_on_signal() -> Iterator[None]:
    """Raise Stopped on the signals that end a job; a signal that the caller ignores stays ignored."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)  # once is enough; cleaning up is not to be interrupted
        raise Stopped(number)

    before = {number: signal.getsignal(number) for number in JOB_SIGNALS}
    handled = [number for number in JOB_SIGNALS if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _read(path: Path) -> Record | None:
    try:
        return read_record(path)
    except RecordError:
        return None


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
