"""Turns, from the side of a process: what it hears and what it does, and that it is at rest while it waits."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.measure import turns as turns_module
from harness.measure.turns import NoTurns, Turns, come_to_rest
from harness.paths import REPOSITORY
from tests.made.heard import Heard


class Watched:
    """A OtherCpuLoad that keeps when it looked."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def pause(self) -> None:
        self.seen.append("away")

    def resume(self) -> None:
        self.seen.append("again")


@pytest.fixture
def heard() -> Heard:
    return Heard()


def turns(heard: Heard, words: str, place: str = "first") -> Turns:
    return Turns(heard, io.BytesIO(words.encode()), place)


def test_a_block_for_every_turn_until_the_end(heard: Heard) -> None:
    taken = turns(heard, "block_after_other\nblock\nblock_after_other\nend\n")
    other_load = Watched()
    taken.watch(other_load, on_gpu=False)
    assert taken.are_to_come and taken.is_alone
    answers = [(taken.next_block(wants), taken.after_other) for wants in (True, False, False, False)]
    # Also where it wants no more: the other one does.
    assert answers == [(True, True), (True, False), (True, True), (False, False)]
    assert heard.of_kind("turn") == [{"wants": True}] + [{"wants": False}] * 3
    assert other_load.seen == ["away", "again"] * 4
    assert not taken.are_to_come and not taken.is_alone
    assert taken.next_block(True) is False
    told = taken.told()
    assert told.is_first and told.waited_s > 0 and told.after_other == [0, 2]


def test_the_last_one_has_no_more_blocks_and_is_alone(heard: Heard) -> None:
    taken = turns(heard, "block_after_other\nlast\n", "second")
    assert [taken.next_block(True), taken.is_alone] == [True, False]
    assert [taken.next_block(True), taken.is_alone, taken.are_to_come] == [False, True, False]
    with pytest.raises(EOFError, match="the job is gone"):
        turns(heard, "").next_block(True)


def test_alone_it_goes_on_by_its_own_rule(heard: Heard) -> None:
    taken = turns(heard, "block\nalone\n", "second")
    assert not taken.is_alone
    answers = [(taken.next_block(wants), taken.after_other) for wants in (True, True, True, False)]
    assert answers == [(True, False), (True, True), (True, False), (False, False)]
    assert taken.is_alone and taken.told().after_other == [1]
    assert len(heard.of_kind("turn")) == 2


def test_the_other_one_is_no_stranger_on_the_gpu(heard: Heard) -> None:
    taken = turns(heard, "block\nalone\n", "second")
    state = {"sm_clock_mhz": 1980, "other_processes": 2}
    assert taken.ignoring_partner(state) == {"sm_clock_mhz": 1980, "other_processes": 1}
    assert taken.ignoring_partner({"sm_clock_mhz": 1980}) == {"sm_clock_mhz": 1980}
    taken.next_block(True)
    taken.next_block(True)
    assert taken.ignoring_partner(state) == state  # the other one is gone
    assert NoTurns().ignoring_partner(state) == state


def test_it_waits_until_its_threads_are_at_rest(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute for three looks at them, of 5 ms each. Of two CPUs at most 2 % of one may be busy."""
    now, looks = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        looks[0] += 1

    monkeypatch.setattr(turns_module.time, "sleep", sleep)
    monkeypatch.setattr(turns_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns_module.os, "sched_getaffinity", lambda _pid: {3, 5})
    monkeypatch.setattr(turns_module.time, "process_time", lambda: min(now[0], 0.012))
    come_to_rest(0.1)
    assert looks[0] == 4
    monkeypatch.setattr(turns_module.time, "process_time", lambda: 0.019 * now[0])
    come_to_rest(0.1)
    assert looks[0] == 5
    monkeypatch.setattr(turns_module.time, "process_time", lambda: 0.021 * now[0])
    come_to_rest(0.1)
    assert now[0] == pytest.approx(0.025 + 0.1)  # what never rests is not waited for for ever
    taken = turns(heard, "block\n")
    taken.watch(Watched(), on_gpu=True)
    taken.next_block(True)
    assert now[0] == pytest.approx(0.125 + 0.005)  # the GPU is at rest already, and cools


def test_a_process_that_waits_takes_no_cpu() -> None:
    """A real one, for half a second; before, its thread computes for a twentieth."""
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as child:
        assert b"turn" in child.stdout.readline()
        before_s = cpu_s(child.pid)
        time.sleep(0.5)
        assert cpu_s(child.pid) - before_s <= 0.02
        child.stdin.write(b"end\n")
        child.stdin.flush()
        assert float(child.stdout.readline()) < 0.02
        assert child.wait() == 0


WAITS = """
import sys, threading, time
from harness.measure.channel import Channel
from harness.measure.turns import Turns

def compute():
    end = time.monotonic() + 0.05
    while time.monotonic() < end: pass

threading.Thread(target=compute).start()
turns = Turns(Channel(1), sys.stdin.buffer, "first")
turns.next_block(True)
print(turns.told().busy_s, flush=True)
"""


def cpu_s(pid: int) -> float:
    """User and system time of all threads (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
