"""`main.py --wait`: watches jobs until all are over, and shows the ratios as they come. It only reads; Ctrl-C ends the
watching and no job."""

import sys
import time
from collections.abc import Sequence

from harness.paths import JobFolder, Results
from pipeline.watching.jobs import JobReader, JobState
from pipeline.watching.ratios import RatiosSoFar
from pipeline.watching.status import (
    REFRESH_EVERY_S,
    command,
    print_failures,
    print_table,
    progress,
    table,
    time_left,
)

LOOK_EVERY_S = 3.0
"""Without a terminal."""
REPEAT_AFTER_S = 60.0
"""A line without news, so that a log shows that the job lives."""
INTERRUPTED = 130


def follow(folders: list[JobFolder], results: Results) -> int:
    """Returns 0 when every job did all of its measurements, else 1; 130 after Ctrl-C."""
    if not folders:
        return 0
    reader = JobReader(results)
    ratios = RatiosSoFar([plan for state in reader.read(folders) for plan in state.plans], results)
    follow_jobs = _follow_live if sys.stdout.isatty() else _follow_in_lines
    try:
        states = follow_jobs(reader, folders, ratios)
    except KeyboardInterrupt:
        print(
            f"\nThe jobs go on. Follow them: {command('status --watch', results)}"
            f"   End them: {command('cancel', results)}"
        )
        return INTERRUPTED
    print_failures(states)
    return 0 if all(state.state == "done" for state in states) else 1


def _follow_live(reader: JobReader, folders: Sequence[JobFolder], ratios: RatiosSoFar) -> list[JobState]:
    from rich.console import Group
    from rich.live import Live

    def shown(states: Sequence[JobState], width: int) -> Group:
        ratios.news()
        jobs = table(states, width)
        return Group(jobs, "", ratios.table()) if len(ratios) else Group(jobs)

    states = reader.read(folders)
    with Live(auto_refresh=False) as live:
        live.update(shown(states, live.console.width), refresh=True)
        while any(state.is_active for state in states):
            time.sleep(REFRESH_EVERY_S)
            states = reader.read(folders)
            live.update(shown(states, live.console.width), refresh=True)
    return states


def _follow_in_lines(reader: JobReader, folders: Sequence[JobFolder], ratios: RatiosSoFar) -> list[JobState]:
    """A line for each job whenever there is news of it, and for each ratio that is new or narrower; the table at the
    end."""
    printed: dict[JobFolder, tuple[object, float]] = {}
    while True:
        states = reader.read(folders)
        for state in states:
            news, printed_at_s = printed.get(state.folder, (None, 0.0))
            if news != _news(state) or (state.is_active and time.monotonic() - printed_at_s > REPEAT_AFTER_S):
                print(line(state), flush=True)
                printed[state.folder] = (_news(state), time.monotonic())
        for ratio in ratios.news():
            print(f"{time.strftime('%H:%M:%S')} {ratio}", flush=True)
        if not any(state.is_active for state in states):
            print_table(states)
            return states
        time.sleep(LOOK_EVERY_S)


def _news(state: JobState) -> tuple[object, ...]:
    beat = state.heartbeat
    waits_for = state.reason if state.state == "queued" else None
    return state.state, waits_for, state.node, beat and (beat.measurements_done, beat.measurements_failed)


def line(state: JobState) -> str:
    """`14:03:12 any/jax_mnist_3: running 3/24 throughput 40 %, 12 min left, on n1`."""
    words = f"{time.strftime('%H:%M:%S')} {state.name}: {state.state} {progress(state)}".rstrip()
    left = time_left(state)
    details = [*([f"{left} left"] if left else []), *([f"on {state.node}"] if state.node else [])]
    if state.reason and not details:
        details = [state.reason.partition("\n")[0]]
    return ", ".join([words, *details])
