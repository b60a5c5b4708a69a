"""A planted slowdown is as large as it is called."""

import pytest

from harness.measure import clock, slowdown
from harness.measure.clock import time_block, time_call
from harness.measure.slowdown import PlantedSlowdown

READ_S = 2.0**-14
"""What each look at the clock costs in here, so that waiting for it to pass ends."""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.waits = 0
        for timed in (clock, slowdown):
            monkeypatch.setattr(timed, "perf_counter", self.read)

    def read(self) -> float:
        self.now_s += READ_S
        return self.now_s

    def step(self) -> str:
        """Enqueues 1 s of work; as on a GPU, the call itself returns at once."""
        return "output"

    def wait(self, output: object) -> None:
        assert output == "output"
        self.waits += 1
        self.now_s += 8.0


@pytest.mark.parametrize("fraction", [0.01, 0.10])
def test_a_block_takes_exactly_so_much_longer(monkeypatch: pytest.MonkeyPatch, fraction: float) -> None:
    clock = Clock(monkeypatch)
    planted = PlantedSlowdown(fraction, clock.step, clock.wait)
    for _ in range(2):  # the second block starts anew, whatever lies between
        clock.now_s += 100
        assert time_block(planted.step, planted.wait, 8) == pytest.approx(8 * (1 + fraction), abs=10 * READ_S)
    assert time_call(planted.step, planted.wait) == pytest.approx(8 * (1 + fraction), abs=10 * READ_S)
    assert clock.waits == 3
    before_s = clock.now_s
    planted.wait("output")
    assert clock.now_s == before_s + 8.0, "a wait without a call is not slowed"
