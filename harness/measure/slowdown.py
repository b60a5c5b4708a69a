"""A known slowdown, planted in a step, to see whether the instrument finds it (`main.py calibrate`)."""

from time import perf_counter
from typing import Any

from harness.measure.clock import Step, Wait


class PlantedSlowdown:
    """A step and its wait that together take (1 + fraction) times as long as those given.

    From the first call after a wait until the next wait returns, that is over one block or one waited-for call, the
    time is taken; then this process busy-waits for `fraction` of it, and only then does the wait return, so the clock
    of clock.py still runs. The wait comes after the device is done, so the pause adds to the time of a GPU
    too, and cannot hide behind its work.

    The pause is as long as it is called; the whole slowdown need not be, as the work itself may run at another speed
    after a pause. What was seen of that: docs/studies.md.
    """

    def __init__(self, fraction: float, step: Step, wait: Wait) -> None:
        self._fraction = fraction
        self._step = step
        self._wait = wait
        self._start: float | None = None

    def step(self) -> Any:
        if self._start is None:
            self._start = perf_counter()
        return self._step()

    def wait(self, outputs: Any) -> None:
        """A wait without a call before it has nothing to slow down."""
        self._wait(outputs)
        if self._start is None:
            return
        now = perf_counter()
        end = now + self._fraction * (now - self._start)
        self._start = None
        while perf_counter() < end:
            pass
