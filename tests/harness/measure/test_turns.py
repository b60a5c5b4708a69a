"""Turns, from the side of a process: what it hears and what it does, and when it is at rest."""

import io
from types import SimpleNamespace
from unittest.mock import call, create_autospec

import pytest

from harness.measure import turns as turns_module
from harness.measure.other_cpu_load import OtherCpuLoad
from harness.measure.turns import NoTurns, Turns, come_to_rest
from tests.made.heard import Heard


def turns(words: str, place: str = "first", heard: Heard | None = None) -> Turns:
    return Turns(heard or Heard(), io.BytesIO(words.encode()), place)


def test_a_block_for_every_turn_until_the_end() -> None:
    heard = Heard()
    taken = turns("block_after_other\nblock\nblock_after_other\nend\n", heard=heard)
    other_load = create_autospec(OtherCpuLoad)
    taken.watch(other_load, on_gpu=False)
    assert taken.are_to_come and taken.is_alone
    answers = [(taken.next_block(wants), taken.after_other) for wants in (True, False, False, False)]
    # Also where it wants no more: the other one does.
    assert answers == [(True, True), (True, False), (True, True), (False, False)]
    assert heard.of_kind("turn") == [{"wants": True}] + [{"wants": False}] * 3
    assert other_load.mock_calls == [call.pause(), call.resume()] * 4
    assert not taken.are_to_come and not taken.is_alone
    assert taken.next_block(True) is False
    told = taken.told()
    assert told.is_first and told.waited_s > 0 and told.after_other == [0, 2]


def test_the_last_one_has_no_more_blocks_and_is_alone() -> None:
    taken = turns("block_after_other\nlast\n", "second")
    assert [taken.next_block(True), taken.is_alone] == [True, False]
    assert [taken.next_block(True), taken.is_alone, taken.are_to_come] == [False, True, False]
    with pytest.raises(EOFError, match="the job is gone"):
        turns("").next_block(True)


def test_alone_it_goes_on_by_its_own_rule_and_the_other_one_was_no_stranger_on_the_gpu() -> None:
    heard = Heard()
    taken = turns("block\nalone\n", "second", heard)
    state = {"sm_clock_mhz": 1980, "other_processes": 2}
    assert not taken.is_alone
    assert taken.ignoring_partner(state) == state | {"other_processes": 1}
    assert taken.ignoring_partner({"sm_clock_mhz": 1980}) == {"sm_clock_mhz": 1980}
    answers = [(taken.next_block(wants), taken.after_other) for wants in (True, True, True, False)]
    assert answers == [(True, False), (True, True), (True, False), (False, False)]
    assert taken.is_alone and taken.told().after_other == [1]
    assert len(heard.of_kind("turn")) == 2
    assert taken.ignoring_partner(state) == NoTurns().ignoring_partner(state) == state


def test_it_waits_until_its_threads_are_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
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
    taken = Turns(Heard(), SimpleNamespace(readline=lambda: sleep(2.0) or b"block\n"), "first")
    taken.watch(create_autospec(OtherCpuLoad), on_gpu=True)
    taken.next_block(True)
    told = taken.told()
    assert told.waited_s == pytest.approx(0.005 + 2.0)  # the GPU is at rest already, and cools
    assert told.busy_s == pytest.approx(0.021 * 2.0)  # while it waits for the word
