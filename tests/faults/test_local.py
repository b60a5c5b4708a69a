"""Faults of runs on this machine, by hand and in the local queue. See conftest.py."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from harness.paths import JobFolder
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import is_local_queue, job_states
from tests.made.faults import SmallDisk, overlaps
from tests.made.patience import patience, wait_until
from tests.made.processes import processes_in
from tests.made.project import BehavingProject, make_behaving_project

GONE_S = 60.0


def queue_of(folder: JobFolder) -> int:
    return int(json.loads(folder.submission.read_text())["job_id"])


def wait_for_file(path: Path, project: BehavingProject) -> None:
    log = project.results.local_queue_log
    wait_until(path.exists, f"{path}", lambda: log.read_text() if log.exists() else "", quiet_s=GONE_S)


def gated_pair(project: BehavingProject) -> JobFolder:
    """In the local queue, where JAX's measurement waits for the gate."""
    [folder] = project.submit_pairs(project.pair(jax=("gated",), replicates=1), executor="local")
    wait_for_file(project.root / "jax-pid", project)
    return folder


def wait_until_over(project: BehavingProject) -> None:
    wait_until(lambda: not processes_in(project.root), "every process is gone", quiet_s=GONE_S)


def test_a_second_run_waits_and_says_for_what(project: BehavingProject, tmp_path: Path) -> None:
    """Another results folder, and another checkout: the machine is one."""
    (tmp_path / "other").mkdir()
    other = make_behaving_project(tmp_path / "other")
    first = project.start(project.job(project.plan("gated")))
    wait_for_file(project.pid, project)
    folder = other.job(other.plan("well"))
    second = other.start(folder)
    wait_for_file(folder.heartbeat, other)
    wait_until(lambda: str(other.heartbeat(folder).phase).startswith("waits for "), "it waits", quiet_s=GONE_S)
    phase = str(other.heartbeat(folder).phase)
    assert phase in (
        f"waits for {who}, which measures on this machine" for who in (f"process {first.pid}", "another process")
    )
    [state] = job_states(other.results, [folder])
    assert state.state == "running"
    assert other.records() == []
    project.gate.touch()
    outputs = [process.communicate(timeout=patience(50))[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert phase in outputs[1]
    assert overlaps([*project.records(), *other.records()]) == []


def test_a_killed_run_of_the_queue(project: BehavingProject) -> None:
    """The job itself: its measurement dies with it, and the same command goes on."""
    folder = gated_pair(project)
    os.kill(project.heartbeat(folder).pid, signal.SIGKILL)
    assert follow([folder], project.results) == 1
    [state] = job_states(project.results, [folder])
    assert state.state == "failed" and "SIGKILL" in str(state.reason)
    assert project.records() == []
    project.gate.touch()
    assert follow([gated_pair(project)], project.results) == 0
    assert len(project.records()) == 2


# Processes that are signalled


def test_what_does_not_fit_into_a_start_blocks_nothing(project: BehavingProject) -> None:
    """Cut off three times by the job's time limit: it goes last, and is a timeout then."""
    folder = project.job(project.plan("gated", "well"))
    for start in range(3):
        project.pid.unlink(missing_ok=True)
        job = project.start(folder)
        wait_for_file(project.pid, project)
        assert set(project.by_mode()) == (set() if start < 2 else {"well"})
        job.send_signal(signal.SIGUSR2)
        job.communicate(timeout=patience(50))
        assert job.returncode == 75
    for _ in range(2):
        status, _ = project.resume(folder)
        assert status == 1
        record = project.by_mode()["gated"]
        assert record.outcome == "timeout"
        assert str(record.reason).startswith("cut off 3 times by the end of the job's time")
    assert (project.heartbeat(folder).state, project.heartbeat(folder).measurements_done) == ("done", 2)


def test_the_end_of_the_shell_is_not_the_end_of_the_queue(project: BehavingProject) -> None:
    folder = gated_pair(project)
    os.kill(queue_of(folder), signal.SIGHUP)
    project.gate.touch()
    assert follow([folder], project.results) == 0


def test_a_second_sigterm_while_the_queue_ends(project: BehavingProject) -> None:
    folder = gated_pair(project)
    for _ in range(2):
        os.kill(queue_of(folder), signal.SIGTERM)
    wait_until(lambda: not is_local_queue(queue_of(folder), folder), "the queue is gone", quiet_s=GONE_S)
    wait_until_over(project)
    assert project.records() == []


# Disk and files


def test_the_disk_fills_up_under_the_queue(project: BehavingProject) -> None:
    """The job that runs ends in order; the queue lives, and what comes later is measured when there is room."""
    disk = SmallDisk(project.results.root)
    if not disk.mount("512k"):
        pytest.skip("needs the right to mount a small file system")
    try:
        first = project.submit(project.plan("gated"), executor="local")
        wait_for_file(project.pid, project)
        disk.fill()
        project.gate.touch()
        queue = queue_of(first[0])
        wait_until(lambda: set(processes_in(project.root)) <= {queue}, "the job is over", quiet_s=GONE_S)
        assert is_local_queue(queue, first[0])
        disk.free()
        assert follow(first, project.results) == 1
        [state] = job_states(project.results, first)
        assert state.state in ("failed", "stopped"), state
        assert list(project.results.root.rglob("*.tmp")) == []
        again = project.submit(project.plan("gated"), executor="local")
        assert follow(again, project.results) == 0
        assert [record.outcome for record in project.records()] == ["ok"]
    finally:
        cancel(project.results)
        disk.unmount()


def test_the_results_are_deleted_while_it_is_waited_for(project: BehavingProject) -> None:
    folder = gated_pair(project)
    queue = queue_of(folder)
    shutil.rmtree(project.results.root)
    assert follow([folder], project.results) == 1
    os.kill(queue, signal.SIGTERM)
    wait_until_over(project)
