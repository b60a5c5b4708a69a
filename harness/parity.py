"""Whether the two sides of a pair compute the same: what the parity gate says about it."""

from typing import Literal

from harness.settings import Frozen


class Judgement(Frozen):
    state: Literal["passed", "failed", "unchecked"]
    sentence: str
    """For `failed`, the first tensor that differs and by how much; for `unchecked`, why."""
