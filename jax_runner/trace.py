"""What runs when in a few calls, by JAX's own profiler: kernels of a GPU, or XLA's operations on a CPU.

Of XLA's own kernels the compiled program says what is in them: a `fusion_3` may hold a convolution.
"""

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

from harness.results.kernel_names import class_of
from harness.results.record import KernelClass
from harness.results.timeline import Timeline, timeline_of

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


# What is in XLA's operations, by the text of the compiled program.

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?:\(.*?\)|\S+) (?P<opcode>[a-z][\w-]*)\(")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_PRODUCT_TARGETS = re.compile(r"(?i)gemm|matmul|conv|dot|fmha|cublas|cudnn|onednn")
_MOVES = frozenset({"copy", "transpose", "slice", "concatenate", "pad", "reverse", "dynamic-slice", "copy-start"}) | {
    "dynamic-update-slice",
    "copy-done",
}
_FREE = frozenset({"parameter", "constant", "bitcast", "reshape", "tuple", "get-tuple-element"})
_CONTAINERS = frozenset({"while", "call", "conditional", "async-start", "async-done", "async-update"})


def classes_of(programs: Iterable[str]) -> tuple[dict[str, KernelClass], set[str]]:
    """Of all operations of these programs, by the names that the profiler gives them: on a GPU with `_` for each point;
    and the names of those that only hold others."""
    classes: dict[str, KernelClass] = {}
    containers: set[str] = set()
    for text in programs:
        computations = _computations(text)
        for lines in computations.values():
            for name, opcode, line in lines:
                found = _class_of(opcode, line, computations)
                if opcode in _CONTAINERS:
                    containers.add(name)
                elif found is not None:
                    classes[name] = classes[re.sub(r"[.-]", "_", name)] = found
    return classes, containers


def _computations(text: str) -> Mapping[str, list[tuple[str, str, str]]]:
    """By name: (name, opcode, line) of each instruction."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    instructions: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        if computation := _COMPUTATION.match(line):
            instructions = found.setdefault(computation["name"], [])
        elif instruction := _INSTRUCTION.match(line):
            instructions.append((instruction["name"], instruction["opcode"], line))
    return found


def _class_of(opcode: str, line: str, computations: Mapping[str, list[tuple[str, str, str]]]) -> KernelClass | None:
    """None of what is no work."""
    if opcode == "fusion":
        called = re.search(r"calls=%?([\w.-]+)", line)
        inside = computations.get(called[1], []) if called else []
        found = {_class_of(inner, text, computations) for _, inner, text in inside} - {None}
        for kind in _STRONGEST_FIRST:
            if kind in found:
                return kind
        return "traffic"
    if opcode == "custom-call":
        return _class_of_target(line)
    if opcode in ("dot", "convolution", "ragged-dot"):
        return "product"
    if opcode.startswith(("all-", "collective-", "reduce-scatter", "ragged-all-to-all", "send", "recv")):
        return "communication"
    if opcode in _FREE or opcode in _CONTAINERS:
        return None
    return "layout" if opcode in _MOVES else "traffic"


def _class_of_target(line: str) -> KernelClass | None:
    """None of a library or a callback that nobody knows."""
    target = _TARGET.search(line)
    if target is None:
        return None
    found = "product" if _PRODUCT_TARGETS.search(target[1]) else class_of(target[1])
    return None if found == "other" else found


_STRONGEST_FIRST: tuple[KernelClass, ...] = ("product", "communication", "traffic", "layout")
"""A fusion is what the first of these in it is."""
