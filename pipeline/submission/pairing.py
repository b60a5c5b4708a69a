"""The order in which one allocation runs both frameworks of a cell. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.paths import arm_name
from harness.plan import Framework, Pair, Turn

Side = TypeVar("Side")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One framework's run of its screening, or of one replicate of all its variants."""

    position: int
    framework: Framework
    turn: Turn

    @property
    def name(self) -> str:
        """`screening`, or `r0`."""
        return arm_name(self.turn)


def arms_of(pair: Pair) -> tuple[Arm, ...]:
    """The screenings, then A B B A A B: the two of a replicate are neighbours in time, and who is first alternates. So
    neither framework has the warmer GPU in all replicates, and a steady drift cancels over two of them."""
    replicates = pair.jobs[0].protocol.replicates
    turns: list[tuple[Framework, Turn]] = [(plan.framework, "screening") for plan in pair.jobs if plan.screening]
    turns += [(plan.framework, replicate) for replicate in range(replicates) for plan in _in_turn(pair.jobs, replicate)]
    return tuple(
        Arm(position=position, framework=framework, turn=turn) for position, (framework, turn) in enumerate(turns)
    )


def _in_turn(sides: Sequence[Side], replicate: int) -> Sequence[Side]:
    return sides if replicate % 2 == 0 else sides[::-1]
