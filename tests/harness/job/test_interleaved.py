"""Two processes that take turns: the order by hand, and real runs of a pair with the fake framework."""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.job import job as job_module
from harness.job.children import Children
from harness.job.interleaved import Candidate, Order, Side, SideReport, counterparts, work_in_turns
from harness.job.job import Job, _measure_in_turns, _steps
from harness.job.ranks import RanksReport
from harness.job.tracker import NullTracker
from harness.measure.channel import ChildTask
from harness.measure.clock import BESIDE_ANOTHER
from harness.paths import JobFolder, Results
from harness.plan import PAIRS_IN_TURNS, Cell, JobPlan, Measurement, MeasurementSettings, Pair, Variant
from harness.results.record import Record, active_s, read_record, write_record
from harness.results.statistics import log_ratio, took_turns
from harness.work.declared import use_case
from pipeline.calibrate import calibration_pair
from tests.made.patience import patience, slowdown, wait_until
from tests.made.processes import is_alive
from tests.made.project import QUICK, BehavingProject, make_behaving_project, without_slurm
from tests.made.records import bare_record
from tests.made.report_records import plan
from tests.made.sessions import made_up

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


def written(measurement: Measurement) -> str:
    """The formulation, which fake_framework runs in one way only."""
    return measurement.variant.execution_mode.removesuffix(".eager")


def test_the_fastest_takes_turns_with_the_fastest(tmp_path: Path) -> None:
    """Of three modes and two; one of many steps in a call only with its like."""
    project = BehavingProject(root=tmp_path)

    def candidates(plan: JobPlan, **speeds: float) -> list[Candidate]:
        return [
            Candidate(each, written(each) == "slower", speeds.get(written(each), 0.0)) for each in plan.replicates()
        ]

    ours = candidates(project.plan("well", "slow", "slower", "gated", framework="jax"), slow=3.0, well=2.0, gated=1.0)
    theirs = candidates(project.plan("gated", "well"), gated=7.0, well=9.0)
    found = [(written(one), written(other)) for one, other in counterparts(ours, theirs)]
    assert found == [("slow", "well"), ("well", "gated")]


# What takes turns in a run, and what is measured by itself.


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[[int], tuple[Job, Job]]:
    """Of one replicate. JAX's `scan` has many steps in a call, which no mode of PyTorch's has."""
    plans = [plan("jax", "step.jit", "scan.jit"), plan("torch", "step.eager", "step.compiled")]
    folders = [JobFolder(root=tmp_path / one.framework) for one in plans]
    results = Results(root=tmp_path / "results")
    for folder in folders:
        folder.root.mkdir()

    def of(replicate: int) -> tuple[Job, Job]:
        jax, torch = (
            Job(plan=one, folder=folder, results=results, data=None, weights={}, share=replicate, pairing={})
            for one, folder in zip(plans, folders, strict=True)
        )
        return jax, torch

    return of


def steps_of(jobs: tuple[Job, Job]) -> list[str]:
    return [" + ".join(one.variant.execution_mode for _, one in step) for step in _steps(jobs)]


def test_who_is_first_alternates(jobs: Callable[[int], tuple[Job, Job]]) -> None:
    assert [steps_of(jobs(replicate)) for replicate in (0, 1, 2)] == [
        ["step.jit + step.eager", "scan.jit", "step.compiled"],
        ["step.eager + step.jit", "scan.jit", "step.compiled"],
        ["step.jit + step.eager", "scan.jit", "step.compiled"],
    ]


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("exclusive_process", ["step.jit", "scan.jit", "step.eager", "step.compiled"]),
        ("default", ["step.jit + step.eager", "scan.jit", "step.compiled"]),
        (None, ["step.jit + step.eager", "scan.jit", "step.compiled"]),  # NVML does not say
    ],
)
def test_a_gpu_that_takes_one_process_at_a_time_has_no_turns(
    mode: str | None,
    steps: list[str],
    jobs: Callable[[int], tuple[Job, Job]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job_module, "open_gpu", lambda: SimpleNamespace(describe=lambda: {"compute_mode": mode}))
    assert steps_of(jobs(0)) == steps
    assert ("it is exclusive_process" in capsys.readouterr().out) == (mode == "exclusive_process")


def test_what_is_left_of_a_pair_is_measured_by_itself(jobs: Callable[[int], tuple[Job, Job]]) -> None:
    jax, torch = jobs(0)
    [eager, _] = [one for one in torch.plan.replicates() if one.replicate == 0]
    failed = torch.results.new_record(eager)
    write_record(bare_record(eager, "failed", reason="x", environment={"scheduler": "local"}), failed)
    assert steps_of((jax, torch))[0] == "step.jit + step.eager"  # both are to be measured
    write_record(bare_record(eager, environment={"scheduler": "local"}), torch.results.new_record(eager))
    assert steps_of((jax, torch)) == ["step.jit", "scan.jit", "step.eager", "step.compiled"]


def test_a_pair_that_was_cut_off_again_and_again_is_measured_one_by_one(
    jobs: Callable[[int], tuple[Job, Job]],
) -> None:
    jax, torch = jobs(0)
    jit = next(jax.plan.replicates())
    jax.cut_offs.note(jit, warn=print)
    assert steps_of((jax, torch))[0] == "step.jit + step.eager"
    jax.cut_offs.note(jit, warn=print)
    assert steps_of((jax, torch)) == ["scan.jit", "step.eager", "step.compiled", "step.jit"]


class Diary(NullTracker):
    """What W&B is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def begin(self, measurement: Measurement, environment: dict[str, Any]) -> None:
        self.told.append(f"begin {measurement.variant.execution_mode}")

    def end(self, record: Record, summary: dict[str, float]) -> None:
        self.told.append(f"end {record.measurement.variant.execution_mode}")


def test_a_job_has_one_run_in_w_and_b_at_a_time(
    jobs: Callable[[int], tuple[Job, Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes of one framework, as in a calibration; and one of each framework."""
    failed = SideReport(report=RanksReport(outcome="failed", reason="not measured"), active_s=1.0, was_beside=True)
    monkeypatch.setattr(job_module, "work_in_turns", lambda _sides, _waiting: ((failed, failed), True))
    jax, torch = jobs(0)
    jax.tracker = torch.tracker = diary = Diary()
    jit, scan = (one for one in jax.plan.replicates() if one.replicate == 0)
    _measure_in_turns((jax, jit), (jax, scan))
    assert diary.told == ["begin step.jit", "end step.jit", "begin scan.jit", "end scan.jit"]
    diary.told.clear()
    eager = next(torch.plan.replicates())
    _measure_in_turns((jax, jit), (torch, eager))
    assert diary.told == ["begin step.jit", "begin step.eager", "end step.jit", "end step.eager"]


# Real runs of a pair.


def command(project: BehavingProject, jax: JobFolder, torch: JobFolder, replicate: int) -> list[str]:
    run = [sys.executable, "-u", "jax_runner/run.py", "--results", str(project.results.root)]
    folders = ["--job-folder", str(jax.root), "--interleaved", str(torch.root)]
    return [*run, *folders, "--pair", "run-1", "--replicate", str(replicate), "--position", str(replicate)]


def start(project: BehavingProject, folders: list[JobFolder], replicate: int = 0) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(project, folders[0], folders[1], replicate),
        cwd=project.root,
        env=without_slurm(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(project: BehavingProject, folders: list[JobFolder], replicate: int = 0) -> tuple[int, str]:
    with start(project, folders, replicate) as process:
        output, _ = process.communicate(timeout=patience(120))
    return process.returncode, output


def folders_of(project: BehavingProject, pair: Pair, **protocol: Any) -> list[JobFolder]:
    plans = [
        plan.model_copy(update={"is_interleaved": True, "protocol": plan.protocol.model_copy(update=protocol)})
        for plan in pair.jobs
    ]
    return [project.job(plan) for plan in plans]


Found = dict[tuple[str, str], Record]
"""By framework and formulation."""


def by_mode(project: BehavingProject) -> Found:
    return {(one.measurement.framework, written(one.measurement)): one for one in project.records()}


@dataclass(frozen=True, kw_only=True)
class Faulty:
    status: int
    output: str
    project: BehavingProject
    folders: list[JobFolder]
    records: Found


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    """One arm of four pairs: a good one, and one for each fault. Neither framework has a screening."""
    project = make_behaving_project(tmp_path_factory.mktemp("faults"))
    jax = ("slow", "dies_later", "well", "hangs_later")
    torch = ("slower", "well", "fills_the_device_at_first", "prints_much")
    folders = folders_of(project, project.pair(jax, torch, replicates=1), timeout_s=4 * slowdown())
    status, output = run(project, folders)
    return Faulty(status=status, output=output, project=project, folders=folders, records=by_mode(project))


def test_two_processes_take_turns_and_their_records_say_so(faulty: Faulty) -> None:
    """Steps of 10 ms against steps of 20 ms are a ratio of 2. Both stop after 3 blocks by their own rule, so there are
    two quads."""
    jax, torch = faulty.records["jax", "slow"], faulty.records["torch", "slower"]
    assert took_turns(jax, torch)
    pairings = [one.environment["pairing"] for one in (jax, torch)]
    assert [each["kind"] for each in pairings] == ["interleaved"] * 2
    assert [each["partner"] for each in pairings] == [torch.measurement_id, jax.measurement_id]
    assert [(each["pair"], each["position"]) for each in pairings] == [("run-1", 0)] * 2
    assert [len(one.result.blocks.block_times_s) for one in (jax, torch)] == [4, 4]
    assert log_ratio(jax, torch) == pytest.approx(math.log(2), abs=0.2)
    assert [one.result.in_turns.is_first for one in (jax, torch)] == [True, False]
    assert torch.result.energy.absent == BESIDE_ANOTHER
    assert "busy_while_waiting" not in {**jax.flags, **torch.flags}
    # The waits of each are the other's time, which counts once.
    assert active_s(jax) + active_s(torch) < 1.1 * (ended_s(torch) - started_s(jax))


def started_s(record: Record) -> float:
    return datetime.fromisoformat(record.started_at).timestamp()


def ended_s(record: Record) -> float:
    return datetime.fromisoformat(record.ended_at).timestamp()


def test_death_of_one_costs_the_other_nothing(faulty: Faulty) -> None:
    dead, left = faulty.records["jax", "dies_later"], faulty.records["torch", "well"]
    assert dead.outcome == "failed" and "killed by SIGKILL" in str(dead.reason)
    assert left.outcome == "ok" and len(left.result.blocks.block_times_s) == 3
    assert not took_turns(dead, left)
    pairing = left.environment["pairing"]
    assert (pairing["kind"], pairing["not_interleaved"]) == (
        "together",
        "jax cnn-b8-fp32-dies_later.eager-r0 was over before",
    )
    assert left.result.energy.absent != BESIDE_ANOTHER  # it was alone by then


def test_a_process_that_hangs_in_its_turn_times_out_and_the_other_goes_on(faulty: Faulty) -> None:
    hung, left = faulty.records["jax", "hangs_later"], faulty.records["torch", "prints_much"]
    assert hung.outcome == "timeout" and str(hung.reason).startswith("not done after ")
    assert (left.outcome, len(left.result.blocks.block_times_s)) == ("ok", 3)


def test_who_is_out_of_memory_beside_another_is_tried_alone(faulty: Faulty) -> None:
    """`out_of_memory` is an answer for good, so it must not be the other process's doing."""
    alone, other = faulty.records["torch", "fills_the_device_at_first"], faulty.records["jax", "well"]
    assert (alone.outcome, other.outcome) == ("ok", "ok")
    assert (
        alone.environment["pairing"]["not_interleaved"] == "it ran out of memory beside jax cnn-b8-fp32-well.eager-r0"
    )
    assert "out of memory beside the other process; once more, alone" in faulty.output


def test_both_jobs_tell_how_far_they_are(faulty: Faulty) -> None:
    assert faulty.status == 1
    beats = [faulty.project.heartbeat(folder) for folder in faulty.folders]
    counts = [(beat.state, beat.measurements_done, beat.measurements_failed) for beat in beats]
    assert counts == [("done", 4, 2), ("done", 4, 0)]


def test_a_signal_ends_both_and_the_next_start_measures_both(repository: BehavingProject) -> None:
    """PyTorch's process waits for the gate in its third block; JAX's waits for its turn. The second replicate begins
    with PyTorch."""
    folders = folders_of(repository, repository.pair(("slow",), ("waits_later",), replicates=2))
    pid = repository.root / "torch-pid"
    with start(repository, folders) as process:
        wait_until(pid.exists, "the second process is in its turns")
        measuring = int(pid.read_text())
        process.send_signal(signal.SIGUSR2)
        output, _ = process.communicate(timeout=patience(60))
    assert process.returncode == 75
    assert output.count("stopped by a signal after 0 of 2") == 2
    assert not is_alive(measuring)
    assert repository.records() == []
    assert [sum(json.loads(folder.cut_offs.read_text()).values()) for folder in folders] == [1, 1]

    repository.gate.touch()
    assert run(repository, folders)[0] == 0
    assert took_turns(*repository.records())

    assert run(repository, folders, 1)[0] == 0
    records = {(one.measurement.framework, one.measurement.replicate): one for one in repository.records()}
    assert len(records) == 4
    assert took_turns(records["jax", 1], records["torch", 1]) and not took_turns(records["jax", 0], records["torch", 1])
    assert [records[name, 1].result.in_turns.is_first for name in ("jax", "torch")] == [False, True]


def test_of_a_calibration_the_two_conditions_of_a_framework_take_turns(repository: BehavingProject) -> None:
    """Of the five pairs one, so that it is short."""
    pair = calibration_pair(repository.pair(), rounds=1, quick=True, kind="interleaved")
    plan = pair.jobs[1]
    variants = tuple(one for one in plan.variants if one.planted in PAIRS_IN_TURNS["unslowed"])
    protocol = plan.protocol.model_copy(update=QUICK | {"replicates": 1})
    folder = repository.job(plan.model_copy(update={"variants": variants, "protocol": protocol}))
    status, output = repository.resume(folder)
    assert status == 0, output
    one, other = (read_record(path) for path in repository.results.calibration.rglob("*.json"))
    assert took_turns(one, other)
    assert {one.measurement.variant.planted, other.measurement.variant.planted} == set(PAIRS_IN_TURNS["unslowed"])


def test_only_one_replicate_of_two_plans_takes_turns(repository: BehavingProject) -> None:
    folders = folders_of(repository, repository.pair())
    words = command(repository, *folders, 0)
    words = words[: words.index("--replicate")]
    done = subprocess.run(words, cwd=repository.root, env=without_slurm(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: --interleaved: takes both frameworks' plans of one cell on one device" in done.stderr


# Both frameworks themselves.


def test_jax_and_pytorch_are_at_rest_while_they_wait(tmp_path: Path) -> None:
    for name in ("jax", "torch"):
        pytest.importorskip(name)
    cell = Cell(gpu="cpu", benchmark="text", use_case=5, use_case_name="inference")
    declared = use_case("inference")
    protocol = MeasurementSettings(**QUICK | {"warmup_s": 0.1, "block_min_s": 0.05, "explain": False})
    sides = []
    for framework, mode in (("jax", "forward.jit"), ("torch", "forward.eager")):
        variant = Variant(
            model="mlp", batch_size=64, precision="fp32", execution_mode=mode, options=made_up(declared.options)
        )
        measurement = Measurement(
            framework=framework,
            cell=cell,
            variant=variant,
            stage="screening",  # nothing comes after its steady state
            replicate=0,
            settings=made_up(declared.settings),
            protocol=protocol,
            data="sample",
            quick=True,
        )
        task = ChildTask(measurement=measurement, data_dir="data")
        children = Children(framework, cell, while_waiting=lambda: None, tell=print)
        sides.append(Side(children=children, task=task, log=tmp_path / f"{framework}.log", hear=lambda _event: None))
    reports, turned = work_in_turns(sides, lambda: None)
    assert turned, reports
    results = [one.report.result for one in reports]
    assert [len(result.blocks.block_times_s) for result in results] == [4, 4]
    for result in results:
        turns = result.in_turns
        assert turns.waited_s > 0.1
        assert turns.busy_s < 0.1 * turns.waited_s
