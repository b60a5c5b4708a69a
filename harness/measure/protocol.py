"""Drives any Program through the measurement: the one caller of both runners (docs/protocol.md has the protocol).

Cold calls, check, steady state, training to the end or predictions of the test set, phases, and on several devices the
control without communication, in this order. Nothing here knows a framework, a task or a use case.
"""

import gc
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import CheckFailed
from harness.measure import clock
from harness.measure.channel import Channel
from harness.measure.explain import explain
from harness.measure.gpu import Gpus
from harness.measure.other_cpu_load import OtherCpuLoad
from harness.measure.program import Build, Infers, Phase, Program, Session, Trains
from harness.measure.slowdown import PlantedSlowdown
from harness.measure.turns import NoTurns
from harness.plan import MeasurementSettings
from harness.results.predictions import evaluation_of
from harness.results.quantities import summary_numbers
from harness.results.record import EpochPoint, Evaluation, Memory, Result
from harness.results.statistics import sample_summary
from harness.work.use_cases.train import Settings as TrainSettings
from harness.work.use_cases.train import (
    require_finite,
    require_finite_evaluation,
    steps_in_epoch,
    time_to_target_s,
)

CONSTRUCTION_CALLS, CONSTRUCTION_MAX_TIME_S = 20, 5.0
"""At most: what comes before a first step is slow and happens once."""


@dataclass(kw_only=True)
class _Epoch:
    """Times are the slowest rank's, losses this rank's own."""

    train_time_s: float = 0.0
    input_time_s: float = 0.0
    losses: NDArray[np.floating[Any]] = field(default_factory=lambda: np.empty(0))


class Measuring:
    """One measurement of one session."""

    def __init__(
        self,
        session: Session[Any],
        *,
        gpu: Gpus,
        channel: Channel,
        turns: NoTurns = clock.NO_TURNS,
    ) -> None:
        self._session = session
        self._device = session.device
        self._turns = turns
        self._protocol = session.measurement.timing
        self._gpu = gpu
        self._channel = channel

    def cold_calls(self, build: Build, *, explained: bool = False) -> Result:
        """Nothing but the first calls: the warm start, whose caches another process has filled."""
        program = build(self._session)
        result = Result(cold_call_times_s=self._cold_calls(program))
        if not explained:
            return result
        program.settle()
        return self._explained(program, result)

    def everything(self, build: Build, *, explained: bool = False) -> Result:
        """All that is measured of a variant; a screening and a short replicate end with their steady state."""
        # The program of the whole work must be gone, with its arrays, before the control is built.
        result, communicates = self._without_control(build(self._session), explained)
        return self._with_control(result, build) if communicates else result

    def _explained(self, program: Program, result: Result) -> Result:
        """Whatever fails here costs the explanation only (harness/job/ranks.py): what was measured is told before."""
        self._channel.result_so_far(result.model_copy(update={"explanation_absent": "it broke off"}))
        self._channel.progress("explanation", 0, 1)
        explanation = explain(program, self._session, result.blocks)
        return result.model_copy(update={"explanation": explanation})

    def _cold_calls(self, program: Program) -> list[float]:
        self._device.wait(program.state())  # copied before the clock starts
        compile_s = clock.time_call(program.compile, lambda _: None)
        program.place()
        self._device.wait(program.state())
        first_s, *others_s = clock.measure_cold(program.step, self._device.wait)
        return [compile_s + first_s, *others_s]

    def _without_control(self, program: Program, explained: bool) -> tuple[Result, bool]:
        idle_watts = clock.idle_watts(self._gpu, self._protocol.idle_s) if self._turns.is_alone else None
        cold_call_times_s = self._cold_calls(program)
        checks = program.check()
        program.witness()
        program.settle()
        other_load = OtherCpuLoad()
        self._turns.watch(other_load, on_gpu=not self._gpu.absent)
        steady = self._steady(program, idle_watts)
        other_cpus = self._other_cpus(other_load)
        self._require_finite(program)
        witness = program.witness()
        measurement = self._session.measurement
        goes_on = not (measurement.is_screening or measurement.is_short)
        epochs = self._train(program) if isinstance(program, Trains) and goes_on else []
        evaluation = self._evaluate(program) if isinstance(program, Infers) and goes_on else None
        result = Result(
            compile_time_s=clock.compile_time_s(cold_call_times_s, steady.warm_call_s),
            cold_call_times_s=cold_call_times_s,
            blocks=steady.blocks,
            latency=steady.latency,
            recompiles=steady.recompiles,
            memory=self._memory(program.step_peak_bytes()),
            energy=steady.energy,
            gpu_states=steady.gpu_states,
            gpu_states_absent=self._gpu.absent,
            held_back=steady.held_back,
            in_turns=self._turns.told(),
            other_cpus=other_cpus,
            epochs=epochs,
            time_to_target_s=self._time_to_target_s(epochs),
            evaluation=evaluation,
            checks=checks,
            parameter_count=program.parameter_count,
            units=self._session.benchmark.units(self._session.dataset) | dict(program.units),
            details=program.details | ({"witness": witness} if witness else {}),
        )
        construction, phases = (program.construction(), program.phases()) if goes_on else ([], [])
        if construction or phases:
            found = self._phases((construction, self._of_construction()), (phases, self._protocol))
            result = result.model_copy(update={"details": result.details | found})
        if explained:
            result = self._explained(program, result)
        return result, program.communicates and goes_on

    def _steady(self, program: Program, idle_watts_before: float | None) -> clock.Steady:
        """The steady state of a step that went through its cold calls; streams its numbers."""
        step, wait = program.step, self._device.wait
        if slowdown := self._session.measurement.variant.planted_slowdown:
            planted = PlantedSlowdown(slowdown, step, wait)
            step, wait = planted.step, planted.wait
        steady = clock.measure_steady(
            step,
            wait,
            protocol=self._protocol,
            steps_per_call=program.steps_per_call,
            samples_per_step=program.samples_per_step,
            gpu=self._gpu,
            channel=self._channel,
            compilations=self._device.compilations,
            idle_watts_before=idle_watts_before,
            agree=self._session.agree,
            after_warmup=self._device.begin_timing,
            turns=self._turns,
            with_latency=not self._session.measurement.is_short,
        )
        self._device.end_timing()
        so_far = Result(blocks=steady.blocks, latency=steady.latency, energy=steady.energy, memory=self._memory())
        self._channel.metrics(summary_numbers(so_far))
        return steady

    def _other_cpus(self, other_load: OtherCpuLoad) -> float | None:
        """Not reported with several ranks on one machine: sibling ranks would count as other load."""
        return other_load.cpus() if self._gpu.absent and self._session.world.size == 1 else None

    def _require_finite(self, program: Program) -> None:
        """Raises CheckFailed where the timed calls have led to numbers that are none: zeros and infinities cost other
        power and other clocks than the work that was meant."""
        outputs = program.step()
        self._device.wait(outputs)
        if not self._device.is_finite(outputs):
            raise CheckFailed("after the timed calls the step's outputs are not finite, so other work was timed")

    def _train(self, program: Trains) -> list[EpochPoint]:
        """From the initial weights through all epochs, evaluated after each, outside the clock."""
        measurement = self._session.measurement
        settings = TrainSettings.model_validate(measurement.settings)
        epochs = settings.epochs
        task = self._session.benchmark.task
        steps = steps_in_epoch(settings, self._session.dataset.train_count, measurement.variant.batch_size)
        points: list[EpochPoint] = []
        program.reset()
        for epoch in range(1, epochs + 1):
            window = self._epoch(program, (epoch - 1) * steps, steps)
            losses = self._device.mean_over_ranks(window.losses)
            require_finite(losses, epoch)
            found = program.evaluate()
            require_finite_evaluation(found.loss, epoch, losses.size)
            points.append(
                EpochPoint(
                    epoch=epoch,
                    train_time_s=window.train_time_s,
                    train_loss=float(losses.mean()),
                    test_loss=found.loss,
                    test_metric=task.metric.value(found.score),
                    further_metrics={
                        metric.name: metric.value(found.further_scores[metric.name]) for metric in task.further_metrics
                    },
                    input_time_s=None if program.is_resident else window.input_time_s,
                )
            )
            self._tell_epoch(points[-1], epochs)
        return points

    def _evaluate(self, program: Infers) -> Evaluation | None:
        """What the timed step predicts, outside the clock."""
        self._channel.progress("test set", 0, 1)
        answers = program.answers()
        if answers is None:
            return None
        metric = self._session.benchmark.task.metric
        value = None if answers.mean_score is None else metric.value(answers.mean_score)
        return evaluation_of(answers.labels, value, answers.no_score)

    def _epoch(self, program: Trains, first_step: int, steps: int) -> "_Epoch":
        """In one timed window, or one for each chunk of the training set that the device gets."""
        agree, wait = self._session.agree, self._device.wait
        epoch, done = _Epoch(), 0
        while done < steps:
            loaded, own_input_s = clock.time_load(program, wait, first_step + done)
            epoch.input_time_s += agree(own_input_s)  # evaluation ends earlier on one device than on another
            count = min(loaded, steps - done)
            own_time_s, kept = clock.time_calls(program, wait, count // program.steps_per_call)
            epoch.train_time_s += agree(own_time_s)
            epoch.losses = np.concatenate([epoch.losses, program.losses(kept)])
            done += count
        return epoch

    def _tell_epoch(self, point: EpochPoint, epochs: int) -> None:
        self._channel.progress("train", point.epoch, epochs)
        self._channel.metrics(
            {
                "epoch": point.epoch,
                "train/loss": point.train_loss,
                "train/time_s": point.train_time_s,
                "test/loss": point.test_loss,
                f"test/{self._session.benchmark.task.metric.name}": point.test_metric,
                **{f"test/{name}": value for name, value in point.further_metrics.items()},
            }
        )

    def _time_to_target_s(self, epochs: Sequence[EpochPoint]) -> float | None:
        if not epochs:
            return None
        target = TrainSettings.model_validate(self._session.measurement.settings).target_metric
        return time_to_target_s(epochs, self._session.benchmark.task.metric, target)

    def _of_construction(self) -> MeasurementSettings:
        own = self._protocol
        return own.model_copy(
            update={
                "latency_calls": min(own.latency_calls, CONSTRUCTION_CALLS),
                "latency_max_time_s": min(own.latency_max_time_s, CONSTRUCTION_MAX_TIME_S),
            }
        )

    def _phases(self, *groups: tuple[Sequence[Phase], MeasurementSettings]) -> dict[str, Any]:
        """For `Result.details`: the seconds of every run of each phase by its name; streams their statistics. Those of
        one group run in turn.

        The phases apart may need more memory than the step. Where there is not enough, `phases` is empty,
        `phases_absent` says why, and what was measured before stands.
        """
        session = self._session
        times_s: dict[str, list[float]] = {}
        try:
            for phases, protocol in groups:
                if phases:
                    times_s |= clock.measure_phases(
                        phases, self._device.wait, protocol=protocol, channel=self._channel, agree=session.agree
                    )
        except Exception as error:
            if not self._device.is_out_of_memory(error) or session.world.size > 1:  # other ranks would wait for ever
                raise
            return {"phases": {}, "phases_absent": f"out of memory: {str(error).strip().splitlines()[0][:500]}"}
        for name, samples in times_s.items():
            summary = sample_summary(samples)._asdict()
            self._channel.metrics({f"phase/{name}/{statistic}_s": value for statistic, value in summary.items()})
        return {"phases": times_s}

    def _with_control(self, result: Result, build: Build) -> Result:
        """The step of several devices once more with nothing moved between them. Whatever fails here, such as memory,
        costs this control only (harness/job/ranks.py)."""
        assert result.blocks is not None
        self._channel.result_so_far(result)
        self._session.agree(0.0)  # every rank has sent its own
        self._channel.progress("without communication", 0, 1)
        gc.collect()  # of modules and compiled programs that hold each other
        alone = clock.measure_blocks(
            build(self._session, joined=False).step,
            self._device.wait,
            like=result.blocks,
            count=self._protocol.min_blocks,
            agree=self._session.agree,
        )
        return result.model_copy(update={"blocks_alone": alone})

    def _memory(self, step_peak_bytes: int | None = None) -> Memory:
        """The framework's numbers, NVML's, and the host's peak (ru_maxrss is in KiB on Linux).

        `step_peak_bytes`: the compiler's account, which holds for every device.
        """
        memory = self._device.memory()
        by_compiler = {} if step_peak_bytes is None else {"step_peak_bytes": step_peak_bytes}
        missing: list[int | None] = [None] * len(memory.devices)
        of_each = zip(
            memory.devices,
            [gpu.process_bytes() for gpu in self._gpu.each] or missing,
            [gpu.device_used_bytes() for gpu in self._gpu.each] or missing,
            strict=False,
        )
        devices = [
            device.model_copy(update=by_compiler | {"process_bytes": of_process, "device_used_bytes": of_device})
            for device, of_process, of_device in of_each
        ]
        combined: Memory = memory.model_copy(
            update=by_compiler
            | {
                "process_bytes": self._gpu.process_bytes(),
                "device_used_bytes": self._gpu.device_used_bytes(),
                "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "devices": devices,
            }
        )
        return combined
