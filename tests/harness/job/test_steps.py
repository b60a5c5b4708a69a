"""The order of a job's steps, worked out by hand."""

from pathlib import Path

from harness.job.steps import Candidate, Step, counterparts, first_ratio, in_turn
from harness.plan import Framework, JobPlan, Measurement, Pair, Variant
from harness.work.declared import headline_of
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


def test_who_is_started_first_alternates_where_two_take_turns() -> None:
    jax, torch = sides(plan("jax", "well", "slow"), plan("torch", "slower"))
    well = [one for one in jax if written(one) == "well"]
    partners = {one.id: other.id for one, other in zip(well, torch, strict=True)}
    partners |= {other: one for one, other in partners.items()}
    assert words(list(in_turn([jax, torch], partners))) == [
        *("jax well 0 + torch slower 0", "jax slow 0"),
        *("torch slower 1 + jax well 1", "jax slow 1"),
        *("jax well 2 + torch slower 2", "jax slow 2"),
    ]


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


# What comes first


def training(framework: Framework, mode: str | None = None, *, batch_size: int = 8) -> JobPlan:
    """Two variants, of which the first is the headline unless a mode is named."""
    made = plan(framework, "well", replicates=3)
    headline = mode or headline_of("train")[framework]
    variants = tuple(
        Variant(model="cnn", batch_size=size, precision="fp32", execution_mode=headline) for size in (batch_size, 64)
    )
    cell = made.cell.model_copy(update={"use_case_name": "train"})
    return made.model_copy(update={"cell": cell, "variants": variants})


def test_two_replicates_of_the_headline_of_one_variant_come_first() -> None:
    """The last two, as the first of all has the warm start after it."""
    jax, torch = training("jax"), training("torch")
    pair = Pair(cell=jax.cell, jobs=(jax, torch))
    found = [one for step in first_ratio(pair) for one in step]
    assert {one.variant.batch_size for one in found} == {8}
    assert [(one.framework, one.replicate) for one in found] == [("torch", 1), ("jax", 1), ("jax", 2), ("torch", 2)]

    others = {
        "they would not measure the same": {"jobs": (jax, training("torch", batch_size=16))},
        "no headline": {"jobs": (training("jax", "scan.jit"), torch)},
        "in turns": {"is_interleaved": True},
        "alone": {"jobs": (jax,)},
    }
    for why, change in others.items():
        assert first_ratio(pair.model_copy(update=change)) == [], why
