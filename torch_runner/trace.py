"""What runs when in a few calls, by PyTorch's own profiler: kernels of a GPU, or operators on a CPU."""

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from harness.results.record import KernelClass
from harness.results.timeline import Timeline, innermost, timeline_of

_US = 1e-6
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_OPERATORS = re.compile(r"(?!torch::|autograd::)\w+::|Torch-Compiled Region|CompiledFunctionBackward$|(graph|cpp)_")
"""Of PyTorch's events on the host: those that compute, or hold what Inductor has compiled; its own code has no events.
Functions of autograd and annotations hold others."""


def tracer() -> str:
    return f"torch.profiler of PyTorch {torch.__version__}"


def traced(run: Callable[[], Any]) -> tuple[Timeline, dict[str, KernelClass]]:
    """The timeline of `run`, which must wait for its work; and the classes of kernels that their names do not tell, by
    name: of PyTorch's all do."""
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        run()
    with tempfile.TemporaryDirectory(prefix="trace-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return timeline_from(content["traceEvents"]), {}


def timeline_from(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Kernels of the first GPU that has any, or the operators of the host. `events`: those of Chrome's trace format."""
    complete = [event for event in events if event.get("ph") == "X"]
    on_device = [event for event in complete if event.get("cat") in _ON_DEVICE]
    if not on_device:
        operators = [event for event in complete if event.get("cat") == "cpu_op" and _OPERATORS.match(event["name"])]
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
