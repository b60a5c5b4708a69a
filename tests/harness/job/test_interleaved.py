"""Two processes that take turns: the order by hand, and real runs of a pair with the fake framework."""

import json
import math
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.job import job as job_module
from harness.job.interleaved import Order, SideReport
from harness.job.job import Job
from harness.job.ranks import RanksReport
from harness.measure.clock import SHARED_DEVICE
from harness.paths import JobFolder, Results
from harness.plan import PAIRS_IN_TURNS, Measurement, Pair
from harness.results.busy import is_busy
from harness.results.ratios import replicate_of, took_turns
from harness.results.record import read_record, write_record
from pipeline.calibrate import calibration_pair
from tests.made.patience import patience, slowdown, wait_until
from tests.made.processes import is_alive
from tests.made.project import QUICK, BehavingProject, FinishedJob, make_behaving_project
from tests.made.records import bare_record
from tests.made.report_records import plan

# Whose turn it is.


def words_until_end(order: Order, wanted: tuple[int, int]) -> list[tuple[int, str]]:
    """All that is said, where each side wants so many blocks, and nothing happens to it."""
    said: list[tuple[int, str]] = []
    made, active = [0, 0], 0
    order.waits(0, wants=True)
    while (step := order.next()) is not None:
        active, word = step
        said.append((active, word))
        made[active] += "block" in word
        if "block" in word or word == "start":
            order.waits(active, wants=made[active] < wanted[active])
        else:
            order.is_over(active)
    return said


def test_turns_are_a_b_b_a_until_neither_wants_more() -> None:
    """The first wants 3 blocks and the second 1: two whole quads, 4 blocks each. The first block of all follows the
    second one's warm-up."""
    order = Order()
    assert words_until_end(order, (3, 1)) == [
        (1, "start"),
        *((0, "block_after_other"), (1, "block_after_other"), (1, "block"), (0, "block_after_other")),
        *((0, "block"), (1, "block_after_other"), (1, "block"), (0, "block_after_other")),
        *((0, "end"), (1, "last")),
    ]
    assert order.took_turns


def test_who_is_left_goes_on_alone() -> None:
    """Also where the first does not come so far that the second is started."""
    order = Order()
    order.waits(0, wants=True)
    assert order.next() == (1, "start")
    order.waits(1, wants=True)
    assert order.next() == (0, "block_after_other")
    order.is_over(0)
    assert order.next() == (1, "alone")
    early = Order()
    early.is_over(0)
    assert early.next() == (1, "start")
    for one in (order, early):
        one.is_over(1)
        assert (one.next(), one.took_turns) == (None, False)


# What takes turns in a run, and what is measured by itself.

FAILED = SideReport(report=RanksReport(outcome="failed", reason="not measured"), active_s=1.0, was_beside=True)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """JAX's `scan` has many steps in a call, which no mode of PyTorch's has."""
    plans = (plan("jax", "step.jit", "scan.jit"), plan("torch", "step.eager", "step.compiled"))
    (tmp_path / "job").mkdir()
    pair = Pair(cell=plans[0].cell, jobs=plans, is_interleaved=True)
    results = Results(root=tmp_path / "results")
    return Job(pair, JobFolder(root=tmp_path / "job"), results, data=None, weights={})


def firsts(job: Job) -> tuple[Measurement, Measurement]:
    return job._arms["jax"].replicates[0], job._arms["torch"].replicates[0]


def test_a_gpu_that_takes_one_process_at_a_time_has_no_turns(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of twelve replicates, one pair each."""
    for mode, count in (("exclusive_process", 0), ("default", 24), (None, 24)):  # None: not known
        gpu = SimpleNamespace(describe=lambda mode=mode: {"compute_mode": mode})
        monkeypatch.setattr(job_module, "open_gpu", lambda gpu=gpu: gpu)
        assert len(job._partners()) == count
        assert ("it is exclusive_process" in capsys.readouterr().out) == (count == 0)


def test_what_is_left_of_a_pair_is_measured_by_itself(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    (jit, eager), results = firsts(job), job._results
    alone: list[str] = []
    together: list[int] = []
    monkeypatch.setattr(
        job_module, "work_in_turns", lambda sides, _waiting: (together.append(len(sides)), ((FAILED, FAILED), True))[1]
    )
    for arm in job._arms.values():
        monkeypatch.setattr(arm, "measure_unless_settled", lambda one: alone.append(one.variant.execution_mode))
    job._measure((jit, eager))
    assert (together, alone) == ([2], [])  # both are to be measured, and to be measured again, as they failed
    write_record(bare_record(eager, environment={"scheduler": "local"}), results.new_record(eager))
    job._measure((jit, eager))
    assert (together, alone) == ([2], ["step.jit", "step.eager"])


def test_a_pair_that_was_cut_off_again_and_again_comes_last_one_by_one(job: Job) -> None:
    jit, eager = firsts(job)
    others = [(one,) for one in job._arms["jax"].replicates[1:3]]
    for expected in (0, 0, 2):
        assert job._in_order([(jit, eager), *others]).index((jit, eager)) == expected
        assert job._arms["jax"].may_take_turns(jit) == (expected == 0)
        job._cut_offs.note(jit, warn=print)


# Real runs of a pair.


def in_turns(pair: Pair, **protocol: Any) -> Pair:
    plans = [plan.model_copy(update={"protocol": plan.protocol.model_copy(update=protocol)}) for plan in pair.jobs]
    return pair.model_copy(update={"is_interleaved": True, "jobs": tuple(plans)})


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    """Four pairs: a good one, and one for each fault. Neither framework has a screening. Records by framework and
    formulation, which fake_framework runs in one way only."""
    project = make_behaving_project(tmp_path_factory.mktemp("faults"))
    jax = ("slow", "dies_later", "well", "hangs_later")
    torch = ("slower", "well", "fills_the_device_at_first", "prints_much")
    status, output, folder = project.run(in_turns(project.pair(jax, torch, replicates=1), timeout_s=4 * slowdown()))
    found = [(one.measurement.framework, one.measurement.variant.execution_mode, one) for one in project.records()]
    records = {(framework, mode.removesuffix(".eager")): one for framework, mode, one in found}
    return FinishedJob(project=project, folder=folder, status=status, output=output, records=records)


def test_two_processes_take_turns_and_their_records_say_so(faulty: FinishedJob) -> None:
    """Steps of 10 ms against steps of 20 ms are a ratio of 2. Both stop after 3 blocks by their own rule, so there are
    two quads."""
    jax, torch = faulty.records["jax", "slow"], faulty.records["torch", "slower"]
    assert took_turns(jax, torch)
    pairings = [one.environment["pairing"] for one in (jax, torch)]
    assert [each["kind"] for each in pairings] == ["interleaved"] * 2
    assert [each["partner"] for each in pairings] == [torch.measurement_id, jax.measurement_id]
    assert len({each["pair"] for each in pairings}) == 1
    assert [len(one.result.blocks.block_times_s) for one in (jax, torch)] == [4, 4]
    assert replicate_of(jax, torch).log_ratio.value == pytest.approx(math.log(2), rel=1e-3)
    assert [one.result.in_turns.is_first for one in (jax, torch)] == [True, False]
    assert [one.result.in_turns.after_other for one in (jax, torch)] == [[0, 1, 3], [0, 2]]
    assert torch.result.energy.absent not in (None, SHARED_DEVICE)  # it was alone by then, and there is no GPU
    assert "busy_while_waiting" not in {**jax.flags, **torch.flags}


def test_what_dies_or_hangs_in_its_turn_costs_the_other_nothing(faulty: FinishedJob) -> None:
    dead, left = faulty.records["jax", "dies_later"], faulty.records["torch", "well"]
    hung, other = faulty.records["jax", "hangs_later"], faulty.records["torch", "prints_much"]
    assert dead.outcome == "failed" and "killed by SIGKILL" in str(dead.reason)
    assert hung.outcome == "timeout" and str(hung.reason).startswith("not done after ")
    for one in (left, other):
        assert (one.outcome, len(one.result.blocks.block_times_s)) == ("ok", 3)
    assert not took_turns(dead, left)
    pairing = left.environment["pairing"]
    absent = "jax cnn-b8-fp32-dies_later.eager-r0 was over before"
    assert (pairing["kind"], pairing["not_interleaved"]) == ("together", absent)
    assert left.result.energy.absent != SHARED_DEVICE  # it was alone by then


def test_who_is_out_of_memory_beside_another_is_tried_alone(faulty: FinishedJob) -> None:
    """`out_of_memory` is an answer for good, so it must not be the other process's doing."""
    alone, other = faulty.records["torch", "fills_the_device_at_first"], faulty.records["jax", "well"]
    assert (alone.outcome, other.outcome) == ("ok", "ok")
    absent = "it ran out of memory beside jax cnn-b8-fp32-well.eager-r0"
    assert alone.environment["pairing"]["not_interleaved"] == absent
    assert "out of memory beside the other process; once more, alone" in faulty.output
    beat = faulty.project.heartbeat(faulty.folder)
    assert (faulty.status, beat.state, beat.measurements_done, beat.measurements_failed) == (1, "done", 8, 2)


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_pair_on_a_busy_machine_is_measured_once_more(repository: BehavingProject, *, interleaved: bool) -> None:
    """Both processes where they take turns, and else the one beside which the machine was busy. The second record
    counts, busy or not."""
    pair = repository.pair(("beside_others_at_first", "well"), ("well", "beside_others"), replicates=1)
    status, output, folder = repository.run(in_turns(pair) if interleaved else pair)
    attempts = Counter(
        (one.measurement.framework, one.measurement.variant.execution_mode.removesuffix(".eager"))
        for one in repository.records()
    )
    partners = 2 if interleaved else 1
    assert attempts == {
        ("jax", "beside_others_at_first"): 2,
        ("torch", "well"): partners,
        ("jax", "well"): partners,
        ("torch", "beside_others"): 2,
    }
    newest = {(one.measurement.framework, one.measurement.key): is_busy(one) for one in repository.records()}
    assert [key for (_, key), busy in newest.items() if busy] == ["cnn-b8-fp32-beside_others.eager-r0"]
    assert output.count("machine busy (other processes: 38 % of the CPUs)") == output.count("measured once more") == 2
    beat = repository.heartbeat(folder)
    total = attempts.total()
    assert (status, beat.measurements_done, beat.measurements_total) == (0, total, total)
    if interleaved:  # the second pair of processes took turns, too
        jax, torch = (one for one in repository.records()[-2:])
        assert took_turns(jax, torch)

    # Another run finds the records, and measures nothing again by itself.
    assert "done: 0 measured, 4 had a record" in repository.resume(folder)[1]


def test_a_signal_ends_both_and_the_next_start_measures_both(repository: BehavingProject) -> None:
    """PyTorch's process waits for the gate in its third block; JAX's waits for its turn. The second replicate begins
    with PyTorch."""
    folder = repository.job(in_turns(repository.pair(("slow",), ("waits_later",), replicates=2)))
    pid = repository.root / "torch-pid"
    with repository.start(folder) as process:
        wait_until(pid.exists, "the second process is in its turns")
        measuring = int(pid.read_text())
        process.send_signal(signal.SIGUSR2)
        output, _ = process.communicate(timeout=patience(60))
    assert process.returncode == 75 and "stopped by a signal after 0 of 4" in output
    assert not is_alive(measuring) and repository.records() == []
    assert list(json.loads(folder.cut_offs.read_text()).values()) == [1, 1]

    repository.gate.touch()
    assert repository.resume(folder)[0] == 0
    records = {(one.measurement.framework, one.measurement.replicate): one for one in repository.records()}
    for replicate, first in enumerate(("jax", "torch")):
        assert took_turns(records["jax", replicate], records["torch", replicate])
        assert records[first, replicate].result.in_turns.is_first
    assert len(records) == 4 and not took_turns(records["jax", 0], records["torch", 1])


def test_of_a_calibration_the_two_conditions_of_a_framework_take_turns(repository: BehavingProject) -> None:
    """Of the five pairs one, so that it is short."""
    pair = calibration_pair(repository.pair(), rounds=1, quick=True, pairing="interleaved")
    plan = pair.jobs[1]
    variants = tuple(one for one in plan.variants if one.planted in PAIRS_IN_TURNS["unslowed"])
    protocol = plan.protocol.model_copy(update=QUICK | {"replicates": 1})
    status, output, _ = repository.run(plan.model_copy(update={"variants": variants, "protocol": protocol}))
    assert status == 0, output
    one, other = (read_record(path) for path in repository.results.calibration.rglob("*.json"))
    assert took_turns(one, other)
    assert {one.measurement.variant.planted, other.measurement.variant.planted} == set(PAIRS_IN_TURNS["unslowed"])
