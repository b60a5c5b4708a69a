"""The bench of other clocks finds a clock that is wrong. Time is virtual: a device whose steps take 1 s, and a host
that returns at once."""

import pytest

from bench.turns import rounds_in_turn
from harness.measure import clock
from harness.measure.clock import Step, Wait, time_block
from tests.gpu import clocks


class Queue:
    def __init__(self) -> None:
        self.now_s = self.free_at_s = 0.0

    def time(self) -> float:
        return self.now_s

    def step(self) -> "Queue":
        self.free_at_s = max(self.now_s, self.free_at_s) + 1
        return self

    def wait(self, _: object = None) -> None:
        self.now_s = max(self.now_s, self.free_at_s)

    block_until_ready = wait


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(clock, "perf_counter", queue.time)
    return queue


def ratio(ours: clocks.Timed, queue: Queue) -> list[float]:
    theirs = clocks.jax_loop(queue.step, queue.time)
    return [one / other for one, other in rounds_in_turn(ours, theirs, rounds=10)]


@pytest.mark.parametrize("own", [clocks.waited_calls, clocks.back_to_back])
def test_our_clocks_agree_with_the_documented_loop_of_jax(own, queue: Queue) -> None:
    assert ratio(own(queue.step, queue.wait), queue) == pytest.approx([1.0] * 10)
    assert own(queue.step, queue.wait)() == pytest.approx(1.0)


def no_wait(step: Step, _: Wait) -> clocks.Timed:
    return lambda: time_block(step, lambda _: None, clocks.CALLS) / clocks.CALLS


def wrong_divisor(step: Step, wait: Wait) -> clocks.Timed:
    return lambda: time_block(step, wait, clocks.CALLS) / (clocks.CALLS - 20)


@pytest.mark.parametrize("wrong", [no_wait, wrong_divisor])
def test_a_clock_that_is_wrong_is_found(wrong, queue: Queue) -> None:
    assert not clocks.is_within(ratio(wrong(queue.step, queue.wait), queue), 0.10)


def test_goal_is_two_sided() -> None:
    assert clocks.is_within([0.9, 0.99, 1.2], 0.02)
    assert not clocks.is_within([0.97, 0.97, 1.0], 0.02)
    assert not clocks.is_within([1.03, 1.03, 1.0], 0.02)
