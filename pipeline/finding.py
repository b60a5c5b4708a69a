"""One line of `main.py doctor`'s table."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    name: str
    verdict: Verdict
    found: str
    way_out: str = ""
