"""The order in which one job measures a cell, by both frameworks or by one. Pure.

Two replicates of the headline pair of one variant come first, so that there soon is a ratio; then each framework's
screening; then A B B A A B: the two of a replicate are neighbours in time, and who is first alternates. So neither
framework has the warmer GPU in all replicates, and a steady drift cancels over two of them. Where processes take turns,
a step is two of them, and which of the two is started first alternates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.plan import PARTNERS, JobPlan, Measurement, Pair, Variant
from harness.work.declared import headline_of

Step = tuple[Measurement, ...]
"""A measurement alone, or two whose processes take turns, the first of them first."""

FIRST_REPLICATES = 2
"""Replicates of the first pair: two give an interval, and a steady drift cancels over them."""


def first_variant(plan: JobPlan) -> Variant | None:
    """Return the plan's first variant in the declared headline mode, which is measured before everything else, so that
    there soon is a ratio. None where the plan has none, or nothing that it could come before."""
    if len(plan.variants) < 2 or plan.protocol.replicates < FIRST_REPLICATES or plan.cell.is_calibration:
        return None
    mode = headline_of(plan.cell.use_case_name).get(plan.framework)
    return next((variant for variant in plan.variants if variant.execution_mode == mode), None)


def first_replicates(plan: JobPlan) -> range:
    """Return the second and third replicate, for `first_variant`: the very first has its warm start after it."""
    first = min(1, plan.protocol.replicates - FIRST_REPLICATES)
    return range(first, first + FIRST_REPLICATES)


def first_ratio(pair: Pair) -> list[Step]:
    """Empty where the two would not measure the same, and where processes take turns: with which of the other
    framework's modes, the screening says."""
    variants = [first_variant(plan) for plan in pair.jobs]
    keys = {variant.comparison_key if variant else None for variant in variants}
    if len(variants) < 2 or len(keys) > 1 or None in keys or pair.is_interleaved:
        return []
    among = first_replicates(pair.jobs[0])
    sides = [
        [each for each in plan.replicates([variant] if variant else []) if each.replicate in among]
        for plan, variant in zip(pair.jobs, variants, strict=True)
    ]
    return list(in_turn(sides, {}))


def screenings(plans: Iterable[JobPlan]) -> list[Step]:
    return [(measurement,) for plan in plans for measurement in plan.screenings()]


def in_turn(sides: Sequence[Sequence[Measurement]], partners: Mapping[str, str]) -> Iterator[Step]:
    """
    Args:
        sides: the replicates of each framework.
        partners: by the ids of measurements, with which each takes turns.
    """
    of_id = {each.id: each for side in sides for each in side}
    seen: set[str] = set()
    for replicate in sorted({each.replicate for each in of_id.values()}):
        for side in sides if replicate % 2 == 0 else sides[::-1]:
            for each in side:
                if each.replicate != replicate or each.id in seen:
                    continue
                partner = of_id.get(partners.get(each.id, ""))
                step = (each,) if partner is None else (each, partner)
                seen |= {one.id for one in step}
                yield step


class Candidate(NamedTuple):
    """A replicate of one framework that may take turns with one of the other's."""

    measurement: Measurement
    many_steps: bool
    """In a call."""
    samples_per_s: float
    """By the screening; 0 without one."""


def counterparts(ours: Iterable[Candidate], theirs: Iterable[Candidate]) -> dict[str, str]:
    """By the ids of measurements, which take turns: of each replicate and comparison the fastest with the fastest, the
    second with the second, and so on. The screening also says which is in the ratio. Without one they stand in the
    order of the plan. What one framework has more is left out."""
    sides: list[dict[tuple[int, str, bool], list[Measurement]]] = []
    for candidates in (ours, theirs):
        found: dict[tuple[int, str, bool], list[Measurement]] = {}
        for one in sorted(candidates, key=lambda one: -one.samples_per_s):
            measurement = one.measurement
            key = (measurement.replicate, measurement.variant.comparison_key, one.many_steps)
            found.setdefault(key, []).append(measurement)
        sides.append(found)
    first, second = sides
    pairs = [pair for key, of_key in first.items() for pair in zip(of_key, second.get(key, ()), strict=False)]
    return {one.id: other.id for pair in pairs for one, other in (pair, pair[::-1])}


def planted_partners(replicates: Iterable[Measurement]) -> dict[str, str]:
    """The same of a calibration, in one framework."""
    by_planted = {(each.replicate, each.variant.planted): each.id for each in replicates}
    return {
        id_: by_planted[replicate, PARTNERS[planted]]
        for (replicate, planted), id_ in by_planted.items()
        if planted in PARTNERS
    }
