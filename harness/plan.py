"""What is measured and how: cells, variants, jobs, measurements, and the settings that travel with them. Pure data."""

import hashlib
import json
import random
from collections.abc import Collection, Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.printable import is_one_line

Framework = Literal["jax", "torch"]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "default"]
NEEDED_CAPABILITY: dict[str, float] = {"tf32": 8.0, "bf16": 8.0, "fp16": 7.0}
"""NVIDIA's compute capability from which tensor cores have a precision. A CPU is not asked for these."""
DataKind = Literal["real", "sample"]
Pairing = Literal["auto", "together", "interleaved"]
"""Whether the frameworks of a cell take turns in their job replicate by replicate, or block by block. `auto` is for
each cell what calibrations found to be better (pipeline/submission/queue_job.py)."""
Stage = Literal["screening", "replicate"]
"""A screening is one short measurement of a mode, to choose which modes have replicates. It is in no ratio."""


FRAMEWORKS: tuple[Framework, ...] = ("jax", "torch")
CPU = "cpu"
"""The name under `gpus` in experiments.yaml that asks for no GPU: GPUs are hidden from both frameworks."""

BASES = ("unslowed_a", "unslowed_b")
"""The two unslowed conditions of a calibration. Which is called which is chance."""
SLOWDOWNS: dict[str, float] = {
    "slower_2_percent": 0.02,
    "slower_5_percent": 0.05,
}
CONDITIONS: dict[str, float] = dict.fromkeys(BASES, 0.0) | SLOWDOWNS
"""What `main.py calibrate` plants in a step, by the names that files have: by how much each makes it slower."""
PAIRS_IN_TURNS: dict[str, tuple[str, str]] = {
    "unslowed": (f"{BASES[0]}_in_turns", f"{BASES[1]}_in_turns"),
    **{name: (f"base_of_{name}_in_turns", f"{name}_in_turns") for name in SLOWDOWNS},
}
"""The same for processes that take turns: a base and what is judged against it, each pair by itself."""
CONDITIONS_IN_TURNS: dict[str, float] = {
    condition: fraction
    for name, (base, other) in PAIRS_IN_TURNS.items()
    for condition, fraction in ((base, 0.0), (other, SLOWDOWNS.get(name, 0.0)))
}
PARTNERS: dict[str, str] = {one: other for pair in PAIRS_IN_TURNS.values() for one, other in (pair, pair[::-1])}
"""With which condition each of CONDITIONS_IN_TURNS takes turns."""


class Frozen(BaseModel):
    """An immutable model that refuses unknown keys, so that a typo is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_line(text: str) -> str:
    if not is_one_line(text):
        raise ValueError("must be one line without control characters")
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(_check_line)]
"""Becomes part of a script, of a file name or of a command."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""The first digits of a SHA-256."""
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
"""Becomes part of file names and of Slurm's options."""
LONGEST_S = 1e6
"""Eleven days: no time of a measurement is longer."""
MOST_REPLICATES = 1000
FIRST_SHORT_REPLICATE = 3
"""From this one on only what a ratio needs is measured: three processes are enough for a median of all else."""
MOST_VARIANTS = 10_000
MOST_MEASUREMENTS = 100_000
"""Of one job; at a minute each they take ten weeks."""


class MeasurementSettings(Frozen):
    """The protocol of harness/measure/clock.py. Every time is in seconds of wall clock."""

    replicates: int = Field(default=12, ge=1, le=MOST_REPLICATES)
    """Fresh processes per variant at most; statistics run over these. A ratio that is decided before takes no more.
    Valid are 4, 6, 8, 12 and 20, or 1 to 3 for numbers without a verdict."""
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    """Of all that is drawn in replicate 0: initial weights, order of the batches, crops, inputs. Replicate r has this
    seed plus r, in both frameworks."""
    warmup_s: float = Field(default=2.0, gt=0, le=LONGEST_S)
    """Calls with a wait after each, for at least this long, before anything is timed."""
    warmup_min_calls: int = Field(default=5, ge=2, le=10**6)
    """Calls of the warm-up at least."""
    block_min_s: float = Field(default=0.1, gt=0, le=LONGEST_S)
    """A throughput block holds as many back-to-back calls as fill this time; one wait at its end."""
    min_blocks: int = Field(default=20, ge=3, le=10**6)
    """Throughput blocks at least, unless `max_time_s` ends them; then there are 3 or more."""
    max_blocks: int = Field(default=300, ge=3, le=10**6)
    """Throughput blocks at most."""
    target_noise: float = Field(default=0.005, gt=0, lt=1)
    """Stop when the 95 % interval of the median block time, relative to the median, reaches no further than this."""
    min_time_s: float = Field(default=0.0, ge=0, le=LONGEST_S)
    """The throughput blocks go on for this long, however low the noise: a card takes tens of seconds to its steady
    temperature."""
    max_time_s: float = Field(default=12.0, gt=0, le=LONGEST_S)
    """Stop the throughput blocks after this time whatever the noise."""
    latency_calls: int = Field(default=200, ge=1, le=10**6)
    """Calls with a wait after each, for the latency. A p99 needs 368."""
    latency_max_time_s: float = Field(default=20.0, gt=0, le=LONGEST_S)
    """End the latency calls after this time, with 3 at least."""
    energy_window_s: float = Field(default=5.0, gt=0, le=LONGEST_S)
    """On a GPU with an energy counter, this long a run of blocks follows the throughput's: the counter ticks only every
    0.1 s."""
    idle_s: float = Field(default=2.0, ge=0, le=LONGEST_S)
    """How long idle power is measured, with the framework's context loaded: before the cold calls and before the
    warm-up. The lower one counts."""
    explain: bool = True
    """Explain where a step's time goes, once for each variant on one device, after everything is timed. It changes no
    number and no identity of a measurement."""
    timeout_s: float = Field(default=1800.0, gt=0, le=LONGEST_S)
    """A measurement that takes longer is ended and recorded as `timeout`."""


def of_screening(protocol: MeasurementSettings) -> MeasurementSettings:
    """As short as still tells which modes are close to the fastest; nothing but the throughput is of use."""
    return protocol.model_copy(
        update={
            "warmup_s": min(protocol.warmup_s, 0.5),
            "min_blocks": min(protocol.min_blocks, 10),
            "max_blocks": min(protocol.max_blocks, 20),
            "target_noise": max(protocol.target_noise, 0.01),
            "min_time_s": 0.0,
            "max_time_s": min(protocol.max_time_s, 3.0),
            "latency_calls": min(protocol.latency_calls, 3),
            "latency_max_time_s": min(protocol.latency_max_time_s, 1.0),
            "energy_window_s": min(protocol.energy_window_s, 0.1),
            "idle_s": 0.0,
        }
    )


WANDB_ROW = "measurement/"
"""Begins the keys of the rows in W&B of which each measurement has one."""
WANDB_INDEX = f"{WANDB_ROW}index"
"""Their axis: counts the measurements of a run, also through a requeue."""
WANDB_RATIOS = "ratios"
"""The table at the end of a run: with intervals."""


class WandbSettings(Frozen):
    """Where the results stream to. `auto` is online when an API key is configured, else offline."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: Line = "jax-vs-torch"
    entity: Line | None = None
    tags: tuple[Line, ...] = ()


Runtime = Literal["apptainer", "pyxis", "charliecloud", "podman"]


class Launch(Frozen):
    """How a framework's processes are started: by which Python, after which set-up lines, in which container. Only they
    need a framework: the job that starts them runs on the host, by the Python of main.py."""

    python: Line | None = None
    """The interpreter; None is the one that runs the job or, in a container, its `python3`."""
    setup: tuple[str, ...] = ()
    """Shell lines before each process, on the host, such as `module load cuda`."""
    runtime: Runtime | None = None
    """Of the container; None: there is none."""
    image: Line | None = None
    """A file or a folder; with pyxis and podman also the name of an image in a registry."""
    mounts: tuple[Line, ...] = ()
    """`/host/path`, or `/host/path:/path/inside`, beside the folders of this project, which are there by themselves."""
    options: tuple[Line, ...] = ()
    """Of the runtime: of `apptainer exec`, `ch-run` or `podman run`; of srun with pyxis."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.runtime is None) != (self.image is None):
            raise ValueError("runtime and image go together: name both for a container, or neither")
        if self.runtime is None and (self.mounts or self.options):
            raise ValueError("mounts and options are of a container; name its runtime and image, or leave them out")
        return self


Scalar = str | int | float | bool | None
PLAN_SCHEMA_VERSION = 2


class Cell(Frozen):
    """One point of GPU x benchmark x use case. Two jobs that differ only in framework measure it."""

    gpu: FileName
    """A name under `gpus` in experiments.yaml; `any` takes what the scheduler gives, `cpu` no GPU."""
    benchmark: FileName
    use_case: Annotated[int, Field(ge=1, le=10**9)]
    use_case_name: FileName
    """The module in each runner's use_cases/ that does it, such as `train`."""
    devices: int = Field(default=1, ge=1, le=100_000)
    """GPUs over all nodes."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    is_calibration: bool = False
    """One framework is measured against itself (`main.py calibrate`); no comparison takes these measurements."""

    @property
    def is_for_cpu(self) -> bool:
        return self.gpu == CPU

    @property
    def short_name(self) -> str:
        """`cifar10_3`, `cifar10_3_calibration`, or on more than two devices `cifar10_2_x8`: with --devices there may be
        many of a use case."""
        devices = f"_x{self.devices}" if self.devices > 2 else ""
        return f"{self.benchmark}_{self.use_case}{devices}" + ("_calibration" if self.is_calibration else "")

    @property
    def name(self) -> str:
        """`any/cifar10_3`: unique in a plan, and a relative path."""
        return f"{self.gpu}/{self.short_name}"

    @property
    def words(self) -> str:
        """`mnist train`, or `cifar10 per sample gradients, 2 GPUs, h100`. On a CPU processes, and of
        `any`, which may be one, devices."""
        work = f"{self.benchmark} {self.use_case_name.replace('_', ' ')}"
        kind = "processes" if self.is_for_cpu else "devices" if self.gpu == "any" else "GPUs"
        devices = [f"{self.devices} {kind}"] if self.devices > 1 else []
        gpu = [] if self.gpu == "any" else [self.gpu]
        return ", ".join([work, *devices, *gpu, *(["calibration"] if self.is_calibration else [])])


OptionText = Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]*$", max_length=80)]
"""Becomes part of file names."""


class Variant(Frozen):
    """One setting inside a cell."""

    model: FileName
    batch_size: int = Field(ge=1, le=10**9)
    """Global batch size."""
    precision: Precision
    execution_mode: FileName
    """How the framework is asked to run the same mathematics: `eager`, `compiled`, `jit`, ..."""
    options: dict[str, OptionText | int | float | bool | None] = {}
    """The use case's own axes, such as {"output": "full"}. They change what is computed, so they are never mixed."""
    planted: str | None = None
    """A key of CONDITIONS or CONDITIONS_IN_TURNS, for a calibration; None for every ordinary measurement."""

    @property
    def planted_slowdown(self) -> float:
        """By how much each timed block and call is made longer, as a fraction."""
        return (CONDITIONS | CONDITIONS_IN_TURNS)[self.planted] if self.planted else 0.0

    @property
    def comparison_key(self) -> str:
        """What both frameworks must share to be compared: everything but the execution mode."""
        options = "".join(f"-{value}" for _, value in sorted(self.options.items()))
        return f"{self.model}-b{self.batch_size}-{self.precision}{options}"

    @property
    def key(self) -> str:
        """Readable, unique in a cell and framework, and a file name."""
        planted = f"-{self.planted}" if self.planted else ""
        return f"{self.comparison_key}-{self.execution_mode}{planted}"


class Measurement(Frozen):
    """One variant in one fresh process: what a record is the record of."""

    framework: Framework
    cell: Cell
    variant: Variant
    stage: Stage = "replicate"
    replicate: int = Field(ge=0, le=MOST_REPLICATES)
    """Index of the replicate; 0 for a screening."""
    settings: dict[str, Scalar]
    """The use case's own settings (epochs, learning_rate, chunk_size, ...)."""
    sizes: dict[str, Scalar] = {}
    """The benchmark's own sizes, where it has any."""
    protocol: MeasurementSettings
    """That of the replicates, also in a screening: `timing` is what it is timed by."""
    data: DataKind
    quick: bool

    @property
    def is_screening(self) -> bool:
        return self.stage == "screening"

    @property
    def is_short(self) -> bool:
        """Nothing is measured that no ratio needs. All rounds of a calibration are alike."""
        return self.cell.is_calibration or self.replicate >= FIRST_SHORT_REPLICATE

    @property
    def seed(self) -> int:
        """Of the initial weights and of the order of the batches, the same in both frameworks. Each replicate has its
        own, so that what is trained is a sample, too."""
        return (self.protocol.seed + self.replicate) % 2**32

    @property
    def timing(self) -> MeasurementSettings:
        return of_screening(self.protocol) if self.is_screening else self.protocol

    @property
    def id(self) -> str:
        """Twelve hex digits of the content: the same work has the same id in every session."""
        content = self.model_dump(mode="json")
        if not self.is_screening:
            del content["stage"]
        for neither_work_nor_result in ("replicates", "timeout_s", "explain"):
            del content["protocol"][neither_work_nor_result]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def key(self) -> str:
        return f"{self.variant.key}-{'screening' if self.is_screening else f'r{self.replicate}'}"


class Screening(Frozen):
    """How the modes are chosen that have replicates (harness/results/screening.py)."""

    always: tuple[str, ...]
    """Execution modes that have replicates whatever the screening says: the headline, and the plain loops."""
    many_steps: tuple[str, ...] = ()
    """Those of many steps in a call, which are compared only with each other."""


class JobPlan(Frozen):
    """All that a job measures of one framework."""

    framework: Framework
    cell: Cell
    variants: tuple[Variant, ...]
    settings: dict[str, Scalar]
    sizes: dict[str, Scalar] = {}
    protocol: MeasurementSettings
    wandb: WandbSettings
    data: DataKind = "real"
    data_dir: str = "data"
    quick: bool = False
    force: bool = False
    """Measure again what has a good record."""
    flags: tuple[str, ...] = ()
    """Of a job by hand: those that narrow it to this plan, beside those of the cell."""
    srun_options: tuple[str, ...] = ()
    """Of the step that starts several ranks, beside those that it always has. In no measurement's id."""
    full: bool = False
    """Every mode in all replicates, whichever is the fastest."""
    screening: Screening | None = None
    """None: nothing is to be chosen, and every mode has all replicates."""
    launch: Launch = Launch()
    price_per_hour: float | None = None
    """Of all its GPUs together; None where none is given. In no measurement's id."""

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        at_most = len(self.variants) * (self.protocol.replicates + 1)  # without asking what is screened
        if at_most > MOST_MEASUREMENTS and self.measurement_count > MOST_MEASUREMENTS:
            raise ValueError(f"{self.measurement_count:,} measurements; a job has {MOST_MEASUREMENTS:,} at most")
        return self

    @property
    def measurement_count(self) -> int:
        """At most: the screening makes it fewer."""
        return len(self.variants) * self.protocol.replicates + len(self.screened_variants())

    @property
    def name(self) -> str:
        """`any/jax_cifar10_3`: the rendered script's name without its ending, and a relative path."""
        return f"{self.cell.gpu}/{self.framework}_{self.cell.short_name}"

    def contests(self) -> list[tuple[Variant, ...]]:
        """The variants that a report chooses one from: they differ in their execution mode alone."""
        many_steps = self.screening.many_steps if self.screening else ()
        found: dict[tuple[str, bool], list[Variant]] = {}
        for variant in self.variants:
            found.setdefault((variant.comparison_key, variant.execution_mode in many_steps), []).append(variant)
        return [tuple(variants) for variants in found.values()]

    def screened_variants(self) -> list[Variant]:
        """Where there is a choice, all modes: also those that have replicates whatever it says, as it says which of
        them is in the ratio, and takes turns with the other framework's."""
        contests = [] if self.screening is None else self.contests()
        return [variant for variants in contests if len(variants) > 1 for variant in variants]

    def screenings(self) -> Iterator[Measurement]:
        for variant in self.screened_variants():
            yield self._measurement(variant, 0, "screening")

    def replicates(self, variants: Collection[Variant] | None = None) -> Iterator[Measurement]:
        """Of all variants, or of some. Replicates outside, variants inside: drift of the machine spreads over all
        variants."""
        chosen = None if variants is None else {variant.key for variant in variants}
        for replicate in range(self.protocol.replicates):
            for variant in self._in_order(replicate):
                if chosen is None or variant.key in chosen:
                    yield self._measurement(variant, replicate)

    def measurements(self) -> Iterator[Measurement]:
        """All that it may come to: of the replicates, the screening makes fewer."""
        yield from self.screenings()
        yield from self.replicates()

    def _measurement(self, variant: Variant, replicate: int, stage: Stage = "replicate") -> Measurement:
        return Measurement(
            framework=self.framework,
            cell=self.cell,
            variant=variant,
            stage=stage,
            replicate=replicate,
            settings=self.settings,
            sizes=self.sizes,
            protocol=self.protocol,
            data=self.data,
            quick=self.quick,
        )

    def _in_order(self, replicate: int) -> list[Variant]:
        """As in the plan; those of a calibration in an order drawn for two of its rounds, the second of which has it
        backwards, so that each of two processes is first as often."""
        if not self.cell.is_calibration:
            return list(self.variants)
        draw = random.Random(f"{self.protocol.seed} {self.framework} {replicate // 2}")
        order = sorted(self.variants, key=lambda _: draw.random())
        return order[::-1] if replicate % 2 else order


class Pair(Frozen):
    """What one job measures: a cell by both frameworks, or by one. Frozen in the job's folder when it is submitted."""

    schema_version: int = PLAN_SCHEMA_VERSION
    cell: Cell
    jobs: tuple[JobPlan, ...] = Field(min_length=1, max_length=2)
    is_interleaved: bool = False
    """The processes of both take turns, block by block."""

    @property
    def name(self) -> str:
        """Return `any/pair_cifar10_3`, or for one framework `any/jax_cifar10_3`: the rendered script's name without
        its ending, and a relative path."""
        return f"{self.cell.gpu}/pair_{self.cell.short_name}" if len(self.jobs) > 1 else self.jobs[0].name

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        return tuple(plan.framework for plan in self.jobs)

    @property
    def words(self) -> str:
        """Return `mnist train`, or for one framework `mnist train (jax only)`."""
        return self.cell.words + ("" if len(self.jobs) > 1 else f" ({self.jobs[0].framework} only)")

    @property
    def force(self) -> bool:
        return any(plan.force for plan in self.jobs)

    @property
    def measurement_count(self) -> int:
        """At most: the screening makes it fewer."""
        return sum(plan.measurement_count for plan in self.jobs)

    def measurements(self) -> Iterator[Measurement]:
        for plan in self.jobs:
            yield from plan.measurements()

    @property
    def why_not_interleaved(self) -> str | None:
        """Why its processes cannot take turns; None where they can."""
        if len(self.jobs) < 2 or self.cell.is_calibration:
            return "one framework has no other one to take turns with"
        if self.cell.devices > 1:
            return "on several devices the ranks of one framework wait for each other, not for the other framework"
        return None
