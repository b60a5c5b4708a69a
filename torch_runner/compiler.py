"""torch.compile and CUDA graphs, as the device and the use cases ask for them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from harness.errors import Refused
from harness.measure.clock import COLD_CALLS


class Compilations:
    """Graphs that Dynamo has compiled in this process; a recompilation counts again."""

    @property
    def count(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])


def compile_options(mode: str | None = None) -> dict[str, Any]:
    """Arguments of torch.compile; `mode` is its own.

    Imports Inductor, which the first compilation would do inside the clock. JAX's compiler is there when the clock
    starts.
    """
    import torch._inductor.compile_fx  # noqa: F401

    return {"fullgraph": True, "dynamic": False, "mode": mode}


def require_gpu(execution_mode: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise Refused(f"execution mode {execution_mode} needs an NVIDIA GPU; PyTorch sees none here")


def keep_in_place(tensors: Iterable[Tensor]) -> None:
    """For inputs of compiled functions that no module owns: CUDA graphs would copy them before every replay. From here
    on new values must be copied into them."""
    for tensor in tensors:
        torch._dynamo.mark_static_address(tensor)


def captured(step: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
    """`step`, which returns a loss, as one CUDA graph. Every call is one step, also while the graph is made.

    All but the last of the cold calls run `step` as it is, on a side stream: that compiles, autotunes and makes the
    optimizer's state. The last one captures it. From then on a call is a replay, and writes its loss over that of the
    call before.

    Source: docs.pytorch.org/docs/stable/notes/cuda.html, "Whole-network capture".
    """
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    warm_up_calls = COLD_CALLS - 1
    static_loss: Tensor | None = None

    def call() -> Tensor:
        nonlocal warm_up_calls, static_loss
        if warm_up_calls:
            warm_up_calls -= 1
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                loss = step().detach()
            torch.cuda.current_stream().wait_stream(stream)
            return loss
        if static_loss is None:
            optimizer.zero_grad(set_to_none=True)  # or the graph would add to gradients that lie outside its memory
            with torch.cuda.graph(graph, stream=stream):
                static_loss = step().detach()
        graph.replay()
        return static_loss

    return call
