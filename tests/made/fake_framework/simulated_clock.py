"""The clock that measurements of the fake framework read: only steps and pauses move it.

A step "takes" the seconds that it passes to `advance`, so every measured time is known by hand, on any machine however
busy, and a measurement of ten simulated seconds ends at once. What waits for another process, for a file or for a
signal waits in real time, as it does in a real framework.
"""

import random

from harness.measure import clock, slowdown
from harness.measure.other_cpu_load import OtherCpuLoad

READING_S = 1e-7
"""At most this long passes with each reading, or the injected slowdown (harness/measure/slowdown.py) would wait for
ever. It is random, as records with the same times are taken for copies."""
_now_s = 0.0


def advance(seconds: float) -> None:
    """Let simulated time pass."""
    global _now_s
    _now_s += seconds


def read() -> float:
    """Return the simulated time in seconds. Stands in for time.perf_counter."""
    advance(READING_S * random.random())
    return _now_s


def install() -> None:
    """Replace the clock of this process's measurements, which are on a machine where nothing else runs."""
    for module in (clock, slowdown):
        module.perf_counter = read  # type: ignore[attr-defined]
    clock.sleep = advance  # type: ignore[attr-defined]
    OtherCpuLoad.cpus = lambda _self: 0.0  # type: ignore[method-assign,assignment]
