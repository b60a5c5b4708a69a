"""The events of a traced window, beside the record that they explain: arrays and a JSON entry about them in one .npz;
and the same as Chrome's trace format, which ui.perfetto.dev opens."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.errors import RecordError
from harness.files import in_words
from harness.plan import Frozen
from harness.results.kernel_names import class_of
from harness.results.npz import read_npz, write_npz
from harness.results.record import KernelClass
from harness.results.timeline import Floats, Timeline

MOST_EVENTS = 200_000
"""The first ones: some megabytes."""
UNKNOWN = np.iinfo(np.int64).min
"""In place of a time that the tracer does not tell."""
_NS = 1e-9


class About(Frozen):
    schema_version: Literal[1] = 1
    tracer: str
    on_device: bool
    """Kernels of a GPU; else operators of the host."""
    steps: Annotated[int, Field(ge=1)]
    events: Annotated[int, Field(ge=0)]
    """Of the window; kept are at most MOST_EVENTS."""
    dropped: int = 0
    """As in TracedWindow."""
    names: tuple[str, ...]
    contents: dict[str, KernelClass]
    """By name, the class of a kernel that a compiler has made and whose name does not tell."""


@dataclass(frozen=True, kw_only=True)
class KeptTimeline:
    """Times are in seconds from the first event on, in whole nanoseconds."""

    about: About
    timeline: Timeline


def write_timeline(
    path: Path, timeline: Timeline, *, tracer: str, on_device: bool, steps: int, contents: dict[str, KernelClass]
) -> None:
    """Raises RecordError with the way out when the disk is full or the folder cannot be written."""
    order = np.argsort(timeline.start_s, kind="stable")[:MOST_EVENTS]
    begin = timeline.start_s[order[0]] if len(order) else 0.0
    about = About(
        tracer=tracer,
        on_device=on_device,
        steps=steps,
        events=len(timeline.start_s),
        names=timeline.names,
        contents={name: kind for name, kind in contents.items() if name in timeline.names},
    )
    arrays = {
        "about": np.array(about.model_dump_json()),
        "name": timeline.name[order].astype(np.int32),
        "counts": timeline.counts[order],
        "start_ns": _nanoseconds(timeline.start_s[order] - begin),
        "end_ns": _nanoseconds(timeline.end_s[order] - begin),
        "launched_ns": _nanoseconds(timeline.launched_s[order] - begin),
    }
    write_npz(path, arrays)


def read_timeline(path: Path) -> KeptTimeline:
    """Raises RecordError that names the file and what is wrong with it."""
    try:
        arrays = read_npz(path)
        about = About.model_validate_json(str(arrays["about"]))
        return KeptTimeline(about=about, timeline=_timeline(about, arrays))
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"{path}: not a timeline: {in_words(error)}") from error


def chrome_trace(kept: KeptTimeline, title: str) -> dict[str, Any]:
    """A JSON object of Chrome's trace format: "Trace Event Format", Google, 2016.

    The first process has what ran, in as many lanes as there are events at one time: within a thread events may only
    nest there. The second has a mark for each call that had started one, where it returned.
    """
    about = kept.about
    what = "kernels" if about.on_device else "operators"
    events = [
        _named("process_name", 1, 0, f"{title}: {what}"),
        *_complete_events(kept),
        *_launches(kept, title),
    ]
    lanes = sorted({event["tid"] for event in events if event["ph"] == "X"})
    events += [_named("thread_name", 1, lane, f"{what}, lane {lane}") for lane in lanes]
    told = {
        "traced by": about.tracer,
        "steps": about.steps,
        "events of the window": about.events,
        "events here": len(kept.timeline.start_s),
    }
    return {"displayTimeUnit": "ms", "otherData": told, "traceEvents": events}


def _complete_events(kept: KeptTimeline) -> Iterator[dict[str, Any]]:
    timeline = kept.timeline
    classes = [class_of(name, kept.about.contents.get(name)) for name in timeline.names]
    for lane, place in _in_lanes(timeline):
        name = int(timeline.name[place])
        start, end = timeline.start_s[place], timeline.end_s[place]
        yield {
            **{"ph": "X", "pid": 1, "tid": lane, "name": timeline.names[name], "cat": classes[name]},
            **{"ts": _microseconds(start), "dur": _microseconds(end - start)},
        }


def _launches(kept: KeptTimeline, title: str) -> Iterator[dict[str, Any]]:
    timeline = kept.timeline
    known = np.flatnonzero(~np.isnan(timeline.launched_s))
    if len(known):
        yield _named("process_name", 2, 0, f"{title}: calls of the host, where they had returned")
    for place in known:
        name = timeline.names[int(timeline.name[place])]
        time = _microseconds(timeline.launched_s[place])
        yield {"ph": "i", "s": "t", "pid": 2, "tid": 1, "name": name, "cat": "launch", "ts": time}


def _in_lanes(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """Lane, from 1, and place of each event, in the order of their starts. The lowest lane that is free."""
    running: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = 0
    for place in np.lexsort((timeline.end_s, timeline.start_s)):
        start, end = float(timeline.start_s[place]), float(timeline.end_s[place])
        while running and running[0][0] <= start:
            heappush(free, heappop(running)[1])
        if not free:
            lanes += 1
            free = [lanes]
        lane = heappop(free)
        heappush(running, (end, lane))
        yield lane, int(place)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    """With the nanoseconds, and no more."""
    return round(float(seconds) * 1e6, 3)


def _nanoseconds(times_s: Floats) -> NDArray[np.int64]:
    known = ~np.isnan(times_s)
    return np.where(known, np.rint(np.where(known, times_s, 0.0) / _NS), UNKNOWN).astype(np.int64)


def _timeline(about: About, arrays: dict[str, NDArray[Any]]) -> Timeline:
    times = {name: arrays[name].astype(np.float64) * _NS for name in ("start_ns", "end_ns", "launched_ns")}
    return Timeline(
        names=about.names,
        name=arrays["name"].astype(np.int64),
        start_s=times["start_ns"],
        end_s=times["end_ns"],
        launched_s=np.where(arrays["launched_ns"] == UNKNOWN, np.nan, times["launched_ns"]),
        counts=arrays["counts"].astype(bool),
    )
