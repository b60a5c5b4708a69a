"""The contracts between a runner and the harness: a runner builds a Program, and the harness drives it.

Each `<framework>_runner/use_cases/<name>.py` has one `build(session, joined=True) -> Program`. Whoever wants a step
(the measurement, the parity gate, the control without communication, the warm start, a bench) builds one and calls it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigError, DataError, Refused
from harness.measure.world import ALONE, World
from harness.plan import Measurement
from harness.results.parity import Numbers
from harness.results.record import Check, Memory
from harness.work.applies import why_not_besides_layers
from harness.work.datasets import Dataset
from harness.work.declared import Benchmark, Mode, Model, UseCase
from harness.work.weights import Draw, WeightOf

Phase = tuple[str, Callable[[], Any]]
"""A part of a step, by name: a function that starts its work and returns its outputs."""


@runtime_checkable
class Program(Protocol):
    """What one variant computes, ready to be called: model, data and optimizer on the device, nothing compiled yet.

    A runner's class names this as its base and so inherits what has a default here.
    """

    samples_per_step: int
    """Over all devices."""
    steps_per_call: int = 1
    """More than one where a call runs several steps (JAX `scan`)."""
    parameter_count: int
    communicates: bool = False
    """Whether a step moves anything between devices; the control without it is then measured too."""
    details: dict[str, Any]
    """For `Result.details`."""
    model_count: int = 1
    """How many models a step is of."""
    units: Mapping[str, float] = MappingProxyType({})
    """As `Benchmark.units`, where samples differ in size: of the batches that are timed."""

    def compile(self) -> None:
        """Where a step is compiled apart from its first call. The time counts as that call's."""
        return

    def place(self) -> None:
        """Bring what is on the device to where, or to how, the compiled step wants it; after `compile`, untimed."""
        return

    def step(self) -> Any:
        """Start one call's work and return its outputs. It depends on the call before it, so that waiting for the last
        call of a block means waiting for the whole block."""

    def state(self) -> Any:
        """What lies on the device now: inputs, parameters, optimizer. Waiting for it is waiting for all work so far."""

    def check(self) -> list[Check]:
        """Compare the program with a float64 reference, after the cold calls. Raises CheckFailed where it is wrong."""
        return []

    def witness(self) -> dict[str, Any]:
        """How the step really runs, found out by one untimed call: replays of CUDA graphs, recordings, ... Asked for
        before and after the timed calls; the last answer stands in `Result.details`. Raises CheckFailed where the
        mode's name would be a lie."""
        return {}

    def settle(self) -> None:
        """Take the inputs of the timed calls, where the check had others."""
        return

    def model_inputs(self) -> Any:
        """What one model takes in the forward pass of a step, for counting its work: only shapes matter. None where
        nobody knows."""
        return None

    def phases(self) -> list[Phase]:
        """The parts of a step, in the order in which they depend on each other; empty where they are not told apart."""
        return []

    def construction(self) -> list[Phase]:
        """What comes before a first step and is timed beside it, such as building the models; empty where that is not
        told apart. What it makes is dropped."""
        return []

    def step_peak_bytes(self) -> int | None:
        """Of one steady step by the compiler's own account; None where the device measures it."""
        return None

    def parity(self) -> Numbers:
        """What both frameworks must agree on (harness/results/parity.py), by the very step that is timed."""


class Means(NamedTuple):
    """Over the test set (harness/work/tasks.py)."""

    loss: float
    """The mean, without what only training adds to a loss."""
    score: float
    """The mean; of a metric of the whole test set, that metric."""
    further_scores: dict[str, float] = {}
    """The means of those of the task's further metrics, by their names."""

    @classmethod
    def of_sums(
        cls, sums: Sequence[tuple[Any, Any, Mapping[str, Any]]], count: int, whole: float | None = None
    ) -> "Means":
        """From each batch's sums over its samples.

        Args:
            count: that of all samples.
            whole: the score where it is no mean (`Metric.of_test_set`).
        """
        losses, scores, further = zip(*sums, strict=True)
        means = {name: sum(float(of_batch[name]) for of_batch in further) / count for name in further[0]}
        score = sum(map(float, scores)) / count if whole is None else whole
        return cls(sum(map(float, losses)) / count, score, means)


@runtime_checkable
class Trains(Program, Protocol):
    """A program that trains one model, so that it can be trained to the end."""

    is_resident: bool = True
    """The whole training set lies on the device; else it comes in chunks, and the speed of a step is that of the first
    one."""

    def load(self, first_step: int) -> int:
        """Bring the samples of the steps from this one on, counted from the initial weights, and say how many steps
        can be made until the next `load`: whole calls. Never in a timed window."""

    def reset(self) -> None:
        """Initial weights, an optimizer that has seen nothing, and the first batch."""

    def kept(self, outputs: Any) -> Any:
        """The losses of a call, kept from being overwritten by the next one."""

    def losses(self, kept: list[Any]) -> NDArray[np.floating[Any]]:
        """Of all steps of these calls, [steps]; of several devices, those of this rank's part."""

    def evaluate(self) -> Means: ...


class Answers(NamedTuple):
    """What a model says of the test set, or of its beginning."""

    labels: NDArray[np.integer[Any]]
    """[samples, ...]: the class whose output is largest, of each thing that a sample asks for."""
    mean_score: float | None
    """Over these samples (harness/work/tasks.py)."""
    no_score: str | None = None
    """Why there is none."""


@runtime_checkable
class Infers(Program, Protocol):
    """A program that gives a model's outputs, so that they can be kept beside the times."""

    def answers(self) -> Answers | None:
        """By the step that was timed; None without a test set."""


class Device(Protocol):
    """What each runner's device.py offers to the harness: its class inherits from this one.

    In a world of one neither `agree` nor `leave` is called, and `join` only for several devices.
    """

    def join(self, world: World) -> None:
        """Meet the other ranks at `world.coordinator` and take this rank's devices. Comes first, before `set_up`: JAX
        must not have seen a device yet. Returns when all ranks are there."""

    def agree(self, value: float) -> float:
        """The largest of all ranks' values, on every rank. Waits for the slowest rank; never in a timed window."""
        return float(self._of_all_ranks(np.array(value)).max())

    def mean_over_ranks(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Element by element, on every rank; the values themselves in a world of one."""
        mean: NDArray[np.float64] = self._of_all_ranks(values).mean(0)
        return mean

    def _of_all_ranks(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """[ranks, *values]"""

    def leave(self) -> None:
        """Part in order. Comes last, after the result was sent; not called after an error."""

    def set_up(self, precision: str) -> None:
        """Choose the device, set the precision of matrix products and convolutions. Raises Refused."""

    def try_no_algorithms(self) -> None:
        """For the parity gate, which is about mathematics: no library tries its algorithms from now on, so that each
        process takes the same ones."""

    def describe(self) -> dict[str, Any]: ...
    def wait(self, outputs: Any) -> None: ...
    def is_finite(self, outputs: Any) -> bool:
        """Whether all floating-point numbers in it are."""

    def compilations(self) -> int: ...
    def forget_programs(self) -> None:
        """Drop what was compiled, so that one process can build many programs."""

    def begin_timing(self) -> None:
        """After the warm-up, before the first timed block: torch resets its memory peak."""

    def end_timing(self) -> None:
        """After the last timed call, before evaluation or anything else: torch reads its memory peak."""

    def memory(self) -> Memory:
        """Of the device that took most, and of each where this process has several."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...


D = TypeVar("D", bound=Device)
Computed = TypeVar("Computed")


@dataclass(frozen=True, kw_only=True)
class Session(Generic[D]):
    """What a program is built from. `D` is the runner's own class of device."""

    measurement: Measurement
    benchmark: Benchmark
    use_case: UseCase
    dataset: Dataset
    device: D
    world: World = ALONE
    pretrained: WeightOf | None = None
    """The weights that torchvision publishes, where the settings ask for them."""

    def weights_of(self, weights: str, draw: Draw) -> WeightOf:
        """`drawn` from the seed, by `draw`, or `pretrained`. Raises DataError."""
        if weights == "drawn":
            return partial(draw, self.measurement.seed)
        if self.pretrained is None:
            raise DataError(
                f"weights: pretrained: there are none for {self.measurement.variant.model} of {self.benchmark.name} "
                f"({self.measurement.data} data). Choose weights: drawn in experiments.yaml, or fetch them where there "
                f"is a network: python main.py data --benchmark {self.benchmark.name}"
            )
        return self.pretrained

    @property
    def image_size(self) -> int | None:
        """Height and width of what a model sees; None where that is the images' own."""
        sizes = self.benchmark.sizes.model_validate(self.measurement.sizes)
        size: int | None = getattr(sizes, "image_size", None)
        return size

    @property
    def outputs_of_sample(self) -> int:
        """How many numbers the model gives for a sample, where there are many; else 0."""
        return self.benchmark.outputs(self.dataset)

    @property
    def mode(self) -> Mode:
        """Raises ConfigError where the use case has no mode of that name."""
        return self.use_case.mode(self.measurement.framework, self.measurement.variant.execution_mode)

    def require_possible(self) -> None:
        """Raises Refused where the mode cannot do what the options ask for, or would be another one on as many devices.
        Of layers the runner itself knows."""
        options, devices = self.measurement.variant.options, self.world.device_count
        why = why_not_besides_layers(self.use_case, self.model, self.mode, options, devices)
        if why is None and self.mode.run.process_per_node and self.world.devices_per_rank == 1:
            why = "one process for all devices of a node is for nodes with several"
        if why is not None:
            raise Refused(f"execution mode {self.mode.name}: {why}")

    @property
    def model(self) -> Model:
        """What is declared of the variant's model."""
        return self.benchmark.model(self.measurement.variant.model)

    @contextmanager
    def named_model(self, file: str) -> Iterator[None]:
        """Around the making of the model: raises ConfigError where the runner's file has none of its name."""
        name = self.measurement.variant.model
        try:
            yield
        except KeyError as error:
            if error.args != (name,):
                raise
            raise ConfigError(
                f"{file} does not know {name}, which harness/work/benchmarks/{self.benchmark.name}.py declares: add it "
                f"to its make_model"
            ) from error

    def require_declared(self, has_batch_norm: bool) -> None:
        """Raises ConfigError where the model has BatchNorm and its declaration does not say so."""
        if has_batch_norm and self.model.batch_norm is None:
            raise ConfigError(
                f"{self.benchmark.name}/{self.model.name} has BatchNorm but does not declare it: add Layer.BATCH_NORM "
                f"to its layers and batch_norm=BatchNorm() in harness/work/benchmarks/{self.benchmark.name}.py"
            )

    @property
    def is_alone(self) -> bool:
        """One device."""
        return self.world.device_count == 1

    def agree(self, value: float) -> float:
        """The largest of all ranks' values; the value itself in a world of one."""
        return self.device.agree(value) if self.world.size > 1 else value

    def of_all_ranks(self, own: NDArray[Any]) -> NDArray[Any]:
        """Every rank's part along the first axis, in the order of the ranks; all parts are of one size."""
        if self.world.size == 1:
            return own
        places = np.zeros((self.world.size, *own.shape))
        places[self.world.rank] = own
        parts = self.device.mean_over_ranks(places) * self.world.size  # exact: all the others are zero
        return parts.reshape(-1, *own.shape[1:])


def on_device_or_cpu(session: Session[Any], compute: Callable[[Any], Computed]) -> Computed:
    """`compute` of the device; where that has too little memory, of the CPU. Not of several ranks, which must do it
    together."""
    try:
        return compute(session.device.device)
    except Exception as error:
        if session.world.size > 1 or not session.device.is_out_of_memory(error):
            raise
    return compute(session.device.cpu)


class Build(Protocol):
    """Each use case's entry, in both runners."""

    def __call__(self, session: Session[Any], *, joined: bool = True) -> Program:
        """`joined=False`: the same work with nothing moved between devices, for the control. Raises Refused where this
        machine, model or output does not go with the execution mode."""
