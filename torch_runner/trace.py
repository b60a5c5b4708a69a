"""What runs when in a few calls, by PyTorch's own profiler: kernels of a GPU, or operators on a CPU."""

import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from harness.results.record import KernelClass
from harness.results.timeline import Timeline, innermost, timeline_of

_US = 1e-6
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_OPERATORS = re.compile(r"(?!torch::|autograd::)\w+::|cpp_")
"""Of PyTorch's events on the host: those that compute. Functions of autograd and annotations hold others."""
_REGIONS = re.compile(r"Torch-Compiled Region|CompiledFunctionBackward$")
"""Events that hold what Inductor has compiled. Their own time is work of unknown kind, unless kernels have names."""


def tracer() -> str:
    return f"torch.profiler of PyTorch {torch.__version__}"


def traced(run: Callable[[], Any]) -> tuple[Timeline, dict[str, KernelClass]]:
    """The timeline of `run`, which must wait for its work; and the classes of kernels that their names do not tell, by
    name: of PyTorch's all do."""
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with _named_kernels() as are_named, profile(activities=[activity], acc_events=True) as profiler:
        run()
    with tempfile.TemporaryDirectory(prefix="trace-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return timeline_from(content["traceEvents"], are_named=are_named), {}


@contextmanager
def _named_kernels() -> Iterator[bool]:
    """Inside, each kernel that Inductor has compiled for the host leaves an event with its name; whether there are any.

    Without it, a compiled region is one event. The kernels are those that are there, not compiled again: the names by
    which Inductor's modules call them lead over the profiler for a while (torch/_inductor/codecache.py, PyCodeCache).
    """
    codecache = sys.modules.get("torch._inductor.codecache")
    modules = list(codecache.PyCodeCache.modules) if codecache else []
    kernels = [
        (module, name, kernel)
        for module in modules
        for name, kernel in vars(module).items()
        if name.startswith("cpp_") and callable(kernel)
    ]
    for module, name, kernel in kernels:
        setattr(module, name, _recorded(name, kernel))
    try:
        yield bool(kernels)
    finally:
        for module, name, kernel in kernels:
            setattr(module, name, kernel)


def _recorded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with torch._C._profiler._RecordFunctionFast(name):
            return kernel(*args)

    return call


def timeline_from(events: Iterable[Mapping[str, Any]], *, are_named: bool = False) -> Timeline:
    """Kernels of the first GPU that has any, or the operators of the host.

    Args:
        events: those of Chrome's trace format.
        are_named: the kernels of compiled regions have events of their own.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    on_device = [event for event in complete if event.get("cat") in _ON_DEVICE]
    if not on_device:
        of_host = [event for event in complete if event.get("cat") == "cpu_op"]
        operators = [
            event
            for event in of_host
            if _OPERATORS.match(event["name"]) or (not are_named and _REGIONS.match(event["name"]))
        ]
        found, counts = innermost([(event["name"], *_span_s(event), hash(event["tid"])) for event in operators])
        return timeline_of(found, counts=counts)
    device = min(event.get("args", {}).get("device", 0) for event in on_device)
    returned = {
        event["args"]["correlation"]: _span_s(event)[1]
        for event in complete
        if event.get("cat") in _CALLS and "correlation" in event.get("args", {})
    }
    return timeline_of(
        [
            (event["name"], *_span_s(event), returned.get(event.get("args", {}).get("correlation"), math.nan))
            for event in on_device
            if event.get("args", {}).get("device", 0) == device
        ]
    )


def _span_s(event: Mapping[str, Any]) -> tuple[float, float]:
    start = float(event["ts"])
    return start * _US, (start + float(event.get("dur", 0))) * _US
