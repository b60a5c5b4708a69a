"""What ran when in a few traced steps, the same for every framework and tracer, and what follows from it. Pure.

Busy time is the union of all events' intervals, never their sum: kernels overlap, and so do the time stamps that CUPTI
gives to the nodes of a CUDA graph. Where several events run at one time, it is shared among them equally; a collective
has an instant only where it is alone, so that its share is what no computation hides. So shares add up to busy time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.results.kernel_names import class_of
from harness.results.record import KernelClass, KernelTime, TracedWindow

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Events of one device, or of the host's operators. Times are in seconds of one clock, whose zero is anywhere."""

    names: tuple[str, ...]
    """Distinct ones, as the tracer gives them."""
    name: Whole
    """[events]: places in `names`"""
    start_s: Floats
    """[events]"""
    end_s: Floats
    """[events]"""
    launched_s: Floats
    """[events]: when the call that started it had returned; NaN where the tracer does not tell."""
    counts: NDArray[np.bool_]
    """[events]: false for the later parts of an operator that others interrupt."""


class Gaps(NamedTuple):
    """Time in which nothing ran, between the first event and the last. In seconds."""

    host_s: float
    """The call that starts the next event had not returned yet: the device waits for the host."""
    other_s: float
    """It had: latency, dependencies between streams, copies."""
    unknown_s: float
    """The tracer does not tell."""


def timeline_of(events: Sequence[tuple[str, float, float, float]], *, counts: Sequence[bool] | None = None) -> Timeline:
    """
    Args:
        events: (name, start, end, when the launching call had returned or NaN), in seconds and in any order.
        counts: see `Timeline`; all events where it is left out.
    """
    names: dict[str, int] = {}
    places = [names.setdefault(name, len(names)) for name, *_ in events]
    times = np.array([times_s for _, *times_s in events], np.float64).reshape(-1, 3)
    return Timeline(
        names=tuple(names),
        name=np.array(places, np.int64),
        start_s=times[:, 0],
        end_s=np.maximum(times[:, 0], times[:, 1]),
        launched_s=times[:, 2],
        counts=np.ones(len(events), bool) if counts is None else np.array(counts, bool),
    )


def busy_s(timeline: Timeline) -> float:
    """Of the union of all intervals."""
    starts, ends = _busy_intervals(timeline)
    return float((ends - starts).sum())


def shares_s(timeline: Timeline, is_collective: NDArray[np.bool_]) -> Floats:
    """[events]: the busy time that each event has for itself or shares with others; the sum is `busy_s`.

    Args:
        is_collective: [events]; these have what no other event has.
    """
    others = ~is_collective
    moments = np.unique(np.concatenate([timeline.start_s, timeline.end_s]))
    lengths = np.diff(moments)
    running = _running(moments, timeline.start_s[others], timeline.end_s[others])
    collectives = _running(moments, timeline.start_s[is_collective], timeline.end_s[is_collective])
    alone = np.where((running == 0) & (collectives > 0), lengths / np.maximum(collectives, 1), 0.0)
    shared = np.where(running > 0, lengths / np.maximum(running, 1), 0.0)
    shares = np.zeros(len(timeline.start_s))
    for mask, per_event in ((others, shared), (is_collective, alone)):
        until = np.concatenate([[0.0], np.cumsum(per_event)])
        first, last = (np.searchsorted(moments, times[mask]) for times in (timeline.start_s, timeline.end_s))
        shares[mask] = until[last] - until[first]
    return shares


def gaps(timeline: Timeline) -> Gaps:
    """A gap is the host's until the call that launches the next event has returned. By when that call began, a device
    that waits for every launch would not wait for the host at all."""
    if not len(timeline.start_s):
        return Gaps(0.0, 0.0, 0.0)
    starts, ends = _busy_intervals(timeline)
    gap_start, gap_end = ends[:-1], starts[1:]
    order = np.argsort(timeline.start_s, kind="stable")
    next_event = order[np.searchsorted(timeline.start_s[order], gap_end)]
    launched = timeline.launched_s[next_event]
    known = ~np.isnan(launched)
    of_host = np.where(known, np.clip(launched, gap_start, gap_end) - gap_start, 0.0)
    lengths = gap_end - gap_start
    return Gaps(
        host_s=float(of_host.sum()),
        other_s=float((lengths - of_host)[known].sum()),
        unknown_s=float(lengths[~known].sum()),
    )


def innermost(
    events: Sequence[tuple[str, float, float, int]],
) -> tuple[list[tuple[str, float, float, float]], list[bool]]:
    """Nested operators of the host as intervals that belong to the innermost of each thread; for `timeline_of`, with
    its `counts`: an operator that another interrupts has several intervals, of which the first counts.

    Args:
        events: (name, start, end, thread), in seconds.
    """
    threads: dict[int, list[tuple[str, float, float]]] = {}
    for name, start, end, thread in events:
        threads.setdefault(thread, []).append((name, start, end))
    parts = [part for of_thread in threads.values() for part in _innermost_of(of_thread)]
    return [(name, start, end, np.nan) for name, start, end, _ in parts], [is_first for *_, is_first in parts]


def _innermost_of(events: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float, bool]]:
    """Of one thread: (name, start, end, whether it is the operator's first part)."""
    found: list[tuple[str, float, float, bool]] = []
    running: list[tuple[str, float, bool]] = []
    now = -np.inf
    outermost_first = sorted(events, key=lambda event: (event[1], -event[2]))
    for name, start, end in [*outermost_first, ("", np.inf, np.inf)]:
        while running and running[-1][1] <= start:
            inner, inner_end, is_first = running.pop()
            if inner_end > now:
                found.append((inner, now, inner_end, is_first))
                now = inner_end
        if running and start > now:
            outer, outer_end, is_first = running.pop()
            found.append((outer, now, start, is_first))
            running.append((outer, outer_end, False))
        now = max(now, start)
        running.append((name, min(end, running[-1][1]) if running else end, True))
    return found


def window_of(timeline: Timeline, *, steps: int, contents: Mapping[str, KernelClass] | None = None) -> TracedWindow:
    """What a record keeps of a traced window.

    Args:
        contents: by name, the class of a kernel that a compiler has made and whose name does not tell.
    """
    contents = contents or {}
    by_name = np.array([class_of(name, contents.get(name)) == "communication" for name in timeline.names], bool)
    is_collective = by_name[timeline.name] if len(timeline.name) else np.zeros(0, bool)
    shares = shares_s(timeline, is_collective)
    found = gaps(timeline)
    total = np.bincount(timeline.name, shares, len(timeline.names))
    count = np.bincount(timeline.name, timeline.counts, len(timeline.names))
    kernels = [
        KernelTime(name=name, count=int(count[place]), busy_s=float(total[place]), content=contents.get(name))
        for place, name in enumerate(timeline.names)
    ]
    return TracedWindow(
        steps=steps,
        span_s=float(timeline.end_s.max() - timeline.start_s.min()) if len(timeline.start_s) else 0.0,
        busy_s=busy_s(timeline),
        host_gaps_s=found.host_s,
        other_gaps_s=found.other_s,
        unknown_gaps_s=found.unknown_s,
        kernels=sorted(kernels, key=lambda kernel: -kernel.busy_s),
    )


def _busy_intervals(timeline: Timeline) -> tuple[Floats, Floats]:
    """Where something runs, from start to end, one behind the other."""
    if not len(timeline.start_s):
        return np.empty(0), np.empty(0)
    order = np.argsort(timeline.start_s, kind="stable")
    starts, ends = timeline.start_s[order], timeline.end_s[order]
    latest = np.maximum.accumulate(ends)
    begins = np.concatenate([[True], starts[1:] > latest[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(starts) - 1]])
    return starts[begins], latest[last]


def _running(moments: Floats, starts: Floats, ends: Floats) -> Whole:
    """How many events run between each moment and the next."""
    begun = np.searchsorted(np.sort(starts), moments[:-1], side="right")
    ended = np.searchsorted(np.sort(ends), moments[:-1], side="right")
    return begun - ended
