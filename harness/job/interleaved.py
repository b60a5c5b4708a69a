"""Two measurements at once on one device: both processes are alive, and never compute at the same time.

The first is started, built and brought to its steady state; then it waits, asleep, and the second is. From then on they
take turns, block by block, A B B A: each block has a neighbour in time on the other side, and a drift of the machine
falls on both alike. A block that follows one of the other's has another word, as a lead-in comes first. When neither
wants another block, the first goes on alone to its end, then the second (docs/protocol.md). A process that dies
costs the other one its turns only: it goes on alone.
"""

import queue
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.job.children import Children
from harness.job.ranks import RanksReport
from harness.measure.channel import ChildTask, Event, Place
from harness.measure.turns import Word

PLACES: tuple[Place, Place] = ("first", "second")
PATTERN = (0, 1, 1, 0)
"""Whose block it is. Over these four, a steady drift is the same for both."""


class Order:
    """Who goes on next, and with which word. Pure.

    Exactly one process is active at any time: it computes until it waits for its turn, or is over.
    """

    def __init__(self) -> None:
        self._waits = [False, False]
        self._wants = [True, True]
        self._is_over = [False, False]
        self._has_started = [True, False]
        self._active = 0
        self._blocks = 0
        self._have_ended = False

    @property
    def took_turns(self) -> bool:
        """To the end: neither was lost before."""
        return self._have_ended

    def is_waiting(self, which: int) -> bool:
        return self._waits[which]

    def waits(self, which: int, *, wants: bool) -> None:
        """`wants`: one more block, by its own stopping rule."""
        self._waits[which] = True
        self._wants[which] = wants

    def is_over(self, which: int) -> None:
        """With a result or without."""
        self._is_over[which] = True

    def next(self) -> tuple[int, Literal["start"] | Word] | None:
        """Called when the active process waits or is over. None when both are over."""
        if all(self._is_over):
            return None
        if any(self._is_over):
            return self._to(self._is_over.index(False), "last" if self._have_ended else "alone")
        if not self._has_started[1]:
            return self._to(1, "start")
        if self._blocks % len(PATTERN) == 0 and not any(self._wants):
            self._have_ended = True
            return self._to(0, "end")
        which = PATTERN[self._blocks % len(PATTERN)]
        self._blocks += 1
        return self._to(which, "block" if which == self._active else "block_after_other")

    def _to(self, which: int, word: Word | Literal["start"]) -> tuple[int, Literal["start"] | Word]:
        self._active = which
        if not self._has_started[which]:
            self._has_started[which] = True
            return which, "start"
        self._waits[which] = False
        return which, word


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: what is to be done, and by whom."""

    children: Children
    task: ChildTask
    log: Path
    hear: Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class SideReport:
    """What became of it."""

    report: RanksReport
    active_s: float
    """Without its waits: how long it kept the device."""
    was_beside: bool
    """The other one's process was alive too, or had been."""


class _Running:
    """One process of the two, from its start to its end. Times are the caller's, of one monotonic clock."""

    def __init__(self, side: Side, which: int, events: "queue.SimpleQueue[tuple[int, int, Event]]") -> None:
        self._side = side
        self._which = which
        self._events = events
        self._stack = ExitStack()
        self.report: SideReport | None = None
        self.is_in_turns = False

    def start(self, *, in_turns: bool) -> None:
        self.is_in_turns = in_turns
        place = PLACES[self._which] if in_turns else None
        task = self._side.task.model_copy(update={"in_turns": place})

        def tell(rank: int, event: Event) -> None:
            self._events.put((self._which, rank, event))

        self.ranks, self._say = self._stack.enter_context(self._side.children.one_of_two(task, self._side.log, tell))

    def go_on(self, word: Word, now: float) -> None:
        self.ranks.go_on(now)
        self._say(word)

    def take(self, rank: int, event: Event, now: float) -> None:
        self.ranks.take(rank, event, now)
        self._side.hear(event)

    def is_over(self, now: float, *, beside: bool) -> bool:
        """Then no process of it is left, and `report` says what became of it."""
        if not self.ranks.are_over(now):
            return False
        self.close()
        self.report = SideReport(report=self.ranks.report(), active_s=self.ranks.active_s(now), was_beside=beside)
        return True

    def close(self) -> None:
        self._stack.close()


def work_in_turns(
    sides: Sequence[Side], while_waiting: Callable[[], None]
) -> tuple[tuple[SideReport, SideReport], bool]:
    """Do both tasks. On return, and where a signal ends it, no process of them is left.

    Args:
        sides: the first and the second.
        while_waiting: called every second or so.

    Returns:
        What became of each, and whether they took turns to the end.
    """
    events: queue.SimpleQueue[tuple[int, int, Event]] = queue.SimpleQueue()
    order = Order()
    first, second = running = [_Running(side, which, events) for which, side in enumerate(sides)]
    alive = {0}
    try:
        first.start(in_turns=True)
        active = 0
        while True:
            now = time.monotonic()
            for which in sorted(alive):
                if running[which].is_over(now, beside=second.is_in_turns):
                    alive.remove(which)
                    order.is_over(which)
            if active not in alive or order.is_waiting(active):
                step = order.next()
                if step is None:
                    break
                active, word = step
                if word == "start":
                    running[active].start(in_turns=0 in alive)
                    alive.add(active)
                else:
                    running[active].go_on(word, now)
                continue
            while_waiting()
            try:
                which, rank, event = events.get(timeout=0.2 if running[active].ranks.have_failed else 1.0)
            except queue.Empty:
                continue
            if which not in alive:
                continue
            now = time.monotonic()
            running[which].take(rank, event, now)
            if event["kind"] == "turn":
                running[which].ranks.pause(now)
                order.waits(which, wants=event["content"]["wants"])
    finally:
        for one in running:
            one.close()
    assert first.report is not None and second.report is not None, "both are over"
    return (first.report, second.report), order.took_turns
