"""Turns: two processes measure on one device, and between two blocks each waits until the job tells it to go on.

A process that waits is at rest: it reads from a pipe, and none of its threads computes. OpenMP's and XLA's threads look
for work for some milliseconds after they had any, so it first waits until they sleep. Then it says that it is ready.
On a GPU a block's work is over when its wait returns, and a pause only lets the GPU cool, so there it hardly waits.
"""

import os
import time
from typing import IO, Literal

from harness.measure.channel import Channel, Place
from harness.measure.other_cpu_load import OtherCpuLoad
from harness.results.record import GpuState, InTurns

Word = Literal["block", "block_after_other", "end", "last", "alone"]
"""Measure one block and come back; the same, and the other process has computed since this one's last; there are no
more blocks; nor is there the other process any more; it is gone before the end, so there are no more turns."""

LOOK_EVERY_S = 0.005
"""Looking itself takes 0.3 % of a CPU then."""
AT_REST = 0.01
"""Of the CPUs that this process may use. 5 ms after its last work JAX took 0.3 to 0.8 % of one CPU, which is looking;
PyTorch did so after 10 ms (two CPUs; 20 turns each)."""
REST_MAX_S = 0.1
REST_MAX_ON_GPU_S = LOOK_EVERY_S


class NoTurns:
    """Of a process that has the device to itself."""

    is_alone = True
    """Nobody else has anything on the device."""
    are_to_come = False
    comes_from_rest = False
    """The next block was waited for, so that neither threads nor caches are as in the middle of work."""
    after_other = False
    """The other one has computed since this one's last block."""
    waited_s = 0.0

    def next_block(self, wants: bool) -> bool:
        """Whether to measure one more block. `wants`: by the stopping rule."""
        return wants

    def watch(self, other_load: OtherCpuLoad, *, on_gpu: bool) -> None:
        """It looks away while this process waits."""

    def ignoring_partner(self, state: GpuState) -> GpuState:
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
        self._other_load: OtherCpuLoad | None = None
        self._rest_max_s = REST_MAX_S
        self._blocks = 0
        self._after_other: list[int] = []
        self.are_to_come = True
        self._busy_s = 0.0
        self.is_alone = place == "first"
        self.waited_s = 0.0

    def next_block(self, wants: bool) -> bool:
        """Waits for the turn. Raises EOFError where the job is gone."""
        if not self.are_to_come:
            self.comes_from_rest = self.after_other = False
            return wants and self.is_alone
        began = time.monotonic()
        if self._other_load is not None:
            self._other_load.pause()
        come_to_rest(self._rest_max_s)
        busy_s = time.process_time()
        self._channel.turn(wants=wants)
        word = self._words.readline().strip().decode()
        self._busy_s += time.process_time() - busy_s
        if self._other_load is not None:
            self._other_load.resume()
        self.waited_s += time.monotonic() - began
        if not word:
            raise EOFError("the job is gone, which hands out the turns")
        self.is_alone = word in ("last", "alone")
        self.are_to_come = word in ("block", "block_after_other")
        goes_on = wants if word == "alone" else self.are_to_come
        self.comes_from_rest = goes_on
        self.after_other = goes_on and word != "block"
        if self.after_other:
            self._after_other.append(self._blocks)
        self._blocks += 1
        return goes_on

    def watch(self, other_load: OtherCpuLoad, *, on_gpu: bool) -> None:
        self._other_load = other_load
        self._rest_max_s = REST_MAX_ON_GPU_S if on_gpu else REST_MAX_S

    def ignoring_partner(self, state: GpuState) -> GpuState:
        others = state.get("other_processes")
        if self.is_alone or not isinstance(others, int | float):
            return state
        return state | {"other_processes": max(0, others - 1)}

    def told(self) -> InTurns:
        return InTurns(
            is_first=self._place == "first",
            waited_s=self.waited_s,
            busy_s=self._busy_s,
            after_other=self._after_other,
        )


def come_to_rest(at_most_s: float) -> None:
    """Return when no thread of this process computes any more."""
    at_rest = AT_REST * len(os.sched_getaffinity(0))
    end = time.monotonic() + at_most_s
    while time.monotonic() < end:
        began, busy_s = time.monotonic(), time.process_time()
        time.sleep(LOOK_EVERY_S)
        if time.process_time() - busy_s < at_rest * (time.monotonic() - began):
            return
