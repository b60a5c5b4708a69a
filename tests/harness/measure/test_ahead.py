"""The process of a runner's `ahead.py`: what comes in, what goes out, and what is said of a request that is none."""

import io
import os
import sys

import pytest

from harness.errors import ConfigError
from harness.measure.ahead import Request, Tell, serve, stdout_to_ourselves
from harness.work.cards import card


def told(request: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of a process that says which card it was asked for."""

    def answer(asked: Request, tell: Tell) -> int:
        os.write(1, b"noise\n")
        tell(card(asked.card).device_name)
        return 0

    monkeypatch.setattr(sys, "stdin", io.StringIO(request))
    return serve(answer)


def test_an_answer_is_all_that_is_on_stdout(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert told('{"card": "h200", "measurements": []}', monkeypatch) == 0
    said = capfd.readouterr()
    assert (said.out, said.err) == ("NVIDIA H200\n", "noise\n")


def test_a_card_that_is_none_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told('{"card": "h10", "measurements": []}', monkeypatch) == 2
    said = capfd.readouterr()
    assert said.out == "" and "'h10' is no card that is known here; valid: rtx2080ti, " in said.err


def test_stdout_is_back_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever writes to the descriptor, as C++ does, writes to stderr meanwhile."""
    with pytest.raises(ConfigError), stdout_to_ourselves():
        os.write(1, b"noise\n")
        raise ConfigError("in between")
    os.write(1, b"afterwards\n")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("afterwards\n", "noise\n")
