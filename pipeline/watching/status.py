"""`main.py status`: a line for the newest job of each cell, from any shell and at any time later: what it does in
words, or what became of it."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.job.progress import Heartbeat
from harness.paths import REPOSITORY, Results
from harness.plan import FRAMEWORKS, Cell, Pair
from harness.printable import near
from harness.results.sequential import looks_of
from pipeline.submission.estimate import in_time
from pipeline.watching.jobs import JobState, error_log

if TYPE_CHECKING:
    from rich.text import Text

STYLES: dict[str, str] = {
    "queued": "dim",
    "running": "cyan",
    "requeued": "yellow",
    "done": "green",
    "failed": "bold red",
    "cancelled": "dim",
    "lost": "bold red",
    "stopped": "yellow",
}
PHASES: Mapping[str, str] = {
    "start": "starting and compiling",
    "device peaks": "timing matrix products and memory",
    "parity": "",
    "warm-up": "warming up",
    "throughput": "timing",
    "energy": "measuring energy",
    "latency": "timing single steps",
    "train": "training",
    "test set": "predicting the test set",
    "phases": "timing its parts",
    "explanation": "tracing where the time goes",
    "without communication": "timing without communication",
}
"""What a measurement does, by the name under which its process reports it (`Channel.progress`)."""
REPLICATE = re.compile(r"-r(\d+)$")
"""At the end of a measurement's key."""
Ratios = Callable[[Cell], str]
"""What is known of the ratio so far, in words."""


def newest(states: Iterable[JobState]) -> list[JobState]:
    """Of jobs of the same cell, framework and kind of run only the last, and all that are not over."""
    last: dict[tuple[str, ...], JobState] = {}
    active = []
    for state in states:  # oldest first
        last[_row(state)] = state
        if state.is_active:
            active.append(state)
    older = [state for state in active if last[_row(state)] is not state]
    return sorted([*last.values(), *older], key=lambda state: (_row(state), state.folder.stamp))


def _row(state: JobState) -> tuple[str, ...]:
    """Jobs with the same row repeat each other; the rows' order is that of the lines."""
    pair = state.pair
    return (pair.cell.name, _kind(state), *pair.frameworks) if pair else (state.name,)


def _kind(state: JobState) -> str:
    """`quick, sample` for a smoke run, whose jobs do not hide those of a full one."""
    if state.pair is None:
        return ""
    plan = state.pair.jobs[0]
    return ", ".join([*(["quick"] if plan.quick else []), *([plan.data] if plan.data != "real" else [])])


def lines(states: Sequence[JobState], ratios: Ratios = lambda _: "", *, width: int | None = None) -> list[str]:
    """One for each job, in two columns: the work, and what is said of the job.

    Args:
        width: of the terminal, in columns. What matters less is left out where it has no room; a reason is not.
    """
    of_one_kind = len({_kind(state) for state in states}) == 1 and len(states) > 1
    names = [work(state, with_kind=not of_one_kind) for state in states]
    column = max(map(len, names), default=0) + 2
    room = None if width is None else width - column
    return [
        f"{name:{column}}{said(state, ratios(state.pair.cell) if state.pair else '', room=room)}"
        for name, state in zip(names, states, strict=True)
    ]


def styled(states: Sequence[JobState], ratios: Ratios = lambda _: "", *, width: int) -> "list[Text]":
    """The same in the colours of the states. What is in brackets is no markup."""
    from rich.text import Text

    found = zip(lines(states, ratios, width=width), states, strict=True)
    return [Text(line, style=STYLES.get(state.state, ""), overflow="fold") for line, state in found]


def work(state: JobState, *, with_kind: bool = True) -> str:
    """`mnist train (quick, sample)`, or the folder's name where the plan cannot be read."""
    kind = _kind(state) if with_kind else ""
    return (state.pair.words if state.pair else state.name) + (f" ({kind})" if kind else "")


def said(state: JobState, ratio: str = "", *, room: int | None = None) -> str:
    """`pair 4 of at most 12: timing 40%, 6 min left, so far JAX 1.05 x, on n1, job 17`

    Args:
        room: in characters. None: everything is said.
    """
    step, phase = doing(state)
    reason = "" if state.state in ("failed", "lost") else (state.reason or "").partition("\n")[0]
    left = f"{left} left" if (left := time_left(state)) else ""
    place = [f"on {state.node}" if state.node else "", f"job {state.job_id}" if state.job_id else ""]
    text = ""
    for exactly, *others in ((phase, left, ratio, *place), (phase, left, ratio), ("", left, ratio), ("", ratio)):
        doings = ": ".join(filter(None, (step, exactly, reason)))
        text = ", ".join(filter(None, (doings, *others)))
        if room is None or len(text) <= room:
            break
    return text


def doing(state: JobState) -> tuple[str, str]:
    """What it does or what became of it, and more exactly: `pair 4 of at most 12` and `timing 40%`."""
    beat = state.heartbeat
    if state.state != "running" or beat is None:
        return _outcome(state), ""
    phase = beat.phase or ""
    if beat.current == "its turn":
        is_waiting = phase.startswith("waits for ")
        return ("waiting its turn", phase.removeprefix("waits for ")) if is_waiting else (phase or "starting", "")
    words = PHASES.get(phase, phase)
    if beat.phase_total and beat.phase_done:
        words = f"{words} {min(1.0, beat.phase_done / beat.phase_total):.0%}".strip()
    return _step(beat, state.pair), words


def _step(beat: Heartbeat, pair: Pair | None) -> str:
    """`pair 4 of at most 12`, and of several comparisons `(17/96)`: which of the measurements up to the next look."""
    current, has_both = beat.current or "starting", pair is not None and len(pair.jobs) == len(FRAMEWORKS)
    found = REPLICATE.search(current)
    if current.endswith("parity gate"):
        step = f"checking {'that both compute the same' if has_both else 'what it computes'}"
    elif beat.screenings_done < beat.screenings_total and not beat.is_before_screening:
        step = f"screening {beat.screenings_done + 1} of {beat.screenings_total} modes"
    elif found is None or pair is None:
        step = current
    else:
        most, is_calibration = pair.jobs[0].protocol.replicates, pair.cell.is_calibration
        unit = "round" if is_calibration else "pair" if has_both else "replicate"
        at_most = "at most " if unit == "pair" and looks_of(most) else ""
        step = f"{unit} {int(found[1]) + 1} of {at_most}{most}"
        if any(len(plan.contests()) > 1 for plan in pair.jobs):
            step += f" ({beat.measurements_done + 1}/{beat.measurements_total})"
    return step + (f" ({beat.measurements_failed} failed)" if beat.measurements_failed else "")


def _outcome(state: JobState) -> str:
    """`done: 24 measurements`, `failed: 1 of 24 measurements`, `stopped after 3 of 24 measurements`, `queued`."""
    beat = state.heartbeat
    if beat is None and state.state != "done":
        return state.state
    total = beat.measurements_total if beat else state.pair.measurement_count if state.pair else 0
    measurements = f"{total} measurement{'' if total == 1 else 's'}"
    if state.state == "done":
        return f"done: {measurements}"
    if state.state == "failed" and beat and beat.measurements_failed:
        return f"failed: {beat.measurements_failed} of {measurements}"
    return f"{state.state} after {beat.measurements_done} of {measurements}" if beat else state.state


def time_left(state: JobState) -> str:
    """Of a running job."""
    left_s = _seconds_left(state.heartbeat) if state.state == "running" else None
    return "" if left_s is None else in_time(left_s)


def _seconds_left(beat: Heartbeat | None) -> float | None:
    """None before its first measurement. Time passes only for the one that runs."""
    if beat is None or beat.eta_s is None:
        return 0.0 if beat and beat.measurements_done == beat.measurements_total else None
    age_s = time.time() - beat.updated_at_unix_s if beat.state == "running" else 0.0
    return max(0.0, beat.eta_s - age_s)


def print_lines(states: Sequence[JobState]) -> None:
    if not sys.stdout.isatty():
        print("\n".join(lines(states)))
        return
    from rich.console import Console

    console = Console()
    for text in styled(states, width=console.width):
        console.print(text)


def print_failures(states: Iterable[JobState]) -> None:
    """The whole reason and the log of each job that went wrong."""
    for state in states:
        if state.state not in ("failed", "lost"):
            continue
        print(f"\n{work(state)} {state.state}: {state.reason or 'for a reason that it did not leave'}")
        log = error_log(state.folder)
        print(f"  log: {near(log)}" if log else f"  folder: {near(state.folder.root)}")


def command(name: str, results: Results) -> str:
    """`python main.py status`, with the results folder where it is not the usual one."""
    is_usual = results.root.absolute() == REPOSITORY / "results"
    return f"python main.py {name}" + ("" if is_usual else f" --results {results.root}")
