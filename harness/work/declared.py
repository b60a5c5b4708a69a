"""What can be measured, declared once for both frameworks: benchmarks, use cases, and their execution modes.

Both runners, the check of experiments.yaml and the report read these same objects. A file in benchmarks/ holds a
BENCHMARK, a file in use_cases/ a USE_CASE; a file that is there is known, nothing is registered.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from harness.errors import ConfigError
from harness.plan import Framework, Frozen, Measurement, Precision
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
"""Of convolutions: the framework's own choice, or one that is forced."""


class Nothing(Frozen):
    """For a use case or benchmark without options, settings or sizes."""


class Layer(StrEnum):
    """Kinds of layers that some formulation or run does not know, or needs. A test of each runner derives a model's
    kinds from the built model."""

    DENSE = "dense layers"
    DENSE_WITHOUT_BIAS = "dense layers without a bias"
    CONVOLUTION = "convolutions"
    CONVOLUTION_WITHOUT_BIAS = "convolutions without a bias"
    DEPTHWISE = "depthwise convolutions"
    PATCH_PROJECTION = "a convolution whose windows do not overlap"
    BATCH_NORM = "BatchNorm"
    SCALE = "a scale of each feature"
    """Of a normalisation of our own, or a row that is added."""
    LAYER_NORM = "LayerNorm with a shift"
    TABLE = "tables of embeddings"
    TIED_HEAD = "an output layer that shares the embedding's table"
    TOKEN = "class tokens"
    """Weights that are added to the inputs, or stand beside them."""
    ATTENTION = "attention"
    MULTI_HEAD = "attention that holds its projections itself"
    GRAPH = "graphs"
    """Sums over the neighbours of a node."""


CONVOLUTIONS = frozenset({Layer.CONVOLUTION, Layer.CONVOLUTION_WITHOUT_BIAS, Layer.DEPTHWISE})
"""Those whose windows overlap, or that are 1 x 1."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a formulation is run."""

    name: str
    about: str = field(default="", compare=False)
    """In a few words, for docs/reference.md."""
    run_as: RunAs = "compiled"
    graph: Graph = "none"
    layout: Layout = "own"
    process_per_node: bool = False
    """One process for all devices of a node, instead of one for each device."""
    overlaps: bool = False
    """The compiler is told to hide communication behind computation (JAX; PyTorch's DDP always does)."""
    needs: frozenset[Layer] = frozenset()
    """It is another run once more for a model that has none of these."""
    precisions: frozenset[Precision] | None = None
    """In which it is a run of its own; None: all."""
    min_devices: int = 1

    @property
    def words(self) -> str:
        graphs = {"none": "", "parts": ", CUDA graphs of its parts", "step": ", one CUDA graph"}
        return self.run_as.replace("_", " ") + graphs[self.graph]


JIT = Run(name="jit", about="as XLA compiles it by itself: it decides what it takes into command buffers")
JIT_GRAPH = Run(name="jit_graph", graph="step", about="all that XLA can take in command buffers, convolutions too")
TUNED = Run(name="tuned", run_as="max_autotune", about="XLA tries more tilings, and cuDNN's fusions of products")
TUNED_GRAPH = Run(name="tuned_graph", run_as="max_autotune", graph="step", about="`tuned` and `jit_graph` together")
JAX_RUNS = (JIT, JIT_GRAPH, TUNED, TUNED_GRAPH)
"""As XLA does by itself, with all that it can in CUDA graphs, with more kernels tried, and both."""
OVERLAP = Run(
    name="overlap",
    about="XLA's latency-hiding scheduler, and gradients sent in parts of 1 MiB; PyTorch's DDP always does the like",
    overlaps=True,
    min_devices=2,
)
PROCESS_PER_NODE = Run(
    name="process_per_node",
    about="one process for all GPUs of a node, which may use the CPUs of all tasks there",
    process_per_node=True,
    min_devices=2,
)

EAGER = Run(name="eager", run_as="eager", about="operator by operator")
EAGER_GRAPH = Run(name="eager_graph", run_as="eager", graph="step", about="the whole eager step as one CUDA graph")
COMPILED = Run(name="compiled", about="`torch.compile`, forward and backward; the optimizer's call stays in Python")
COMPILED_GRAPH = Run(name="compiled_graph", graph="step", about="the whole compiled step as one CUDA graph")
MAX_AUTOTUNE = Run(
    name="max_autotune",
    run_as="max_autotune",
    about="Inductor tries its templates for products and convolutions too; refused below 68 multiprocessors, where it "
    "tries none, and without convolutions before PyTorch 2.13",
)
MAX_AUTOTUNE_GRAPH = Run(
    name="max_autotune_graph", run_as="max_autotune", graph="step", about="that as one CUDA graph of the whole step"
)
TORCH_RUNS = (EAGER, EAGER_GRAPH, COMPILED, COMPILED_GRAPH, MAX_AUTOTUNE, MAX_AUTOTUNE_GRAPH)
"""Eager, compiled, with more kernels tried; each plain and as one captured step."""


@dataclass(frozen=True, kw_only=True)
class Formulation:
    """How the same mathematics is written down: `vmap`, `outer_product`, `loop`, ... What it can do is declared here;
    harness/work/applies.py judges by that."""

    name: str
    about: str = field(default="", compare=False)
    """In a few words, for docs/reference.md."""
    runs: tuple[Run, ...]
    """The ways in which it can be run; experiments.yaml chooses among them."""
    needs: frozenset[Layer] = frozenset()
    """It is another formulation once more for a model that has none of these."""
    knows: frozenset[Layer] | None = None
    """It can do a model only if all kinds of its layers are among these; None: any model."""
    precisions: frozenset[Precision] | None = None
    """Those that it computes in; None: all."""
    options: Mapping[str, frozenset[Any]] = field(default_factory=dict, hash=False)
    """The values that it can do of the use case's options; an option that is absent: all."""
    min_devices: int = 1
    captures_several_devices: bool = True
    """A run of one CUDA graph is possible on several devices, too."""
    whole_batch: bool = False
    """It computes the whole batch at once: a packed batch of graphs stays packed, and nothing may cut it."""
    chunks_of: str = ""
    """The formulation that it uses for one chunk of the batch after the other."""
    is_loop: bool = False
    """Its first run is the plain loop, over models or samples, against which the framework's other formulations are
    seen."""
    several_steps: bool = False
    """One call runs many steps, so that nothing can be logged, checked or loaded between them. Compared only with its
    like."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """An execution mode: a formulation of the work, and how it is run."""

    written: Formulation
    run: Run

    @property
    def name(self) -> str:
        """As flags and records call it. The name is made here only, and nobody takes it apart."""
        return f"{self.written.name}.{self.run.name}"

    @property
    def formulation(self) -> str:
        return self.written.name

    @property
    def run_as(self) -> RunAs:
        return self.run.run_as

    @property
    def graph(self) -> Graph:
        return self.run.graph

    @property
    def layout(self) -> Layout:
        return self.run.layout

    @property
    def is_loop(self) -> bool:
        return self.written.is_loop and self.run.name == self.written.runs[0].name

    @property
    def several_steps(self) -> bool:
        return self.written.several_steps


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Parameters shared by all BatchNorm layers of a model, in PyTorch's convention."""

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
    layers: frozenset[Layer]
    """The kinds of its layers; `GRAPH`: it takes packed graphs (harness/work/graphs.py)."""
    words: str = ""
    """What a reader calls the model, as in `Train a small CNN`; its name where this is empty."""
    batch_norm: BatchNorm | None = None
    """Where it has such layers: the samples of a batch depend on each other, and not all of the state is weights."""
    parameter_count: int | None = None
    """With the benchmark's default sizes."""
    published: Published | None = None
    """Weights that torchvision has for it, under the same name."""
    multiply_adds: int | None = None
    """Of one sample's way through convolutions, dense layers and attention, with the benchmark's default sizes."""
    initial_weight: Draw = initial_weight
    """How its weights are drawn."""
    gate_weight: Draw | None = None
    """How the parity gate draws the weights, where initial weights are so small that it would miss mistakes."""

    @property
    def of_graphs(self) -> bool:
        return Layer.GRAPH in self.layers


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
    work: str = ""
    """What is done with a model, as a row of the report says it: `Train {model}`; the name where this is empty."""
    formulations: Mapping[Framework, tuple[Formulation, ...]]
    options: type[Frozen] = Nothing
    """Its own axes: each field is one, with the values that it may take."""
    settings: type[Frozen] = Nothing
    """What it is told besides: epochs, learning rates, ... A field without a default must be given."""
    headline: Mapping[Framework, str] = field(default_factory=dict)
    """The mode of each framework that is measured in full whatever a screening finds: what most people run."""
    needs_data: bool = False
    """It makes no sense for a benchmark without a data set."""
    without: Mapping[Layer, str] = field(default_factory=dict)
    """Kinds of layers that no model may have here, with the reason."""
    why_not_options: Callable[[Benchmark, Model, Mapping[str, Any], int], str | None] = field(
        default=lambda _benchmark, _model, _options, _devices: None
    )
    """Why these options make no sense together, for this model or on as many devices, however it is run; None where
    they do."""
    one_device: bool = False
    """The work cannot be split across devices."""
    forward_passes: int | None = None
    """How much work a sample is, in forward passes; None where that depends on the formulation."""
    has_gradients: bool = True
    """A step has a backward pass, which takes more than the range of fp16."""
    parameter_passes: Callable[[Mapping[str, Any]], int] = field(default=lambda _settings: 0)
    """How often a step's optimizer reads or writes each parameter, its gradient and what is kept of it; from the
    settings."""

    @cached_property
    def modes(self) -> Mapping[Framework, tuple[Mode, ...]]:
        return {
            framework: tuple(Mode(written=one, run=run) for one in formulations for run in one.runs)
            for framework, formulations in self.formulations.items()
        }

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


def headline_of(use_case_name: str) -> dict[str, str]:
    """Return the declared headline mode by framework; empty where the use case declares none, or no longer exists."""
    if use_case_name not in use_case_names():
        return {}
    return {str(framework): mode for framework, mode in use_case(use_case_name).headline.items()}


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
