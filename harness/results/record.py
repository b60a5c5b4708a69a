"""The record: the one JSON file that a measurement leaves, whatever became of it.

Raw samples only; every number is derived on reading (harness/results/quantities.py).

History of the schema:
    2  2026-11  `job` and `data`; an epoch has `test_metric`, whose meaning is the task's. Since then, without a new
                version: a measurement has a `stage`; without one it is a replicate; an explanation has
                `other_cpus`; `in_turns` has `after_other`; `registration` and `timeline` are gone;
                `environment.code` has one digest for `harness` and one for the runner, and before that one for each
                module
"""

import math
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator

from harness.errors import RecordError
from harness.files import in_words, read_json, way_out, write_atomically
from harness.paths import Results
from harness.plan import LONGEST_S, DataKind, Frozen, Measurement
from harness.results.known_environment import why_odd

SCHEMA_VERSION: Literal[2] = 2

Outcome = Literal["ok", "failed", "out_of_memory", "timeout", "refused"]
SETTLED: frozenset[Outcome] = frozenset({"ok", "out_of_memory", "refused"})
"""Outcomes that a second run would only repeat. `failed` and `timeout` are tried again."""


class Measured(Frozen):
    """JSON has no infinity and no NaN: what is neither a number nor None is refused before it is written."""

    model_config = ConfigDict(allow_inf_nan=False)


Count = Annotated[int, Field(ge=1, le=2**62)]
Time = Annotated[float, Field(gt=0, le=LONGEST_S)]
Times = Annotated[list[Time], Field(min_length=1)]
"""What has statistics: some times, and none of nothing."""


class Blocks(Measured):
    """Throughput: back-to-back calls with one wait at the end of each block."""

    calls_per_block: Count
    steps_per_call: Count
    """More than one where a call runs several steps (JAX `scan`)."""
    samples_per_step: Count
    """Over all devices."""
    block_times_s: Times
    warmup_times_s: list[float]
    """One per call of the warm-up, each waited for; the compiling call is not among them."""


class Latency(Measured):
    """One wait per call: what a single step costs when somebody waits for it."""

    steps_per_call: Count
    call_times_s: Times


class Memory(Frozen):
    """Peak over the life of the measurement's process, per device; `absent` says why a number is None."""

    allocator_peak_bytes: int | None = None
    """Bytes that tensors held (torch max_memory_allocated, JAX peak_bytes_in_use), compilation and autotuning
    included."""
    step_peak_bytes: int | None = None
    """The same for steady steps only: torch after reset_peak_memory_stats, JAX by the executable's memory analysis."""
    pool_peak_bytes: int | None = None
    """Bytes that the framework's allocator took from the driver (reserved)."""
    process_bytes: int | None = None
    """What NVML charges this process with at the end: context, kernels and pool."""
    device_used_bytes: int | None = None
    """What is in use on the device at the end more than before the process had a context, where nobody else was there:
    the same, also in a container, where NVML cannot tell which process is which."""
    host_peak_bytes: int | None = None
    """Peak resident set of the process in the host's memory."""
    absent: str | None = None
    devices: list["Memory"] = []
    """Of several devices: each one's own, in the order of ranks and, within a process, of its devices."""


class Energy(Measured):
    """Of the GPU's own counter over blocks of their own, as long as those of the throughput and with nothing between
    them; the whole board, so only the GPU's sole user can be charged."""

    gross_joules: float | None = None
    window_s: float | None = None
    """From one reading of the counter to the other."""
    busy_s: float | None = None
    """Of it, the sum of the blocks' times: the rest was idle."""
    samples: int | None = None
    """Samples processed in the window."""
    idle_watts: float | None = None
    """Mean power with the framework's context loaded and nothing running: the lower of that before the cold calls and
    that before the warm-up."""
    absent: str | None = None
    devices_gross_joules: list[float] = []
    """Of several devices: each one's own, in the same order."""


GpuState = dict[str, int | float | tuple[str, ...]]
"""Readings between two blocks, never inside one: by the names of harness/measure/gpu.py, with their units. What a card
refuses is not among them."""


class HeldBack(Measured):
    """How long the driver held the GPU's clocks back, by its own counters, from before the first throughput block until
    after the last."""

    window_s: Time
    seconds: dict[str, float] = {}
    """By reason, as harness/measure/gpu.py calls them; of several GPUs the most. What a card does not count is not
    among them."""


class InTurns(Measured):
    """Of a process that took turns with another one, block by block (harness/measure/turns.py)."""

    is_first: bool
    """Nobody else was on the device until it waited for its first turn."""
    waited_s: Annotated[float, Field(ge=0)]
    """For its turns."""
    busy_s: Annotated[float, Field(ge=0)]
    """What its own threads took of the CPUs meanwhile, beside the other one's blocks."""
    after_other: list[int] | None = None
    """The blocks, from 0, before which the other one had computed, so that a lead-in came first. None in records from
    before there was one."""


class EpochPoint(Measured):
    """One epoch of training; evaluation runs outside the clock."""

    epoch: int
    train_time_s: float
    """Of this epoch's steps, waited for at its end; of a training set in chunks, at the end of each."""
    train_loss: float
    """Mean over the epoch's steps."""
    test_loss: float
    test_metric: float
    """The task's metric over the test set (harness/work/tasks.py), such as accuracy."""
    further_metrics: dict[str, float] = {}
    """The task's other metrics, by name."""
    input_time_s: float | None = None
    """Of copying chunks of the training set to the device, between the timed windows and not in `train_time_s`. None
    where all of it lies there."""


class Evaluation(Measured):
    """What a program that infers says of the test set, or of its beginning, after it was timed."""

    shape: list[int]
    """[samples, ...] of the predictions."""
    predictions: str
    """The class with the largest output, of each: little-endian 16-bit numbers in base64
    (harness/results/predictions.py)."""
    sha256: str
    """Of their bytes."""
    test_metric: float | None = None
    """The task's metric over these samples."""
    test_metric_absent: str | None = None


class Work(Measured):
    """Of one step, counted from the shapes of the forward pass (harness/work/products.py)."""

    products: int
    """Convolutions and matrix products of the forward pass."""
    forward_operations: int
    """Floating-point operations of these: two for each multiply-add."""
    operations: int
    """With the backward pass, where a step has one."""
    least_bytes: int
    """If each product reads its operands once and writes its result once, and so does the optimizer with all
    parameters: no measured traffic."""


KernelClass = Literal["product", "traffic", "layout", "communication", "other"]
"""Matrix products, convolutions and attention; what moves each element once, such as activations, sums and look-ups;
copies and changes of layout; between devices; and what no rule knows."""


class KernelTime(Measured):
    """All events of one name in a traced window."""

    name: str
    """As the tracer gives it."""
    count: int
    busy_s: float
    """Their share of the busy time: what several do at one time, they share equally."""
    content: KernelClass | None = None
    """Of a kernel that a compiler has made: by what the compiled program says is in it."""


class TracedWindow(Measured):
    """Some steps in a row under the framework's own profiler. In seconds of the tracer's clock."""

    steps: int
    span_s: float
    """From the start of the first event to the end of the last."""
    busy_s: float
    """In which anything ran."""
    host_gaps_s: float
    """In which nothing ran, and the call that starts what comes next had not returned."""
    other_gaps_s: float
    """In which nothing ran although it had."""
    unknown_gaps_s: float
    """In which nothing ran, and the tracer does not tell which call started what comes next."""
    dropped: int = 0
    """Of published records; no tracer reports what it loses."""
    kernels: list[KernelTime]
    """The longest first."""


class Explanation(Measured):
    """Where a step's time goes: of a process that is not timed, or of a smoke run's own when all its times are told."""

    tracer: str
    """Who traced, with its release."""
    on_device: bool
    """Kernels of a GPU; else operators of the host."""
    blocks: Blocks
    """Without a tracer, before it was started."""
    dispatch_times_s: Times
    """Without a tracer: from an idle device until one call has returned."""
    windows: list[TracedWindow]
    """Two, the second with twice as many steps."""
    work: Work | None = None
    work_absent: str | None = None
    other_cpus: float | None = None
    """On a CPU: how many of this process's CPUs others kept busy on average, until the last step was traced."""


class Check(Frozen):
    """A numerical check that ran before the clock: relative L2 error against a reference."""

    name: str
    error: float
    tolerance: float
    passed: bool


class Result(Measured):
    """What the measurement's process found."""

    compile_time_s: float | None = None
    """What the first calls of the step took more than as many warm calls; all caches were empty (cold)."""
    cold_call_times_s: list[float] = []
    compile_time_warm_s: float | None = None
    """The same of a process that found all caches as another process had left them."""
    warm_start_call_times_s: list[float] = []
    """That process's first calls."""
    compile_time_warm_absent: str | None = None
    blocks: Blocks | None = None
    blocks_alone: Blocks | None = None
    """Of several devices: the same step with nothing moved between them. What `blocks` takes more is communication that
    no computation hides."""
    blocks_alone_absent: str | None = None
    """Why they broke off, where all else had been measured."""
    latency: Latency | None = None
    recompiles: int = 0
    """Compilations inside the timed windows; more than none makes the times worthless."""
    memory: Memory = Memory(absent="not measured")
    energy: Energy = Energy(absent="not measured")
    gpu_states: list[GpuState] = []
    gpu_states_absent: str | None = None
    held_back: HeldBack | None = None
    """None where no GPU was asked. Of two processes that took turns, with the other one's blocks."""
    in_turns: InTurns | None = None
    """None of a process that had the device to itself."""
    other_cpus: float | None = None
    """How many of this process's CPUs other processes kept busy, on average over the steady state. None where a GPU was
    asked, on several devices, and in windows that are too short to tell."""
    epochs: list[EpochPoint] = []
    time_to_target_s: float | None = None
    """Training time (evaluation excluded) until test accuracy first reached settings["target_metric"]."""
    price_per_hour: float | None = None
    """Of all its GPUs together, as experiments.yaml has it, in any currency."""
    evaluation: Evaluation | None = None
    """None where nothing is predicted, or there is no test set."""
    explanation: Explanation | None = None
    """Of the first replicate, on one device."""
    explanation_absent: str | None = None
    """Why it broke off; None also where none was asked for."""
    checks: list[Check] = []
    parameter_count: int | None = None
    units: dict[str, float] = {}
    """What else than samples the work is counted in, such as tokens: how many a sample has, on average."""
    details: dict[str, Any] = {}
    """What only this use case has."""

    @field_validator("checks", "details")
    @classmethod
    def _are_finite(cls, content: Any) -> Any:
        if (where := not_finite(content)) is not None:
            raise ValueError(f"{where} is not a finite number")
        return content


class RankResult(Measured):
    """What one of several ranks measured, on its own device. All of them did their steps together."""

    rank: int
    node: str
    gpu_uuids: list[str] = []
    """Of its devices, as NVML tells; empty where it does not."""
    gpu_names: list[str] = []
    """Of the same."""
    block_times_s: list[float]
    call_times_s: list[float]
    memory: Memory
    energy: Energy


class DataIdentity(Frozen):
    """Which data a measurement worked on: two data sets of one name and kind can be told apart by it."""

    source: str
    """Where it comes from, or how it was generated."""
    kind: DataKind
    sha256: str | None
    """Of the arrays' content; None where the inputs are drawn on the device."""


class WeightsIdentity(Frozen):
    """Which pretrained weights a measurement began with."""

    source: str
    sha256: str
    """Of names, shapes and values of the whole model."""
    top1_of_1000_percent: float
    """As it is published, among ImageNet's 1,000 classes."""


class Record(Frozen):
    schema_version: Literal[2] = SCHEMA_VERSION
    measurement_id: str
    measurement: Measurement
    outcome: Outcome
    reason: str | None = None
    """Why the outcome is not `ok`, in one or a few lines."""
    flags: dict[str, str] = {}
    """Quality flags: name to sentence. To be read before the number."""
    job: str | None = None
    """Name of the folder of the job that made it."""
    data: DataIdentity | None = None
    weights: WeightsIdentity | None = None
    """None where they are drawn from the seed."""
    started_at: str
    ended_at: str
    """ISO 8601, UTC."""
    environment: dict[str, Any]
    """Of the parent, and of rank 0's process."""
    result: Result | None = None
    """Of several ranks: each block and call of the slowest rank, memory of the device that took most, energy of all
    together; anything else of rank 0 (harness/job/ranks.py)."""
    ranks: list[RankResult] = []
    """In their order; empty on one device."""
    parity: str | None = None
    """File beside this record with the numbers that the parity gate compares (harness/results/parity.py)."""


def active_s(record: Record) -> float:
    """Seconds that it kept its device: of one that took turns, without its waits."""
    own = (record.environment.get("pairing") or {}).get("active_s")
    if own is not None:
        return float(own)
    lasted = datetime.fromisoformat(record.ended_at) - datetime.fromisoformat(record.started_at)
    return lasted.total_seconds()


def not_finite(content: Any) -> str | None:
    """The first number in it that is infinite or none, by its place: `phases.forward.3 (nan)`. None if all are
    finite."""
    if isinstance(content, float):
        return None if math.isfinite(content) else f"({content})"
    if isinstance(content, Frozen):
        content = dict(content)
    elif isinstance(content, list | tuple):
        content = dict(enumerate(content))
    elif not isinstance(content, dict):
        return None
    for name, value in content.items():
        if (where := not_finite(value)) is not None:
            return f"{name}{' ' if where.startswith('(') else '.'}{where}"
    return None


def write_record(record: Record, path: Path) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    with way_out(path):
        write_atomically(path, record.model_dump_json(), replace=False)


def read_record(path: Path) -> Record:
    """Raises RecordError that names the file and what is wrong: truncated, not a record, or of another schema."""
    try:
        text = read_json(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    try:
        record = Record.model_validate_json(text)
    except ValidationError as error:
        raise RecordError(
            f"{path}: not a record of schema {SCHEMA_VERSION}: {in_words(error)}. "
            f"It is left alone and counts as not measured."
        ) from error
    if odd := _odd_outside_the_schema(record):
        raise RecordError(
            f"{path}: not a record of schema {SCHEMA_VERSION}: {odd}. It is left alone and counts as not measured."
        )
    return record


def readable_record(path: Path) -> Record | None:
    """None where read_record raises: what cannot be read counts as not measured."""
    try:
        return read_record(path)
    except RecordError:
        return None


def _odd_outside_the_schema(record: Record) -> str | None:
    """What the schema leaves open, so that a measurement is never lost over it, and who reads takes for granted."""
    for name in ("started_at", "ended_at"):
        try:
            is_time = datetime.fromisoformat(getattr(record, name)).tzinfo is not None
        except ValueError:
            is_time = False
        if not is_time:
            return f"{name}: must be a time with its zone (ISO 8601)"
    return why_odd(record.environment)


def find_settled_record(
    measurement: Measurement, results: Results, scheduler: str | None, *, job: str | None = None
) -> Path | None:
    """The newest record that makes a second run pointless, or None.

    A record made by hand on a laptop (`local`) never stands for one that a cluster job (`slurm`) should make.
    Corrupt records count as not measured; they are left in place.

    Args:
        scheduler: None takes a record of any.
        job: only a record of this job counts (`--force`).
    """
    found = find_settled(measurement, results, scheduler, job=job)
    return found[0] if found else None


def find_settled(
    measurement: Measurement, results: Results, scheduler: str | None, *, job: str | None = None
) -> tuple[Path, Record] | None:
    """As find_settled_record, with what it holds."""
    for path in reversed(results.record_files(measurement)):
        record = readable_record(path)
        if record is None or record.outcome not in SETTLED:
            continue
        if scheduler in (None, record.environment.get("scheduler")) and job in (None, record.job):
            return path, record
    return None
