"""The order in which one allocation runs both frameworks of a cell. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from harness.experiments.model import ClusterConfig
from harness.paths import arm_name
from harness.plan import First, Framework, Pair, Pairing, Share
from harness.work.registration import first_replicates, first_variant

Side = TypeVar("Side")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One framework's run of its screening, or of one replicate of all its variants or of its headline alone; or of
    both frameworks' at once."""

    position: int
    framework: Framework
    share: Share
    partner: Framework | None = None
    """Whose job the same run.py runs too: their processes take turns, block by block."""

    @property
    def name(self) -> str:
        """`screening`, `r0`, or `first-1`."""
        return arm_name(self.share)

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        return (self.framework,) if self.partner is None else (self.framework, self.partner)

    @property
    def label(self) -> str:
        """`jax, r0`, or `jax and torch in turns, r0`."""
        return f"{' and '.join(self.frameworks)}{' in turns' if self.partner else ''}, {self.name}"


def arms_of(pair: Pair) -> tuple[Arm, ...]:
    """Two replicates of the headline pair of one variant, the screenings, then A B B A A B: the two of a replicate are
    neighbours in time, and who is first alternates. So neither framework has the warmer GPU in all replicates, and a
    steady drift cancels over two of them. Interleaved jobs have one arm for both, and none before the screenings."""
    frameworks = tuple(plan.framework for plan in pair.jobs)
    screened = tuple(plan.framework for plan in pair.jobs if plan.screening)
    return _arms(frameworks, screened, _first_replicates(pair), pair.jobs[0].protocol.replicates, is_interleaved(pair))


@cache  # thousands of pairs have the same
def _arms(
    frameworks: tuple[Framework, ...],
    screened: tuple[Framework, ...],
    first_replicates: range,
    replicates: int,
    interleaved: bool,
) -> tuple[Arm, ...]:
    shares: list[tuple[Framework, Share]] = [
        (framework, First(replicate)) for replicate in first_replicates for framework in _in_turn(frameworks, replicate)
    ]
    shares += [(framework, "screening") for framework in screened]
    shares += [
        (framework, replicate)
        for replicate in range(replicates)
        for framework in (frameworks[:1] if interleaved else _in_turn(frameworks, replicate))
    ]
    partner = frameworks[-1] if interleaved else None
    return tuple(
        Arm(position=position, framework=framework, share=share, partner=partner if isinstance(share, int) else None)
        for position, (framework, share) in enumerate(shares)
    )


def _first_replicates(pair: Pair) -> range:
    """None where the two would not measure the same, and where processes take turns: with which of the other
    framework's modes, the screening says."""
    found = [first_variant(plan) for plan in pair.jobs]
    keys = {one.comparison_key if one else None for one in found}
    if len(found) < 2 or len(keys) > 1 or None in keys or is_interleaved(pair):
        return range(0)
    return first_replicates(pair.jobs[0])


def is_interleaved(pair: Pair) -> bool:
    return len(pair.jobs) == 2 and all(plan.is_interleaved for plan in pair.jobs)


def as_paired(
    pairs: Sequence[Pair], pairing: Pairing, cluster: ClusterConfig, *, is_on_cpu: bool = False
) -> tuple[list[Pair], dict[str, list[str]]]:
    """Their plans know whether their processes take turns.

    `auto` is `interleaved` on a CPU, where calibrations found that equal processes then differ by a tenth to a sixth of
    what they do one after the other (docs/studies/calibration.md). It is `together` for a job that screens, which then
    begins with its first ratio, and on a GPU: none has been calibrated, both processes must fit into its memory at
    once, and energy would come from every second replicate.

    Args:
        is_on_cpu: whatever the cells ask for.

    Returns:
        The pairs; and where `interleaved` was asked for and cannot be, the names of the cells by the reason.
    """
    found: list[Pair] = []
    refused: dict[str, list[str]] = {}
    for pair in pairs:
        reason = why_not_interleaved(pair, cluster)
        is_better = (is_on_cpu or pair.cell.is_for_cpu) and not any(plan.screening for plan in pair.jobs)
        if reason is None and (pairing == "interleaved" or (pairing == "auto" and is_better)):
            plans = tuple(plan.model_copy(update={"is_interleaved": True}) for plan in pair.jobs)
            found.append(pair.model_copy(update={"jobs": plans}))
        else:
            found.append(pair)
            if reason and pairing == "interleaved" and len(pair.jobs) == 2 and not pair.cell.is_calibration:
                refused.setdefault(reason, []).append(pair.cell.name)
    return found, refused


def why_not_interleaved(pair: Pair, cluster: ClusterConfig) -> str | None:
    if len(pair.jobs) < 2 or pair.cell.is_calibration:
        return "one framework has no other one to take turns with"
    if pair.cell.devices > 1:
        return "on several devices the ranks of one framework wait for each other, not for the other framework"
    first, second = (cluster.frameworks[plan.framework] for plan in pair.jobs)
    if first != second:
        return "cluster.frameworks gives the two a Python or a setup of their own, and one job runs both"
    return None


def _in_turn(sides: Sequence[Side], replicate: int) -> Sequence[Side]:
    return sides if replicate % 2 == 0 else sides[::-1]
