"""The job screens: which modes it goes on with, what it counts, and that a second run decides the same."""

from harness.plan import JobPlan, Pair, Screening
from tests.made.project import BehavingProject

STEADY = {"block_min_s": 0.02, "min_blocks": 5, "max_blocks": 5}
"""Long enough that a hiccup of the machine is not most of a block."""


def plan_of(repository: BehavingProject, *modes: str, always: tuple[str, ...], replicates: int = 2) -> JobPlan:
    plan = repository.plan(*modes, replicates=replicates, **STEADY)
    return plan.model_copy(update={"screening": Screening(always=tuple(f"{mode}.eager" for mode in always))})


def made(repository: BehavingProject) -> list[tuple[str, str, int]]:
    """Of each record, in the order of their making."""
    found = [record.measurement for record in repository.records()]
    return [(one.stage, one.variant.execution_mode.removesuffix(".eager"), one.replicate) for one in found]


def test_what_fails_in_the_screening_goes_no_further(repository: BehavingProject) -> None:
    plan = plan_of(repository, "well", "slow", "raises", always=("raises",))
    status, output, folder = repository.run(plan)
    assert (status, "at most 9 measurements" in output) == (1, True), output
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.fraction(), beat.measurements_failed) == ("done", "5/5", 1)
    assert made(repository)[3:] == [("replicate", "well", 0), ("replicate", "well", 1)]
    assert repository.resume(folder)[0] == 1  # again
    assert made(repository)[5:] == [("screening", "raises", 0)]


def test_the_headline_is_measured_before_the_screening_and_not_again(repository: BehavingProject) -> None:
    """Of each framework three modes, of which `slower` is the headline, and `well` the fastest: 3 screenings and 2 x 2
    replicates."""
    end = '"torch": FORMULATIONS}'
    headed = end + ', headline={"jax": "slower.eager", "torch": "slower.eager"}'
    repository.change("harness/work/use_cases/behave.py", (end, headed))
    plan = plan_of(repository, "slower", "slow", "well", always=("slower",))
    jobs = (plan.model_copy(update={"framework": "jax"}), plan)
    status, output, folder = repository.run(Pair(cell=plan.cell, jobs=jobs))
    assert status == 0, output
    assert "at most 18 measurements" in output
    assert output.count("cnn-b8-fp32: 2 of 3 modes go on: slower.eager, well.eager") == 2
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.fraction(), beat.replicates_made) == ("done", "14/14", 8)
    assert (beat.screenings_done, beat.screenings_total) == (6, 6)
    assert repository.resume(folder)[0] == 0  # after a requeue
    assert len(repository.records()) == 14
