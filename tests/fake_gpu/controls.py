"""Faults that are planted in a capture, and what is allowed there, on the fake CUDA; each answer is what PyTorch says.

python -m tests.fake_gpu.controls
"""

import json
from collections.abc import Callable
from typing import Any

import torch

from harness.fake_gpu.calls import Calls, faults, hindrances

calls = Calls()
x = torch.ones(64, 64, device="cuda")
on_host = torch.ones(64, 64)
pinned = on_host.pin_memory()
other = torch.cuda.Stream()
capturing = torch.cuda.Stream()


def on_other() -> None:
    """In place: new memory for a stream that is not captured would be the first fault."""
    with torch.cuda.stream(other):
        x.add_(1)


def forked() -> None:
    other.wait_stream(torch.cuda.current_stream())
    on_other()


def joined() -> None:
    forked()
    torch.cuda.current_stream().wait_stream(other)


def isolated() -> None:
    on_other()
    torch.cuda.current_stream().wait_stream(other)


FAULTS: dict[str, Callable[[], object]] = {
    "item": lambda: x.sum().item(),
    "nonzero": lambda: x.nonzero(),
    "mask": lambda: x[x > 0],
    "cpu": lambda: x.cpu(),
    "pageable copy": lambda: x.copy_(on_host),
    "new tensor from numbers": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "synchronize": lambda: torch.cuda.synchronize(),
    "stream that is not joined": forked,
    "waits for what is not captured": isolated,
    "index by a scalar on the device": lambda: x[torch.zeros((), dtype=torch.int64, device="cuda")],
    "operand on the host": lambda: x + on_host,
    "index on the host": lambda: x[torch.zeros(3, dtype=torch.int64)],
}
ALLOWED: dict[str, Callable[[], object]] = {
    "kernel": lambda: x + 1,
    "pinned copy": lambda: x.copy_(pinned, non_blocking=True),
    "random numbers": lambda: torch.randn(8, device="cuda"),
    "stream that is joined": joined,
    "empty_cache": lambda: torch.cuda.empty_cache(),
    "new memory": lambda: torch.empty(1 << 26, device="cuda").fill_(1),
}
UNCAPTURED: dict[str, Callable[[], object]] = {
    "nothing": lambda: x.add_(1),
    "item": lambda: x.sum().item(),
    "pinned copy back": lambda: pinned.copy_(x, non_blocking=True),
    "pageable copy": lambda: x.copy_(on_host),
    "malloc": lambda: torch.empty(1 << 28, device="cuda"),
    "synchronize": lambda: torch.cuda.synchronize(),
    "event": lambda: torch.cuda.current_stream().record_event().synchronize(),
}


def captured(work: Callable[[], object]) -> dict[str, Any]:
    """What PyTorch says, the errors before it too, and what the log says."""
    calls.reset()
    graph, said = torch.cuda.CUDAGraph(), []
    try:
        with torch.cuda.graph(graph, stream=capturing, capture_error_mode="thread_local"):
            work()
        graph.replay()
    except Exception as error:
        one: BaseException | None = error
        while one is not None:
            said.append(f"{type(one).__name__}: {str(one).splitlines()[0]}")
            one = one.__context__
    events = calls.events()
    torch.cuda.synchronize()
    return {
        "said": said,
        "faults": faults(events),
        "launched": [call.fields["nodes"] for call in events if call.kind == "graph"],
    }


def uncaptured(work: Callable[[], object]) -> list[str]:
    calls.reset()
    work()
    return hindrances(calls.events())


def host_pointers() -> list[str]:
    """What the log says of a product whose operand lies on the host: PyTorch's own operators refuse it, so cuBLAS is
    called as a broken extension would call it."""
    import ctypes

    library = ctypes.CDLL(None)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    one = ctypes.byref(ctypes.c_float(1))
    calls.reset()
    operands = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, on_host, x)]
    a, b, result = operands
    library.cublasSgemm_v2(handle, 0, 0, 64, 64, 64, one, a, 64, b, 64, one, result, 64)
    return faults(calls.events())


def warm() -> None:
    """Libraries and streams, as a program's cold calls do."""
    for stream in (torch.cuda.current_stream(), capturing, other):
        with torch.cuda.stream(stream):
            x @ x
            x.sum().item()
    torch.cuda.synchronize()


def answers() -> dict[str, Any]:
    warm()
    return {
        "faults": {name: captured(work) for name, work in FAULTS.items()},
        "allowed": {name: captured(work) for name, work in ALLOWED.items()},
        "uncaptured": {name: uncaptured(work) for name, work in UNCAPTURED.items()},
        "host_pointers": host_pointers(),
    }


if __name__ == "__main__":
    print(json.dumps(answers()))
