"""The measurement's process: a fresh child that imports one framework, measures one variant, and ends.

A crash, an out-of-memory error or an autotuner's choice in here touches no other measurement. Started by harness/job.py
through `<framework>_runner/run.py --child FD`; the measurement comes in on stdin, events go out over the channel.
"""

import ctypes
import gc
import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from harness import data
from harness.channel import Channel
from harness.environment import code_digests, relevant_variables
from harness.errors import DataError, ProjectError, Refused
from harness.gpu import Gpu, NoGpu, SeveralGpus, open_gpus
from harness.measure import (
    Phase,
    Steady,
    Step,
    Wait,
    compile_time_s,
    measure_blocks,
    measure_cold,
    measure_phases,
    measure_steady,
)
from harness.parity import Numbers, ParityMetadata, ParityNumbers, condense, key_of
from harness.parity_file import write_parity
from harness.plan import Measurement
from harness.planted_slowdown import PlantedSlowdown
from harness.record import EpochPoint, Memory, Outcome, Result, in_words
from harness.settings import Frozen
from harness.statistics import sample_summary, summary_numbers
from harness.world import ALONE, World

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ParityTask(Frozen):
    """One key of the parity gate (harness/parity.py)."""

    measurement: Measurement
    """The gate's, so with its batch and precision."""
    path: str
    """Where rank 0 leaves the numbers."""
    environment: dict[str, Any]
    """What the parent knows of where this runs."""


class ChildTask(Frozen):
    """What the parent writes to the child's stdin."""

    measurement: Measurement
    data_dir: str
    world: World = ALONE
    planted_slowdown: float = 0.0
    """By how much each timed block and call is made longer, as a fraction; only `main.py calibrate` asks for it."""
    cold_calls_only: bool = False
    """The cold calls are the whole work: another process has filled the compilers' caches, and this one finds them."""
    parity: tuple[ParityTask, ...] = ()
    """Where there are any, they are the child's work, and nothing is timed."""


class DeviceProtocol(Protocol):
    """What each runner's device.py offers to the harness, under the same names.

    In a world of one neither `agree` nor `leave` is called, and `join` only for several devices.
    """

    def join(self, world: World) -> None:
        """Meet the other ranks at `world.coordinator` and take this rank's devices. Comes first, before `set_up`: JAX
        must not have seen a device yet. Returns when all ranks are there."""

    def agree(self, value: float) -> float:
        """The largest of all ranks' values, on every rank. Waits for the slowest rank; never in a timed window."""

    def mean_over_ranks(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Element by element, on every rank; the values themselves in a world of one."""

    def leave(self) -> None:
        """Part in order. Comes last, after the result was told; not called after an error."""

    def set_up(self, precision: str) -> None:
        """Choose the device, set the precision of matrix products and convolutions. Raises Refused."""

    def describe(self) -> dict[str, Any]: ...
    def wait(self, outputs: Any) -> None: ...
    def compilations(self) -> int: ...
    def begin_timing(self) -> None:
        """After the warm-up, before the first timed block: torch resets its memory peak."""

    def end_timing(self) -> None:
        """After the last timed call, before evaluation or anything else: torch reads its memory peak."""

    def memory(self) -> Memory:
        """Of the device that took most, and of each where this process has several."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Session:
    """What a use case gets to do its work with."""

    measurement: Measurement
    dataset: data.Dataset | data.NoDataset
    gpu: Gpu | SeveralGpus | NoGpu
    channel: Channel
    device: DeviceProtocol
    world: World = ALONE
    planted_slowdown: float = 0.0
    cold_calls_only: bool = False

    def agree(self, value: float) -> float:
        """The largest of all ranks' values; the value itself in a world of one."""
        return self.device.agree(value) if self.world.size > 1 else value

    def of_all_ranks(self, own: NDArray[Any]) -> NDArray[np.float64]:
        """Every rank's part along the first axis, in the order of the ranks; all parts are of one size."""
        places = np.zeros((self.world.size, *own.shape))
        places[self.world.rank] = own
        parts = self.device.mean_over_ranks(places) * self.world.size  # exact: all the others are zero
        return parts.reshape(-1, *own.shape[1:])

    def measure_cold(self, step: Step, wait: Wait) -> list[float]:
        """Times of the very first calls, compilation included. Comes first.

        Raises:
            ColdCallsDone: nothing else is wanted of this process. Not to be caught by a use case.
        """
        cold_call_times_s = measure_cold(step, wait)
        if self.cold_calls_only:
            raise ColdCallsDone(cold_call_times_s)
        return cold_call_times_s

    def measure_steady(self, step: Step, wait: Wait, *, steps_per_call: int, samples_per_step: int) -> Steady:
        """The steady state of a step that went through `measure_cold` already; streams its numbers.

        `samples_per_step` is that of all ranks.
        """
        if self.planted_slowdown:
            planted = PlantedSlowdown(self.planted_slowdown, step, wait)
            step, wait = planted.step, planted.wait
        steady = measure_steady(
            step,
            wait,
            protocol=self.measurement.protocol,
            steps_per_call=steps_per_call,
            samples_per_step=samples_per_step,
            gpu=self.gpu,
            channel=self.channel,
            compilations=self.device.compilations,
            agree=self.agree,
            after_warmup=self.device.begin_timing,
        )
        self.device.end_timing()
        so_far = Result(blocks=steady.blocks, latency=steady.latency, energy=steady.energy, memory=self.memory())
        self.channel.metrics(summary_numbers(so_far))
        return steady

    def measure_phases(self, phases: Sequence[Phase], wait: Wait) -> dict[str, Any]:
        """For `Result.details`: `phases`, the seconds of every run of each phase by its name; streams their statistics.

        Comes after `result`, as the phases apart may need more memory than the step. Where there is not enough for
        them, `phases` is empty, `phases_absent` says why, and what was measured before stands.
        """
        try:
            times_s = measure_phases(
                phases, wait, protocol=self.measurement.protocol, channel=self.channel, agree=self.agree
            )
        except Exception as error:
            if not _is_out_of_memory(error, self.device) or self.world.size > 1:  # other ranks would wait for ever
                raise
            return {"phases": {}, "phases_absent": f"out of memory: {_first_line(error)}"}
        for name, samples in times_s.items():
            summary = sample_summary(samples)._asdict()
            self.channel.metrics({f"phase/{name}/{statistic}_s": value for statistic, value in summary.items()})
        return {"phases": times_s}

    def result(self, steady: Steady, cold_call_times_s: list[float], **fields: Any) -> Result:
        """The Result of a use case: the timed part as measured, and what the use case adds."""
        return Result(
            compile_time_s=compile_time_s(cold_call_times_s, steady.warm_call_s),
            cold_call_times_s=cold_call_times_s,
            blocks=steady.blocks,
            latency=steady.latency,
            recompiles=steady.recompiles,
            memory=self.memory(),
            energy=steady.energy,
            gpu_states=steady.gpu_states,
            gpu_states_absent=self.gpu.absent,
            **fields,
        )

    def add_control(self, result: Result, make_step: Callable[[], Step]) -> Result:
        """Measure the step of several devices once more with nothing moved between them. Comes last, when the result
        has its memory and nothing holds the arrays of what was timed before.

        `make_step` makes that step, another program with arrays of its own. Whatever fails here, such as memory for
        them, costs this control only (harness/ranks.py).
        """
        assert result.blocks is not None
        self.channel.result_so_far(result)
        self.agree(0.0)  # every rank has told its own
        self.channel.progress("without communication", 0, 1)
        gc.collect()  # of modules and compiled programs that hold each other
        alone = measure_blocks(
            make_step(),
            self.device.wait,
            like=result.blocks,
            count=self.measurement.protocol.min_blocks,
            agree=self.agree,
        )
        return result.model_copy(update={"blocks_alone": alone})

    def report_epoch(self, point: EpochPoint, epochs: int) -> None:
        """Between two epochs, so outside the clock."""
        self.channel.progress("train", point.epoch, epochs)
        self.channel.metrics(
            {
                "epoch": point.epoch,
                "train/loss": point.train_loss,
                "train/time_s": point.train_time_s,
                "test/loss": point.test_loss,
                "test/accuracy": point.test_accuracy,
            }
        )

    def memory(self) -> Memory:
        """The framework's numbers, NVML's, and the host's peak (ru_maxrss is in KiB on Linux)."""
        host_peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        memory = self.device.memory()
        of_each = self.gpu.process_bytes_of_each() or [None] * len(memory.devices)
        devices = [
            device.model_copy(update={"process_bytes": process_bytes})
            for device, process_bytes in zip(memory.devices, of_each, strict=False)
        ]
        return memory.model_copy(
            update={
                "process_bytes": self.gpu.process_bytes(),
                "host_peak_bytes": host_peak_bytes,
                "devices": devices,
            }
        )


class ColdCallsDone(BaseException):
    """Ends a use case early. No Exception, so that no use case's own handling of errors takes it for one."""

    def __init__(self, cold_call_times_s: list[float]) -> None:
        super().__init__()
        self.cold_call_times_s = cold_call_times_s


def run_child(file_descriptor: int, framework: str) -> int:
    """Measure what stdin asks for; every end, good or bad, is told over the channel."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the parent and hold the GPU
    channel = Channel(file_descriptor)
    variables = relevant_variables()  # before a framework adds its own
    code = code_digests(framework)
    task = ChildTask.model_validate_json(sys.stdin.read())
    measurement, world = task.measurement, task.world
    device: DeviceProtocol = importlib.import_module(f"{framework}_runner.device").Device()
    try:
        if world.cpus:
            os.sched_setaffinity(0, world.cpus)
        if world.device_count > 1:
            device.join(world)
        device.set_up(measurement.variant.precision)
        gpu = open_gpus(world.local_rank, world.devices_per_rank)
        environment = {"framework": device.describe(), "gpu": gpu.describe(), "variables": variables, "code": code}
        channel.environment(environment)
        dataset = data.load(measurement.cell.benchmark, measurement.data, Path(task.data_dir))
        _require_whole_batch(measurement.variant.batch_size, dataset)
        session = Session(
            measurement=measurement,
            dataset=dataset,
            gpu=gpu,
            channel=channel,
            device=device,
            world=world,
            planted_slowdown=task.planted_slowdown,
            cold_calls_only=task.cold_calls_only,
        )
        if task.parity:
            leave_parity_numbers(session, task.parity, code)
            channel.result(Result())
        else:
            use_case = importlib.import_module(f"{framework}_runner.use_cases.{measurement.cell.use_case_name}")
            run: Callable[[Session], Result] = use_case.run
            channel.result(run(session))
    except ColdCallsDone as done:
        channel.result(Result(cold_call_times_s=done.cold_call_times_s))
    except Exception as error:
        traceback.print_exc()
        outcome, reason = _explain(error, device)
        channel.error(outcome, reason)
        return 0
    if world.size > 1:
        _leave(device)
    return 0


def leave_parity_numbers(session: Session, tasks: Sequence[ParityTask], code: dict[str, str]) -> None:
    """One file and one event for each; what this machine refuses to do leaves a file that says so.

    `code`: what made them (`harness.environment.code_digests`).
    """
    framework, use_case = session.measurement.framework, session.measurement.cell.use_case_name
    module = importlib.import_module(f"{framework}_runner.parity.{use_case}")
    compute: Callable[[Session], Numbers] = module.parity_numbers
    for number, task in enumerate(tasks):
        session.channel.progress("parity", number, len(tasks))
        outcome: Outcome = "ok"
        reason, numbers = None, {}
        try:
            numbers = dict(compute(replace(session, measurement=task.measurement)))
        except Refused as error:
            outcome, reason = "refused", str(error)
        session.agree(0.0)  # every rank is through, so the key is done
        key = key_of(task.measurement)
        if session.world.rank == 0:
            kept, shapes = condense(numbers)
            metadata = ParityMetadata(
                key=key,
                outcome=outcome,
                reason=reason,
                shapes=shapes,
                environment=task.environment | {"framework": session.device.describe(), "code": code},
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            write_parity(ParityNumbers(metadata=metadata, kept=kept), Path(task.path))
        session.channel.parity(key.digest)


def _leave(device: DeviceProtocol) -> None:
    """The result is told and stands; a farewell that fails is for the log."""
    try:
        device.leave()
    except Exception:
        traceback.print_exc()


def _require_whole_batch(batch_size: int, dataset: data.Dataset | data.NoDataset) -> None:
    if isinstance(dataset, data.NoDataset):
        return
    count = len(dataset.train_labels)
    if batch_size > count:
        raise DataError(
            f"batch size {batch_size} is larger than the training set of {dataset.benchmark} ({dataset.kind} data: "
            f"{count} samples). Lower batch_sizes in experiments.yaml, or measure on the real data."
        )


def _explain(error: Exception, device: DeviceProtocol) -> tuple[Outcome, str]:
    text = str(error).strip() or "no message"
    if isinstance(error, Refused):
        return "refused", text
    if isinstance(error, ProjectError):
        return "failed", text
    if isinstance(error, ValidationError):
        return "failed", f"its result cannot be recorded: {error.title}: {in_words(error)}"
    if _is_out_of_memory(error, device):
        return "out_of_memory", _first_line(error)
    return "failed", f"{type(error).__name__}: {_first_line(error)}"


def _is_out_of_memory(error: Exception, device: DeviceProtocol) -> bool:
    return isinstance(error, MemoryError) or device.is_out_of_memory(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0][:500]
