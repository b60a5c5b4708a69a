"""XLA, as the device and the use cases ask for it: an execution mode's options, and what XLA says of a program."""

import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import jax
import jax.monitoring
import jaxlib.version
from jax.experimental.layout import Format, Layout

from harness.errors import CheckFailed, Refused
from harness.measure.program import Session
from harness.work.declared import Mode
from jax_runner.executable import NO_WORK, Executable, Thunk, digest_of, module_of, thunks_of

Options = dict[str, str | int | bool]
"""Of XLA's compiler, by name."""

IN_GRAPHS = (
    "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,DYNAMIC_SLICE_FUSION,"  # what XLA takes by itself
    "CONVOLUTION,WHILE"
)
"""Kinds of operations that may be captured; by XLA's names, without a plus. Without convolutions a step of a
convolutional network falls apart into pieces that are shorter than the five operations from which on XLA makes a graph
by itself; without loops the host starts every round of `scan` and `map`. Collectives stay outside."""

COMBINED_BYTES = 2**20
"""Of gradients that a mode which overlaps sends in one all-reduce: the size of the first bucket of PyTorch's
DistributedDataParallel (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES). By itself XLA sends all gradients of a small
model at once, when the backward pass is over."""

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"  # jax/_src/dispatch.py
TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"


class HasGpu(Protocol):
    """Of jax_runner/device.py::Device, which imports this module."""

    tries_algorithms: bool

    @property
    def on_gpu(self) -> bool: ...


def compiler_options(mode: Mode, device: HasGpu) -> Options:
    """What an execution mode tells XLA; nothing for a plain one.

    A forced layout may be the one that XLA would choose: it depends on the GPU, on the dtype and on XLA's release, and
    XLA does not tell which it was. Such a mode is then the plain one, measured twice.

    Raises:
        Refused: this machine has no GPU, and all of these are options of XLA for GPUs, which a CPU would ignore; or
            this jaxlib does not know one of them.
    """
    options: Options = {}
    if mode.graph == "step":
        options["xla_gpu_enable_command_buffer"] = IN_GRAPHS
        options["xla_gpu_graph_min_graph_size"] = 1
    if mode.run_as == "max_autotune":
        options["xla_gpu_exhaustive_tiling_search"] = True
        options["xla_gpu_cudnn_gemm_fusion_level"] = 2
    if mode.layout != "own":
        options[f"xla_gpu_force_conv_{mode.layout}"] = True
    if mode.run.overlaps:
        options["xla_gpu_enable_latency_hiding_scheduler"] = True
        options["xla_gpu_all_reduce_combine_threshold_bytes"] = COMBINED_BYTES
    if options and not device.on_gpu:
        raise Refused(f"execution mode {mode.name} needs an NVIDIA GPU: it is an option of XLA for GPUs")
    if reason := why_not_known(tuple(options.items())):
        raise Refused(f"execution mode {mode.name}: jaxlib {jaxlib.version.__version__} does not know it: {reason}")
    if mode.graph == "step" and mode.formulation == "unrolled":
        # Independent models become parallel branches of one graph. A graph is one without it too.
        concurrent: Options = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
        options |= concurrent if why_not_known(tuple(concurrent.items())) is None else {}
    if device.on_gpu and not device.tries_algorithms:
        options["xla_gpu_autotune_level"] = 0
    return options


@cache
def why_not_known(options: tuple[tuple[str, str | int | bool], ...]) -> str | None:
    """What this jaxlib has against these options; None where it takes them. Asked with a program of no work, so that
    neither a timed call nor its compilation has to find out."""
    if not options:
        return None
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "compile option" in str(error) or "While setting option" in str(error):
            return str(error).splitlines()[0]
        raise
    return None


def jitted(function: Callable[..., Any], mode: Mode, device: HasGpu, **arguments: Any) -> Any:
    """`function` as the execution mode has it compiled; `arguments` are those of jax.jit. Raises Refused."""
    return jax.jit(function, compiler_options=compiler_options(mode, device) or None, **arguments)


def details_of_compiler(mode: Mode, device: HasGpu) -> dict[str, Any]:
    """For `Result.details`: the options, where there are any."""
    options = compiler_options(mode, device)
    return {"compiler_options": options} if options else {}


class Compilations:
    """Programs that were traced, and programs that were compiled, since this was made. A new program counts as both and
    brings others with it; in a steady state there is neither."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event in (COMPILE_EVENT, TRACE_EVENT):
            self.count += 1


def step_peak_bytes(step: jax.stages.Compiled) -> int | None:
    """XLA's own account of one execution: arguments, outputs and temporaries, less what is aliased. None where this
    backend gives none."""
    analysis = step.memory_analysis()
    if analysis is None:
        return None
    return int(
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )


# How much of a step is in CUDA graphs, by XLA's dump of what it has made.


def witness_of_graphs(step: jax.stages.Lowered, mode: Mode) -> dict[str, Any]:
    """How many command buffers (CUDA graphs) XLA has made of a step, what is left outside of them, by kind, and a
    digest of the program, by which modes that are one program under several names are known.

    The step is compiled once more, with the same options, so that what XLA dumps costs the timed program nothing. Where
    XLA dumps nothing of the sort, the number is None with the reason.

    Raises:
        CheckFailed: the mode is one of CUDA graphs, and there is none, or something is left outside that is no copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = step.compile(compiler_options=dump_options(Path(folder))).as_text() or ""
        dump, metadata = dumped_thunks(Path(folder)), dumped_metadata(Path(folder))
    if dump is None:
        return {"command_buffers": None, "command_buffers_absent": "XLA does not tell: its dump has no thunks"}
    executable = Executable(module=module_of(text), thunks=thunks_of(dump, metadata))
    outside = outside_of_graphs(executable.thunks)
    count = outside.pop("kCommandBuffer", 0)
    if mode.graph == "step" and (reason := why_not_one_graph(count, outside)):
        raise CheckFailed(f"execution mode {mode.name}: {reason}")
    return {
        "command_buffers": count,
        "outside_of_command_buffers": dict(outside),
        "program": digest_of([*executable.operations(), *executable.choices()]),
    }


def why_not_one_graph(graphs: int, outside: Mapping[str, int]) -> str | None:
    """Why a step is not what a mode of CUDA graphs is called after; None where it is.

    Args:
        graphs: how many there are.
        outside: how many thunks of each kind are in none.
    """
    if graphs == 0:
        return "XLA has put nothing of the step into CUDA graphs"
    left = ", ".join(f"{count} {kind}" for kind, count in outside.items() if not NO_WORK.match(kind))
    if not left:
        return None
    return (
        f"XLA has left work outside of the step's {graphs} CUDA graphs ({left}), so the mode's name would be a lie. "
        f"This is jaxlib {jaxlib.version.__version__}; 0.10.2, the last for Python 3.11, leaves every convolution "
        f"outside, and 0.12.0 none: use Python 3.12 or later"
    )


def dump_options(folder: Path) -> dict[str, str | bool]:
    """XLA's own texts of what it makes are left in the folder."""
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_module_re": "^jit_",  # the step itself, not what is tried on the way
        # No emitter has this name. JAX's cache on disk ignores the other options, and would bring a program from there
        # without a dump.
        "xla_dump_emitter_re": folder.name,
    }


def dumped_thunks(folder: Path) -> str | None:
    """The largest of the programs that were dumped. XLA writes thunks when they are made and, where a pass such as the
    one that makes command buffers has changed them, once more (xla/service/gpu/gpu_executable.cc)."""
    for name in ("*thunk_sequence_after_thunk_passes*.txt", "*thunk_sequence*.txt"):
        if dumps := [path.read_text() for path in folder.glob(name)]:
            return max(dumps, key=len)
    return None


def dumped_metadata(folder: Path) -> str:
    """Which instruction each of these thunks is."""
    return max((path.read_text() for path in folder.glob("*thunk_metadata*.txt")), key=len, default="")


def outside_of_graphs(thunks: Sequence[Thunk]) -> Counter[str]:
    """How many thunks there are of each kind, command buffers among them, without what is inside a command buffer."""
    counts = Counter(thunk.kind for thunk in thunks)
    for thunk in thunks:
        if not thunk.is_graph:
            counts += outside_of_graphs([inner for part in thunk.parts.values() for inner in part])
    return counts


class OneProgram(ABC):
    """What every use case's program shares: its step is one program of XLA."""

    session: Session[Any]
    compute: Any
    """The step, jitted."""

    @abstractmethod
    def arguments(self) -> tuple[Any, ...]:
        """Of the next call."""

    def lowered(self) -> jax.stages.Lowered:
        """The step, to be compiled once more."""
        lowered: jax.stages.Lowered = self.compute.lower(*self.arguments())
        return lowered

    def step_peak_bytes(self) -> int | None:
        return step_peak_bytes(self.lowered().compile()) if self.session.device.on_gpu else None

    def witness(self) -> dict[str, Any]:
        return self.graphs

    @cached_property
    def graphs(self) -> dict[str, Any]:
        """Asked for once: it takes a compilation."""
        return witness_of_graphs(self.lowered(), self.session.mode) if self.session.device.on_gpu else {}


# How arrays that stay on a GPU lie in its memory.

FREE = Format(Layout.AUTO)
"""XLA lays these arrays out as the program wants them."""


class LaidOutByXla(OneProgram):
    """A program whose weights, and what is kept with them, lie in a GPU's memory as XLA wants them for this program. As
    JAX lays arrays out by itself, XLA transposes the kernels of convolutions in every call. It is what channels_last is
    to PyTorch's weights.

    Such a step is compiled before its first call, and the arrays are moved in between. On a CPU it is a jitted function
    like any other.
    """

    LAID_OUT: ClassVar[str]
    """The attribute that holds these arrays."""
    POSITION: ClassVar[int]
    """Theirs among the arguments."""
    run: Any
    """What `step` calls: `compute`, which has FREE for these arrays on a GPU, or what was compiled of it."""
    compiled: jax.stages.Compiled | None = None

    def use(self, compute: Any) -> None:
        """From now on."""
        self.compute, self.compiled = compute, None
        self.run = self._first_run if self.session.device.on_gpu else compute

    @contextmanager
    def using(self, compute: Any) -> Iterator[None]:
        """For a while. What was compiled before is kept."""
        if compute is self.compute:
            yield
            return
        before = self.compute, self.run, self.compiled
        self.use(compute)
        try:
            yield
        finally:
            self.compute, self.run, self.compiled = before

    def lowered(self) -> jax.stages.Lowered:
        arguments = list(self.arguments())
        if self.session.device.on_gpu:  # FREE is for arrays that do not lie anywhere yet
            arguments[self.POSITION] = jax.tree.map(described, arguments[self.POSITION])
        lowered: jax.stages.Lowered = self.compute.lower(*arguments)
        return lowered

    def compile(self) -> None:
        if self.session.device.on_gpu:
            self.compiled = self.lowered().compile()

    def place(self) -> None:
        """One array after the other, so that the device never holds all of them twice."""
        if self.compiled is None:
            return
        formats = jax.tree.leaves(self.compiled.input_formats[0][self.POSITION])
        leaves, structure = jax.tree.flatten(getattr(self, self.LAID_OUT))
        setattr(self, self.LAID_OUT, None)
        for index, wanted in enumerate(formats):
            if leaves[index].format.layout != wanted.layout:
                leaves[index] = jax.device_put(leaves[index], wanted)
        setattr(self, self.LAID_OUT, jax.tree.unflatten(structure, leaves))
        self.run = self.compiled

    def _first_run(self, *_arguments: Any) -> Any:
        """Of whoever calls `step` without `compile` and `place` before it."""
        self.compile()
        self.place()
        return self.run(*self.arguments())


def described(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding, weak_type=array.weak_type)
