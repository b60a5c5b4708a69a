"""torch.compile and CUDA graphs: how a mode's step is run, and what it turns out to be.

eager           operator by operator
compiled        as one torch.compile graph, forward and backward; each use case says of what
max_autotune    the same, and Inductor tries several kernels for matrix products, for 1 x 1 convolutions and for the
                others forward (not before release 2.13), and takes the fastest; cuDNN's are always tried
graph: step     each of these with the whole step as one CUDA graph: a call is one replay
graph: parts    mode="reduce-overhead": what is compiled is replayed as CUDA graphs; the rest of the step stays in
                Python
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from harness.errors import CheckFailed, Refused
from harness.measure.clock import COLD_CALLS
from harness.work.declared import Mode

Outputs = TypeVar("Outputs")
Compilable = TypeVar("Compilable", bound=Callable[..., Any])

TRITON_CONVOLUTIONS_ARE_RIGHT = (2, 13)
"""Before this release Inductor's Triton template for convolutions gives wrong results for kernels larger than 1 x 1
(github.com/pytorch/pytorch/issues/173068, fixed by pull request 183989)."""


class Compilations:
    """Graphs that Dynamo has compiled in this process, and CUDA graphs that Inductor had to record anew."""

    @property
    def count(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"]) + recorded_anew()


def recorded_anew() -> int:
    """How often no recording of Inductor's CUDA graphs fitted a call, so that another one was made."""
    if not torch.cuda.is_available():
        return 0
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    return 0 if manager is None else int(manager.debug_fail_counter)


def release() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def compile_options(mode: Mode) -> dict[str, Any]:
    """Arguments of torch.compile for a mode that is not eager.

    Imports Inductor, and on a GPU starts its processes and builds Triton's driver, which the first compilation would do
    inside the clock. JAX's compiler is there when the clock starts.
    """
    import torch._inductor.compile_fx  # noqa: F401

    options: dict[str, Any] = {}
    if torch.cuda.is_available():
        _start_compiler()
        if "vmap" in (mode.formulation, mode.written.chunks_of):
            # vmap makes grouped convolutions of plain ones. Inductor leaves these in NCHW, but overlooks them where
            # they are weight gradients: its decide_layout_opt (torch/_inductor/graph.py) looks at forward ones only.
            options["layout_optimization"] = False
    if mode.run_as == "max_autotune":
        # What mode="max-autotune-no-cudagraphs" stands for; options and mode exclude each other.
        options |= {"max_autotune": True, "coordinate_descent_tuning": True}
        if release() < TRITON_CONVOLUTIONS_ARE_RIGHT:
            options["max_autotune_conv_backends"] = "ATEN"
    if mode.graph == "parts":  # mode="reduce-overhead", but an error instead of a line in the log
        options |= {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}
    return {"fullgraph": True, "dynamic": False, "options": options}


def _start_compiler() -> None:
    import triton  # type: ignore[import-untyped]
    from torch._inductor.async_compile import AsyncCompile, maybe_warm_pool

    maybe_warm_pool()
    AsyncCompile.wait_pool_ready()
    _ = triton.runtime.driver.active.utils


def in_mode(function: Compilable, mode: Mode, device: torch.device, *, whole: bool = True) -> Compilable:
    """`function`, compiled unless the mode is eager; a module is compiled in place and keeps its parameters' names.

    Args:
        whole: as one graph. Else Dynamo may cut it, as it does where FSDP2 gathers a block's parameters.

    Raises:
        Refused: the machine cannot run this mode.
    """
    require_ability(mode, device)
    if mode.run_as == "eager":
        return function
    if isinstance(function, nn.Module):
        function.compile(**compile_options(mode) | {"fullgraph": whole})
        return function
    compiled: Any = torch.compile(function, **compile_options(mode))
    return compiled


def require_ability(mode: Mode, device: torch.device) -> None:
    """Raises Refused for a mode that this machine cannot run, or that would be another one here."""
    if (mode.graph != "none" or mode.run_as == "max_autotune") and device.type != "cuda":
        raise Refused(f"execution mode {mode.name} needs an NVIDIA GPU; PyTorch sees none here")
    if mode.run_as == "max_autotune":
        from torch._inductor.utils import is_big_gpu

        if not is_big_gpu(device):
            raise Refused(
                f"execution mode {mode.name} would be the compiled one on {torch.cuda.get_device_name(device)}: "
                f"Inductor tries its templates on GPUs with 68 multiprocessors or more only"
            )


def captured(step: Callable[[], Outputs], forget_gradients: Callable[[], None] = lambda: None) -> Callable[[], Outputs]:
    """`step` as one CUDA graph. Every call is one step, also while the graph is made.

    All but the last of the cold calls run `step` as it is, on a side stream: that compiles, autotunes and makes the
    optimizer's state. The last one captures it. From then on a call is a replay, and writes its outputs over those of
    the call before.

    Args:
        forget_gradients: called before the capture, or the graph would add to gradients that lie outside its memory.

    Source: docs.pytorch.org/docs/stable/notes/cuda.html, "Whole-network capture".
    """
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    warm_up_calls = COLD_CALLS - 1
    static_outputs: list[Outputs] = []

    def call() -> Outputs:
        nonlocal warm_up_calls
        if warm_up_calls:
            warm_up_calls -= 1
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                outputs = without_autograd(step())
            torch.cuda.current_stream().wait_stream(stream)
            return outputs
        if not static_outputs:
            forget_gradients()
            # NCCL's watchdog asks for events in a thread of its own, which a capture by default forbids.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                static_outputs.append(without_autograd(step()))
        graph.replay()
        return static_outputs[0]

    return call


def without_autograd(outputs: Outputs) -> Outputs:
    """What holds no graph of autograd, whose nodes belong to the stream that they were made on."""
    detached: Outputs = tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)
    return detached


def witness(step: Callable[[], Any], mode: Mode, device: torch.device) -> dict[str, Any]:
    """How one call of a warm step really ran, for the record.

    Raises:
        CheckFailed: not as the mode's name says.
    """
    from torch._dynamo.utils import counters

    with counted_replays() as replays:
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    compiled_graphs = int(counters["stats"]["unique_graphs"])
    fits = {"none": replays[0] == 0, "parts": replays[0] >= 2, "step": replays[0] == 1}[mode.graph]
    if not fits:
        expected = {"none": "none", "parts": "forward and backward, so at least 2", "step": "1"}[mode.graph]
        raise CheckFailed(
            f"execution mode {mode.name} replays {replays[0]} CUDA graphs in a call; expected: {expected}. It is not "
            f"what its name says, so it is not timed."
        )
    if mode.run_as != "eager" and not compiled_graphs:
        raise CheckFailed(f"execution mode {mode.name} has compiled nothing, so it is not timed under this name")
    return {
        "cuda_graph_replays": replays[0],
        "compiled_graphs": compiled_graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
        "cuda_graphs_recorded_anew": recorded_anew(),
    }


@contextmanager
def counted_replays() -> Iterator[list[int]]:
    """The only entry counts the replays of CUDA graphs inside, those of Inductor's own too."""
    count = [0]
    replay = torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        count[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counting  # type: ignore[method-assign,assignment]
    try:
        yield count
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]


def describe(mode: Mode) -> dict[str, Any]:
    """For the record: what torch.compile was told, and how many processes compile kernels beside each other."""
    if mode.run_as == "eager":
        return {}
    from torch._inductor import config

    return {"inductor_options": compile_options(mode).get("options"), "inductor_workers": config.compile_threads}
