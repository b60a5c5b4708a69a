"""One line of `main.py doctor`'s table."""

from typing import Literal, NamedTuple

Verdict = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    name: str
    verdict: Verdict
    found: str
    fix: str = ""
