"""Several ranks as the tasks of a Slurm step: on one node, and on two."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from harness.plan import JobPlan
from pipeline.executors import RunScript, ScriptSlurm
from tests.fake_repository import Repository, make_repository
from tests.slurm.cluster import Cluster
from tests.test_agent import read_pids
from tests.test_job import is_alive, wait_until
from tests.two_devices import copy_for_two_devices, require_all_good, run_main

pytestmark = pytest.mark.slurm

BATCH_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
cd {repository}
export SUBMITIT_EXECUTOR=$1
exec srun --cpus-per-task=1 --output="$2/%j_%t_log.out" --error="$2/%j_%t_log.err" \\
    {python} -u -m submitit.core._submit "$2"
"""
"""What matters here of a rendered script."""

PLACES = {"1 node x 2 tasks": (1, ["n1", "n1"], [0, 1]), "2 nodes x 1 task": (2, ["n1", "n2"], [0, 0])}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path)


def start(repository: Repository, plan: JobPlan, slurm: Cluster) -> subprocess.Popen[str]:
    """srun of run.py, as the rendered scripts have it."""
    folder = repository.job(plan)
    cell = plan.cell
    tasks = cell.devices // cell.nodes
    options = [f"--nodes={cell.nodes}", f"--ntasks-per-node={tasks}", f"--gres=gpu:{tasks}", "--cpus-per-task=1"]
    return subprocess.Popen(
        ["srun", *options, *repository.command(folder)],
        cwd=repository.root,
        env=slurm.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize("place", PLACES)
def test_ranks_are_the_tasks_of_the_step(slurm: Cluster, repository: Repository, place: str) -> None:
    nodes, names, local_ranks = PLACES[place]
    modes = ("tells_its_world", "stands_for_its_node", "kills_rank_1", "is_slower_on_rank_1")
    with start(repository, repository.plan(*modes, devices=2, nodes=nodes), slurm) as step:
        output, _ = step.communicate(timeout=90)
    records = repository.records()
    assert set(records) == set(modes), output
    good = records["tells_its_world"]
    assert good.outcome == "ok", output
    assert good.result is not None
    assert good.environment["scheduler"] == "slurm"
    assert (good.result.details["size"], good.result.details["local_rank"]) == (2, local_ranks[0])
    assert [rank.node for rank in good.ranks] == names
    per_node = records["stands_for_its_node"]
    assert per_node.result is not None, output
    world = per_node.result.details
    assert (world["size"], world["devices_per_rank"]) == (nodes, 2 // nodes)
    assert [rank.node for rank in per_node.ranks] == ([] if nodes == 1 else names)
    assert world["cpus"] == sorted(os.sched_getaffinity(0))  # this Slurm binds no task to CPUs
    assert records["kills_rank_1"].outcome == "failed"
    assert str(records["kills_rank_1"].reason).startswith(
        f"rank 1 on {names[1]}: the measurement's process was killed by SIGKILL"
    )
    slower = records["is_slower_on_rank_1"]
    assert slower.outcome == "ok"
    assert min(slower.ranks[1].call_times_s) >= 3e-3
    assert output.count("4 measured, 0 had a record, 1 failed") == 1  # rank 0 alone speaks


def test_a_killed_agent_ends_the_job_in_time(slurm: Cluster, repository: Repository) -> None:
    with start(repository, repository.plan("all_gated", "well", devices=2, nodes=2), slurm) as step:
        _, (child, agent) = read_pids(repository, 2)
        began = time.monotonic()
        os.kill(agent, signal.SIGKILL)
        output, _ = step.communicate(timeout=60)
    assert time.monotonic() - began < 60
    assert not is_alive(child)
    records = repository.records()
    assert list(records) == ["all_gated"]
    assert str(records["all_gated"].reason).startswith("rank 1 on n2: its agent is gone"), output
    assert "error: rank 1 on n2 is gone" in output


def test_a_cancelled_step_leaves_nothing_behind(slurm: Cluster, repository: Repository) -> None:
    with start(repository, repository.plan("all_gated", devices=2, nodes=2), slurm) as step:
        pids = [pid for pair in read_pids(repository, 2) for pid in pair]
        slurm.run("scancel", "--me", "--signal=TERM")
        step.communicate(timeout=60)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "all are gone")
    assert repository.records() == {}


def test_a_preempted_job_of_two_ranks_goes_on_where_it_was(slurm: Cluster, repository: Repository) -> None:
    """The signal reaches submitit's worker of both ranks; the job stops in order, is requeued, and does the rest."""
    shutil.copytree(REPOSITORY / "pipeline", repository.root / "pipeline")
    folder = repository.job(repository.plan("well", "all_gated", devices=2, nodes=2))
    script = repository.root / "job.sh"
    script.write_text(BATCH_SCRIPT.format(repository=repository.root, python=sys.executable))
    executor = ScriptSlurm(folder.root, script)
    executor.update_parameters(time=5, nodes=2, ntasks_per_node=1)
    job = executor.submit(RunScript(repository.command(folder)[1:]))

    started = [pid for pair in read_pids(repository, 2) for pid in pair]
    assert list(repository.records()) == ["well"]
    slurm.run("scancel", "--signal=USR2", job.job_id)
    wait_until(lambda: not any(is_alive(pid) for pid in started), "the first start is gone")
    repository.gate.touch()
    wait_until(lambda: "all_gated" in repository.records(), "the rest is measured", timeout_s=90)
    records = repository.records()
    restarts = [records[mode].environment["slurm"]["restart_count"] for mode in ("well", "all_gated")]
    assert [int(count or 0) for count in restarts] == [0, 1]
    assert [rank.node for rank in records["all_gated"].ranks] == ["n1", "n2"]
    assert job.results() == [0, 0]
    assert "1 measured, 1 had a record, 0 failed" in str(job.task(0).stdout())


def test_a_step_of_another_size_is_told_at_once(slurm: Cluster, repository: Repository) -> None:
    plan = repository.plan("well", devices=2, nodes=1)
    three = plan.model_copy(update={"cell": plan.cell.model_copy(update={"devices": 3})})
    folder = repository.job(three)
    began = time.monotonic()
    done = subprocess.run(
        ["srun", "-n2", "--cpus-per-task=1", *repository.command(folder)],
        cwd=repository.root,
        env=slurm.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - began < 15  # the other task is sent home
    assert done.returncode == 2
    assert "error: use case 1 needs 3 tasks, one per device, on 1 node(s), and this step has 2." in done.stderr
    assert "Traceback" not in done.stderr


# The whole way of a user, with both frameworks.


@pytest.mark.parametrize(("nodes", "use_case"), [(1, 4), (2, 2)])
def test_main_measures_a_cell_of_two_devices(slurm: Cluster, tmp_path: Path, nodes: int, use_case: int) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    copy_for_two_devices(tmp_path, nodes=nodes)
    done = run_main(tmp_path, "--use_case", str(use_case), "--no-baseline")
    records = require_all_good(tmp_path, done)
    assert len(records) == 2
    for record in records:
        assert record.measurement.cell.nodes == nodes
        assert record.environment["scheduler"] == "slurm"
        assert len(record.ranks) == 2
        assert len({rank.node for rank in record.ranks}) == nodes
        assert all(rank.block_times_s for rank in record.ranks)
    assert "on 2 x CPU" in done.stdout
    assert "No scaling efficiency" in done.stdout
