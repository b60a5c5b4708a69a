"""The shape of experiments.yaml. What its names and numbers mean is checked in harness/experiments/rules.py."""

import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    field_validator,
    model_validator,
)

from harness.experiments.words import UNION_TAGS
from harness.paths import REPOSITORY
from harness.plan import (
    Cell,
    DataKind,
    FileName,
    Framework,
    Frozen,
    Launch,
    Line,
    MeasurementSettings,
    Pairing,
    Precision,
    Scalar,
    Variant,
    WandbSettings,
)
from harness.work.applies import why_not_model
from harness.work.declared import Mode, benchmark_names, use_case_names
from harness.work.declared import benchmark as declared_benchmark
from harness.work.declared import use_case as declared_use_case

Item = TypeVar("Item")
Setting = str | int | float | bool
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOfMachines = Annotated[int, Field(ge=1, le=100_000)]
"""Nodes, GPUs, CPUs, gigabytes."""
Some = Annotated[tuple[Item, ...], Field(min_length=1)]
"""A list with at least one entry."""
OneOrMore = Annotated[
    tuple[Item, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: value if isinstance(value, tuple) else (value,)),
]
"""`loop`, or `[loop, chunked]`."""

ONE_OPTION = re.compile(r"--(?P<name>[a-z][a-z0-9-]*)(=.*| [\w%+,./:@][\w%+,./:=@-]*)?")
LEAVE_OUT = "; leave it out here"
HIDES_GPUS = ("gpus-per-task", "gpu-bind", "gpus", "gpus-per-node", "gpus-per-socket")
KEYS_OF_OPTIONS = {
    **{name: name for name in ("partition", "account", "qos", "constraint", "requeue")},
    **{"time": "time_limit_minutes", "cpus-per-task": "cpus_per_task", "mem": "memory_gb"},
    **{"gres": "gpus.NAME.gres", "no-requeue": "requeue"},
}
REFUSED_OF_SBATCH = {
    **{option: f"has a key of its own, {key}: write it there" for option, key in KEYS_OF_OPTIONS.items()},
    **dict.fromkeys(
        ("array", "job-name", "nodes", "ntasks", "ntasks-per-node", "output", "error", "open-mode", "signal"),
        f"is written by templates/base.sh.j2, or contradicts it{LEAVE_OUT}",
    ),
    **dict.fromkeys(HIDES_GPUS, f"hides a node's GPUs from its tasks, or asks for GPUs twice{LEAVE_OUT}"),
}
"""Given twice, they would contradict their key or the plan."""
REFUSED_OF_SRUN = {
    "cpu-bind": "has a key of its own, cluster.cpu_bind: write it there",
    **dict.fromkeys(
        (*HIDES_GPUS, "gres"), f"may hide a node's GPUs from its ranks, which have those of the job{LEAVE_OUT}"
    ),
    **dict.fromkeys(
        ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "distribution", "output", "error", "label"),
        f"is written by harness/job/slurm_step.py{LEAVE_OUT}",
    ),
}
NO_GRES, UNTYPED = "none", "untyped"
"""In gpus.NAME.gres: no --gres at all, where whole nodes come with their GPUs; and `gpu:N`, without a type."""
SHELL_TIMEOUT_S = 10.0


def _check_setup(lines: tuple[str, ...]) -> tuple[str, ...]:
    """What bash itself says against them, without running any."""
    for line in lines:
        if not line.replace("\t", "").replace("\n", "").isprintable():
            raise ValueError("must be lines without control characters")
    if not lines:
        return lines
    try:
        text = "\n".join(lines) + "\n"
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=SHELL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return lines  # no bash on this machine; the job's has it
    if done.returncode:
        raise ValueError(f"must be whole shell commands; {done.stderr.strip().splitlines()[-1]}")
    return lines


def _check_python(path: str) -> str:
    if path.startswith("-"):
        raise ValueError("must be the path or name of an interpreter; `-` begins an option")
    return path


def _option_check(program: str, example: str, refusals: Mapping[str, str]) -> Callable[[str], str]:
    def check(option: str) -> str:
        found = ONE_OPTION.fullmatch(option)
        if found is None or not option.isprintable():
            raise ValueError(f"must be one long option of {program} on one line, such as {example}")
        if why := refusals.get(found["name"]):
            raise ValueError(f"--{found['name']} {why}")
        return option

    return check


SbatchOption = Annotated[str, AfterValidator(_option_check("sbatch", "--exclusive", REFUSED_OF_SBATCH))]
SrunOption = Annotated[str, AfterValidator(_option_check("srun", "--mpi=pmix", REFUSED_OF_SRUN))]
SetupLines = Annotated[tuple[str, ...], AfterValidator(_check_setup)]


class FrameworkConfig(Launch):
    """Where one framework lives."""

    python: Annotated[Line, AfterValidator(_check_python)] | None = None
    setup: SetupLines = ()


class AskedOfSlurm(Frozen):
    """Under `cluster` for every kind of GPU, and under one in `gpus`, which wins; `setup` and `sbatch_options` are
    added to those of `cluster`. None is what the cluster gives."""

    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    time_limit_minutes: Annotated[int, Field(ge=1, le=527_040)] | None = None
    """A year at the most."""
    cpus_per_task: CountOfMachines | None = None
    memory_gb: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Per node; 0 is all that it has, as with sbatch."""
    sbatch_options: tuple[SbatchOption, ...] = ()
    setup: SetupLines = ()
    """Shell lines before all else in the script; those of a framework come after them."""


class ClusterConfig(AskedOfSlurm):
    """What every job asks of Slurm, whatever it measures."""

    cpus_per_task: CountOfMachines = 4
    requeue: bool = True
    """Whether a job goes back into the queue at its time limit and when it is preempted."""
    srun_options: tuple[SrunOption, ...] = ()
    cpu_bind: Line | None = None
    """srun's --cpu-bind, such as `cores`; these two are of the step that starts several ranks."""
    whole_nodes: bool = False
    """A job takes a node with all of its GPUs (`gpus.NAME.per_node`), and measures on each of them another cell of one
    GPU, side by side."""
    max_parallel_jobs: Count | None = None
    """Jobs of this project that Slurm may run at once; None sets no limit."""
    frameworks: dict[Framework, FrameworkConfig] = Field(default={}, validate_default=True)
    """Has an entry for each framework after validation."""

    @field_validator("frameworks")
    @classmethod
    def _both(cls, given: dict[Framework, FrameworkConfig]) -> dict[Framework, FrameworkConfig]:
        return {"jax": FrameworkConfig(), "torch": FrameworkConfig(), **given}


class GpuConfig(AskedOfSlurm):
    """One kind of GPU and how the cluster calls it."""

    gres: FileName | None = None
    """The type in --gres=gpu:TYPE:N; None means the GPU's name here. NO_GRES and UNTYPED are no types."""
    per_node: CountOfMachines | None = None
    """GPUs in a node, to refuse what no node can give; None checks nothing."""
    price_per_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """What an hour of one of these GPUs costs, in any currency: the report then has the cost of an epoch."""

    def gres_type(self, name: str) -> str:
        """`name` is that of the kind. NO_GRES and UNTYPED among the answers; `any` asks for no type."""
        return self.gres or (UNTYPED if name == "any" else name)


class Partial(Frozen):
    """What `exclude` matches by."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_named(cls, value: object) -> object:
        if value is None:
            raise ValueError("name one, or leave the key out: without a value it would exclude more than it says")
        return value

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if all(value in (None, {}) for value in self.model_dump().values()):
            raise ValueError(f"would exclude everything; name at least one of {', '.join(type(self).model_fields)}")
        return self

    def _agrees(self, **values: object) -> bool:
        """In each of these that it names."""
        named = ((getattr(self, name), value) for name, value in values.items())
        return all(valid is None or value in valid for valid, value in named)


class PartialCell(Partial):
    """Matches the cells that agree with it in everything that it names."""

    gpu: OneOrMore[str] | None = None
    benchmark: OneOrMore[str] | None = None
    use_case: OneOrMore[int] | None = None

    def matches(self, gpu: str, benchmark: str, use_case: int) -> bool:
        return self._agrees(use_case=use_case, benchmark=benchmark, gpu=gpu)


class PartialVariant(Partial):
    """Matches the variants that agree with it in everything that it names."""

    framework: OneOrMore[Framework] | None = None
    benchmark: OneOrMore[str] | None = None
    model: OneOrMore[str] | None = None
    batch_size: OneOrMore[int] | None = None
    precision: OneOrMore[Precision] | None = None
    formulation: OneOrMore[str] | None = None
    run: OneOrMore[str] | None = None
    options: dict[str, OneOrMore[Setting]] | None = None

    def of_benchmark(self, framework: Framework, benchmark: str, models: Collection[str]) -> "PartialVariant | None":
        """With the names of this benchmark's own models; None where it concerns none of its variants."""
        own = None if self.model is None else tuple(one for one in models if is_named(one, benchmark, self.model))
        if own == () or not self._agrees(framework=framework, benchmark=benchmark):
            return None
        return self.model_copy(update={"benchmark": None, "model": own})

    def matches(self, variant: Variant, mode: Mode) -> bool:
        """What `of_benchmark` gave."""
        is_named = self._agrees(
            model=variant.model,
            batch_size=variant.batch_size,
            precision=variant.precision,
            formulation=mode.formulation,
            run=mode.run.name,
        )
        return is_named and all(variant.options.get(axis) in values for axis, values in (self.options or {}).items())


def is_named(model: str, benchmark: str, names: Collection[str]) -> bool:
    """By its own name, or by its benchmark's and its own: `cnn`, or `mnist/cnn`."""
    return model in names or f"{benchmark}/{model}" in names


class MatrixConfig(Frozen):
    """What `python main.py` measures."""

    gpus: Some[str]
    benchmarks: Some[str]
    use_cases: Some[int]
    exclude: tuple[PartialCell, ...] = ()


BatchSizes = Annotated[
    Annotated[Some[Count], Tag(UNION_TAGS[0])] | Annotated[dict[str, Some[Count]], Tag(UNION_TAGS[1])],
    Discriminator(lambda value: UNION_TAGS[isinstance(value, dict)]),
]
"""Of all models, or by the name of a model."""


class BenchmarkConfig(Frozen):
    models: Some[FileName]
    sizes: dict[str, Setting] = {}
    """Of its models and inputs, where it has any to choose; what is absent has its default."""
    batch_sizes: dict[str, BatchSizes] = {}
    """By the name of a use case (`train`): instead of the use case's own."""
    settings: dict[str, dict[str, Setting]] = {}
    """By the name of a use case: what differs from the use case's own settings."""


Chosen = Annotated[
    dict[FileName, Annotated[tuple[FileName, ...], BeforeValidator(lambda value: value if value else ())]],
    Field(min_length=1),
    BeforeValidator(lambda value: {value: ()} if isinstance(value, str) else value),
]
"""`vmap`, or `vmap: [jit, jit_graph]`: a formulation, and its runs where they are others than those of `runs`."""
Runs = dict[Framework, Some[FileName]]


class UseCaseConfig(Frozen):
    """The axes of a use case: each combination is a variant, unless `exclude` names it."""

    name: FileName
    """As harness/work/use_cases/ declares it."""
    devices: CountOfMachines = 1
    """GPUs over all nodes."""
    nodes: CountOfMachines = 1
    batch_sizes: Some[Count]
    """Global: over all devices."""
    precisions: Some[Precision]
    formulations: dict[Framework, Some[Chosen]]
    options: dict[str, Some[Setting]] = {}
    settings: dict[str, Setting] = {}
    measurement: dict[str, Setting] = {}
    """What differs from `measurement`."""
    exclude: tuple[PartialVariant, ...] = ()


class QuickUseCase(Frozen):
    """What a smoke run replaces in a use case; what is absent stays."""

    batch_sizes: Some[Count] | None = None
    precisions: Some[Precision] | None = None
    formulations: dict[Framework, Some[Chosen]] = {}
    options: dict[str, Some[Setting]] = {}
    settings: dict[str, Setting] = {}


class QuickBenchmark(Frozen):
    """What a smoke run replaces in a benchmark; what is absent stays."""

    models: Some[FileName] | None = None
    sizes: dict[str, Setting] = {}
    batch_sizes: dict[str, BatchSizes] = {}
    """By the name of a use case."""
    settings: dict[str, dict[str, Setting]] = {}
    """By the name of a use case."""
    runs: Runs = {}
    """The only ones that it has, of all use cases."""
    exclude: tuple[PartialVariant, ...] = ()
    """Of all use cases, beside what these exclude."""


SAME_USE_CASE, SAME_BENCHMARK = QuickUseCase(), QuickBenchmark()
"""Nothing is replaced. Made once, as they are looked at thousands of times."""


class QuickConfig(Frozen):
    measurement: dict[str, Setting] = {}
    """Overrides of `measurement`, also of a use case's."""
    precisions: Some[Precision] | None = None
    """Of all use cases."""
    runs: Runs = {}
    """In place of `runs`, where a formulation has no others written beside it."""
    benchmarks: dict[str, QuickBenchmark] = {}
    use_cases: dict[int, QuickUseCase] = {}


class PresetPart(Frozen):
    """A selection; what is absent is all that experiments.yaml has."""

    benchmarks: tuple[str, ...] = ()
    use_cases: tuple[int, ...] = ()
    frameworks: tuple[Framework, ...] = ()
    models: tuple[str, ...] = ()
    batch_sizes: tuple[Count, ...] = ()
    precisions: tuple[Precision, ...] = ()
    formulations: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    execution_modes: tuple[str, ...] = ()
    """These three of either framework."""
    options: dict[str, OneOrMore[Setting]] = {}
    settings: dict[str, Setting] = {}
    """As `--set` has them: of a use case, of `measurement`, or sizes."""


class PresetConfig(Frozen):
    """What `--preset NAME` measures: all of its parts."""

    about: Annotated[str, Field(min_length=1)]
    """What it is, in a few words."""
    headline: bool = False
    """Of each use case the execution modes that it declares as its headline."""
    quick: bool = False
    data: DataKind = "real"
    parts: Some[PresetPart]


class Config(Frozen):
    """experiments.yaml."""

    project: FileName
    data_dir: Annotated[Line, Field(validate_default=True)] = "data"
    """Absolute once validated: `~` and environment variables expanded, then relative to the repository."""
    cluster: ClusterConfig = ClusterConfig()
    pairing: Pairing = "auto"
    gpus: Annotated[dict[FileName, GpuConfig], Field(min_length=1)]
    matrix: MatrixConfig
    benchmarks: Annotated[dict[FileName, BenchmarkConfig], Field(min_length=1)]
    runs: Runs
    """How each formulation is run that has no runs written beside it; those of them that it has."""
    use_cases: Annotated[dict[Count, UseCaseConfig], Field(min_length=1)]
    measurement: MeasurementSettings = MeasurementSettings()
    quick: QuickConfig = QuickConfig()
    presets: dict[FileName, PresetConfig] = {}
    wandb: WandbSettings = WandbSettings()
    _file: str = PrivateAttr("experiments.yaml")
    _places_of_devices: dict[int, str] = PrivateAttr({})
    _profile: Path | None = PrivateAttr(None)

    @property
    def file(self) -> str:
        """How messages call the file that it was read from."""
        return self._file

    def place_of_devices(self, use_case: int) -> str:
        """`experiments.yaml:20:14`, where the use case says how many it takes; else the file."""
        return self._places_of_devices.get(use_case, self._file)

    def of_file(self, name: str, places_of_devices: dict[int, str], profile: Path | None = None) -> Self:
        self._file, self._places_of_devices, self._profile = name, places_of_devices, profile
        return self

    @property
    def profile(self) -> str | None:
        """The cluster's, by its name; None where none was laid over the file."""
        return self._profile.stem if self._profile else None

    @property
    def site_file(self) -> str:
        """Where a user writes what is to be different on this cluster."""
        return f"{self._profile.parent.name}/{self._profile.name}" if self._profile else self._file

    def srun_options(self) -> tuple[str, ...]:
        """Of the step that starts several ranks."""
        cluster = self.cluster
        return (*([f"--cpu-bind={cluster.cpu_bind}"] if cluster.cpu_bind else []), *cluster.srun_options)

    def launch(self, framework: Framework, *, in_a_job: bool = False) -> Launch:
        """How its processes are started; in a job, whose script has run the cluster's set-up lines already."""
        own = Launch.model_validate(self.cluster.frameworks[framework].model_dump())
        return own if in_a_job else own.model_copy(update={"setup": self.cluster.setup + own.setup})

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, data_dir: str) -> str:
        expanded = os.path.expandvars(data_dir)
        if "$" in expanded:
            raise ValueError("names an environment variable that is not set")
        try:
            return str(REPOSITORY / Path(expanded).expanduser())
        except RuntimeError as error:
            raise ValueError("names a user who is not known here, or whose home is not") from error

    def use_case(self, number: int, *, quick: bool) -> UseCaseConfig:
        """The use case as it is run: with the axes that --quick replaces."""
        full = self.use_cases[number]
        if not quick:
            return full
        replaced = self.quick.use_cases.get(number, SAME_USE_CASE)
        return full.model_copy(
            update={
                "batch_sizes": replaced.batch_sizes or full.batch_sizes,
                "precisions": replaced.precisions or self.quick.precisions or full.precisions,
                "formulations": full.formulations | replaced.formulations,
                "options": full.options | replaced.options,
            }
        )

    def modes(self, framework: Framework, benchmark: str, number: int, *, quick: bool) -> tuple[Mode, ...]:
        """What is chosen, in this order. Of names that are not declared nothing is said here: the check of
        experiments.yaml, which tells of them, asks too."""
        use_case = self.use_case(number, quick=quick)
        if use_case.name not in use_case_names():
            return ()
        by_default = (self.runs | self.quick.runs if quick else self.runs).get(framework, ())
        only = self._quick_benchmark(benchmark, quick=quick).runs.get(framework)
        declared = {one.name: one for one in declared_use_case(use_case.name).formulations[framework]}
        chosen = [item for one in use_case.formulations.get(framework, ()) for item in one.items()]
        return tuple(
            Mode(written=declared[name], run=run)
            for name, runs in chosen
            if name in declared
            for run_name in runs or by_default
            for run in declared[name].runs
            if run.name == run_name and (only is None or run_name in only)
        )

    def settings(self, benchmark: str, number: int, *, quick: bool) -> dict[str, Scalar]:
        """The more special wins: --quick's of the benchmark, then --quick's of the use case, then the benchmark's, then
        the use case's."""
        use_case = self.use_cases[number]
        of_benchmark = self.benchmarks[benchmark].settings.get(use_case.name, {})
        of_quick = self.quick.use_cases.get(number, SAME_USE_CASE).settings if quick else {}
        special = self._quick_benchmark(benchmark, quick=quick).settings.get(use_case.name, {})
        return {**use_case.settings, **of_benchmark, **of_quick, **special}

    def excluded(self, benchmark: str, number: int, *, quick: bool) -> tuple[PartialVariant, ...]:
        return self.use_cases[number].exclude + self._quick_benchmark(benchmark, quick=quick).exclude

    def models(self, benchmark: str, *, quick: bool) -> tuple[str, ...]:
        return self._quick_benchmark(benchmark, quick=quick).models or self.benchmarks[benchmark].models

    def batch_sizes(self, benchmark: str, model: str, number: int, *, quick: bool) -> tuple[int, ...]:
        """The more special wins: --quick's of the benchmark, then --quick's of the use case, then the benchmark's, then
        the use case's."""
        use_case, of_quick = self.use_cases[number], self.quick.use_cases.get(number) if quick else None
        given = (
            _of_model(self._quick_benchmark(benchmark, quick=quick).batch_sizes.get(use_case.name), model),
            of_quick.batch_sizes if of_quick else None,
            _of_model(self.benchmarks[benchmark].batch_sizes.get(use_case.name), model),
        )
        return next((sizes for sizes in given if sizes), use_case.batch_sizes)

    def sizes(self, name: str, *, quick: bool) -> dict[str, Scalar]:
        """All of the benchmark's, given or by default."""
        given = self.benchmarks[name].sizes | self._quick_benchmark(name, quick=quick).sizes
        return declared_benchmark(name).sizes.model_validate(given, strict=True).model_dump(mode="json")

    def _quick_benchmark(self, name: str, *, quick: bool) -> QuickBenchmark:
        """What --quick replaces in it; nothing in a full run."""
        return self.quick.benchmarks.get(name, SAME_BENCHMARK) if quick else SAME_BENCHMARK

    def price_per_hour(self, gpu: str, number: int) -> float | None:
        """Of all GPUs of a cell."""
        of_one = self.gpus[gpu].price_per_hour if gpu in self.gpus else None
        return None if of_one is None else of_one * self.use_cases[number].devices

    def protocol(self, number: int, *, quick: bool) -> MeasurementSettings:
        """The more special wins: --quick, then the use case."""
        of_quick = self.quick.measurement if quick else {}
        merged = {**self.measurement.model_dump(), **self.use_cases[number].measurement, **of_quick}
        return MeasurementSettings.model_validate(merged, strict=True)

    def cell(self, gpu: str, benchmark: str, number: int) -> Cell:
        use_case = self.use_cases[number]
        return Cell(
            gpu=gpu,
            benchmark=benchmark,
            use_case=number,
            use_case_name=use_case.name,
            devices=use_case.devices,
            nodes=use_case.nodes,
        )

    def is_excluded(self, gpu: str, benchmark: str, use_case: int) -> bool:
        return self.why_no_cell(gpu, benchmark, use_case) is not None

    def why_no_cell(self, gpu: str, benchmark: str, number: int) -> str | None:
        """Why nothing is measured there; None where something is."""
        if any(partial.matches(gpu, benchmark, number) for partial in self.matrix.exclude):
            return f"matrix.exclude in {self.file} leaves it out"
        return self._why_no_variant(benchmark, self.use_cases[number].name)

    def _why_no_variant(self, benchmark: str, use_case: str) -> str | None:
        """Of names that are not declared nothing is said here."""
        if benchmark not in benchmark_names() or use_case not in use_case_names():
            return None
        declared, of_use_case = declared_benchmark(benchmark), declared_use_case(use_case)
        models = [model for model in declared.models if model.name in self.benchmarks[benchmark].models]
        reasons = [why_not_model(of_use_case, declared, model) for model in models]
        return None if None in reasons or not reasons else reasons[0]


def _of_model(sizes: BatchSizes | None, model: str) -> tuple[int, ...] | None:
    return sizes.get(model) if isinstance(sizes, dict) else sizes
