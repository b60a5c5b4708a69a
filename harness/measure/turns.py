"""Turns: two processes measure on one device, and between two blocks each waits until the job tells it to go on.

A process that waits is at rest: it reads from a pipe, and none of its threads computes. OpenMP's and XLA's threads look
for work for some milliseconds after they had any, so it first waits until they sleep. Then it says that it is ready.
"""

import time
from typing import IO, Literal

from harness.measure.channel import Channel, Place
from harness.measure.company import Company
from harness.results.record import GpuState, InTurns

Word = Literal["block", "end", "alone"]
"""Measure one block and come back; there are no more blocks; the other process is gone, so there are no more turns."""

LOOK_EVERY_S = 0.002
AT_REST = 0.25
"""Of a CPU: what looking itself takes, with room."""
REST_MAX_S = 0.1


class NoTurns:
    """Of a process that has the device to itself."""

    is_alone = True
    """Nobody else has anything on the device."""
    are_to_come = False
    waited_s = 0.0

    def next_block(self, wants: bool) -> bool:
        """Whether to measure one more block. `wants`: by the stopping rule."""
        return wants

    def watch(self, company: Company) -> None:
        """It looks away while this process waits."""

    def without_partner(self, state: GpuState) -> GpuState:
        """A reading of the GPU in which the other one of the two is no stranger."""
        return state

    def told(self) -> InTurns | None:
        """For the result."""
        return None


class Turns(NoTurns):
    """Of one of two. In a world of one only."""

    def __init__(self, channel: Channel, words: IO[bytes], place: Place) -> None:
        """`words`: where the job's come, a line each."""
        self._channel = channel
        self._words = words
        self._place = place
        self._company: Company | None = None
        self.are_to_come = True
        self._busy_s = 0.0
        self.is_alone = place == "first"
        self.waited_s = 0.0

    def next_block(self, wants: bool) -> bool:
        """Waits for the turn. Raises EOFError where the job is gone."""
        if not self.are_to_come:
            return wants and self.is_alone
        began = time.monotonic()
        if self._company is not None:
            self._company.look_away()
        come_to_rest()
        busy_s = time.process_time()
        self._channel.turn(wants=wants)
        word = self._words.readline().strip().decode()
        self._busy_s += time.process_time() - busy_s
        if self._company is not None:
            self._company.look_again()
        self.waited_s += time.monotonic() - began
        if not word:
            raise EOFError("the job is gone, which hands out the turns")
        self.is_alone = word == "alone"
        self.are_to_come = word == "block"
        return wants if word == "alone" else word == "block"

    def watch(self, company: Company) -> None:
        self._company = company

    def without_partner(self, state: GpuState) -> GpuState:
        others = state.get("other_processes")
        if self.is_alone or not isinstance(others, int | float):
            return state
        return state | {"other_processes": max(0, others - 1)}

    def told(self) -> InTurns:
        return InTurns(is_first=self._place == "first", waited_s=self.waited_s, busy_s=self._busy_s)


def come_to_rest() -> None:
    """Return when no thread of this process computes any more, or after REST_MAX_S."""
    end = time.monotonic() + REST_MAX_S
    while time.monotonic() < end:
        began, busy_s = time.monotonic(), time.process_time()
        time.sleep(LOOK_EVERY_S)
        if time.process_time() - busy_s < AT_REST * (time.monotonic() - began):
            return
