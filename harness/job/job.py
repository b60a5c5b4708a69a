"""The job: one process that measures a cell by both frameworks, or by one, step by step (harness/job/steps.py). Imports
no framework.

What has a good record already is skipped, so a requeued or repeated job goes on where it was. On SIGINT, SIGTERM or
SIGUSR2 the measurement at hand is given up, and everything recorded stays.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

from harness.errors import ProjectError
from harness.job.arm import Arm, Inputs
from harness.job.caches import remove_leftovers
from harness.job.children import JOB_SIGNALS, RanksStuckError
from harness.job.cut_offs import LAST_AFTER, CutOffs
from harness.job.interleaved import work_in_turns
from harness.job.model_gate import Verdict, judge_models
from harness.job.progress import Heartbeat, Teller
from harness.job.steps import Step, counterparts, first_ratio, in_turn, planted_partners, screenings
from harness.job.tracker import WandbTracker
from harness.job.turn import turn
from harness.measure.gpu import EXCLUSIVE_MODES, open_gpu
from harness.paths import JobFolder, Results, timestamp
from harness.plan import Pair
from harness.results.busy import busy_in_words, is_busy
from harness.results.cpus import quota_in_words
from harness.results.environment import describe_environment
from harness.results.environment_variables import UNSET, unset_in_words, unset_steering
from harness.results.looks import rounds
from harness.results.parity_gate import ParityGate
from harness.results.record import DataIdentity, WeightsIdentity
from harness.results.sequential import looks_of

EXIT_FAILED = 1
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Stopped(BaseException):
    """A signal asked the job to end early. Not an Exception, so that nothing on the way takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Job:
    def __init__(
        self,
        pair: Pair,
        folder: JobFolder,
        results: Results,
        *,
        data: DataIdentity | None,
        weights: Mapping[str, WeightsIdentity],
    ) -> None:
        """
        Args:
            weights: pretrained ones, by model.

        Raises ConfigError where the ranks of the cell cannot be started from here.
        """
        self._pair = pair
        self._results = results
        environment = describe_environment()
        if unset := unset_steering(dict(os.environ)):
            environment[UNSET] = unset
        self._notes = unset_in_words(unset)
        if quota := quota_in_words(environment["cpu"].get("quota"), len(environment["cpu"]["affinity"])):
            self._notes.append(f"warning: {quota}")
        slurm = environment["slurm"] or {}
        # One run of the job: what it measures is near in time, on one machine.
        run = f"{slurm['job_id']}.{slurm['restart_count']}" if slurm else timestamp()
        has_both = len(pair.jobs) > 1
        environment["pairing"] = {"kind": "together", "pair": run} if has_both else {"kind": "one framework"}
        self.progress = Heartbeat(
            measurements_total=0,
            node=environment["node"],
            pid=os.getpid(),
            slurm_job_id=slurm.get("job_id"),
        )
        self._teller = Teller(self.progress, folder.heartbeat, pair.name.partition("/")[2])
        self._cut_offs = CutOffs(folder.cut_offs)
        inputs = Inputs(
            folder=folder,
            results=results,
            data=data,
            weights=weights,
            environment=environment,
            progress=self.progress,
            teller=self._teller,
            cut_offs=self._cut_offs,
        )
        self._arms = {
            plan.framework: Arm(plan, inputs, while_waiting=self._teller.when_due, tell=self._tell_of_wait)
            for plan in pair.jobs
        }
        self._at_hand: Step = ()
        self._screenings = screenings(pair.jobs)
        self.progress.screenings_total = len(self._screenings)
        self.progress.measurements_total = pair.measurement_count

    def run(self) -> int:
        """The exit status: 0, or 1 where a measurement failed or the job cannot go on.

        Raises:
            Stopped: by a signal. No process is left, and everything that was measured is recorded.
            ProjectError: the records cannot be written.
        """
        at_most = "at most " if self._screenings or looks_of(self._pair.jobs[0].protocol.replicates) else ""
        count, where = self.progress.measurements_total, self._results.records(self._pair.cell)
        self._teller.say(f"{self._pair.name}: {at_most}{count} measurements, records in {where}")
        for note in self._notes:
            self._teller.say(note)
        remove_leftovers()
        for arm in self._arms.values():
            arm.open()
        self.progress.current = "its turn"
        self._teller.beat()
        try:
            with stop_on_signal(), turn(tell=self._tell_of_wait, warn=self._teller.say):
                for arm in self._arms.values():
                    arm.measure_device_peaks()
                for step in self._steps():
                    self._at_hand = step
                    self._measure(step)
                    self._at_hand = ()
        except Stopped as stopped:
            self._tell_of_stop(stopped)
            raise
        except ProjectError as error:
            self.progress.last_error = str(error)
            self._teller.beat("stopped")
            self._finish()
            if not isinstance(error, RanksStuckError):
                raise
            self._teller.say(f"error: {error}")
            return EXIT_FAILED
        else:
            self._teller.beat("done")
            self._finish()
        finally:
            for arm in self._arms.values():
                arm.close()
        self._teller.beat("done")
        progress = self.progress
        measured = self._measured
        had_a_record = progress.measurements_done - measured
        failed = progress.measurements_failed
        self._teller.say(f"done: {measured} measured, {had_a_record} had a record, {failed} failed")
        return EXIT_FAILED if progress.measurements_failed else 0

    def _finish(self) -> None:
        """End the runs in W&B."""
        for arm in self._arms.values():
            if isinstance(arm.tracker, WandbTracker):
                arm.finish()

    def check(self) -> dict[str, Verdict]:
        """The gate of the models alone: nothing is timed or recorded. Raises as `run` does."""
        try:
            with stop_on_signal(), turn(tell=self._tell_of_wait, warn=self._teller.say):
                return judge_models(self._arms)
        finally:
            for arm in self._arms.values():
                arm.close()

    def _steps(self) -> Iterator[Step]:
        """All of them; what was cut off more than once comes last, so that it blocks nothing."""
        first = first_ratio(self._pair)
        self.progress.is_before_screening = bool(first)
        self._refuse_models()
        self._compute_parity(first)
        yield from self._in_order(first)
        self.progress.is_before_screening = False
        yield from self._in_order(self._screenings)
        for arm in self._arms.values():
            arm.choose()
        before = {each.id for step in first for each in step}
        partners = self._partners()
        self.progress.measurements_total = len(self._screenings)
        parts = [arm.part for arm in self._arms.values()]
        for replicates in rounds(parts, lambda each: self._arms[each.framework].find(each), ParityGate(self._results)):
            self.progress.measurements_total += len(replicates)
            left = [each for each in replicates if each.id not in before]
            steps = list(in_turn([[one for one in left if one.framework == name] for name in self._arms], partners))
            self._compute_parity(steps)
            yield from self._in_order(steps)

    def _refuse_models(self) -> None:
        """What both frameworks measure and do not agree on leaves failed records, at once."""
        if self._pair.cell.is_calibration:
            return
        for work, verdict in judge_models(self._arms).items():
            if verdict.refusal is not None:
                measurement = next(iter(verdict.measurements.values()))
                self._teller.say(f"{measurement.variant.model}: not timed: {verdict.refusal}")
                for arm in self._arms.values():
                    arm.refusals[work] = verdict.refusal

    def _in_order(self, steps: Iterable[Step]) -> list[Step]:
        return sorted(steps, key=lambda step: any(self._cut_offs.of(each) >= LAST_AFTER for each in step))

    def _compute_parity(self, steps: Sequence[Step]) -> None:
        for framework, arm in self._arms.items():
            if mine := [each for step in steps for each in step if each.framework == framework]:
                arm.compute_parity(mine)

    def _partners(self) -> Mapping[str, str]:
        """By the ids of measurements, which take turns."""
        arms = list(self._arms.values())
        if self._pair.is_interleaved:
            partners = counterparts(*(arm.candidates() for arm in arms))
        else:
            partners = {one: other for arm in arms for one, other in planted_partners(arm.replicates).items()}
        if partners and not self._pair.cell.is_for_cpu:
            mode = open_gpu().describe().get("compute_mode")
            if mode in EXCLUSIVE_MODES:
                self._teller.say(
                    f"one process after the other, not in turns: the GPU takes one at a time (it is {mode})"
                )
                return {}
        return partners

    def _measure(self, step: Step) -> None:
        """Measure the step; once more where other processes kept the CPUs busy meanwhile and a ratio is made of it."""
        before = self._measured
        self._measure_once(step)
        found = [self._arms[each.framework].find(each) for each in step if not each.is_screening]
        busy = [record for record in found if record is not None and is_busy(record)]
        has_ratio = len(self._pair.jobs) > 1
        if busy and has_ratio and self._measured > before:
            self._teller.say(f"{busy_in_words(busy)}: {' and '.join(each.key for each in step)}: measured once more")
            with ExitStack() as stack:
                for each in step:
                    stack.enter_context(self._arms[each.framework].once_more(each))
                self._measure_once(step)

    @property
    def _measured(self) -> int:
        """How many measurements were made since this process began."""
        return sum(arm.measured for arm in self._arms.values())

    def _measure_once(self, step: Step) -> None:
        """Leave a record of each, whatever becomes of the processes; where a signal ends two of them, none."""
        pairs = [(self._arms[each.framework], each) for each in step]
        if len(pairs) < 2 or not all(arm.may_take_turns(each) for arm, each in pairs):
            for arm, measurement in pairs:
                arm.measure_unless_settled(measurement)
            return
        attempts = []
        for arm, measurement in pairs:
            arm.children.require_none_stuck()
            arm.show(measurement)
            self.progress.set_phase("start", 0, 1)
            attempts.append(arm.begin(measurement))
        sides = [arm.side(attempt) for (arm, _), attempt in zip(pairs, attempts, strict=True)]
        reports, took_turns = work_in_turns(sides, self._teller.when_due)
        turns = timestamp() if took_turns else None
        for (arm, _), attempt, report, other in zip(pairs, attempts, reports, step[::-1], strict=True):
            arm.conclude_side(attempt, report, other, turns)

    def _tell_of_stop(self, stopped: Stopped) -> None:
        if stopped.number == signal.SIGUSR2:
            for measurement in self._at_hand:
                self._cut_offs.note(measurement, warn=self._teller.say)
        self._teller.beat("stopped")
        done, total = self.progress.measurements_done, self.progress.measurements_total
        self._teller.say(f"stopped by a signal after {done} of {total}; a later run goes on here")

    def _tell_of_wait(self, words: str) -> None:
        self.progress.set_phase(words, None, None)
        self._teller.say(words, once=True)
        self._teller.when_due()


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
