"""Jobs on this machine: one at a time, in a process that outlives main.py, ended in order by cancel."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.paths import JobFolder
from harness.plan import FRAMEWORKS, Pair
from harness.plan_file import read_plan
from harness.results.ratios import took_turns
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.submit import _start_queue, submit
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import is_local_queue, job_states
from tests.made.patience import wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, FakeProject, alone, make_behaving_project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[FakeProject]:
    project = make_project(tmp_path)
    yield project
    cancel(project.results)


def queue_of(folder: JobFolder) -> int:
    return int(json.loads(folder.submission.read_text())["job_id"])


def wait_until_running(project: FakeProject, folder: JobFolder) -> None:
    wait_until(folder.heartbeat.exists, "the job runs", project.results.local_queue_log.read_text, quiet_s=20.0)


def test_two_submissions_never_run_at_the_same_time(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    """As two main.py would: the second queue waits for the first one."""
    gate = project.root / "gate"
    plans = [project.plan("jax", gate=str(gate)), project.plan("torch")]
    folders = project.submit(*plans, executor="local")
    wait_until_running(project, folders[0])
    folders += project.submit(project.plan("torch", use_case=1), executor="local")
    assert len({queue_of(folder) for folder in folders}) == 2
    assert [state.state for state in job_states(project.results, folders)][1:] == ["queued", "queued"]
    gate.touch()
    assert follow(folders, project.results) == 0

    records = project.records()
    assert len(records) == 6
    for earlier, later in zip(records, records[1:], strict=False):
        assert earlier.ended_at <= later.started_at
    jobs = [(record.measurement.framework, record.measurement.cell.use_case) for record in records]
    assert jobs == [("jax", 3)] * 2 + [("torch", 3)] * 2 + [("torch", 1)] * 2


def test_where_one_framework_is_missing_the_job_has_both(
    project: FakeProject, capsys: pytest.CaptureFixture[str]
) -> None:
    jax, torch = project.plan("jax", measurements=1), project.plan("torch", sleep_s=60)
    pair = Pair(cell=jax.cell, jobs=(jax, torch), is_interleaved=True)
    assert follow(project.submit(jax, executor="local"), project.results) == 0
    capsys.readouterr()
    [folder] = project.submit_pairs(pair, executor="local", pairing="interleaved")
    assert "every measurement has a record" not in capsys.readouterr().out
    assert read_plan(folder.plan) == pair  # its ratios say how far both go on
    assert project.submit_pairs(pair, executor="local", pairing="interleaved") == [folder]
    assert capsys.readouterr().out.count(f" already, as job {queue_of(folder)}\n") == 2


@pytest.mark.parametrize("visible", [None, ""])
def test_a_job_sees_the_gpus_of_the_shell_that_submitted_it(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    """And a Slurm job that the shell is in is no business of it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert follow(project.submit(project.plan(measurements=1), executor="local"), project.results) == 0
    [record] = project.records()
    of_slurm = ("SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SUBMITIT_EXECUTOR")
    assert record.environment["seen"] == dict.fromkeys(of_slurm) | {"CUDA_VISIBLE_DEVICES": visible}


def test_a_job_that_cannot_start_does_not_stop_the_next(project: FakeProject) -> None:
    broken, crashing, good = (project.plan(use_case=1), project.plan(use_case=2, crash=True), project.plan(use_case=3))
    pairs = [alone(plan) for plan in (broken, crashing, good)]
    scripts = project.scripts(pairs)
    scripts[broken.name].write_text("#!/bin/bash\necho 'module: command not found' >&2\nexit 127\n")
    jobs = [QueueJob.of(pair) for pair in pairs]
    folders = submit(jobs, project.config, scripts, executor="local", results=project.results)
    assert follow(folders, project.results) == 1
    found = [(state.state, state.reason) for state in job_states(project.results, folders)]
    reasons = ("module: command not found", "ImportError: No module named 'framework'")
    assert found == [*(("failed", reason) for reason in reasons), ("done", None)]


def test_editing_the_script_does_not_change_a_waiting_job(project: FakeProject) -> None:
    first, second = project.plan(use_case=1, sleep_s=0.5), project.plan(use_case=2)
    folders = project.submit(first, second, executor="local")
    (project.root / "slurm_scripts/torch_mnist_2.sh").write_text("#!/bin/bash\nexit 3\n")
    assert follow(folders, project.results) == 0


def test_cancel_stops_the_running_job_in_order_and_starts_no_other(
    project: FakeProject, capsys: pytest.CaptureFixture[str]
) -> None:
    running, waiting = project.plan(use_case=1, sleep_s=60), project.plan(use_case=2)
    first, second = project.submit(running, waiting, executor="local")
    wait_until_running(project, first)
    [third] = project.submit(project.plan(use_case=3), executor="local")
    assert cancel(project.results) == 0
    states = job_states(project.results, [first, second, third])
    assert [state.state for state in states] == ["cancelled"] * 3
    beat = states[0].heartbeat
    assert beat is not None and beat.state == "stopped"  # run.py had the time to end in order
    assert not Path(f"/proc/{beat.pid}").exists()
    assert not any(is_local_queue(queue_of(folder), folder) for folder in (first, second, third))
    assert not second.heartbeat.exists() and not third.heartbeat.exists()
    assert "mnist_1: cancelled in the local queue" in capsys.readouterr().out

    # Cancelled is not measured: the same command submits it again.
    assert len(project.submit(project.plan(use_case=2), executor="local")) == 1


def test_a_queue_is_seen_as_one_from_its_first_moment(project: FakeProject) -> None:
    """A new process has no command line for some milliseconds, in about every second try; ten of them."""
    folder = JobFolder(root=project.results.root / "jobs" / "any" / "never-submitted")
    folder.root.mkdir(parents=True)
    for _ in range(10):
        queue, _ = _start_queue([folder], project.results)
        try:
            assert is_local_queue(queue.pid, folder)
        finally:
            queue.kill()
            queue.wait()


def test_a_killed_queue_is_told_from_a_running_one(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = project.submit(project.plan(use_case=1, sleep_s=60), project.plan(use_case=2), executor="local")
    wait_until_running(project, first)
    os.kill(queue_of(first), signal.SIGKILL)
    wait_until(lambda: not is_local_queue(queue_of(first), first), "the queue is gone")
    waiting = job_states(project.results, [second])[0]
    assert (waiting.state, waiting.reason) == ("lost", f"its queue (process {queue_of(second)}) is gone")
    # What it leaves behind is ended all the same.
    [state] = job_states(project.results, [first])
    assert state.state == "running" and state.heartbeat is not None
    assert cancel(project.results) == 0
    pid = state.heartbeat.pid
    wait_until(lambda: not is_alive(pid), "what the queue left is gone")  # it may still be on its way out
    assert "mnist_1: cancelled in the local queue" in capsys.readouterr().out


@pytest.fixture
def behaving(tmp_path: Path) -> Iterator[BehavingProject]:
    project = make_behaving_project(tmp_path)
    yield project
    cancel(project.results)


def test_an_interleaved_pair_takes_turns_and_shows_its_ratio(
    behaving: BehavingProject, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = {"replicates": 2, "block_min_s": 0.02, "min_blocks": 5, "max_blocks": 5}
    plans = tuple(behaving.plan("well", framework=framework, **steady) for framework in FRAMEWORKS)
    pair = Pair(cell=plans[0].cell, jobs=plans)
    [folder] = behaving.submit_pairs(pair, executor="local", pairing="interleaved")
    assert follow([folder], behaving.results) == 0, behaving.results.local_queue_log.read_text()
    one, other, *_ = behaving.records()
    assert took_turns(one, other)
    ratios = [line for line in capsys.readouterr().out.splitlines() if "(mnist, batch 8, fp32): so far " in line]
    assert ratios[-1].endswith("; 2 replicates in turns; well.eager / well.eager")
    assert behaving.submit_pairs(pair, executor="local") == []
    assert capsys.readouterr().out.count("every measurement has a record") == 2
    wait_until(folder.local_end.exists, "the queue's word, after the last record")
    assert one.environment["pairing"]["pair"] == other.environment["pairing"]["pair"] > folder.stamp
