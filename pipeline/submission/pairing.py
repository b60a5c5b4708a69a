"""The order in which one allocation runs both frameworks of a cell. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.plan import Framework, Pair

Side = TypeVar("Side")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One framework's run of one replicate: all of its variants."""

    position: int
    framework: Framework
    replicate: int


def arms_of(pair: Pair) -> tuple[Arm, ...]:
    """A B B A A B: the two of a replicate are neighbours in time, and who is first alternates. So neither framework has
    the warmer GPU in all replicates, and a steady drift cancels over two of them."""
    replicates = pair.jobs[0].protocol.replicates
    turns = [(plan.framework, replicate) for replicate in range(replicates) for plan in _in_turn(pair.jobs, replicate)]
    return tuple(
        Arm(position=position, framework=framework, replicate=replicate)
        for position, (framework, replicate) in enumerate(turns)
    )


def _in_turn(sides: Sequence[Side], replicate: int) -> Sequence[Side]:
    return sides if replicate % 2 == 0 else sides[::-1]
