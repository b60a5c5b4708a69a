"""The process of a runner's `ahead.py`: what comes in, what goes out, and what is said of a request that is none."""

import io
import os
import sys

import pytest

from harness.measure.ahead import Request, Tell, serve
from harness.work.cards import card


@pytest.mark.parametrize(
    ("card_name", "status", "out", "err"),
    [
        ("h200", 0, "NVIDIA H200\n", "noise\n"),
        ("h10", 2, "", "'h10' is no card that is known here; valid: rtx2080ti, "),
    ],
)
def test_an_answer_is_all_that_is_on_stdout(
    card_name: str, status: int, out: str, err: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a process that says which card it was asked for. Whoever writes to the descriptor, as C++ does, writes to
    stderr meanwhile."""

    def answer(asked: Request, tell: Tell) -> int:
        os.write(1, b"noise\n")
        tell(card(asked.card).device_name)
        return 0

    monkeypatch.setattr(sys, "stdin", io.StringIO(f'{{"card": "{card_name}", "measurements": []}}'))
    assert serve(answer) == status
    os.write(1, b"afterwards\n")
    said = capfd.readouterr()
    assert said.out == f"{out}afterwards\n" and err in said.err
