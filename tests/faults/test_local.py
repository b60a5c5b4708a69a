"""Faults of runs on this machine, by hand and in the local queue. See conftest.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.paths import JobFolder
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import is_local_queue, job_states
from tests.made.faults import SmallDisk, overlaps, run_of
from tests.made.patience import patience, wait_until
from tests.made.processes import processes_in
from tests.made.project import BehavingProject, make_behaving_project

GONE_S = 60.0


def queue_of(folder: JobFolder) -> int:
    return int(json.loads(folder.submission.read_text())["job_id"])


def wait_for_file(path: Path, project: BehavingProject) -> None:
    log = project.results.local_queue_log
    wait_until(path.exists, f"{path}", lambda: log.read_text() if log.exists() else "", quiet_s=GONE_S)


def gated(project: BehavingProject, *modes: str, **protocol: float) -> tuple[JobFolder, subprocess.Popen[str]]:
    """A job by hand, whose measurement waits for the gate."""
    folder = project.job(project.plan(*modes, **protocol))
    job = project.start(folder)
    wait_for_file(project.pid, project)
    return folder, job


def gated_pair(project: BehavingProject) -> JobFolder:
    """In the local queue, where JAX's measurement waits for the gate."""
    [folder] = project.submit_pairs(project.pair(jax=("gated",), replicates=1), executor="local")
    wait_for_file(project.root / "jax-pid", project)
    return folder


def wait_until_over(project: BehavingProject) -> None:
    wait_until(lambda: not processes_in(project.root), "every process is gone", quiet_s=GONE_S)


@pytest.fixture
def other(tmp_path: Path) -> BehavingProject:
    """A second checkout with results of its own, on the same machine."""
    (tmp_path / "other").mkdir()
    return make_behaving_project(tmp_path / "other")


# Two measurements at once


def test_a_second_run_waits_and_says_for_what(project: BehavingProject, other: BehavingProject) -> None:
    """Another results folder, and another checkout: the machine is one."""
    _, first = gated(project, "gated")
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


def test_a_waiting_run_goes_on_when_the_first_is_killed(project: BehavingProject, other: BehavingProject) -> None:
    _, first = gated(project, "gated")
    folder = other.job(other.plan("well"))
    second = other.start(folder)
    wait_for_file(folder.heartbeat, other)
    first.kill()
    first.communicate()
    output, _ = second.communicate(timeout=patience(50))
    assert second.returncode == 0, output
    assert [record.outcome for record in other.records()] == ["ok"]
    wait_until_over(project)


def test_a_killed_queue_and_the_same_command_again(project: BehavingProject) -> None:
    """What the queue leaves behind measures on, and is not submitted again."""
    folder = gated_pair(project)
    queue = queue_of(folder)
    os.kill(queue, signal.SIGKILL)
    wait_until(lambda: not is_local_queue(queue, folder), "the queue is gone")
    assert gated_pair(project) == folder
    assert project.records() == []
    project.gate.touch()
    assert follow([folder], project.results) == 0
    assert [record.outcome for record in project.records()] == ["ok", "ok"]
    assert overlaps(project.records()) == []


def test_a_killed_run_of_the_queue(project: BehavingProject) -> None:
    """The job itself: its measurement dies with it, and the same command goes on."""
    folder = gated_pair(project)
    os.kill(run_of(project, folder.name), signal.SIGKILL)
    assert follow([folder], project.results) == 1
    [state] = job_states(project.results, [folder])
    assert state.state == "failed" and "SIGKILL" in str(state.reason)
    assert project.records() == []
    project.gate.touch()
    assert follow([gated_pair(project)], project.results) == 0
    assert len(project.records()) == 2


def test_two_queues_of_two_results_folders(project: BehavingProject, other: BehavingProject) -> None:
    first = gated_pair(project)
    second = other.submit_pairs(other.pair(replicates=1), executor="local")
    log = other.results.local_queue_log
    wait_until(lambda: all(folder.waits_for.exists() for folder in second), "it waits", log.read_text, quiet_s=GONE_S)
    words = {(state.state, state.reason) for state in job_states(other.results, second)}
    assert words in (
        {("queued", f"waits for {who}")}
        for who in (
            f"process {queue_of(first)}, the local queue of {project.results.root}",
            "another process, an earlier local queue",
        )
    )
    project.gate.touch()
    assert follow([first], project.results) == follow(second, other.results) == 0
    assert overlaps([*project.records(), *other.records()]) == []
    assert len(project.records()) == len(other.records()) == 2


# Processes that die, stop, or are signalled


def test_a_stopped_measurement_is_a_timeout(project: BehavingProject) -> None:
    _, job = gated(project, "gated", "well", timeout_s=20.0)
    os.kill(int(project.pid.read_text()), signal.SIGSTOP)
    job.communicate(timeout=patience(50))
    assert {mode: record.outcome for mode, record in project.by_mode().items()} == {"gated": "timeout", "well": "ok"}
    wait_until_over(project)


def test_a_killed_job_goes_on_where_it_was_and_its_caches_are_removed(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = project.root / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    folder, job = gated(project, "well", "gated")
    job.kill()
    job.communicate()
    wait_until_over(project)
    [left] = temporary.glob("compiler-caches-*")
    os.utime(left, (time.time() - 3600,) * 2)
    project.gate.touch()
    status, output = project.resume(folder)
    assert (status, "1 measured, 1 had a record, 0 failed" in output) == (0, True), output
    assert list(temporary.glob("compiler-caches-*")) == []
    assert [record.outcome for record in project.records()] == ["ok", "ok"]


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


def test_strangers_find_no_open_port(project: BehavingProject) -> None:
    """A job of two ranks listens to nobody; its ranks meet where their framework wants them to."""
    folder = project.job(project.plan("all_gated", devices=2))
    job = project.start(folder)
    for rank in range(2):
        wait_for_file(project.root / f"pid-{rank}", project)
    sockets = {str(path.readlink()) for path in Path(f"/proc/{job.pid}/fd").iterdir() if path.is_symlink()}
    listening = {
        f"socket:[{line.split()[9]}]"
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{job.pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    assert not sockets & listening
    project.gate.touch()
    output, _ = job.communicate(timeout=patience(50))
    assert job.returncode == 0, output


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
        wait_until(
            lambda: not (set(processes_in(project.root)) - {queue_of(first[0])}), "the job is over", quiet_s=GONE_S
        )
        assert is_local_queue(queue_of(first[0]), first[0])
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


def test_a_full_disk_at_submission(project: BehavingProject) -> None:
    disk = SmallDisk(project.root / "full")
    if not disk.mount():
        pytest.skip("needs the right to mount a small file system")
    try:
        disk.fill()
        command = [sys.executable, "main.py", "--benchmark", "mnist", "--use_case", "1", "--data", "sample", "--quick"]
        command += ["--executor", "local", "--results", str(disk.folder)]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert "choose another" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(disk.folder.glob("jobs/*/*")) == []
    finally:
        disk.unmount()


def test_the_results_are_deleted_while_it_is_waited_for(project: BehavingProject) -> None:
    folder = gated_pair(project)
    queue = queue_of(folder)
    shutil.rmtree(project.results.root)
    assert follow([folder], project.results) == 1
    os.kill(queue, signal.SIGTERM)
    wait_until_over(project)


def test_files_of_a_job_that_are_broken_cost_the_others_nothing(project: BehavingProject) -> None:
    gated, well = project.plan("gated"), project.plan("well", devices=1)
    first, second = project.submit(gated, well, executor="local")
    wait_for_file(project.pid, project)
    (second.root / "plan.json").write_text("{")
    [third] = project.submit(project.plan("prints_much"), executor="local")
    project.gate.touch()
    assert follow([first, second, third], project.results) == 1
    states = job_states(project.results, [first, second, third])
    assert [state.state for state in states] == ["done", "failed", "done"]
    assert "plan.json: not a job plan" in str(states[1].reason)


def test_force_measures_once_whatever_the_clocks_say(project: BehavingProject) -> None:
    """The job's folder is of a clock that is a century ahead."""
    assert project.run(project.plan("well"))[0] == 0
    plan = project.plan("well", force=True)
    ahead = JobFolder(root=project.results.jobs / "any" / "torch_mnist_1-21261122T000000.000000Z-aaaa")
    shutil.copytree(project.job(plan).root, ahead.root)
    for said in ("1 measured, 0 had a record", "0 measured, 1 had a record"):
        status, output = project.resume(ahead)
        assert (status, said in output) == (0, True), output
    assert len(project.records()) == 2
