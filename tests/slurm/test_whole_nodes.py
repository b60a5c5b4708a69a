"""`cluster.whole_nodes` on a node of a real Slurm with two GPUs: from the command to what neighbours cost. The
measurements are of fake_framework, whose step is a sleep."""

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from harness.results.record import read_record
from pipeline.watching.jobs import job_states
from tests.made.config_text import BEHAVING, changed
from tests.made.patience import wait_until
from tests.made.project import make_behaving_repository
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import run_main

CONFIG = BEHAVING
for old, new in (
    ("cpus_per_task: 1}", "cpus_per_task: 1, whole_nodes: true}"),
    ("any: {}", "any: {per_node: 2}"),
    ("use_cases: [1]", "use_cases: [1, 2]"),
    ("{jax: [by_node], torch: [by_node]}", "{jax: [by_neighbours], torch: [by_neighbours]}"),
    ("\nmeasurement:", "\n  2: {like: 1, batch_sizes: [16], measurement: {replicates: 6}}\nmeasurement:"),
):
    CONFIG = changed(old, new, CONFIG)
CELLS = ("--benchmark", "mnist", "--use_case", "1", "--use_case", "2", "--data", "sample")


def test_a_node_goes_on_after_its_time_limit(slurm: Cluster, tmp_path: Path) -> None:
    """By the signal that Slurm gives 90 s before. Each record is there once, and the last job waits again for the
    others."""
    project = make_behaving_repository(tmp_path, CONFIG)
    run_main(project.root, *CELLS)
    wait_until(lambda: len([*project.results.records().rglob("*.json")]) > 2, "the first records")
    [job_id] = {state.job_id for state in job_states(project.results)}
    subprocess.run(["scancel", "--batch", "--signal=USR2", str(job_id)], check=True)
    wait_until(lambda: "requeued" in {state.state for state in job_states(project.results)}, "the queue")
    run_main(project.root, *CELLS, "--wait")
    states = job_states(project.results)
    assert [one.state for one in states] == ["done"] * 3
    for results, restarts in ((project.results, {0, 1}), (project.results.alone, {1})):
        records = [read_record(path) for path in sorted(results.records().rglob("*.json"))]
        assert len(records) == len({one.measurement_id for one in records}) >= 8
        assert {one.environment["slurm"]["restart_count"] for one in records} == restarts


def test_two_cells_share_a_node_and_one_is_measured_alone(slurm: Cluster, tmp_path: Path) -> None:
    project = make_behaving_repository(tmp_path, CONFIG)
    main, cells = partial(run_main, project.root), CELLS
    shown = " ".join(main(*cells, "--dry-run").split())
    assert "Whole nodes: 1 job on all 2 GPUs of a node, 2 cells or parts of cells side by side" in shown
    script = (project.root / "slurm_scripts" / "node_1.sh").read_text()
    assert {"#SBATCH --gres=gpu:2", "#SBATCH --exclusive", "#SBATCH --mem=0G"} <= set(script.splitlines())

    shown = main(*cells, "--wait")
    job_id = re.findall(r"any/node_1: submitted as job (\d+), with any/pair_mnist_2, any/pair_mnist_1", shown)
    assert len(job_id) == 1, shown
    beside = [read_record(path) for path in sorted(project.results.records().rglob("*.json"))]
    alone = [read_record(path) for path in sorted(project.results.alone.records().rglob("*.json"))]
    assert {one.environment["slurm"]["job_id"] for one in beside + alone} == {*job_id}
    assert [one.environment["neighbours"] for one in alone] == [0] * 8
    spans, lanes = {}, {}
    for use_case in (1, 2):
        of_cell = [one for one in beside if one.measurement.cell.use_case == use_case]
        assert len(of_cell) >= 8 and 1 in {one.environment["neighbours"] for one in of_cell}
        spans[use_case] = min(one.started_at for one in of_cell), max(one.ended_at for one in of_cell)
        [lanes[use_case]] = {one.environment["variables"]["CUDA_VISIBLE_DEVICES"] for one in of_cell}
    assert {*lanes.values()} == {"0", "1"}
    assert max(start for start, _ in spans.values()) < min(end for _, end in spans.values())  # at the same time
    assert min(one.started_at for one in alone) >= max(end for _, end in spans.values())
    assert {one.environment["variables"]["CUDA_VISIBLE_DEVICES"] for one in alone} == {lanes[1]}

    status = main("status")
    assert status.count("done: ") == 3, status
    assert main(*cells).count("every measurement has a record") == 6
    report = main("report")
    changes = re.findall(r"(JAX|PyTorch) by_neighbours.eager +([+-][\d.]+) %", report)
    assert [framework for framework, _ in changes] == ["JAX", "PyTorch"], report
    assert [float(change) for _, change in changes] == pytest.approx([-20.0] * 2, abs=4.0)
    assert "What neighbours on the node cost" in (project.results.report / "report.html").read_text()
