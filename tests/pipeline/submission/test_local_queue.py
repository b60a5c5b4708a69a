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
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.submit import _start_queue, submit
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import is_local_queue, job_states
from tests.made.faults import overlaps
from tests.made.patience import wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, alone, make_behaving_project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[BehavingProject]:
    project = make_behaving_project(tmp_path)
    yield project
    cancel(project.results)


def queue_of(folder: JobFolder) -> int:
    return int(json.loads(folder.submission.read_text())["job_id"])


def at_the_gate(project: BehavingProject, *later: str) -> list[JobFolder]:
    """Submit a job that waits at the gate, and one that waits for the queue for each of the modes `later`."""
    plans = [project.plan(mode, use_case=1 + place, explain=False) for place, mode in enumerate(("gated", *later))]
    folders = project.submit(*plans, executor="local")
    wait_until(project.pid.exists, "the job runs", project.results.local_queue_log.read_text, quiet_s=20.0)
    return folders


def test_jobs_of_two_submissions_run_one_after_the_other(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two main.py would: the second queue waits for the first one. Each job sees the GPUs of the shell that
    submitted it, and not the job of Slurm that this shell may be in. Its script is that of its submission."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folders = at_the_gate(project, "well")
    (project.root / "slurm_scripts/torch_mnist_2.sh").write_text("#!/bin/bash\nexit 3\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    folders += project.submit(project.plan("slow", use_case=3, explain=False), executor="local")
    assert len({queue_of(folder) for folder in folders}) == 2
    assert [state.state for state in job_states(project.results, folders)] == ["running", "queued", "queued"]
    project.gate.touch()
    assert follow(folders, project.results) == 0
    records = project.records()
    assert overlaps(records) == []
    assert [record.measurement.cell.use_case for record in records] == [1, 2, 3]
    visible = [record.environment["variables"].get("CUDA_VISIBLE_DEVICES") for record in records]
    assert (visible, {record.environment["scheduler"] for record in records}) == (["", "", None], {"local"})


def test_a_job_that_cannot_start_does_not_stop_the_next(project: BehavingProject) -> None:
    project.rewrite("jax_runner/run.py", "raise ImportError(\"No module named 'framework'\")\n")
    broken, crashing = project.plan(use_case=2), project.plan(use_case=3, framework="jax")
    pairs = [alone(plan) for plan in (broken, crashing, project.plan())]
    scripts = project.scripts(pairs)
    scripts[broken.name].write_text("#!/bin/bash\necho 'module: command not found' >&2\nexit 127\n")
    jobs = [QueueJob.of(pair) for pair in pairs]
    folders = submit(jobs, project.config, scripts, executor="local", results=project.results)
    assert follow(folders, project.results) == 1
    found = [(state.state, state.reason) for state in job_states(project.results, folders)]
    reasons = ("module: command not found", "ImportError: No module named 'framework'")
    assert found == [*(("failed", reason) for reason in reasons), ("done", None)]


def test_cancel_stops_the_running_job_in_order_and_starts_no_other(
    project: BehavingProject, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = at_the_gate(project, "well")
    folders += project.submit(project.plan(use_case=3), executor="local")
    assert cancel(project.results) == 0
    states = job_states(project.results, folders)
    assert [state.state for state in states] == ["cancelled"] * 3
    beat = states[0].heartbeat
    assert beat is not None and beat.state == "stopped"  # run.py had the time to end in order
    assert not Path(f"/proc/{beat.pid}").exists()
    assert not any(is_local_queue(queue_of(folder), folder) for folder in folders)
    assert not any(folder.heartbeat.exists() for folder in folders[1:])
    assert "mnist_1: cancelled in the local queue" in capsys.readouterr().out

    # Cancelled is not measured: the same command submits it again.
    assert len(project.submit(project.plan(use_case=2), executor="local")) == 1


def test_a_queue_is_seen_as_one_from_its_first_moment(project: BehavingProject) -> None:
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


def test_a_killed_queue_is_told_from_a_running_one(project: BehavingProject) -> None:
    """What it leaves behind measures on, and is cancelled all the same."""
    first, second = at_the_gate(project, "well")
    os.kill(queue_of(first), signal.SIGKILL)
    wait_until(lambda: not is_local_queue(queue_of(first), first), "the queue is gone")
    running, waiting = job_states(project.results, [first, second])
    assert (waiting.state, waiting.reason) == ("lost", f"its queue (process {queue_of(second)}) is gone")
    assert project.submit(project.plan("gated", explain=False), executor="local") == [first]  # not submitted again
    assert running.state == "running" and running.heartbeat is not None
    assert cancel(project.results) == 0
    pid = running.heartbeat.pid
    wait_until(lambda: not is_alive(pid), "what the queue left is gone")  # it may still be on its way out


def test_a_pair_of_which_one_framework_is_measured_has_both_in_its_job(
    project: BehavingProject, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = {"explain": False, "replicates": 2, "block_min_s": 0.02}
    plans = tuple(project.plan("well", framework=framework, **steady) for framework in FRAMEWORKS)
    pair = Pair(cell=plans[0].cell, jobs=plans, is_interleaved=True)
    assert follow(project.submit(plans[0], executor="local"), project.results) == 0
    capsys.readouterr()
    [folder] = project.submit_pairs(pair, executor="local", pairing="interleaved")
    assert "every measurement has a record" not in capsys.readouterr().out
    assert read_plan(folder.plan) == pair  # its ratios say how far both go on
    assert project.submit_pairs(pair, executor="local", pairing="interleaved") == [folder]
    assert capsys.readouterr().out.count(f" already, as job {queue_of(folder)}\n") == 2
    assert follow([folder], project.results) == 0, project.results.local_queue_log.read_text()
    ratios = [line for line in capsys.readouterr().out.splitlines() if "(mnist, batch 8, fp32): so far " in line]
    assert ratios[-1].endswith("; well.eager / well.eager")
    assert project.submit_pairs(pair, executor="local", pairing="interleaved") == []
    assert capsys.readouterr().out.count("every measurement has a record") == 2
    wait_until(folder.local_end.exists, "the queue's word, after the last record")
