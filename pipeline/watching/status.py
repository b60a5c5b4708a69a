"""`main.py status`: one table of the newest job of each cell and framework, from any shell and at any time
later."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.job.progress import Heartbeat
from harness.paths import REPOSITORY, Results
from pipeline.collector import without_collector
from pipeline.watching.jobs import JobReader, JobState, error_log, job_states

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["job_states", "show_status"]

REFRESH_EVERY_S = 1.0
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


def show_status(results: Results, *, watch: bool) -> int:
    """Print the table, or with `watch` on a terminal keep it up to date until all jobs are over, or
    Ctrl-C."""
    reader = JobReader(results)
    states = newest(reader.read())
    if not states:
        print(f"no job in {results.root} yet; `python main.py` submits some")
        return 0
    if watch and sys.stdout.isatty():
        states = _watch(reader)
    else:
        print_table(states)
    print_failures(states)
    return 0


def newest(states: Iterable[JobState]) -> list[JobState]:
    """Of jobs of the same cell, framework and kind of run only the last, and all that are not over yet."""
    last: dict[tuple[str, ...], JobState] = {}
    active = []
    for state in states:  # oldest first
        last[_row(state)] = state
        if state.is_active:
            active.append(state)
    older = [state for state in active if last[_row(state)] is not state]
    return sorted([*last.values(), *older], key=lambda state: (_row(state), state.folder.stamp))


def _row(state: JobState) -> tuple[str, ...]:
    """What makes a row of the table, in the order of the rows: the two frameworks of a cell stand
    together."""
    pair = state.pair
    return (pair.cell.name, _kind(state), *pair.frameworks) if pair else (state.name,)


def _kind(state: JobState) -> str:
    """`quick, sample` for a smoke run; its jobs do not hide those of a full one."""
    if state.pair is None:
        return ""
    plan = state.pair.jobs[0]
    words = [*(["quick"] if plan.quick else []), *([plan.data] if plan.data != "real" else [])]
    return ", ".join(words)


COLUMNS = ("cell", "framework", "state", "progress", "left", "node", "job")
ALL_COLUMNS = (*COLUMNS, "why")
LEFT_OUT_FIRST = ("node", "job", "left")
BETWEEN_COLUMNS = 2
NARROWEST_WHY = 30


def table(states: Sequence[JobState], width: int) -> "RenderableType":
    """
    Args:
        width: of the terminal, in columns. Where not all fits, the reasons stand below, then node, job and time left
            go, and at last each job has lines of its own.
    """
    from rich.console import Group

    rows = [_cells(state) for state in states]
    if _width(rows, COLUMNS) + NARROWEST_WHY <= width:
        return _table(rows, ALL_COLUMNS)
    names = [*COLUMNS]
    for name in LEFT_OUT_FIRST:
        if _width(rows, names) > width:
            names.remove(name)
    if _width(rows, names) > width:
        return Group(*(_text(line, row["state"]) for row in rows for line in _lines(row)))
    reasons = [f"{row['cell']} {row['framework']}: {row['why']}" for row in rows if row["why"]]
    return Group(_table(rows, names), *(_text(reason, "") for reason in reasons))


def plain_table(states: Sequence[JobState]) -> str:
    """The same for a file or a pipe: a line for each job, as long as it takes. Of thousands of jobs in no time."""
    rows = [dict(zip(ALL_COLUMNS, ALL_COLUMNS, strict=True)), *map(_cells, states)]
    widths = {name: max(len(row[name]) for row in rows) + BETWEEN_COLUMNS for name in ALL_COLUMNS}
    return "\n".join("".join(f"{row[name]:{width}}" for name, width in widths.items()).rstrip() for row in rows)


def _cells(state: JobState) -> dict[str, str]:
    kind = _kind(state)
    return {
        "cell": f"{state.pair.cell.name}{f' ({kind})' if kind else ''}" if state.pair else state.name,
        "framework": "+".join(state.pair.frameworks) if state.pair else "?",
        "state": state.state,
        "progress": progress(state),
        "left": time_left(state),
        "node": state.node or "",
        "job": state.job_id or state.executor,
        "why": (state.reason or "").partition("\n")[0],
    }


def _lines(row: Mapping[str, str]) -> list[str]:
    """Of one job, for the narrowest terminals."""
    second = "  ".join(row[name] for name in ("framework", "state", "progress") if row[name])
    return [row["cell"], f"  {second}", *([f"    {row['why']}"] if row["why"] else [])]


def _width(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> int:
    """Of these columns, in characters."""
    return sum(max(len(name), *(len(row[name]) for row in rows)) + BETWEEN_COLUMNS for name in names)


def _table(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> "Table":
    from rich.table import Table

    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, BETWEEN_COLUMNS, 0, 0))
    for name in names:
        result.add_column(name, no_wrap=name != "why", overflow="fold")
    for row in rows:
        result.add_row(*(_text(row[name], row["state"] if name == "state" else "") for name in names))
    return result


def _text(words: str, state: str) -> "Text":
    """In the colour of a state. What is in brackets is no markup."""
    from rich.text import Text

    return Text(words, style=STYLES.get(state, ""), overflow="fold")


def progress(state: JobState) -> str:
    """`screening 5/14 throughput 40 %`, and then `17/23 ...`: measurements with a record, and what the current one is
    doing."""
    beat = state.heartbeat
    if beat is None:
        total = state.pair.measurement_count if state.pair else 0
        return f"{total if state.state == 'done' else 0}/{total}" if state.pair else ""
    text = beat.fraction()
    if beat.measurements_failed:
        text += f" ({beat.measurements_failed} failed)"
    if state.state == "running" and beat.phase:
        text += f" {beat.phase}"
        if beat.phase_total and beat.phase_done is not None:
            text += f" {min(1.0, beat.phase_done / beat.phase_total):.0%}"
    return text


def time_left(state: JobState) -> str:
    """Of a running job."""
    left_s = _seconds_left(state.heartbeat) if state.state == "running" else None
    return "" if left_s is None else duration(left_s)


def duration(seconds: float) -> str:
    """`2 h 05 min`, `12 min`, `9 s`"""
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _seconds_left(beat: Heartbeat | None) -> float | None:
    """None before its first measurement. Time passes only for the one that runs."""
    if beat is None or beat.eta_s is None:
        return 0.0 if beat and beat.measurements_done == beat.measurements_total else None
    age_s = time.time() - beat.updated_at_unix_s if beat.state == "running" else 0.0
    return max(0.0, beat.eta_s - age_s)


def print_table(states: Sequence[JobState]) -> None:
    if not sys.stdout.isatty():
        print(plain_table(states))
        return
    from rich.console import Console

    console = Console()
    with without_collector():
        console.print(table(states, console.width))


def print_failures(states: Sequence[JobState]) -> None:
    """The whole reason and the logs of what went wrong."""
    for state in states:
        if state.state not in ("failed", "lost"):
            continue
        print(f"\n{state.name} {state.state}: {state.reason or 'for a reason that it did not leave'}")
        log = error_log(state.folder)
        print(f"  log: {log}" if log else f"  folder: {state.folder.root}")


def command(name: str, results: Results) -> str:
    """`python main.py status`, with the results folder where it is not the usual one."""
    is_usual = results.root.absolute() == REPOSITORY / "results"
    return f"python main.py {name}" + ("" if is_usual else f" --results {results.root}")


def _watch(reader: JobReader) -> list[JobState]:
    """Until all jobs are over, or Ctrl-C. Returns the last states."""
    from rich.live import Live

    states = newest(reader.read())
    try:
        with Live(auto_refresh=False) as live:
            live.update(table(states, live.console.width), refresh=True)
            while any(state.is_active for state in states):
                time.sleep(REFRESH_EVERY_S)
                states = newest(reader.read())
                live.update(table(states, live.console.width), refresh=True)
    except KeyboardInterrupt:
        pass  # the jobs go on; looking away is no error
    return states
