"""What runs when in a few calls, by JAX's own profiler: kernels of a GPU, or XLA's operations on a CPU.

Of XLA's own kernels the compiled program says what is in them: a `fusion_3` may hold a convolution.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

from harness.results.record import KernelClass
from harness.results.timeline import Timeline, timeline_of
from jax_runner.executable import classes_of

_NS = 1e-9
_LEVELS = {"python_tracer_level": 0, "host_tracer_level": 1}
"""As little of the host as there is; kernels in CUDA graphs are listed one by one unless
gpu_enable_cupti_activity_graph_trace is set."""


def tracer() -> str:
    return f"jax.profiler of JAX {jax.__version__}"


def traced(run: Callable[[], Any]) -> tuple[Timeline, dict[str, KernelClass]]:
    """The timeline of `run`, which must wait for its work; and the classes of operations that their names do not tell,
    by name."""
    options = jax.profiler.ProfileOptions()
    for name, value in _LEVELS.items():
        setattr(options, name, value)
    with tempfile.TemporaryDirectory(prefix="trace-", ignore_cleanup_errors=True) as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            run()
        finally:
            jax.profiler.stop_trace()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        profiles = [ProfileData.from_file(str(path)) for path in files]
        classes, containers = classes_of(_programs(_modules(profiles)))
        return timeline_from(profiles, containers), classes


def timeline_from(profiles: Iterable[Any], containers: Iterable[str] = ()) -> Timeline:
    """Kernels of the first GPU that has any, or the operations of the CPU.

    Args:
        containers: operations that hold others, such as loops.
    """
    planes = [plane for profile in profiles for plane in profile.planes]
    for plane in planes:
        if plane.name.startswith("/device:GPU:"):
            streams = [line for line in plane.lines if line.name.startswith("Stream")]
            events = [event for line in streams for event in line.events]
            if events:
                return _kernels(events, planes)
    return _operations((line for plane in planes if plane.name == "/host:CPU" for line in plane.lines), set(containers))


def _kernels(events: Iterable[Any], planes: Iterable[Any]) -> Timeline:
    returned: dict[int, float] = {}
    for plane in planes:
        if plane.name.startswith("/host:"):
            for event in (event for line in plane.lines for event in line.events):
                if (correlation := dict(event.stats).get("correlation_id")) is not None:
                    returned[int(correlation)] = (event.start_ns + event.duration_ns) * _NS
    found = []
    for event in events:
        correlation = dict(event.stats).get("correlation_id")
        launched = math.nan if correlation is None else returned.get(int(correlation), math.nan)
        found.append((event.name, event.start_ns * _NS, (event.start_ns + event.duration_ns) * _NS, launched))
    return timeline_of(found)


def _operations(lines: Iterable[Any], containers: set[str]) -> Timeline:
    """An operation that runs on in other threads ends with the event `end: NAME`, which has its number."""
    begun: list[tuple[str, float, float, Any]] = []
    ends: dict[Any, float] = {}
    for event in (event for line in lines for event in line.events):
        stats = dict(event.stats)
        end = (event.start_ns + event.duration_ns) * _NS
        if event.name.startswith("end: "):
            ends[stats.get("_c")] = event.start_ns * _NS
        elif "hlo_op" in stats and event.name not in containers:
            begun.append((event.name, event.start_ns * _NS, end, stats.get("_p")))
    return timeline_of([(name, start, max(end, ends.get(number, end)), math.nan) for name, start, end, number in begun])


def _modules(profiles: Iterable[Any]) -> set[str]:
    """The names of the programs that ran."""
    planes = [plane for profile in profiles for plane in profile.planes]
    of_gpus = [plane for plane in planes if plane.name.startswith("/device:GPU:")]
    events = (event for plane in of_gpus or planes for line in plane.lines for event in line.events)
    found = (str(dict(event.stats).get("hlo_module", "")) for event in events)
    return {name.partition("(")[0] for name in found if name}


def _programs(modules: set[str]) -> Iterator[str]:
    """The text of all programs that ran, the longest last: it is the step's, and its names count. Other programs have
    operations of the same names. Of all programs that are compiled, where the profiler does not tell which ran."""
    executables = jax.local_devices()[0].client.live_executables()
    compiled = [module for executable in executables for module in executable.hlo_modules()]
    ran = [module for module in compiled if module.name in modules]
    yield from sorted((module.to_string() for module in ran or compiled), key=len)
