"""Several ranks as the tasks of Slurm steps: on one node, and on two."""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from harness.plan import JobPlan
from pipeline.submission.slurm import RunJob, ScriptSlurm
from pipeline.submission.submit import job_arguments
from tests.harness.job.test_several_ranks import read_pids
from tests.made.patience import slowdown, wait_until
from tests.made.processes import is_alive, processes_in, words_of
from tests.made.project import BehavingProject, make_behaving_project
from tests.made.two_devices import copy_for_two_devices, require_all_good, run_main
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm
QUIET_S = 60.0
"""Of a whole job."""
UNFINISHED = ("PENDING", "RUNNING", "COMPLETING")

BATCH_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
cd {repository}
export SUBMITIT_EXECUTOR=$1
exec {python} -u -m submitit.core._submit "$2"
"""
"""What matters here of a rendered script."""

PLACES = {"1 node x 2 tasks": (1, ["n1", "n1"], [0, 1]), "2 nodes x 1 task": (2, ["n1", "n2"], [0, 0])}


@pytest.fixture
def repository(tmp_path: Path) -> BehavingProject:
    return make_behaving_project(tmp_path)


class BatchJob:
    """run.py as a batch job of its own, as the rendered scripts have it."""

    def __init__(self, repository: BehavingProject, plan: JobPlan, slurm: Cluster, nodes: int | None = None) -> None:
        cell = plan.cell
        tasks = cell.devices // cell.nodes
        self.log = repository.root / "output"
        options = [f"--nodes={nodes or cell.nodes}", f"--ntasks-per-node={tasks}", f"--gres=gpu:{tasks}"]
        command = shlex.join(repository.command(repository.job(plan)))
        options += ["--cpus-per-task=1", f"--chdir={repository.root}", f"--output={self.log}"]
        self._slurm = slurm
        self._id = slurm.run("sbatch", "--parsable", *options, "--wrap", f"exec {command}").strip()

    def wait(self) -> tuple[int, str]:
        """Exit status and output. (`sbatch --wait` looks every ten seconds.)"""
        wait_until(self._is_over, "the job is over", self._output, quiet_s=QUIET_S)
        status, _ = self._told()["ExitCode"].split(":")
        return int(status), self._output()

    def _output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def _is_over(self) -> bool:
        time.sleep(0.3)
        return self._told()["JobState"] not in UNFINISHED

    def _told(self) -> dict[str, str]:
        words = self._slurm.run("scontrol", "--oneliner", "show", "job", self._id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.mark.parametrize("place", PLACES)
def test_ranks_are_the_tasks_of_a_step(slurm: Cluster, repository: BehavingProject, place: str) -> None:
    """Whatever becomes of one, the next measurement is made."""
    nodes, names, local_ranks = PLACES[place]
    modes = ("shows_its_world", "kills_rank_1", "stands_for_its_node", "raises_on_rank_1", "is_slower_on_rank_1")
    plan = repository.plan(*modes, devices=2, nodes=nodes).model_copy(update={"srun_options": ("--cpu-bind=none",)})
    status, output = BatchJob(repository, plan, slurm).wait()
    records = repository.by_mode()
    assert set(records) == set(modes), output
    assert status == 1
    good = records["shows_its_world"]
    assert good.outcome == "ok", output
    assert good.environment["scheduler"] == "slurm"
    assert good.environment["rank"] == {"cpu_bind": "quiet,none", "affinity": sorted(os.sched_getaffinity(0))}
    assert (good.result.details["size"], good.result.details["local_rank"]) == (2, local_ranks[0])
    assert [rank.node for rank in good.ranks] == names
    logs = {path.name.rpartition("-")[2]: path for path in repository.results.records().rglob("*shows_its*.log")}
    assert {name: path.read_text() for name, path in logs.items()} == {
        "rank0.log": "this is rank 0\n",
        "rank1.log": "this is rank 1\n",
    }
    per_node = records["stands_for_its_node"]
    if nodes == 1:
        assert per_node.result is not None, output
        world = per_node.result.details
        assert (world["size"], world["devices_per_rank"], per_node.ranks) == (1, 2, [])
    else:  # of one device each
        assert "is for nodes with several" in str(per_node.reason)
    assert records["kills_rank_1"].outcome == "failed"
    reason = str(records["kills_rank_1"].reason)
    assert reason.startswith(f"rank 1 on {names[1]}: the measurement's process was killed by SIGKILL")
    assert "-rank1.log" in reason and "last words of rank 1" in reason
    assert f"rank 1 on {names[1]}: KeyError: 'conv9'" in str(records["raises_on_rank_1"].reason)
    slower = records["is_slower_on_rank_1"]
    assert slower.outcome == "ok"
    assert min(slower.ranks[1].call_times_s) >= 3e-3
    assert output.count("5 measured, 0 had a record, 2 failed") == 1


def test_ranks_that_hang_are_ended_and_named(slurm: Cluster, repository: BehavingProject) -> None:
    timeout_s = round(16 * slowdown())
    plan = repository.plan("all_gated", "well", devices=2, nodes=2, timeout_s=timeout_s)
    job = BatchJob(repository, plan, slurm)
    pids = [pid for pid, _ in read_pids(repository, 2)]
    assert all(is_alive(pid) for pid in pids)
    status, output = job.wait()
    records = repository.by_mode()
    assert status == 1
    assert records["all_gated"].outcome == "timeout"
    assert str(records["all_gated"].reason).startswith(f"not done after {timeout_s} s; log: "), output
    assert str(records["all_gated"].reason).endswith("(no result from rank 0 on n1, 1 on n2)")
    assert records["well"].outcome == "ok"
    assert not any(is_alive(pid) for pid in pids)


def test_a_rank_that_is_killed_from_outside(slurm: Cluster, repository: BehavingProject) -> None:
    job = BatchJob(repository, repository.plan("all_gated", "well", devices=2, nodes=2), slurm)
    (other, _), (killed, _) = read_pids(repository, 2)
    os.kill(killed, signal.SIGKILL)
    _, output = job.wait()
    records = repository.by_mode()
    assert not is_alive(other)
    reason = str(records["all_gated"].reason)
    assert reason.startswith("rank 1 on n2: the measurement's process was killed by SIGKILL"), output
    assert records["well"].outcome == "ok"


def test_the_job_runs_in_few_processes(slurm: Cluster, repository: BehavingProject) -> None:
    """The job, srun with its watchdog, and the ranks."""
    job = BatchJob(repository, repository.plan("all_gated", devices=2, nodes=1), slurm)
    ranks = {pid for pid, _ in read_pids(repository, 2)}
    commands = {pid: words_of(pid) for pid in processes_in(repository.root)}
    commands = {pid: words for pid, words in commands.items() if "harness.job" in words or "run.py" in "\0".join(words)}
    programs = sorted(Path(command[0]).name for pid, command in commands.items() if pid not in ranks)
    repository.gate.touch()
    _, output = job.wait()
    assert programs == [Path(sys.executable).name, "srun", "srun"], output
    assert ranks <= commands.keys()


def test_a_cancelled_job_leaves_nothing_behind(slurm: Cluster, repository: BehavingProject) -> None:
    job = BatchJob(repository, repository.plan("all_gated", devices=2, nodes=2), slurm)
    pids = [pid for pid, _ in read_pids(repository, 2)]
    slurm.run("scancel", "--me")
    _, output = job.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "all are gone")
    assert repository.by_mode() == {}
    # In order, and not by the SIGKILL that comes after KillWait.
    assert "stopped by a signal after 0 of 1" in output


def test_a_preempted_job_of_two_ranks_goes_on_where_it_was(slurm: Cluster, repository: BehavingProject) -> None:
    """The signal comes to submitit's worker, which is the job: it stops in order, is requeued, and does the rest."""
    folder = repository.job(repository.plan("well", "all_gated", devices=2, nodes=2))
    script = repository.root / "job.sh"
    script.write_text(BATCH_SCRIPT.format(repository=repository.root, python=sys.executable))
    executor = ScriptSlurm(folder.root, script)
    executor.update_parameters(time=5)
    job = executor.submit(RunJob(job_arguments(repository.results, [folder])))

    started = [pid for pid, _ in read_pids(repository, 2)]
    assert list(repository.by_mode()) == ["well"]
    slurm.run("sbatch", "-p", "high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    wait_until(lambda: not any(is_alive(pid) for pid in started), "the first start is gone")
    repository.gate.touch()
    wait_until(lambda: "all_gated" in repository.by_mode(), "the rest is measured", quiet_s=60.0)
    records = repository.by_mode()
    restarts = [records[mode].environment["slurm"]["restart_count"] for mode in ("well", "all_gated")]
    assert [int(count or 0) for count in restarts] == [0, 1]
    assert [rank.node for rank in records["all_gated"].ranks] == ["n1", "n2"]
    wait_until(lambda: "1 measured, 1 had a record, 0 failed" in str(job.stdout()), "the end")


def test_an_allocation_of_another_size_is_told_at_once(slurm: Cluster, repository: BehavingProject) -> None:
    status, output = BatchJob(repository, repository.plan("well", devices=2, nodes=1), slurm, nodes=2).wait()
    assert status == 2
    assert "error: use case 1 needs 1 node(s) with 2 device(s) each, and this Slurm job has 2." in output
    assert "Traceback" not in output


# The whole way of a user, with both frameworks.


def test_main_measures_a_cell_of_two_devices(slurm: Cluster, tmp_path: Path) -> None:
    """Use case 4 on two nodes. Use case 2, on one machine: tests/whole/test_two_devices_from_main.py."""
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    copy_for_two_devices(tmp_path, nodes=2)
    done = run_main(tmp_path, "--use_case", "4", "--no-baseline")
    records = require_all_good(tmp_path, done)
    assert len(records) == 2
    for record in records:
        assert record.measurement.cell.nodes == 2
        assert record.environment["scheduler"] == "slurm"
        assert len(record.ranks) == 2
        assert len({rank.node for rank in record.ranks}) == 2
        assert all(rank.block_times_s for rank in record.ranks)
    assert "Per-sample gradients of a small CNN on 2 devices" in done.stdout
