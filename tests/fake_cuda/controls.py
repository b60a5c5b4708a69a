"""Faults that are planted in a capture, and what is allowed there, on the fake CUDA; what PyTorch and the log say.

python -m tests.fake_cuda.controls
"""

import ctypes
import json
from collections.abc import Callable
from typing import Any

import torch

from tests.fake_cuda.calls import Calls, faults, hindrances

NOT_PERMITTED = "operation not permitted when stream is capturing"  # cudaErrorStreamCaptureUnsupported, 900
INVALIDATED = "operation failed due to a previous error during capture"  # cudaErrorStreamCaptureInvalidated, 901
UNJOINED = "capturing stream has unjoined work"  # cudaErrorStreamCaptureUnjoined, 904
ISOLATED = "dependency created on uncaptured work in another stream"  # cudaErrorStreamCaptureIsolation, 905
NOT_PINNED = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned"
OTHER_DEVICE = "Expected all tensors to be on the same device"
REFUSED = [INVALIDATED, NOT_PERMITTED]

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


Work = Callable[[], object]
FAULTS: dict[str, tuple[Work, list[str]]] = {
    "item": (lambda: x.sum().item(), REFUSED),
    "nonzero": (lambda: x.nonzero(), REFUSED),
    "mask": (lambda: x[x > 0], REFUSED),
    "cpu": (lambda: x.cpu(), [NOT_PINNED]),
    "pageable copy": (lambda: x.copy_(on_host), [NOT_PINNED]),
    "new tensor from numbers": (lambda: torch.tensor([1.0, 2.0], device="cuda"), [NOT_PINNED]),
    "synchronize": (lambda: torch.cuda.synchronize(), REFUSED),
    "stream that is not joined": (forked, [UNJOINED]),
    "waits for what is not captured": (isolated, [INVALIDATED, ISOLATED]),
    "index by a scalar on the device": (lambda: x[torch.zeros((), dtype=torch.int64, device="cuda")], REFUSED),
    "operand on the host": (lambda: x + on_host, [OTHER_DEVICE]),
    "index on the host": (lambda: x[torch.zeros(3, dtype=torch.int64)], [NOT_PINNED]),
}
"""With what PyTorch raises, the last error first: that of the capture's end, and the one that broke it."""
ALLOWED: dict[str, tuple[Work, int]] = {
    "kernel": (lambda: x + 1, 1),
    "pinned copy": (lambda: x.copy_(pinned, non_blocking=True), 1),
    "random numbers": (lambda: torch.randn(8, device="cuda"), 1),
    "stream that is joined": (joined, 1),
    "empty_cache": (lambda: torch.cuda.empty_cache(), 0),
    "new memory": (lambda: torch.empty(1 << 26, device="cuda").fill_(1), 1),
}
"""With the nodes of the graph that is then launched."""
UNCAPTURED: dict[str, tuple[Work, list[str]]] = {
    "nothing": (lambda: x.add_(1), []),
    "item": (lambda: x.sum().item(), ["sync cudaStreamSynchronize"]),
    "pinned copy back": (lambda: pinned.copy_(x, non_blocking=True), []),
    "pageable copy": (lambda: x.copy_(on_host), ["copy pageable->device", "sync cudaStreamSynchronize"]),
    "malloc": (lambda: torch.empty(1 << 28, device="cuda"), ["malloc cudaMalloc"]),
    "synchronize": (lambda: torch.cuda.synchronize(), ["sync cudaDeviceSynchronize"]),
    "event": (lambda: torch.cuda.current_stream().record_event().synchronize(), ["sync cudaEventSynchronize"]),
    "operand on the host": (lambda: multiplied_on_the_host(), ["fault host pointer given to cublasSgemm"]),
}
"""With what hinders a step."""


def captured(work: Work) -> dict[str, Any]:
    """What PyTorch raises, the errors before it too, and what the log says."""
    calls.reset()
    graph, raised = torch.cuda.CUDAGraph(), []
    try:
        with torch.cuda.graph(graph, stream=capturing, capture_error_mode="thread_local"):
            work()
        graph.replay()
    except Exception as error:
        one: BaseException | None = error
        while one is not None:
            raised.append(known(str(one)))
            one = one.__context__
    events = calls.events()
    torch.cuda.synchronize()
    launched = [call.fields["nodes"] for call in events if call.kind == "graph"]
    return {"raised": raised, "launched": launched} | ({} if raised else {"faults": faults(events)})


def known(words: str) -> str:
    errors = (NOT_PERMITTED, INVALIDATED, UNJOINED, ISOLATED, NOT_PINNED, OTHER_DEVICE)
    return next((error for error in errors if error in words), words)


def uncaptured(work: Work) -> list[str]:
    warm()
    calls.reset()
    work()
    return [words.split(" bytes=")[0] for words in hindrances(calls.events())]


def multiplied_on_the_host() -> None:
    """PyTorch's own operators refuse it, so cuBLAS is called as a broken extension would call it."""
    library = ctypes.CDLL(None)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    one = ctypes.byref(ctypes.c_float(1))
    a, b, result = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, on_host, x))
    library.cublasSgemm_v2(handle, 0, 0, 64, 64, 64, one, a, 64, b, 64, one, result, 64)


def warm() -> None:
    """Libraries and streams, as a program's cold calls do."""
    for stream in (torch.cuda.current_stream(), capturing, other):
        with torch.cuda.stream(stream):
            x @ x
            x.sum().item()
    torch.cuda.synchronize()


if __name__ == "__main__":
    warm()
    found = {
        "a fault in a capture": {
            name: [captured(work), {"raised": errors, "launched": []}] for name, (work, errors) in FAULTS.items()
        },
        "what a capture may do": {
            name: [captured(work), {"raised": [], "launched": [str(nodes)], "faults": []}]
            for name, (work, nodes) in ALLOWED.items()
        },
        "what a timed step must not do": {
            name: [uncaptured(work), kinds] for name, (work, kinds) in UNCAPTURED.items()
        },
    }
    print(json.dumps(found))
