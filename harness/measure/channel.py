"""The channel from a measurement's processes, its ranks, to the job: events, over each rank's standard output.

A rank only writes; whoever listens (heartbeat, W&B, the terminal) can neither block nor slow it, as the job's reader
thread empties the pipe all the time. An event costs tens of microseconds and is sent between timed windows only.

An event is JSON in one or more lines of `@event RANK NUMBER/COUNT PIECE`, the first of them number 1. srun passes the
lines of all ranks on in one stream, where those of one rank are in order, and cuts lines of over 1024 bytes.

The job says nothing after the task, but to a process that takes turns with another one: a word in a line on its
standard input (harness/measure/turns.py).
"""

import json
import os
import re
from typing import Any, Literal

from harness.measure.world import ALONE, World
from harness.plan import Frozen, Measurement
from harness.results.record import Outcome, Result

EventKind = Literal["environment", "progress", "metrics", "parity", "turn", "result_so_far", "result", "error"]
Event = dict[str, Any]
"""{"kind": ..., "content": {...}}. The job adds three kinds of its own (harness/job/children.py)."""

Place = Literal["first", "second"]
"""Of two processes that take turns. The second one is started when the first is ready for its first turn."""

MARK = "@event"
_LINE = re.compile(rf"{MARK} (\d+) (\d+)/(\d+) (.*)")
PIECE = 900
"""Characters, all ASCII. With its head a line is written at once or not at all, also by a process that is killed:
PIPE_BUF is 4096."""


class ParityTask(Frozen):
    """One key of the parity gate (harness/results/parity.py)."""

    measurement: Measurement
    """The gate's, so with its batch and precision."""
    path: str
    """Where rank 0 leaves the numbers."""
    environment: dict[str, Any]
    """What the parent knows of where this runs."""


class ChildTask(Frozen):
    """What the job writes to the standard input of every rank, in one line."""

    measurement: Measurement
    data_dir: str
    world: World = ALONE
    """As of rank 0; each rank finds its own place in it."""
    caches: str = ""
    """Folder for the caches of all compilers; each rank has its own below it."""
    caches_kept: bool = False
    """They may be filled already, and stay for the next process. Else they are empty at first and removed."""
    is_unfragmented: bool = False
    """The framework keeps the GPU's memory in one piece: it had run out of it in its own way."""
    explain: bool = False
    """When all else is done and told: say where a step's time goes (harness/measure/explain.py)."""
    cold_calls_only: bool = False
    """The cold calls are the whole work: another process has filled the compilers' caches, and this one finds them."""
    in_turns: Place | None = None
    """Another process measures on the same device, and the two take turns."""
    parity: tuple[ParityTask, ...] = ()
    """Where there are any, they are the child's work, and nothing is timed."""
    device_peaks: str = ""
    """Path of the record of device peaks, which is then the child's whole work."""
    trace: str = ""
    """Where the trace of the model goes (harness/results/model_trace.py), which is then the child's whole work."""


class Channel:
    """The writing end, in a rank."""

    def __init__(self, file_descriptor: int, rank: int = 0) -> None:
        self._file_descriptor = file_descriptor
        self._rank = rank

    def environment(self, values: dict[str, Any]) -> None:
        """What the framework sees: versions, devices, precision flags."""
        self._send("environment", values)

    def progress(self, phase: str, done: float, total: float) -> None:
        self._send("progress", {"phase": phase, "done": done, "total": total})

    def metrics(self, values: dict[str, float]) -> None:
        """Numbers to stream while the job runs; keys carry units, such as `throughput_samples_per_s`."""
        self._send("metrics", values)

    def turn(self, *, wants: bool) -> None:
        """This process is at rest and waits for a word. `wants`: one more block, by its own stopping rule."""
        self._send("turn", {"wants": wants})

    def parity(self, digest: str) -> None:
        """The key's file is written; the next key begins."""
        self._send("parity", {"key": digest})

    def result_so_far(self, result: Result) -> None:
        """It stands whatever happens to the rest of the work, once every rank has told its own."""
        self._send("result_so_far", result.model_dump(mode="json"))

    def result(self, result: Result) -> None:
        self._send("result", result.model_dump(mode="json"))

    def error(self, outcome: Outcome, reason: str) -> None:
        self._send("error", {"outcome": outcome, "reason": reason})

    def _send(self, kind: EventKind, content: dict[str, Any]) -> None:
        text = json.dumps({"kind": kind, "content": content})
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        for number, piece in enumerate(pieces, start=1):
            line = f"{MARK} {self._rank} {number}/{len(pieces)} {piece}\n"
            os.write(self._file_descriptor, line.encode())


class Listener:
    """The reading end, in the job: from lines to events."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[str]] = {}
        """By rank: the first pieces of an event that is not complete."""

    def take(self, line: str) -> tuple[int, Event] | None:
        """The rank and its event, once it is complete. What is no piece of one, such as the words of a Slurm prolog, is
        passed over; so is an event of which a piece is missing."""
        match = _LINE.fullmatch(line.rstrip("\n"))
        if match is None:
            return None
        rank, number, count = int(match[1]), int(match[2]), int(match[3])
        pieces = [] if number == 1 else self._pieces.get(rank, [])
        if len(pieces) != number - 1:
            return None
        pieces.append(match[4])
        self._pieces[rank] = pieces
        if number < count:
            return None
        try:
            return rank, json.loads("".join(pieces))
        except ValueError:
            return None
