"""The job screens: which modes it goes on with, what it counts, and that a second run decides the same."""

from harness.plan import JobPlan, Screening
from tests.harness.job.test_job import run_arm
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


def test_only_what_can_still_be_the_fastest_goes_on_and_the_headline(repository: BehavingProject) -> None:
    plan = plan_of(repository, "slow", "well", "slower", always=("slower",))
    status, output, folder = repository.run(plan)
    assert status == 0, output
    assert made(repository) == [
        *(("screening", mode, 0) for mode in ("slow", "well", "slower")),
        *(("replicate", mode, number) for number in (0, 1) for mode in ("well", "slower")),
    ]
    assert "at most 9 measurements" in output
    assert "[screening 2/3] cnn-b8-fp32-well.eager-screening: " in output
    assert "cnn-b8-fp32: 2 of 3 modes go on: well.eager, slower.eager" in output
    assert "[7/7] cnn-b8-fp32-slower.eager-r1: " in output
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.measurements_done, beat.measurements_total) == ("done", 7, 7)
    assert (beat.screenings_done, beat.screenings_total, beat.fraction()) == (3, 3, "7/7")
    screening = repository.records()[0]
    assert screening.parity is None and screening.result is not None
    assert len(screening.result.blocks.block_times_s) == 5
    assert screening.measurement.protocol == plan.protocol

    status, output, _ = repository.run(plan)
    assert (status, "done: 0 measured, 7 had a record, 0 failed" in output) == (0, True)


def test_arms_of_a_pair_choose_by_what_the_screening_left(repository: BehavingProject) -> None:
    """What failed there goes no further, and the next run tries it again."""
    folder = repository.job(plan_of(repository, "well", "slow", "raises", always=("raises",)))
    done = run_arm(repository, folder, "--replicate", "screening", "--position", "0")
    assert done.returncode == 1
    assert "3 of 9 measurements" in done.stdout
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.fraction(), beat.measurements_failed) == ("waiting", "3/5", 1)
    for replicate in ("0", "1"):
        done = run_arm(repository, folder, "--replicate", replicate, "--position", "1")
        assert (done.returncode, "1 of 5 measurements" in done.stdout) == (0, True), done.stdout
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.measurements_done, beat.measurements_total) == ("done", 5, 5)
    assert made(repository)[3:] == [("replicate", "well", 0), ("replicate", "well", 1)]

    assert run_arm(repository, folder, "--replicate", "screening", "--position", "0").returncode == 1
    assert made(repository)[5:] == [("screening", "raises", 0)]


def test_the_headline_is_measured_before_the_screening_and_not_again(repository: BehavingProject) -> None:
    """Three modes, of which `slower` is the headline, and `well` the fastest: 3 screenings and 2 x 2 replicates."""
    headed = ('"torch": FORMULATIONS}', '"torch": FORMULATIONS}, headline={"torch": "slower.eager"}')
    repository.change("harness/work/use_cases/behave.py", headed)
    folder = repository.job(plan_of(repository, "slow", "well", "slower", always=("slower",)))

    def run(turn: str) -> str:
        done = run_arm(repository, folder, "--replicate", turn)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "1 of 9 measurements" in run("first-0")
    assert "1 of 9 measurements" in run("first-1")
    assert made(repository) == [("replicate", "slower", 0), ("replicate", "slower", 1)]
    again = run("first-0")  # after a requeue
    assert "done: 0 measured, 1 had a record, 0 failed" in again
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.fraction(), beat.eta_s) == ("waiting", "2/9", None)
    assert "cnn-b8-fp32: 2 of 3 modes go on: well.eager, slower.eager" in run("screening")
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.fraction(), beat.replicates_made) == ("waiting", "5/7", 2)
    for turn in ("0", "1"):
        assert "1 of 7 measurements" in run(turn)
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.fraction(), beat.measurements_made, beat.measurements_skipped) == ("done", "7/7", 7, 0)
    assert made(repository)[5:] == [("replicate", "well", 0), ("replicate", "well", 1)]

    done = run_arm(repository, folder, "--replicate", "first-2")
    assert done.returncode == 2 and "the plan has 2 replicates; valid: 0 to 1" in done.stderr


def test_a_replicate_by_hand_takes_all_modes_where_nothing_was_screened(repository: BehavingProject) -> None:
    folder = repository.job(plan_of(repository, "well", "slow", always=()))
    assert run_arm(repository, folder, "--replicate", "1").returncode == 0
    assert made(repository) == [("replicate", "well", 1), ("replicate", "slow", 1)]


def test_there_is_no_screening_to_ask_for(repository: BehavingProject) -> None:
    done = run_arm(repository, repository.job(repository.plan("well")), "--replicate", "screening")
    assert done.returncode == 2
    assert "error: --replicate screening: nothing is screened here" in done.stderr
    done = run_arm(repository, repository.job(repository.plan("well")), "--replicate", "first")
    assert done.returncode == 2
    assert "first: the number of a replicate, from 0, or `screening`, or `first-N`" in done.stderr
    done = run_arm(repository, repository.job(repository.plan("well")), "--replicate", "first-0")
    assert done.returncode == 2
    assert "error: --replicate first-0: nothing comes first here" in done.stderr
