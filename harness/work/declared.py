"""What can be measured, declared once for both frameworks: benchmarks, use cases, and their execution modes.

Both runners, the check of experiments.yaml and the report read these same objects. A file in benchmarks/ holds a
BENCHMARK, a file in use_cases/ a USE_CASE; a file that is there is known, nothing is registered.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from harness.errors import ConfigError
from harness.plan import Framework, Frozen, Measurement
from harness.suggest import valid_names
from harness.work.datasets import Dataset, DataSource
from harness.work.imagenet_classes import ClassList
from harness.work.tasks import Task
from harness.work.weights import Draw, initial_weight

RunAs = Literal["eager", "compiled", "max_autotune"]
"""Operator by operator; by the framework's compiler; with more kernels tried for each operation."""
Graph = Literal["none", "parts", "step"]
"""Which part of a step is replayed as a CUDA graph. PyTorch: nothing, what the compiler has compiled, or all of it.
JAX: what XLA takes into its command buffers by itself (`none`), or all that it can (`step`)."""
Layout = Literal["own", "nchw", "nhwc"]
"""Of a compiler's convolutions: its own choice, or one that is forced."""


class Nothing(Frozen):
    """Options, settings or sizes of what has none."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """An execution mode: a formulation of the work, and how it is run."""

    name: str
    """As experiments.yaml and the records call it. Nobody takes it apart."""
    formulation: str
    """How the same mathematics is written down: `vmap`, `outer_product`, `loop`, ..."""
    run_as: RunAs = "compiled"
    graph: Graph = "none"
    is_loop: bool = False
    """The plain loop, over models or samples, against which the framework's other formulations are seen."""
    process_per_node: bool = False
    """One process for all devices of a node, instead of one for each device."""
    layout: Layout = "own"
    several_steps: bool = False
    """One call runs many steps, so that nothing can be logged, checked or loaded between them. Compared only with its
    like."""
    overlaps: bool = False
    """The compiler is told to hide communication behind computation (JAX; PyTorch's DDP always does)."""


def torch_modes(formulation: str, prefix: str = "", *, is_loop: bool = False) -> tuple[Mode, ...]:
    """A formulation in all ways that PyTorch has: eager, compiled, with more kernels tried; each plain and as one
    captured step.

    Args:
        prefix: of the modes' names.
        is_loop: the plain eager one is the loop.
    """
    ways: tuple[RunAs, ...] = ("eager", "compiled", "max_autotune")
    graphs: tuple[tuple[str, Graph], ...] = (("", "none"), ("_graph", "step"))
    return tuple(
        Mode(
            name=f"{prefix}{run_as}{suffix}",
            formulation=formulation,
            run_as=run_as,
            graph=graph,
            is_loop=is_loop and (run_as, graph) == ("eager", "none"),
        )
        for run_as in ways
        for suffix, graph in graphs
    )


def jax_modes(formulation: str, name: str = "", *, is_loop: bool = False) -> tuple[Mode, ...]:
    """A formulation in all ways that JAX has, each jitted: as XLA does by itself, with all that it can in CUDA graphs,
    with more kernels tried, and both.

    Args:
        name: of the first; the formulation's where it is left out.
        is_loop: the first is the loop.
    """
    name = name or formulation
    return (
        Mode(name=name, formulation=formulation, is_loop=is_loop),
        Mode(name=f"{name}_graph", formulation=formulation, graph="step"),
        Mode(name=f"{name}_tuned", formulation=formulation, run_as="max_autotune"),
        Mode(name=f"{name}_tuned_graph", formulation=formulation, run_as="max_autotune", graph="step"),
    )


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Of all such layers of a model, as PyTorch counts them."""

    epsilon: float = 1e-5
    """Added to the variance."""
    momentum: float = 0.1
    """The weight of a batch in the running statistics; Flax's is one less this."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Weights of torchvision, trained on all classes of ImageNet."""

    weights: str
    """As torchvision calls them."""
    classifier: str
    """The layer with a row of weights for each class."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model of a benchmark."""

    name: str
    batch_norm: BatchNorm | None = None
    """With it the samples of a batch depend on each other, and not all of the state is weights."""
    has_depthwise: bool = False
    """Convolutions with a group for each channel, which a framework may write down in more than one way."""
    has_attention: bool = False
    of_graphs: bool = False
    """It takes packed graphs (harness/work/graphs.py) and sums over neighbours, which a framework may do in more than
    one way."""
    reference: "Reference | None" = None
    """What its source says of it."""
    parameter_count: int | None = None
    """With the benchmark's default sizes."""
    published: Published | None = None
    """Weights that torchvision has for it, under the same name."""
    multiply_adds: int | None = None
    """Of one sample's way through convolutions, dense layers and attention, with the benchmark's default sizes."""
    initial_weight: Draw = initial_weight
    """How its weights are drawn."""
    gate_weight: Draw | None = None
    """How the parity gate draws them, where its initial weights hide mistakes."""

    @property
    def has_batch_norm(self) -> bool:
        return self.batch_norm is not None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Of a model as its source publishes it, which may have another number of outputs."""

    source: str
    outputs: int
    parameter_count: int
    multiply_adds: int
    accuracy: float
    """Top-1, 0 to 1, over the source's own classes."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Inputs and class labels that are drawn from the seed, where a benchmark has no data set."""

    words: str
    """What is drawn."""
    shape: Callable[[str, Any], tuple[int, ...]]
    """Of one sample: (model, sizes) -> features, or channels x height x width."""
    classes: Callable[[str, Any], int]
    """How many: (model, sizes) -> count."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A task on a data set with its models."""

    name: str
    task: Task
    models: tuple[Model, ...]
    data: DataSource | None
    """None where the inputs are drawn."""
    drawn: Drawn | None = None
    """What is drawn where there is no data."""
    classes: ClassList | None = None
    """Where they are some of ImageNet's."""
    sizes: type[Frozen] = Nothing
    """Sizes of the models and inputs that experiments.yaml may choose (`benchmarks.<name>.sizes`)."""
    for_model: Callable[[Dataset, str, Any], Dataset] = field(default=lambda dataset, _model, _sizes: dataset)
    """(data set, model, sizes) -> the samples as this model takes them, where its models or sizes differ in that."""
    units: Callable[[Dataset], dict[str, float]] = field(default=lambda _dataset: {})
    """What else than samples its work is counted in, such as tokens: how many a sample of this data set has."""
    outputs: Callable[[Dataset], int] = field(default=lambda _dataset: 0)
    """How many numbers a model gives for a sample of this data set, where these are so many that they decide how many
    samples go through it at once."""

    def model(self, name: str) -> Model:
        """Raises ConfigError for a name that is not declared."""
        for model in self.models:
            if model.name == name:
                return model
        names = [model.name for model in self.models]
        raise ConfigError(f"{name}: {self.name} has no such model; {valid_names(name, names)}")


@dataclass(frozen=True, kw_only=True)
class UseCase:
    """What is done with a benchmark."""

    name: str
    about: str
    """In six words; `main.py --help` reads them from the file, where they follow the name."""
    modes: Mapping[Framework, tuple[Mode, ...]]
    options: type[Frozen] = Nothing
    """Its own axes: each field is one, with the values that it may take."""
    settings: type[Frozen] = Nothing
    """What it is told besides: epochs, learning rates, ... A field without a default must be given."""
    headline: Mapping[Framework, str] = field(default_factory=dict)
    """The mode of each framework that is measured in full whatever a screening finds: what most people run."""
    refuses: Callable[[Benchmark, Model], str | None] = field(default=lambda _benchmark, _model: None)
    """Why it makes no sense with this model of this benchmark; None where it does."""
    goes_with: Callable[[Mode, Model, Mapping[str, Any]], bool] = field(default=lambda _mode, _model, _options: True)
    """Whether a mode makes sense for this model and can do what these options ask for. What cannot be is no variant,
    and needs no `exclude`."""
    one_device: bool = False
    """It splits no work among devices: each of several would do all of it."""
    forward_passes: int | None = None
    """How much work a sample is, in forward passes; None where that depends on the formulation."""
    has_gradients: bool = True
    """A step has a backward pass, which takes more than the range of fp16."""
    parameter_passes: Callable[[Mapping[str, Any]], int] = field(default=lambda _settings: 0)
    """How often a step's optimizer reads or writes each parameter, its gradient and what is kept of it; from the
    settings."""

    def refuses_precision(self, precision: str) -> str | None:
        """Why it is not done in it; None where it is."""
        if precision == "fp16" and self.has_gradients:
            return (
                "gradients below 6e-8 are zero in fp16, so training in it needs loss scaling, which this project does "
                "not have; bf16 needs none, and inference takes fp16"
            )
        return None

    def mode(self, framework: Framework, name: str) -> Mode:
        """Raises ConfigError for a name that is not declared."""
        for mode in self.modes[framework]:
            if mode.name == name:
                return mode
        names = [mode.name for mode in self.modes[framework]]
        raise ConfigError(f"{name}: {self.name} has no such execution mode in {framework}; {valid_names(name, names)}")


def benchmark(name: str) -> Benchmark:
    """Raises ConfigError for a name without a file."""
    _require("benchmark", name, benchmark_names())
    found: Benchmark = importlib.import_module(f"harness.work.benchmarks.{name}").BENCHMARK
    return found


def use_case(name: str) -> UseCase:
    """Raises ConfigError for a name without a file."""
    _require("use case", name, use_case_names())
    found: UseCase = importlib.import_module(f"harness.work.use_cases.{name}").USE_CASE
    return found


def as_gated(benchmark: Benchmark) -> Benchmark:
    """The same with its models' weights drawn as the parity gate draws them."""
    models = tuple(
        replace(model, initial_weight=model.gate_weight or model.initial_weight) for model in benchmark.models
    )
    return replace(benchmark, models=models)


def operations_of(measurement: Measurement) -> int | None:
    """Floating-point operations that one sample takes: two for each multiply-add of its forward pass, times the use
    case's `forward_passes`. What a formulation computes twice counts once.

    None where the declaration does not know them or is not there any more, or where the benchmark's sizes are not its
    default ones.
    """
    cell = measurement.cell
    if cell.benchmark not in benchmark_names() or cell.use_case_name not in use_case_names():
        return None
    of_benchmark, passes = benchmark(cell.benchmark), use_case(cell.use_case_name).forward_passes
    models = (model for model in of_benchmark.models if model.name == measurement.variant.model)
    multiply_adds = next((model.multiply_adds for model in models), None)
    if multiply_adds is None or passes is None:
        return None
    sizes = _default_sizes(of_benchmark.sizes)
    return 2 * multiply_adds * passes if sizes | measurement.sizes == sizes else None


@cache
def _default_sizes(sizes: type[Frozen]) -> dict[str, Any]:
    return sizes().model_dump()


def benchmark_names() -> tuple[str, ...]:
    return _modules_in("benchmarks")


def use_case_names() -> tuple[str, ...]:
    return _modules_in("use_cases")


@cache
def _modules_in(folder: str) -> tuple[str, ...]:
    found = pkgutil.iter_modules([str(Path(__file__).parent / folder)])
    return tuple(sorted(module.name for module in found if not module.name.startswith("_")))


def _require(kind: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise ConfigError(f"{name}: there is no such {kind}; {valid_names(name, names)}")
