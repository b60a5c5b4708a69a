"""`cluster.whole_nodes` on a node of a real Slurm with two GPUs, from the command on: a GPU for each cell, one that
fails, the time limit, and `main.py status --cancel`. The measurements are of fake_framework."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.job.progress import read_heartbeat
from pipeline.watching import slurm_states
from pipeline.watching.jobs import job_states
from tests.made.config_text import BEHAVING, changed
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, make_behaving_repository
from tests.slurm.cluster import Cluster, Site, running_cluster
from tests.slurm.jobs import logs, run_main, wait_for

CELLS = ("--benchmark", "mnist", "--use_case", "1", "--use_case", "2", "--data", "sample")


@pytest.fixture(scope="module")
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    """Beside the cluster of the other tests, which says whether Slurm is here. It counts memory, as most do: no step
    may wait for that of another."""
    site = Site(nodes=("CPUs=4 RealMemory=8000 Gres=gpu:a100:2",), select="CR_Core_Memory")
    with running_cluster(site) as cluster:
        yield cluster


@pytest.fixture
def node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Its jobs do not outlive the test."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    yield cluster
    cluster.cancel_all()


@pytest.fixture
def project(node: Cluster, tmp_path: Path) -> BehavingProject:
    """PyTorch's side of both cells waits for the gate; JAX's side of the second fails."""
    config = BEHAVING
    settings = f"{{gate: {tmp_path}/gate, pid: {tmp_path}/pid-1}}"
    for old, new in (
        ("cpus_per_task: 1}", "cpus_per_task: 1, whole_nodes: true}"),
        ("any: {}", "any: {per_node: 2}"),
        ("use_cases: [1]", "use_cases: [1, 2]"),
        ("{jax: [slow], torch: [slow]}", "{jax: [slow], torch: [gated]}"),
        ("{gate: nowhere, pid: nowhere}", settings),
        (
            "\nmeasurement:",
            "\n  2: {name: behave, batch_sizes: [32], precisions: [fp32], "
            "formulations: {jax: [raises], torch: [gated]}, settings: "
            f"{settings.replace('pid-1', 'pid-2')}}}\nmeasurement:",
        ),
    ):
        config = changed(old, new, config)
    return make_behaving_repository(tmp_path, config)


def at_the_gate(project: BehavingProject) -> list[int]:
    """Return the processes of the cells, which all wait there at the same time."""
    pids = [project.root / "pid-1", project.root / "pid-2"]
    wait_for(lambda: all(one.exists() for one in pids), f"both cells to measure\n{logs(project)}")
    return [int(one.read_text()) for one in pids]


def test_each_cell_has_a_gpu_a_failure_costs_no_other_and_the_node_is_requeued(
    project: BehavingProject, node: Cluster
) -> None:
    shown = " ".join(run_main(project.root, *CELLS, "--dry-run").split())
    assert "Whole nodes: 1 job on all 2 GPUs of a node, 2 cells, one on each GPU" in shown
    shown = run_main(project.root, *CELLS)
    assert "any/node_1: submitted as job " in shown and ", with any/pair_mnist_" in shown
    [job_id] = {str(state.job_id) for state in job_states(project.results)}
    pids = at_the_gate(project)
    assert [state.state for state in job_states(project.results)] == ["running"] * 2

    # The signal that Slurm sends 90 s before the time limit, to the script of the node.
    node.run("scancel", "--batch", "--signal=USR2", job_id)
    wait_for(lambda: {one.state for one in job_states(project.results)} == {"requeued"}, "the queue")
    assert not any(is_alive(pid) for pid in pids)
    counts = [json.loads(one.cut_offs.read_text()) for one in project.results.job_folders()]
    assert [[*of_job.values()] for of_job in counts] == [[1], [1]]
    project.gate.touch()
    run_main(project.root, *CELLS, "--wait", status=1)

    assert [(one.name, one.state) for one in job_states(project.results)] == [
        ("any/pair_mnist_1", "done"),
        ("any/pair_mnist_2", "failed"),
    ]
    assert slurm_states.query([job_id])[job_id].name == "FAILED"
    records = project.records()
    measured = [one.measurement_id for one in records if one.outcome == "ok"]
    assert len(measured) == len({*measured}) == 12  # none twice; what has failed is tried again
    assert len({one.measurement_id for one in records}) == 16
    gpus: dict[tuple[int, int], set[str]] = {}
    for record in records:
        cell, environment = record.measurement.cell, record.environment
        start = cell.use_case, environment["slurm"]["restart_count"]
        seen = {environment["variables"]["CUDA_VISIBLE_DEVICES"], environment["slurm"]["step_gpus"]}
        gpus[start] = gpus.get(start, set()) | seen
        is_failing = (record.measurement.framework, cell.use_case) == ("jax", 2)
        assert record.outcome == ("failed" if is_failing else "ok")
    for restarts in (0, 1):
        assert sorted([gpus[1, restarts], gpus[2, restarts]], key=min) == [{"0"}, {"1"}]
    script = project.root / "slurm_scripts" / "node_1.sh"
    assert {"#SBATCH --gres=gpu:2", "#SBATCH --exclusive"} <= set(script.read_text().splitlines())


def test_cancel_ends_the_measurements_in_order(project: BehavingProject, node: Cluster) -> None:
    run_main(project.root, *CELLS)
    pids = at_the_gate(project)
    [job_id] = {str(state.job_id) for state in job_states(project.results)}
    assert run_main(project.root, "status", "--cancel").count(f"cancelled job {job_id} (running until now)") == 2
    wait_for(lambda: not node.run("squeue", "-h"), "the job to be gone")
    assert not any(is_alive(pid) for pid in pids)
    beats = [read_heartbeat(one.heartbeat) for one in project.results.job_folders()]
    assert [beat.state for beat in beats if beat] == ["stopped"] * 2
    assert "Restarts=0" in node.run("scontrol", "show", "job", job_id)
