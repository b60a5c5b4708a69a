"""The measurement's process: a fresh child that imports one framework, measures one variant, and ends.

A crash, an out-of-memory error or an autotuner's choice in here touches no other measurement. The job starts it
(harness/job/), tells it what to do, and hears of every end, good or bad, over the channel.
"""

import importlib
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from harness.errors import DataError, ProjectError, Refused
from harness.files import in_words
from harness.measure.channel import Channel, ChildTask, ParityTask
from harness.measure.clock import NO_TURNS
from harness.measure.fake_cuda_guard import require_real_cuda
from harness.measure.gpu import open_gpus
from harness.measure.program import Build, D, Device, Program, Session
from harness.measure.protocol import Measuring
from harness.measure.turns import NoTurns
from harness.measure.world import ALONE, World
from harness.plan import Framework, Measurement
from harness.results.cpus import cpu_quota
from harness.results.device_peaks import write_device_peaks
from harness.results.environment import (
    describe_python,
    describe_rank,
    relevant_variables,
)
from harness.results.environment_variables import UNSET
from harness.results.model_trace import write_trace
from harness.results.parity import ParityMetadata, ParityNumbers, condense, key_of
from harness.results.parity_file import write_parity
from harness.results.record import Outcome, Result
from harness.work import datasets
from harness.work.declared import as_gated, benchmark, use_case
from harness.work.pretrained import pretrained_weights


def run_child(
    framework: Framework,
    task: ChildTask,
    channel: Channel,
    turns: NoTurns = NO_TURNS,
    *,
    unset: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Do the task; every end, good or bad, is told over the channel.

    Args:
        unset: variables that were removed from the environment of this process.
    """
    variables = relevant_variables()  # before a framework adds its own
    of_rank = describe_rank()
    measurement, world = task.measurement, task.world
    # Before the framework makes its context, which is memory that the measurement takes.
    gpu = open_gpus(world.local_rank, world.devices_per_rank)
    device: Device = importlib.import_module(f"{framework}_runner.device").Device()
    try:
        if world.device_count > 1:
            device.join(world)
        device.set_up(measurement.variant.precision)
        require_real_cuda()
        if task.parity or task.trace:
            device.try_no_algorithms()
        environment = {"framework": device.describe(), "gpu": gpu.describe(), "variables": variables}
        environment |= {"process": describe_process(environment["framework"], measurement, world)}
        environment |= {UNSET: dict(unset)} if unset else {}
        environment |= describe_python() | ({"rank": of_rank} if world.size > 1 else {})
        channel.environment(environment)
        if task.device_peaks:
            from harness.measure.device_peaks import measure_device_peaks  # no part of a measurement's code

            peaks = measure_device_peaks(framework, device, gpu, environment, channel)
            write_device_peaks(peaks, Path(task.device_peaks))
            channel.result(Result())
            return 0
        session = make_session(measurement, device, Path(task.data_dir), world)
        require_whole_batch(session)
        build = builder(measurement)
        if task.trace:
            traced = importlib.import_module(f"{framework}_runner.forward").traced_model
            trace = traced(gate_session(session, measurement, Path(task.data_dir)))
            if world.rank == 0:
                write_trace(trace, Path(task.trace))
            channel.result(Result())
        elif task.parity:
            leave_parity_numbers(session, build, task.parity, channel, Path(task.data_dir))
            channel.result(Result())
        else:
            measuring = Measuring(session, gpu=gpu, channel=channel, turns=turns)
            measure = measuring.cold_calls if task.cold_calls_only else measuring.everything
            channel.result(measure(build, explained=task.explain))
    except Exception as error:
        traceback.print_exc()
        outcome, reason = explain(error, device)
        channel.error(outcome, reason)
        return 0
    if world.size > 1:
        _leave(device)
    return 0


def describe_process(framework: Mapping[str, Any], measurement: Measurement, world: World) -> dict[str, Any]:
    """Return the CPUs and threads that this process has now that its framework is imported, which may have pinned it.
    The threads of all ranks of a node count together.

    Args:
        framework: what `Device.describe` returned.
    """
    threads, quota = framework.get("threads"), cpu_quota()
    found: dict[str, Any] = {} if quota is None else {"quota": quota}
    if world.device_count == 1:
        found["affinity"] = sorted(os.sched_getaffinity(0))
    return found | {"threads": None if threads is None else threads * world.size // measurement.cell.nodes}


def make_session(
    measurement: Measurement, device: D, data_dir: Path = Path("data"), world: World = ALONE
) -> Session[D]:
    """For whoever wants to build a program. The device must have been set up."""
    declared = benchmark(measurement.cell.benchmark)
    dataset = datasets.load(declared.data, measurement.data, data_dir)
    sizes = declared.sizes.model_validate(measurement.sizes)
    is_pretrained = measurement.settings.get("weights") == "pretrained"
    return Session(
        measurement=measurement,
        benchmark=declared,
        use_case=use_case(measurement.cell.use_case_name),
        dataset=declared.for_model(dataset, measurement.variant.model, sizes),
        device=device,
        world=world,
        pretrained=pretrained_weights(declared.name, measurement.variant.model, data_dir) if is_pretrained else None,
    )


def builder(measurement: Measurement) -> Build:
    """The runner's `build` of the measurement's use case; raises Refused for what the mode cannot do."""
    module = importlib.import_module(f"{measurement.framework}_runner.use_cases.{measurement.cell.use_case_name}")

    def build(session: Session[Any], *, joined: bool = True) -> Program:
        session.require_possible()
        program: Program = module.build(session, joined=joined)
        return program

    return build


def gate_session(session: Session[D], measurement: Measurement, data_dir: Path = Path("data")) -> Session[D]:
    """For one of the parity gate's measurements: its data as its own model takes them, its weights as the gate draws
    them."""
    before = session.measurement
    if (before.variant.model, before.sizes) != (measurement.variant.model, measurement.sizes):
        session = make_session(measurement, session.device, data_dir, session.world)
    return replace(session, measurement=measurement, benchmark=as_gated(session.benchmark))


def leave_parity_numbers(
    session: Session[Any],
    build: Build,
    tasks: Sequence[ParityTask],
    channel: Channel,
    data_dir: Path,
) -> None:
    """One file and one event for each; what this machine refuses to do leaves a file that says so."""
    for number, task in enumerate(tasks):
        channel.progress("parity", number, len(tasks))
        session.device.forget_programs()
        outcome: Outcome = "ok"
        reason, numbers = None, {}
        try:
            numbers = dict(build(gate_session(session, task.measurement, data_dir)).parity())
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
                environment=task.environment | {"framework": session.device.describe()},
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            write_parity(ParityNumbers(metadata=metadata, kept=kept), Path(task.path))
        channel.parity(key.digest)


def _leave(device: Device) -> None:
    """The result has been sent; an error during shutdown is only logged."""
    try:
        device.leave()
    except Exception:
        traceback.print_exc()


def require_whole_batch(session: Session[Any]) -> None:
    """Raises DataError where the training set has not even one batch."""
    measurement, count = session.measurement, session.dataset.train_count
    if session.benchmark.data and measurement.variant.batch_size > count:
        raise DataError(
            f"batch size {measurement.variant.batch_size} is larger than the training set of "
            f"{session.benchmark.name} ({measurement.data} data: {count} samples). Lower batch_sizes in "
            f"experiments.yaml, or measure on the real data."
        )


def explain(error: Exception, device: Device) -> tuple[Outcome, str]:
    """How a measurement, or the making of a program, has ended, and why."""
    text = str(error).strip() or "no message"
    first_line = text.splitlines()[0][:500]
    if isinstance(error, Refused):
        return "refused", text
    if isinstance(error, ProjectError):
        return "failed", text
    if isinstance(error, ValidationError):
        return "failed", f"its result cannot be recorded: {error.title}: {in_words(error)}"
    if isinstance(error, MemoryError) or device.is_out_of_memory(error):
        return "out_of_memory", first_line
    return "failed", f"{type(error).__name__}: {first_line}"
