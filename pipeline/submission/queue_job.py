"""What is handed over at once, to sbatch or to the local queue. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from harness.plan import Pair, Pairing


@dataclass(frozen=True, kw_only=True)
class QueueJob:
    """One pair; or those that share a whole node."""

    name: str
    """Of its script: that of its pair, or `a100/node_1`."""
    pairs: tuple[Pair, ...]
    gpus: int | None = None
    """Of a whole node, which measures the pairs side by side, on a GPU each; None where the job is one pair."""

    @classmethod
    def of(cls, pair: Pair) -> Self:
        return cls(name=pair.name, pairs=(pair,))


def paired(pair: Pair, pairing: Pairing, *, is_on_cpu: bool = False) -> Pair:
    """With its processes in turns, block by block, where that is asked for and can be.

    `auto` asks for it on a CPU, where calibrations found that equal processes then differ by a tenth to a sixth of what
    they do one after the other (docs/studies.md), and not on a GPU: none has been calibrated, and both
    processes must fit into its memory at once.

    Args:
        is_on_cpu: whatever the cell asks for.
    """
    is_wanted = pairing == "interleaved" or (pairing == "auto" and (is_on_cpu or pair.cell.is_for_cpu))
    return pair.model_copy(update={"is_interleaved": is_wanted and pair.why_not_interleaved is None})


def pairs_of(jobs: Iterable[QueueJob]) -> list[Pair]:
    """What is to be measured."""
    return [pair for job in jobs for pair in job.pairs]
