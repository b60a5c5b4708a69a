"""Both frameworks of a cell in one allocation of a real Slurm: their order, their failures, and a requeue."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.plan import Launch
from harness.results.ratios import took_turns
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from tests.made.project import BehavingProject, make_behaving_project
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, logs, state_of, wait_for

pytestmark = pytest.mark.slurm

ABBA = [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1), ("jax", 2), ("torch", 2)]


@pytest.fixture
def project(slurm: Cluster, tmp_path: Path) -> Iterator[BehavingProject]:
    yield make_behaving_project(tmp_path)
    slurm.cancel_all()


def test_one_allocation_runs_both_in_turn(
    project: BehavingProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    [folder] = project.submit_pairs(project.pair(replicates=3), executor="slurm")
    number = job_id(folder)
    assert follow([folder], project.results) == 0, logs(project)

    assert project.arms() == ABBA
    records = sorted(project.records(), key=lambda record: record.started_at)
    for earlier, later in zip(records, records[1:], strict=False):
        assert earlier.ended_at <= later.started_at
    environments = [record.environment for record in records]
    assert [each["pairing"] for each in environments] == [{"kind": "together", "pair": f"{number}.0"}] * 6
    assert {each["slurm"]["job_id"] for each in environments} == {number}
    assert len({each["node"] for each in environments}) == 1
    assert {each["slurm"]["job_gpus"] for each in environments} == {environments[0]["slurm"]["job_gpus"]}

    state = state_of(project, folder)
    assert (state.name, state.state, state.job_id) == ("any/pair_mnist_1", "done", number)
    assert state.heartbeat is not None
    assert (state.heartbeat.measurements_done, state.heartbeat.measurements_total) == (6, 6)
    assert state.heartbeat.replicates_made == 6
    kept = folder.root / f"{number}_submission.sh"
    assert kept.read_text() == (project.root / "slurm_scripts/pair_mnist_1.sh").read_text()
    capsys.readouterr()
    assert project.submit_pairs(project.pair(replicates=3), executor="slurm") == []
    assert capsys.readouterr().out.count("every measurement has a record") == 2


@pytest.mark.parametrize("how", ["time limit", "preemption"])
def test_a_requeued_pair_goes_on_where_it_was(project: BehavingProject, slurm: Cluster, how: str) -> None:
    pair = project.pair(jax=("well", "gated"), torch=("well",))
    [folder] = project.submit_pairs(pair, executor="slurm")
    wait_for((project.root / "jax-pid").exists, "the gated measurement")
    number = job_id(folder)
    if how == "time limit":  # the signal that Slurm sends 90 s before it, sent by hand to the same script
        slurm.run("scancel", "--batch", "--signal=USR2", number)
    else:
        slurm.run("sbatch", "-p", "high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: state_of(project, folder).state == "requeued", "the job back in the queue")
    assert [(r.measurement.framework, r.measurement.variant.execution_mode) for r in project.records()] == [
        ("jax", "well.eager")
    ]
    project.gate.touch()

    assert follow([folder], project.results) == 0, logs(project)
    records = sorted(project.records(), key=lambda record: record.started_at)
    assert len({record.measurement_id for record in records}) == len(records) == 6  # none twice
    assert project.arms() == [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1)]
    slurm_of = [record.environment["slurm"] for record in records]
    assert [each["restart_count"] for each in slurm_of] == [0] + [1] * 5
    assert {each["job_id"] for each in slurm_of} == {number}
    runs = [record.environment["pairing"]["pair"] for record in records]
    assert runs == [f"{number}.0"] + [f"{number}.1"] * 5
    assert state_of(project, folder).state == "done"


def test_cancel_ends_the_allocation(project: BehavingProject, slurm: Cluster) -> None:
    [folder] = project.submit_pairs(project.pair(jax=("gated",)), executor="slurm")
    wait_for((project.root / "jax-pid").exists, "the gated measurement")
    state = state_of(project, folder)
    assert state.state == "running"
    assert state.heartbeat is not None  # submitit's worker is the job, and the measurement its child
    assert "submitit.core._submit" in Path(f"/proc/{state.heartbeat.pid}/cmdline").read_text()
    child = (project.root / "jax-pid").read_text()
    assert f"PPid:\t{state.heartbeat.pid}\n" in Path(f"/proc/{child}/status").read_text()
    again = project.submit_pairs(project.pair(jax=("gated",)), executor="slurm")
    assert again == [folder]  # followed, not submitted again
    assert cancel(project.results) == 0
    wait_for(lambda: not slurm.run("squeue", "-h"), "the job to be gone")
    assert state_of(project, folder).state == "cancelled"
    assert not Path(f"/proc/{child}").exists()
    assert project.records() == []


@pytest.mark.parametrize("program", ["sbatch", "bash"])
def test_the_script_of_a_pair_by_hand(project: BehavingProject, slurm: Cluster, program: str) -> None:
    """Without main.py, the job expands experiments.yaml itself, and there the data has not been fetched: what counts
    here is what it is started with, and how the script ends."""
    scripts = project.scripts([project.pair()])
    project.rewrite("harness/job/__main__.py", "import sys\nprint(*sys.argv[1:])\nsys.exit(3)\n")
    script = str(scripts["any/pair_mnist_1"])
    log = project.root / "log"
    by_hand = ["sbatch", "--wait", f"--output={log}"] if program == "sbatch" else ["bash"]
    done = subprocess.run([*by_hand, script, "--force"], capture_output=True, text=True, check=False)
    said = log.read_text() if program == "sbatch" else done.stdout
    assert said.startswith("--benchmark mnist --use_case 1 --data sample --quick")
    assert said.rstrip().endswith("--force")
    assert done.returncode == 3


def test_an_interleaved_pair_is_requeued_and_takes_its_turns_again(project: BehavingProject, slurm: Cluster) -> None:
    """PyTorch's process waits for the gate in one of its turns, while JAX's waits for its own. Each has a Python of its
    own."""
    other = project.root / "other-python"
    other.write_text(f'#!/bin/bash\nexport NCCL_OTHER_PYTHON=yes\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    pair = project.pair(jax=("slow",), torch=("waits_later",), replicates=1, launch=Launch(python=str(other)))
    [folder] = project.submit_pairs(pair, executor="slurm", pairing="interleaved")
    wait_for((project.root / "torch-pid").exists, "the measurement in its turns")
    number = job_id(folder)
    slurm.run("scancel", "--batch", "--signal=USR2", number)
    wait_for(lambda: state_of(project, folder).state == "requeued", "the job back in the queue")
    assert project.records() == []
    project.gate.touch()

    assert follow([folder], project.results) == 0, logs(project)
    one, other_record = project.records()
    assert took_turns(one, other_record)
    assert {record.environment["pairing"]["pair"] for record in (one, other_record)} == {f"{number}.1"}
    assert {
        record.measurement.framework: record.environment["variables"].get("NCCL_OTHER_PYTHON")
        for record in (one, other_record)
    } == {"jax": "yes", "torch": None}
    assert state_of(project, folder).state == "done"
