"""One framework's part of a job: its measurements, each in fresh processes, one record each. Imports no framework."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import RecordError
from harness.job.children import Children
from harness.job.cut_offs import LAST_AFTER, TIMEOUT_AFTER, CutOffs
from harness.job.interleaved import Side, SideReport
from harness.job.launch import describe_container
from harness.job.parity_run import ParityRun
from harness.job.progress import Heartbeat, Teller
from harness.job.ranks import RanksReport
from harness.job.steps import Candidate
from harness.job.tracker import Tracker, open_tracker
from harness.job.warm_start import explains_itself, has_warm_start, start_twice, with_warm_start
from harness.measure.channel import ChildTask, Event
from harness.measure.gpu import open_gpu
from harness.paths import JobFolder, Results
from harness.plan import JobPlan, Measurement
from harness.results.code_digest import code_digests
from harness.results.device_peaks import has_device_peaks
from harness.results.environment import load_average
from harness.results.environment_variables import UNSET
from harness.results.flags import quality_flags
from harness.results.looks import Part
from harness.results.model_trace import ModelTrace, read_trace
from harness.results.parity import ParityNumbers, gate_measurement, key_of, work_of
from harness.results.parity_file import ParityFiles, read_parity
from harness.results.parity_gate import ParityGate
from harness.results.partner import LOOK, ratio_so_far
from harness.results.quantities import summary_numbers
from harness.results.record import (
    DataIdentity,
    Outcome,
    Record,
    WeightsIdentity,
    active_s,
    find_settled_record,
    readable_record,
    write_record,
)
from harness.results.screening import describe_choice, going_on, screened, screening_records
from harness.work.declared import operations_of, use_case

PEAKS_TIMEOUT_S = 300.0
"""Limit for the process that measures device peaks: 20 s on a GPU, plus the framework's import."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What both arms of a job share."""

    folder: JobFolder
    results: Results
    data: DataIdentity | None
    weights: Mapping[str, WeightsIdentity]
    """Pretrained ones, by model."""
    environment: Mapping[str, Any]
    progress: Heartbeat
    teller: Teller
    cut_offs: CutOffs


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A measurement that goes on."""

    measurement: Measurement
    path: Path
    """Of its record."""
    log: Path
    task: ChildTask
    started_at: str


class Arm:
    def __init__(
        self, plan: JobPlan, inputs: Inputs, *, while_waiting: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        """
        Args:
            while_waiting: called every second or so.
            tell: what is waited for, where that is not a measurement.

        Raises ConfigError where the ranks of the plan's cell cannot be started from here.
        """
        self.plan = plan
        self._inputs = inputs
        self._results, self._progress, self._teller = inputs.results, inputs.progress, inputs.teller
        self._environment = {**inputs.environment, **describe_container(plan.launch)}
        self.children = Children(plan, inputs.results.root.absolute(), while_waiting=while_waiting, tell=tell)
        self.replicates = list(plan.replicates())
        """At the most, of the modes that can still be the fastest, once that is known."""
        self.part = Part(plan, {}, plan.variants)
        self.measured = 0
        """Since this process began."""
        self._has_failed = False
        self._again: set[str] = set()
        """Ids of measurements that are made once more, whatever record they have."""
        self.tracker = Tracker()
        self._gate = ParityGate(inputs.results)
        self.refusals: dict[str, str] = {}
        """Why nothing is timed of a model, by `work_of` its measurements (model_gate.py)."""
        self._parity = ParityRun(
            plan=plan,
            job=inputs.folder.name,
            results=inputs.results,
            environment=self._environment,
            work=self._work,
            is_per_node=self.children.is_per_node,
        )

    @property
    def _own_only(self) -> str | None:
        """With --force, only a record that this job made counts: once is enough, also after a requeue."""
        return self._inputs.folder.name if self.plan.force else None

    def open(self) -> None:
        self.tracker = open_tracker(self.plan.wandb, self._results, self._inputs.folder.name)

    def finish(self) -> None:
        """Nothing is left to be measured."""
        self.tracker.finish(ratios=list(self._ratios()), has_failed=self._has_failed)

    def _ratios(self) -> Iterator[Mapping[str, float | str | None]]:
        """Of each variant whose last replicate is at a look: the ratio over all of its pairs."""
        last = {one.variant.key: found for one in self.replicates if (found := self.find(one)) is not None}
        for key, record in last.items():
            ratio = ratio_so_far(record, self._results, self._gate)
            if "ratio" in ratio:
                yield {"variant": key} | {name: ratio.get(name) for name in LOOK}

    def close(self) -> None:
        self.children.close()
        self.tracker.close()
        self._tell_of_tracker()

    # What is measured

    def choose(self) -> None:
        """Of the replicates, keep those of the modes that can still be the fastest. Without a screening that is all."""
        records = self._screening_records()
        kept = going_on(self.plan, records)
        self.replicates = list(self.plan.replicates(kept))
        self.part = Part(self.plan, records, kept)
        for line in describe_choice(self.plan, records, kept):
            self._teller.say(line)

    def candidates(self) -> Iterator[Candidate]:
        records = self._screening_records()
        of_use_case = use_case(self.plan.cell.use_case_name)
        for measurement in self.replicates:
            variant = measurement.variant
            found = screened(records[variant.key].result) if variant.key in records else None
            yield Candidate(
                measurement=measurement,
                many_steps=of_use_case.mode(self.plan.framework, variant.execution_mode).several_steps,
                samples_per_s=found.throughput_samples_per_s if found else 0.0,
            )

    def _screening_records(self) -> Mapping[str, Record]:
        return screening_records(self.plan, self._results, self._environment["scheduler"], job=self._own_only)

    def find(self, measurement: Measurement) -> Record | None:
        path = self.settled_record(measurement)
        return readable_record(path) if path else None

    def settled_record(self, measurement: Measurement) -> Path | None:
        if measurement.id in self._again:
            return None
        return find_settled_record(measurement, self._results, self._environment["scheduler"], job=self._own_only)

    @contextmanager
    def once_more(self, measurement: Measurement) -> Iterator[None]:
        """Measure it again meanwhile; the newer record then counts."""
        self._again.add(measurement.id)
        self._progress.measurements_total += 1
        try:
            yield
        finally:
            self._again.remove(measurement.id)

    def may_take_turns(self, measurement: Measurement) -> bool:
        """One that was cut off again and again is shorter by itself."""
        is_whole = self._inputs.cut_offs.of(measurement) < LAST_AFTER and not self.refusal(measurement)
        return is_whole and not self.settled_record(measurement)

    def refusal(self, measurement: Measurement) -> str | None:
        """Why the model of this measurement is not timed; None where it is."""
        return self.refusals.get(work_of(measurement)) if self.refusals else None

    def measure_device_peaks(self) -> None:
        """Measure the peaks of this device, unless there is a record of them. A failure is logged and costs no
        measurement. Quick jobs, calibrations and jobs on several devices have no use for them."""
        plan, folder = self.plan, self._results.device_peaks
        if plan.quick or plan.cell.is_calibration or plan.cell.devices > 1:
            return
        gpu = {} if plan.cell.is_for_cpu else open_gpu().describe()
        if has_device_peaks(folder, plan.framework, gpu, self._environment["cpu"]):
            return
        self._progress.current = f"{plan.framework}: device peaks"
        path = self._results.new_device_peaks(plan.framework)
        task = ChildTask(measurement=_for_peaks(plan), data_dir=plan.data_dir, device_peaks=str(path))
        try:
            report = self._work(task, path.with_suffix(".log"))
        except RecordError as error:
            self._teller.say(f"{plan.framework}: device peaks not measured: {error}")
            return
        outcome = "measured" if report.outcome == "ok" else f"not measured: {report.outcome}: {report.reason}"
        self._teller.say(f"{plan.framework}: device peaks {outcome}")

    def compute_parity(self, measurements: Iterable[Measurement]) -> None:
        """For what will be measured. A program that fails here has no ratio later, and is measured all the same."""
        self._progress.current = f"{self.plan.framework}: parity gate"
        self._parity.compute(each for each in measurements if not self.refusal(each) and self.find(each) is None)
        for variant, reason in self._parity.failures.items():
            self._teller.say(f"{self.plan.framework}: no parity numbers, so no ratio: {variant}: {reason}", once=True)

    def first_replicates(self) -> list[Measurement]:
        return [each for each in self.plan.replicates() if each.replicate == 0]

    def parity_numbers(self, measurement: Measurement) -> ParityNumbers | None:
        """Those that this job has computed, or else those of the record; None where there are none to read."""
        record = self.find(measurement)
        try:
            if (path := self._parity.files.get(key_of(measurement).digest)) is not None:
                return read_parity(path)
            return ParityFiles(self._results).of(record) if record and record.parity else None
        except RecordError:
            return None

    def traced_model(self, measurement: Measurement) -> ModelTrace | None:
        """What the model of the gate is made of; None where its process leaves nothing."""
        path = self._results.new_parity(self.plan.cell, self.plan.framework, "trace")
        gated = gate_measurement(measurement)
        task = ChildTask(measurement=gated, data_dir=self.plan.data_dir, trace=str(path.with_suffix(".trace")))
        try:
            self._work(task, self._results.new_parity_log(self.plan.cell, self.plan.framework))
            return read_trace(Path(task.trace))
        except RecordError:
            return None
        finally:
            Path(task.trace).unlink(missing_ok=True)

    # One measurement

    def measure_unless_settled(self, measurement: Measurement) -> None:
        """Leave a record, whatever becomes of the measurement's processes."""
        self.show(measurement)
        if (path := self.settled_record(measurement)) is not None:
            self._count_settled(readable_record(path), measurement)
            return
        start = time.monotonic()
        if refusal := self.refusal(measurement):
            record = self._leave_untimed(measurement, "failed", f"not timed: {refusal}")
        elif self._inputs.cut_offs.of(measurement) < TIMEOUT_AFTER:
            attempt = self.begin(measurement)
            record = self._conclude(attempt, self._work(attempt.task, attempt.log))
        else:
            record = self._own_timeout(measurement) or self._give_up(measurement)
        self.count(record, time.monotonic() - start)

    def show(self, measurement: Measurement) -> None:
        self._progress.current = f"{measurement.framework} {measurement.key}"

    def _count_settled(self, record: Record | None, measurement: Measurement) -> None:
        """One with a record that need not be made again: this job made it before a requeue, or it is skipped."""
        progress = self._progress
        progress.measurements_done += 1
        progress.screenings_done += measurement.is_screening
        if record is not None and record.job == self._inputs.folder.name:
            self._count_made(measurement, active_s(record))

    def _count_made(self, measurement: Measurement, lasted_s: float) -> None:
        if not measurement.is_screening:
            self._progress.replicates_made += 1
            self._progress.measuring_s += lasted_s

    def count(self, record: Record, lasted_s: float) -> None:
        """A new record."""
        progress, measurement = self._progress, record.measurement
        self.measured += 1
        self._count_made(measurement, lasted_s)
        progress.measurements_done += 1
        progress.screenings_done += measurement.is_screening
        if record.outcome in ("failed", "timeout"):
            self._has_failed = True
            progress.measurements_failed += 1
            progress.last_error = f"{measurement.framework} {measurement.key}: {record.reason}"
        self._teller.say(f"[{progress.fraction()}] {_describe_outcome(record)}")
        self._teller.beat()

    def _own_timeout(self, measurement: Measurement) -> Record | None:
        """Which an earlier run of this job has left."""
        records = [readable_record(path) for path in self._results.record_files(measurement)]
        own = [record for record in records if record and record.job == self._inputs.folder.name]
        return next((record for record in own if record.outcome == "timeout"), None)

    def _give_up(self, measurement: Measurement) -> Record:
        return self._leave_untimed(
            measurement,
            "timeout",
            f"cut off {self._inputs.cut_offs.of(measurement)} times by the end of the job's time, or by a preemption. "
            f"Raise time_limit_minutes in experiments.yaml, or make it shorter",
        )

    def _leave_untimed(self, measurement: Measurement, outcome: Outcome, reason: str) -> Record:
        now = _now()
        record = Record(
            **self._of_record(measurement),
            outcome=outcome,
            reason=reason,
            started_at=now,
            ended_at=now,
            environment=self._environment,
        )
        write_record(record, self._results.new_record(measurement))
        return record

    def _of_record(self, measurement: Measurement) -> dict[str, Any]:
        return {
            "measurement_id": measurement.id,
            "measurement": measurement,
            "job": self._inputs.folder.name,
            "data": self._inputs.data,
            "weights": self._inputs.weights.get(measurement.variant.model),
        }

    def begin(self, measurement: Measurement) -> Attempt:
        self._environment["code"] = code_digests(self.plan.framework, self.plan.cell)
        path = self._results.new_record(measurement)
        self._environment["load_average"] = load_average()
        self.tracker.begin(measurement, self._environment)
        task = ChildTask(
            measurement=measurement,
            data_dir=self.plan.data_dir,
            explain=explains_itself(measurement),
        )
        return Attempt(
            measurement=measurement,
            path=path,
            log=self._results.log_of(path),
            task=task,
            started_at=_now(),
        )

    def _conclude(self, attempt: Attempt, report: RanksReport, pairing: Mapping[str, Any] | None = None) -> Record:
        """The warm start, and the record. `pairing`: what it has beside the job's own."""
        measurement, timing = attempt.measurement, attempt.measurement.timing
        result = report.result
        if result is not None and self.plan.price_per_hour is not None:
            result = result.model_copy(update={"price_per_hour": self.plan.price_per_hour})
        try:
            if result is not None and has_warm_start(measurement):
                result = result.model_copy(update={"compile_time_warm_absent": "the job ended before it was measured"})
                result = with_warm_start(result, start_twice(attempt.task, attempt.log, self._work))
        finally:  # also where a signal ends the job meanwhile: what was measured is recorded
            environment = self._environment | report.environment
            if unset := {**self._environment.get(UNSET, {}), **report.environment.get(UNSET, {})}:
                environment[UNSET] = unset
            if pairing is not None:
                environment["pairing"] = environment["pairing"] | pairing
            record = Record(
                **self._of_record(measurement),
                outcome=report.outcome,
                reason=report.reason,
                flags=quality_flags(result, environment, timing.latency_calls) if result else {},
                started_at=attempt.started_at,
                ended_at=_now(),
                environment=environment | {"wandb_url": self.tracker.url},
                result=result,
                ranks=report.ranks,
                parity=self._parity.file_of(measurement),
            )
            write_record(record, attempt.path)
        summary = summary_numbers(result, operations_of(measurement)) if result else {}
        self.tracker.end(record, summary | ratio_so_far(record, self._results, self._gate))
        self._tell_of_tracker()
        return record

    # Two that take turns

    def side(self, attempt: Attempt) -> Side:
        hear = partial(self._hear, attempt.measurement)
        return Side(children=self.children, task=attempt.task, log=attempt.log, hear=hear)

    def conclude_side(self, attempt: Attempt, side: SideReport, other: Measurement, turns: str | None) -> None:
        """
        Args:
            turns: names these two processes; None where they did not take turns to the end.
        """
        report, active = side.report, side.active_s
        pairing: dict[str, Any] = {"not_interleaved": f"{other.framework} {other.key} was over before"}
        if turns is not None:
            pairing = {"kind": "interleaved", "partner": other.id, "turns": turns}
        if report.outcome == "out_of_memory" and side.was_beside:
            key = f"{attempt.measurement.framework} {attempt.measurement.key}"
            self._teller.say(f"{key}: out of memory beside the other process; once more, alone")
            start = time.monotonic()
            report = self._work(attempt.task, attempt.log)
            active += time.monotonic() - start
            pairing = {"not_interleaved": f"it ran out of memory beside {other.framework} {other.key}"}
        record = self._conclude(attempt, report, pairing | {"active_s": active})
        self.count(record, active_s(record))

    # Its processes

    def _work(self, task: ChildTask, log: Path, hear: Callable[[Event], None] = lambda _event: None) -> RanksReport:
        """Do it on every rank; rank 0's events are shown live, and `hear` gets them."""

        def hear_all(event: Event) -> None:
            self._hear(task.measurement, event)
            hear(event)

        self._progress.set_phase("start", 0, 1)
        return self.children.work(task, log, hear_all)

    def _hear(self, measurement: Measurement, event: Event) -> None:
        match event:
            case {"kind": "progress", "content": content}:
                self._progress.set_phase(content["phase"], content["done"], content["total"])
            case {"kind": "metrics", "content": values}:
                self.tracker.log(measurement, values)

    def _tell_of_tracker(self) -> None:
        """What W&B has to say: where the run is, or why it is offline."""
        if self.tracker.message:
            self._teller.say(self.tracker.message, once=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _for_peaks(plan: JobPlan) -> Measurement:
    """Return a measurement of the plan that every device can set up, with a time limit for device peaks."""
    first = next(iter(plan.replicates()))
    protocol = first.protocol.model_copy(update={"timeout_s": PEAKS_TIMEOUT_S})
    variant = first.variant.model_copy(update={"precision": "fp32"})
    return first.model_copy(update={"protocol": protocol, "variant": variant})


def _describe_outcome(record: Record) -> str:
    key = f"{record.measurement.framework} {record.measurement.key}"
    if record.outcome != "ok" or record.result is None:
        return f"{key}: {record.outcome}: {record.reason}"
    numbers = summary_numbers(record.result)
    flags = f"  flags: {', '.join(record.flags)}" if record.flags else ""
    return (
        f"{key}: {numbers['throughput_samples_per_s']:,.0f} samples/s, "
        f"step {numbers['step_time_s'] * 1e3:.3g} ms, compile {numbers['compile_time_s']:.3g} s{flags}"
    )
