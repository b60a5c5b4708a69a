"""The order of a job's steps, worked out by hand."""

from pathlib import Path

import pytest

from harness.job.steps import Candidate, Step, counterparts, first_ratio, in_turn, planted_partners, screenings
from harness.plan import FRAMEWORKS, Framework, JobPlan, Measurement, Pair, Screening, Variant
from harness.work.registration import headline_of
from pipeline.calibrate import calibration_pair
from tests.made.project import BehavingProject


def plan(framework: Framework, *modes: str, replicates: int = 3) -> JobPlan:
    return BehavingProject(root=Path()).plan(*modes, framework=framework, replicates=replicates)


def words(steps: list[Step]) -> list[str]:
    """`jax well 0`, and of two that take turns `jax well 0 + torch slow 0`."""
    return [" + ".join(f"{one.framework} {written(one)} {one.replicate}" for one in step) for step in steps]


def written(measurement: Measurement) -> str:
    return measurement.variant.execution_mode.removesuffix(".eager")


def sides(*plans: JobPlan) -> list[list[Measurement]]:
    return [list(one.replicates()) for one in plans]


def test_replicates_are_a_b_b_a_a_b_with_all_variants_of_a_framework_together() -> None:
    found = words(list(in_turn(sides(plan("jax", "well", "slow"), plan("torch", "well")), {})))
    assert found == [
        *("jax well 0", "jax slow 0", "torch well 0"),
        *("torch well 1", "jax well 1", "jax slow 1"),
        *("jax well 2", "jax slow 2", "torch well 2"),
    ]


def test_one_framework_alone_has_its_own_order() -> None:
    assert words(list(in_turn(sides(plan("torch", "well", "slow", replicates=2)), {}))) == [
        "torch well 0",
        "torch slow 0",
        "torch well 1",
        "torch slow 1",
    ]


def test_who_is_started_first_alternates_where_two_take_turns() -> None:
    jax, torch = sides(plan("jax", "well", "slow"), plan("torch", "slower"))
    partners = {one.id: other.id for one in jax for other in torch if written(one) == "well" and same(one, other)}
    partners |= {other: one for one, other in partners.items()}
    assert words(list(in_turn([jax, torch], partners))) == [
        *("jax well 0 + torch slower 0", "jax slow 0"),
        *("torch slower 1 + jax well 1", "jax slow 1"),
        *("jax well 2 + torch slower 2", "jax slow 2"),
    ]


def same(one: Measurement, other: Measurement) -> bool:
    return one.replicate == other.replicate


def test_the_fastest_takes_turns_with_the_fastest() -> None:
    """Of four modes and two; one of many steps in a call only with its like."""

    def candidates(of: JobPlan, **speeds: float) -> list[Candidate]:
        return [Candidate(each, written(each) == "slower", speeds.get(written(each), 0.0)) for each in of.replicates()]

    modes = ("well", "slow", "slower", "gated")
    ours = candidates(plan("jax", *modes, replicates=1), slow=3.0, well=2.0, gated=1.0)
    theirs = candidates(plan("torch", "gated", "well", replicates=1), gated=7.0, well=9.0)
    of_id = {one.measurement.id: written(one.measurement) for one in (*ours, *theirs)}
    found = counterparts(ours, theirs)
    assert [(of_id[one], of_id[other]) for one, other in found.items()] == [
        *(("slow", "well"), ("well", "slow")),
        *(("well", "gated"), ("gated", "well")),
    ]


def test_of_a_calibration_a_condition_takes_turns_with_its_base() -> None:
    pair = calibration_pair(
        Pair(cell=plan("jax").cell, jobs=tuple(plan(name, "well") for name in FRAMEWORKS)),
        rounds=1,
        quick=True,
        pairing="interleaved",
    )
    measurements = list(pair.jobs[0].replicates())
    of_id = {one.id: str(one.variant.planted) for one in measurements}
    found = {of_id[one]: of_id[other] for one, other in planted_partners(measurements).items()}
    assert len(found) == 6 and found["unslowed_a_in_turns"] == "unslowed_b_in_turns"
    assert found["slower_2_percent_in_turns"] == "base_of_slower_2_percent_in_turns"


# What comes first


def training(framework: Framework, mode: str | None = None, *, batch_size: int = 8, **changes: object) -> JobPlan:
    """Two variants, of which the first is the headline unless a mode is named."""
    made = plan(framework, "well", replicates=3)
    headline = mode or headline_of("train")[framework]
    variants = tuple(
        Variant(model="cnn", batch_size=size, precision="fp32", execution_mode=headline) for size in (batch_size, 64)
    )
    cell = made.cell.model_copy(update={"use_case_name": "train"})
    return made.model_copy(update={"cell": cell, "variants": variants} | changes)


def pair_of(jax: JobPlan, torch: JobPlan, **changes: object) -> Pair:
    return Pair(cell=jax.cell, jobs=(jax, torch)).model_copy(update=changes)


def test_two_replicates_of_the_headline_of_one_variant_come_first() -> None:
    """The last two, as the first of all has the warm start after it."""
    found = [
        (one.framework, one.variant.batch_size, one.replicate)
        for step in first_ratio(pair_of(training("jax"), training("torch")))
        for one in step
    ]
    assert found == [("torch", 8, 1), ("jax", 8, 1), ("jax", 8, 2), ("torch", 8, 2)]


@pytest.mark.parametrize(
    "pair",
    [
        pair_of(training("jax"), training("torch", batch_size=16)),  # they would not measure the same
        pair_of(training("jax", "scan.jit"), training("torch")),  # no headline
        pair_of(training("jax"), training("torch"), is_interleaved=True),
        Pair(cell=training("jax").cell, jobs=(training("jax"),)),
    ],
    ids=["other work", "no headline", "in turns", "alone"],
)
def test_where_nothing_comes_first(pair: Pair) -> None:
    assert first_ratio(pair) == []


def test_each_framework_screens_before_the_replicates() -> None:
    screened = [
        one.model_copy(update={"screening": Screening(always=())})
        for one in (plan("jax", "well", "slow"), plan("torch", "well", "slow"))
    ]
    assert [(one.framework, one.stage, written(one)) for step in screenings(screened) for one in step] == [
        (framework, "screening", mode) for framework in FRAMEWORKS for mode in ("well", "slow")
    ]
