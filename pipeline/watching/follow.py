"""`main.py --wait` and `main.py status`: a line for each job, with its ratio as soon as there is one. They only read;
Ctrl-C ends the watching and no job."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from harness.paths import JobFolder, Results
from harness.plan import JobPlan
from pipeline.watching.jobs import JobReader, JobState
from pipeline.watching.ratios import RatiosSoFar
from pipeline.watching.status import command, doing, newest, print_failures, print_lines, said, styled, work

LOOK_EVERY_S = 3.0
"""Without a terminal."""
REFRESH_EVERY_S = 1.0
"""On one."""
REPEAT_AFTER_S = 60.0
"""A line without news, so that a log shows that the job lives."""
SHOWN = 20
"""Ratios below the jobs' lines, of cells that have several."""
INTERRUPTED = 130

Read = Callable[[], Sequence[JobState]]


def follow(folders: list[JobFolder], results: Results) -> int:
    """Returns 0 when every job did all of its measurements, else 1; 130 after Ctrl-C."""
    if not folders:
        return 0
    reader = JobReader(results)
    ratios = RatiosSoFar(_plans_of(reader.read(folders)), results)
    try:
        if sys.stdout.isatty():
            states = follow_live(lambda: reader.read(folders), ratios)
            print_failures(states)
        else:
            states = _follow_in_lines(lambda: reader.read(folders), ratios)
    except KeyboardInterrupt:
        print(
            f"\nThe jobs go on. Follow them: {command('status --watch', results)}"
            f"   End them: {command('status --cancel', results)}"
        )
        return INTERRUPTED
    return 0 if all(state.state == "done" for state in states) else 1


def _plans_of(states: Iterable[JobState]) -> list[JobPlan]:
    """Return the plans whose ratios are shown."""
    return [plan for state in states for plan in state.plans]


def follow_live(read: Read, ratios: RatiosSoFar) -> Sequence[JobState]:
    """On a terminal: the lines stay where they are and change. Returns the last states."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        while True:
            states = read()
            ratios.news()
            shown = styled(states, ratios.of_cell, width=live.console.width)
            if several := ratios.of_several(SHOWN):
                shown += [Text(), *(Text(one.sentence) for one in several)]
            for text in shown:
                text.no_wrap, text.overflow = True, "ellipsis"
            live.update(Group(*shown), refresh=True)
            if not any(state.is_active for state in states):
                return states
            time.sleep(REFRESH_EVERY_S)


def _follow_in_lines(read: Read, ratios: RatiosSoFar) -> Sequence[JobState]:
    """In a file or a pipe: a line for a job whenever there is news of it, and for each ratio that is new or
    narrower. Returns the last states."""
    printed: dict[JobFolder, tuple[object, float]] = {}
    while True:
        states = read()
        changed = ratios.news()
        for state in states:
            news, printed_at_s = printed.get(state.folder, (None, 0.0))
            if news != _news(state) or (state.is_active and time.monotonic() - printed_at_s > REPEAT_AFTER_S):
                print(line(state, ratios), flush=True)
                printed[state.folder] = (_news(state), time.monotonic())
                print_failures([state])
        for ratio in changed:
            print(f"{time.strftime('%H:%M:%S')} {ratio.sentence}", flush=True)
        if not any(state.is_active for state in states):
            return states
        time.sleep(LOOK_EVERY_S)


def _news(state: JobState) -> tuple[object, ...]:
    waits_for = state.reason if state.state == "queued" else None
    return state.state, waits_for, state.node, doing(state)[0]


def line(state: JobState, ratios: RatiosSoFar) -> str:
    """`14:03:12 mnist train: pair 4 of at most 12: timing 40%, 6 min left, so far JAX 1.05 x, on n1`"""
    ratio = ratios.of_cell(state.pair.cell) if state.pair else ""
    return f"{time.strftime('%H:%M:%S')} {work(state, with_kind=False)}: {said(state, ratio)}"


def show_status(results: Results, *, watch: bool) -> int:
    """Print the lines, or with `watch` on a terminal keep them up to date until all jobs are over, or Ctrl-C."""
    reader = JobReader(results)
    states = newest(reader.read())
    if not states:
        print(f"no job in {results.root} yet; `python main.py` submits some")
        return 0
    if watch and sys.stdout.isatty():
        ratios = RatiosSoFar(_plans_of(state for state in states if state.is_active), results)
        with contextlib.suppress(KeyboardInterrupt):  # the jobs go on; to look away is no error
            states = [*follow_live(lambda: newest(reader.read()), ratios)]
    else:
        print_lines(states)
    print_failures(states)
    return 0
