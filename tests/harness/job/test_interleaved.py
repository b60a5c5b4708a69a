"""Two processes that take turns: the order by hand, and real runs of a pair with the fake framework."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.job.interleaved import Candidate, Order, counterparts
from harness.paths import JobFolder
from harness.plan import JobPlan
from harness.results.record import Record, active_s
from harness.results.statistics import log_ratio, took_turns
from tests.made.patience import patience
from tests.made.project import BehavingProject, without_slurm

# Whose turn it is.


def words_until_end(order: Order, wanted: tuple[int, int]) -> list[tuple[int, str]]:
    """All that is said, where each side wants so many blocks, and nothing happens to it."""
    said: list[tuple[int, str]] = []
    made, active = [0, 0], 0
    order.waits(0, wants=True)
    while (step := order.next()) is not None:
        active, word = step
        said.append((active, word))
        if word == "block":
            made[active] += 1
        if word in ("block", "start"):
            order.waits(active, wants=made[active] < wanted[active])
        else:
            order.is_over(active)
    return said


def test_turns_are_a_b_b_a_until_neither_wants_more() -> None:
    """The first wants 3 blocks and the second 1: two whole quads, 4 blocks each."""
    order = Order()
    said = words_until_end(order, (3, 1))
    blocks = "".join("AB"[which] for which, word in said if word == "block")
    assert blocks == "ABBAABBA"
    assert said[0] == (1, "start")
    assert said[-2:] == [(0, "end"), (1, "end")]
    assert order.took_turns


def test_who_is_left_goes_on_alone() -> None:
    order = Order()
    order.waits(0, wants=True)
    assert order.next() == (1, "start")
    order.waits(1, wants=True)
    assert order.next() == (0, "block")
    order.is_over(0)
    assert order.next() == (1, "alone")
    assert not order.took_turns
    order.is_over(1)
    assert order.next() is None


def test_where_the_first_does_not_come_so_far_the_second_is_started_all_the_same() -> None:
    order = Order()
    order.is_over(0)
    assert order.next() == (1, "start")
    order.is_over(1)
    assert order.next() is None and not order.took_turns


def test_what_fails_after_the_turns_takes_nothing_from_the_other() -> None:
    order = Order()
    order.waits(0, wants=False)
    order.next()
    order.waits(1, wants=False)
    assert order.next() == (0, "end")
    order.is_over(0)
    assert order.next() == (1, "end")
    assert order.took_turns


def test_the_fastest_takes_turns_with_the_fastest(tmp_path: Path) -> None:
    """Of three modes and two; one of many steps in a call only with its like."""
    project = BehavingProject(root=tmp_path)

    def candidates(plan: JobPlan, **speeds: float) -> list[Candidate]:
        return [
            Candidate(each, each.variant.execution_mode == "slower", speeds.get(each.variant.execution_mode, 0.0))
            for each in plan.replicates()
        ]

    ours = candidates(project.plan("well", "slow", "slower", "gated", framework="jax"), slow=3.0, well=2.0, gated=1.0)
    theirs = candidates(project.plan("gated", "well"), gated=7.0, well=9.0)
    found = [(one.variant.execution_mode, other.variant.execution_mode) for one, other in counterparts(ours, theirs)]
    assert found == [("slow", "well"), ("well", "gated")]


# Real runs.


def arm(project: BehavingProject, jax: JobFolder, torch: JobFolder, replicate: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "jax_runner/run.py", "--results", str(project.results.root)]
    command += ["--job-folder", str(jax.root), "--interleaved", str(torch.root), "--pair", "run-1"]
    return subprocess.Popen(
        [*command, "--replicate", str(replicate), "--position", str(replicate)],
        cwd=project.root,
        env=without_slurm(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run_arm(project: BehavingProject, jax: JobFolder, torch: JobFolder, replicate: int = 0) -> tuple[int, str]:
    with arm(project, jax, torch, replicate) as process:
        output, _ = process.communicate(timeout=patience(60))
    return process.returncode, output


def of_frameworks(project: BehavingProject) -> dict[str, Record]:
    found = {record.measurement.framework: record for record in project.records()}
    assert len(found) == len(project.records())
    return found


def test_two_processes_take_turns_and_the_ratio_is_that_of_neighbours(repository: BehavingProject) -> None:
    """The second replicate begins with PyTorch. Steps of 10 ms against steps of 20 ms: a ratio of 2, also of the first
    framework's three blocks that its own rule asks for."""
    pair = repository.pair(("slow",), ("slower",), replicates=2, is_interleaved=True)
    folders = [repository.job(plan) for plan in pair.jobs]
    for replicate in range(2):
        status, output = run_arm(repository, *folders, replicate)
        assert status == 0, output
    records = {(one.measurement.framework, one.measurement.replicate): one for one in repository.records()}
    assert len(records) == 4
    for replicate in range(2):
        jax, torch = records["jax", replicate], records["torch", replicate]
        assert took_turns(jax, torch)
        assert jax.environment["pairing"]["kind"] == torch.environment["pairing"]["kind"] == "interleaved"
        assert jax.environment["pairing"]["partner"] == torch.measurement_id
        assert jax.environment["pairing"]["pair"] == "run-1"
        assert len(jax.result.blocks.block_times_s) == len(torch.result.blocks.block_times_s) == 4
        assert log_ratio(jax, torch) == pytest.approx(0.69, abs=0.1)
        assert [one.result.in_turns.is_first for one in (jax, torch)] == [replicate == 0, replicate == 1]
        assert "busy_while_waiting" not in {**jax.flags, **torch.flags}
        assert active_s(jax) > 0 and active_s(torch) > 0
    assert not took_turns(records["jax", 0], records["torch", 1])
    for folder in folders:
        beat = repository.heartbeat(folder)
        assert (beat.state, beat.measurements_done, beat.measurements_failed) == ("done", 2, 0)


@pytest.mark.parametrize("dies", ["first", "second"])
def test_death_of_one_costs_the_other_nothing(repository: BehavingProject, dies: str) -> None:
    """It goes on alone, and its record says so."""
    modes = (("dies_at_its_third_block",), ("well",))
    jax, torch = modes if dies == "first" else modes[::-1]
    folders = [repository.job(plan) for plan in repository.pair(jax, torch, replicates=1, is_interleaved=True).jobs]
    status, output = run_arm(repository, *folders)
    assert status == 1, output
    dead, left = ("jax", "torch") if dies == "first" else ("torch", "jax")
    records = of_frameworks(repository)
    assert records[dead].outcome == "failed" and "killed by SIGKILL" in str(records[dead].reason)
    assert records[left].outcome == "ok" and len(records[left].result.blocks.block_times_s) >= 3
    pairing = records[left].environment["pairing"]
    assert (
        pairing["kind"] == "together" and f"{dead} cnn-b8-fp32-dies_at_its_third_block-r0" in pairing["not_interleaved"]
    )

    # What failed is tried again, by itself; what is there is not.
    status, output = run_arm(repository, *folders)
    assert "1 had a record" in output
    assert len(repository.records()) == 3
