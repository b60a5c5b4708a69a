"""Jobs side by side on one node: their GPUs, the locks of these, and CPUs; what they wait for, and their ends."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.job import side_by_side, turn
from harness.job.side_by_side import Lane, lanes_of_node, measure_side_by_side, shares, take_lane
from harness.job.slurm_step import LANE
from harness.job.turn import devices
from harness.paths import JobFolder
from harness.plan import FRAMEWORKS
from harness.results.record import read_record
from tests.made.patience import patience, wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, without_slurm

PAIRS_OF_THREADS = [(0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)]
"""The cores of a machine with two NUMA nodes: 0-3 with 8-11, and 4-7 with 12-15."""
FIRST, SECOND = {0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}


@pytest.mark.parametrize(
    ("near", "allowed", "expected"),
    [
        # Two GPUs on one NUMA node have two of its cores each, with both threads; the third has all of the other node.
        ([FIRST, FIRST, SECOND], FIRST | SECOND, [(0, 8, 1, 9), (2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)]),
        # Three share four cores, in order: 1, 1 and 2.
        ([FIRST] * 3, FIRST, [(0, 8), (1, 9), (2, 10, 3, 11)]),
        # Where one GPU's place is not known, all share all.
        ([FIRST, set()], {0, 8, 4, 12}, [(0, 8), (4, 12)]),
        # Slurm gave one thread of each core, and fewer cores than GPUs.
        ([{0, 1}] * 3, {0, 1}, [(0,), (0,), (1,)]),
    ],
)
def test_gpus_share_the_cores_near_them(
    near: list[set[int]], allowed: set[int], expected: list[tuple[int, ...]]
) -> None:
    assert shares(near, allowed, PAIRS_OF_THREADS) == expected


def test_a_lane_for_each_gpu_that_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the kernel's files: GPU 5 is on NUMA node 1, GPU 4 on node 0."""
    cores = {f"cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu}\n" for cpu in range(4)}
    for path, text in ({"node/node0/cpulist": "0,2\n", "node/node1/cpulist": "1,3\n"} | cores).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(side_by_side, "SYSTEM", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    gpus = [SimpleNamespace(describe=lambda node=node: {"numa_node": node}) for node in (1, 0)]
    monkeypatch.setattr(side_by_side, "open_gpu", gpus.__getitem__)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 4")
    assert lanes_of_node() == [Lane(gpu="5", cpus=(1, 3)), Lane(gpu="4", cpus=(0, 2))]
    assert lanes_of_node()[0].variables == {LANE: "5 1,3", "CUDA_VISIBLE_DEVICES": "5"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="2 plans at once need a GPU each, and none is here"):
        measure_side_by_side([JobFolder(root=tmp_path)] * 2, None)


@pytest.mark.parametrize(("before", "after"), [("0,3", "3"), ("", "")])
def test_a_process_goes_to_its_gpu_unless_all_are_hidden(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are shown again by the step of a container; a process of a cell for the CPU gets none."""
    cpus = os.sched_getaffinity(0)
    monkeypatch.setenv(LANE, f"3 {','.join(map(str, cpus))}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    assert take_lane() and os.environ["CUDA_VISIBLE_DEVICES"] == after and os.sched_getaffinity(0) == cpus
    assert devices() == (["gpu-" + socket.gethostname() + "-3"] if after else [])


def test_each_gpu_is_a_device_and_without_slurm_the_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one order for all, so that no two jobs wait for each other. One of which NVML reports nothing has the
    scheduler's name."""
    gpus = [{"uuid": "GPU-bb"}, {"absent": "no driver"}, {"uuid": "GPU-aa"}]
    monkeypatch.setattr(turn, "visible_gpu_count", lambda: len(gpus))
    monkeypatch.setattr(turn, "open_gpu", lambda position: SimpleNamespace(describe=lambda: gpus[position]))
    of_slurm = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "2,3,4"}
    assert devices(of_slurm) == ["GPU-aa", "GPU-bb", "gpu-n1-3"]
    del gpus[1]
    assert devices({}) == ["machine", "GPU-aa", "GPU-bb"]


def command_of(project: BehavingProject, *folders: JobFolder, alone: JobFolder | None = None) -> list[str]:
    command = project.command(folders[0])
    command += [word for folder in folders[1:] for word in ("--job-folder", str(folder.root))]
    return [*command, "--alone", str(alone.root)] if alone else command


def run(project: BehavingProject, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = without_slurm() | {"CUDA_VISIBLE_DEVICES": "6,7"}
    given: dict[str, Any] = {"cwd": project.root, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, timeout=patience(60), **given)


def test_three_jobs_on_two_gpus_and_one_alone(repository: BehavingProject) -> None:
    """One of them fails, and costs no other; it also is the one that is measured alone, on the same GPU."""
    folders = [repository.job(repository.plan(*modes)) for modes in (["well"], ["raises"], ["well", "slow"])]
    again = repository.results.alone.new_job_folder("any/torch_mnist_1")
    again.root.mkdir(parents=True)
    again.plan.write_text(folders[1].plan.read_text())
    done = run(repository, *command_of(repository, *folders, alone=again))
    assert done.returncode == 1, done.stdout + done.stderr
    assert [repository.heartbeat(one).state for one in (*folders, again)] == ["done"] * 4
    assert [repository.heartbeat(one).measurements_failed for one in (*folders, again)] == [0, 1, 0, 1]
    gpus = {one.job: one.environment["variables"]["CUDA_VISIBLE_DEVICES"] for one in repository.records()}
    assert (gpus[folders[0].name], gpus[folders[1].name]) == ("6", "7")
    affinities = {one.job: set(one.environment["cpu"]["affinity"]) for one in repository.records()}
    if len(os.sched_getaffinity(0)) > 1:
        assert not affinities[folders[0].name] & affinities[folders[1].name]
    records = [read_record(path) for path in repository.results.alone.records().rglob("*.json")]
    assert [one.environment["neighbours"] for one in records] == [0]
    assert not any(one.waits_for.exists() for one in (*folders, again))


def test_one_that_cannot_be_started_costs_no_other(repository: BehavingProject) -> None:
    """Its folder is none, so there is no log."""
    folders = [repository.job(repository.plan(mode)) for mode in ("well", "slow")]
    shutil.rmtree(folders[0].root)
    folders[0].root.touch()
    done = run(repository, *command_of(repository, *folders))
    assert done.returncode == 1 and f"{folders[0].name}: cannot be started: " in done.stdout
    assert repository.heartbeat(folders[1]).state == "done"


def test_one_job_has_a_lane_as_one_of_several_has(repository: BehavingProject) -> None:
    """What is left of the cells of a node, in a later start."""
    done = run(repository, *repository.command(repository.job(repository.plan("well"))), "--lanes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one.environment["variables"]["CUDA_VISIBLE_DEVICES"] for one in repository.records()} == {"6"}


@pytest.mark.parametrize("when", ["they start", "they measure"])
def test_a_signal_ends_all_of_them_in_order(repository: BehavingProject, when: str) -> None:
    """As before the time limit of Slurm: what runs is given up and goes on in the next start. At the start they have
    not said yet what a signal means to them."""
    pids = [repository.root / name for name in FRAMEWORKS]
    plans = [repository.plan("gated", framework=name, pid=pid) for name, pid in zip(FRAMEWORKS, pids, strict=True)]
    folders = [repository.job(plan) for plan in plans]
    with subprocess.Popen(
        command_of(repository, *folders), cwd=repository.root, env=without_slurm() | {"CUDA_VISIBLE_DEVICES": "0,1"}
    ) as process:
        if when == "they start":
            wait_until(lambda: all(list(one.root.glob("*.err")) for one in folders), "both logs")
        else:
            wait_until(lambda: all(pid.exists() for pid in pids), "both to measure")
        process.send_signal(signal.SIGUSR2)
        process.wait(patience(30))
    assert process.returncode == 75
    assert [repository.heartbeat(one).state for one in folders] == ["stopped"] * 2
    time.sleep(0.2)
    assert not any(pid.exists() and is_alive(int(pid.read_text())) for pid in pids)
