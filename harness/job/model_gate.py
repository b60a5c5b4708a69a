"""A model is checked before it is timed: where the two frameworks' models do not agree, nothing of them is timed.

One mode of each framework stands for the model: the headline, or the first one that the plan has; where it breaks, a
second one, as a compiler that cannot build a mode says nothing about the model. What a machine refuses, and what it has
too little memory or time for, is no reason either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.job.arm import Arm
from harness.plan import Framework, Measurement
from harness.results.model_trace import why_not_the_same
from harness.results.parity import Judgement, ParityNumbers, judge, structure, work_of
from harness.work.declared import headline_of, use_case


@dataclass(frozen=True)
class Verdict:
    """On one model, as one set of options has it."""

    measurements: Mapping[Framework, Measurement]
    """Those that stood for it."""
    judgement: Judgement
    numbers: Mapping[Framework, ParityNumbers | None]

    @property
    def refusal(self) -> str | None:
        """Why the model is not timed; None where it is."""
        return self.judgement.sentence if self.judgement.state == "failed" else None


def judge_models(arms: Mapping[Framework, Arm]) -> dict[str, Verdict]:
    """By `work_of` the measurements; only of what both frameworks measure."""
    if len(arms) < 2:
        return {}
    candidates = {framework: _candidates(arm) for framework, arm in arms.items()}
    shared = [work for work in next(iter(candidates.values())) if all(work in of for of in candidates.values())]
    for framework, arm in arms.items():
        if shared:
            arm.compute_parity([candidates[framework][work][0] for work in shared])
    verdicts = {}
    for work in shared:
        stood: dict[Framework, Measurement] = {}
        numbers: dict[Framework, ParityNumbers | None] = {}
        for framework, arm in arms.items():
            stood[framework], numbers[framework] = _numbers(arm, candidates[framework][work])
        verdicts[work] = Verdict(stood, _judgement(arms, stood, numbers), numbers)
    return verdicts


def _candidates(arm: Arm) -> dict[str, list[Measurement]]:
    """Of each model the first replicates of its modes: the headline, then eager ones, then the others."""
    plan = arm.plan
    declared, headline = use_case(plan.cell.use_case_name), headline_of(plan.cell.use_case_name).get(plan.framework)
    found: dict[str, list[Measurement]] = {}
    for measurement in arm.first_replicates():
        found.setdefault(work_of(measurement), []).append(measurement)

    def rank(measurement: Measurement) -> tuple[bool, bool]:
        name = measurement.variant.execution_mode
        return name != headline, declared.mode(plan.framework, name).run_as != "eager"

    return {work: sorted(measurements, key=rank) for work, measurements in found.items()}


def _numbers(arm: Arm, candidates: Sequence[Measurement]) -> tuple[Measurement, ParityNumbers | None]:
    first = candidates[0]
    numbers = arm.parity_numbers(first)
    if numbers is None or numbers.metadata.outcome != "failed":
        return first, numbers
    others = [one for one in candidates if one.variant.execution_mode != first.variant.execution_mode]
    if others:
        arm.compute_parity(others[:1])
        second = arm.parity_numbers(others[0])
        if second is not None and second.metadata.outcome == "ok":
            return others[0], second
    return first, numbers


def _judgement(
    arms: Mapping[Framework, Arm],
    stood: Mapping[Framework, Measurement],
    numbers: Mapping[Framework, ParityNumbers | None],
) -> Judgement:
    jax, torch = numbers["jax"], numbers["torch"]
    for framework, own in numbers.items():
        if own is None:
            return Judgement(state="unchecked", sentence=f"{framework} left no parity numbers")
        if own.metadata.outcome not in ("ok", "failed"):
            return Judgement(state="unchecked", sentence=f"{framework}: {own.metadata.outcome}: {own.metadata.reason}")
    assert jax is not None and torch is not None
    judgement = judge(jax, torch)
    if judgement.state != "failed" or structure(jax, torch):
        return judgement
    traces = {framework: arm.traced_model(stood[framework]) for framework, arm in arms.items()}
    of_jax, of_torch = traces["jax"], traces["torch"]
    cause = why_not_the_same(of_jax, of_torch) if of_jax and of_torch else None
    return judgement.model_copy(update={"sentence": f"{cause}. {judgement.sentence}" if cause else judgement.sentence})
