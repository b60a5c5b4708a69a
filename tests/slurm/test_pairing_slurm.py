"""Both frameworks of a cell in one allocation of a real Slurm: their order, their failures, and a requeue."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.paths import JobFolder
from harness.plan import Screening
from harness.results.statistics import took_turns
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import JobState, job_states
from tests.made.patience import wait_until
from tests.made.project import BehavingProject, make_behaving_project
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm
wait_for = partial(wait_until, quiet_s=30.0)

ABBA = [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1), ("jax", 2), ("torch", 2)]


@pytest.fixture
def project(slurm: Cluster, tmp_path: Path) -> Iterator[BehavingProject]:
    yield make_behaving_project(tmp_path)
    slurm.cancel_all()


def states_of(project: BehavingProject, folders: list[JobFolder]) -> list[JobState]:
    return job_states(project.results, folders)


def logs(project: BehavingProject) -> str:
    return "\n".join(f"--- {log}\n{log.read_text()}" for log in project.results.jobs.rglob("*_0_log.*"))


def test_one_allocation_runs_both_in_turn(
    project: BehavingProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = project.submit_pairs(project.pair(replicates=3), executor="slurm")
    [job_id] = {state.job_id for state in states_of(project, folders)}
    assert follow(folders, project.results) == 0, logs(project)

    assert project.arms() == ABBA
    records = sorted(project.records(), key=lambda record: record.started_at)
    for earlier, later in zip(records, records[1:], strict=False):
        assert earlier.ended_at <= later.started_at
    environments = [record.environment for record in records]
    pair = f"{job_id}.0"
    assert [each["pairing"] for each in environments] == [
        {"kind": "together", "position": n, "pair": pair} for n in range(6)
    ]
    assert {each["slurm"]["job_id"] for each in environments} == {job_id}
    assert len({each["node"] for each in environments}) == 1
    assert {each["slurm"]["job_gpus"] for each in environments} == {environments[0]["slurm"]["job_gpus"]}

    # One line for each framework, and nothing left to do.
    jax, torch = states_of(project, folders)
    assert [(each.name, each.state, each.job_id) for each in (jax, torch)] == [
        ("any/jax_mnist_1", "done", job_id),
        ("any/torch_mnist_1", "done", job_id),
    ]
    for state in (jax, torch):
        assert (state.heartbeat.measurements_done, state.heartbeat.measurements_total) == (3, 3)
        assert state.heartbeat.measurements_skipped == 0
    kept = folders[0].root / f"{job_id}_submission.sh"
    assert kept.read_text() == (project.root / "slurm_scripts/pair_mnist_1.sh").read_text()
    capsys.readouterr()
    assert project.submit_pairs(project.pair(replicates=3), executor="slurm") == []
    assert capsys.readouterr().out.count("every measurement has a record") == 2


def test_a_screening_is_an_arm_of_its_own(project: BehavingProject) -> None:
    """Before all replicates; its logs and submitit's files lie in a folder of that name."""
    pair = project.pair(jax=("well", "slow"), replicates=1, screening=Screening(always=("slow.eager",)))
    folders = project.submit_pairs(pair, executor="slurm")
    assert follow(folders, project.results) == 0, logs(project)
    records = sorted(project.records(), key=lambda record: record.started_at)
    arms = [
        (one.measurement.framework, one.measurement.stage, one.environment["pairing"]["position"]) for one in records
    ]
    screenings = [("jax", "screening", 0)] * 2
    assert arms == [*screenings, ("jax", "replicate", 1), ("jax", "replicate", 1), ("torch", "replicate", 2)]
    [log] = (folders[0].root / "screening").glob("*_0_log.out")
    assert "cnn-b8-fp32: 2 of 2 modes go on: well.eager, slow.eager" in log.read_text()
    assert not (folders[1].root / "screening").exists()


def test_what_fails_in_one_framework_costs_the_other_nothing(project: BehavingProject) -> None:
    """JAX's first variant fails in every arm; the second is measured, and so is all of PyTorch's."""
    folders = project.submit_pairs(project.pair(jax=("raises", "well")), executor="slurm")
    assert follow(folders, project.results) == 1
    outcomes = sorted(
        (record.measurement.framework, record.measurement.replicate, record.outcome) for record in project.records()
    )
    assert outcomes == [
        *(("jax", 0, "failed"), ("jax", 0, "ok"), ("jax", 1, "failed"), ("jax", 1, "ok")),
        *(("torch", 0, "ok"), ("torch", 1, "ok")),
    ]
    jax, torch = states_of(project, folders)
    assert (jax.state, torch.state) == ("failed", "done")
    assert (jax.heartbeat.measurements_done, jax.heartbeat.measurements_failed) == (4, 2)
    assert "conv9" in str(jax.reason)


def test_a_framework_that_cannot_start_costs_the_other_nothing(project: BehavingProject) -> None:
    folders = project.submit_pairs(project.pair(data="real", data_dir=str(project.root / "nowhere")), executor="slurm")
    assert follow(folders, project.results) == 1
    assert project.arms() == [("torch", 0), ("torch", 1)]
    jax, torch = states_of(project, folders)
    assert (jax.state, torch.state) == ("failed", "done")
    assert str(jax.reason).startswith("Slurm: FAILED: error: ") and "nowhere" in str(jax.reason)


@pytest.mark.parametrize("how", ["time limit", "preemption"])
def test_a_requeued_pair_goes_on_where_it_was(project: BehavingProject, slurm: Cluster, how: str) -> None:
    """Stopped in its first arm, it starts no other before Slurm has started it again."""
    pair = project.pair(jax=("well", "gated"), torch=("well",))
    folders = project.submit_pairs(pair, executor="slurm")
    wait_for((project.root / "jax-pid").exists, "the gated measurement")
    [job_id] = {state.job_id for state in states_of(project, folders)}
    assert job_id is not None
    if how == "time limit":  # the signal that Slurm sends 90 s before it, sent by hand to the same script
        slurm.run("scancel", "--batch", "--signal=USR2", job_id)
    else:
        slurm.run("sbatch", "-p", "high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: states_of(project, folders)[0].state == "requeued", "the job back in the queue")
    assert [(r.measurement.framework, r.measurement.variant.execution_mode) for r in project.records()] == [
        ("jax", "well.eager")
    ]
    assert not folders[1].heartbeat.exists()
    project.gate.touch()

    assert follow(folders, project.results) == 0, logs(project)
    records = sorted(project.records(), key=lambda record: record.started_at)
    assert len({record.measurement_id for record in records}) == len(records) == 6  # none twice
    assert project.arms() == [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1)]
    slurm_of = [record.environment["slurm"] for record in records]
    assert [each["restart_count"] for each in slurm_of] == [0] + [1] * 5
    assert {each["job_id"] for each in slurm_of} == {job_id}
    pairings = [record.environment["pairing"] for record in records]
    assert [pairing["position"] for pairing in pairings] == [0, 0, 1, 2, 3, 3]
    assert [pairing["pair"] for pairing in pairings] == [f"{job_id}.0"] + [f"{job_id}.1"] * 5
    assert [state.state for state in states_of(project, folders)] == ["done", "done"]


def test_cancel_ends_the_allocation(project: BehavingProject, slurm: Cluster) -> None:
    folders = project.submit_pairs(project.pair(jax=("gated",)), executor="slurm")
    wait_for((project.root / "jax-pid").exists, "the gated measurement")
    jax, torch = states_of(project, folders)
    assert (jax.state, torch.state) == ("running", "running")
    assert jax.heartbeat is not None  # submitit's worker is the job, and the measurement its child
    assert "submitit.core._submit" in Path(f"/proc/{jax.heartbeat.pid}/cmdline").read_text()
    assert f"PPid:\t{jax.heartbeat.pid}\n" in Path(f"/proc/{(project.root / 'jax-pid').read_text()}/status").read_text()
    again = project.submit_pairs(project.pair(jax=("gated",)), executor="slurm")
    assert [folder.root for folder in again] == [folder.root for folder in folders]  # followed, not submitted again
    assert cancel(project.results) == 0
    wait_for(lambda: not slurm.run("squeue", "-h"), "the job to be gone")
    assert [state.state for state in states_of(project, folders)] == ["cancelled", "cancelled"]
    assert not Path(f"/proc/{(project.root / 'jax-pid').read_text()}").exists()
    assert project.records() == []


def test_separate_makes_two_jobs(project: BehavingProject) -> None:
    folders = project.submit_pairs(project.pair(), executor="slurm", pairing="separate")
    assert len({state.job_id for state in states_of(project, folders)}) == 2
    assert follow(folders, project.results) == 0
    kinds = {json.dumps(record.environment["pairing"]) for record in project.records()}
    assert kinds == {'{"kind": "separate", "position": null}'}


def test_a_framework_whose_partner_needs_nothing_gets_a_job_of_its_own(project: BehavingProject) -> None:
    pair = project.pair()
    alone = pair.model_copy(update={"jobs": pair.jobs[:1]})
    assert follow(project.submit_pairs(alone, executor="slurm"), project.results) == 0
    [folder] = project.submit_pairs(pair, executor="slurm")
    assert follow([folder], project.results) == 0
    pairing = {record.measurement.framework: record.environment["pairing"] for record in project.records()}
    assert pairing == {name: {"kind": "separate", "position": None} for name in ("jax", "torch")}


@pytest.mark.parametrize("program", ["sbatch", "bash"])
def test_the_script_of_a_pair_by_hand(project: BehavingProject, slurm: Cluster, program: str) -> None:
    """Without main.py, run.py expands experiments.yaml itself, and there the data has not been fetched: what counts
    here is that every arm runs, and what the script says in the end."""
    scripts = project.scripts([project.pair()])
    tell = "import os, sys\nprint(sys.argv[0], *sys.argv[-7:], flush=True)\nsys.exit('jax' in sys.argv[0])\n"
    for framework in ("jax", "torch"):
        project.rewrite(f"{framework}_runner/run.py", tell)
    script = str(scripts["any/pair_mnist_1"])
    log = project.root / "log"
    command = (
        ["sbatch", "--wait", f"--output={log}", script, "--force"]
        if program == "sbatch"
        else ["bash", script, "--force"]
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = log.read_text() if program == "sbatch" else done.stdout
    lines = [line for line in said.splitlines() if "run.py" in line and "error" not in line]
    [run] = {line.split()[-2] for line in lines}
    assert lines == [
        f"{framework}_runner/run.py --replicate {replicate} --position {position} --pair {run} --force"
        for position, (framework, replicate) in enumerate(ABBA[:4])
    ]
    assert done.returncode == 1  # JAX's arms failed


def test_an_interleaved_pair_is_requeued_and_takes_its_turns_again(project: BehavingProject, slurm: Cluster) -> None:
    """PyTorch's process waits for the gate in one of its turns, while JAX's waits for its own."""
    pair = project.pair(jax=("slow",), torch=("waits_later",), replicates=1)
    folders = project.submit_pairs(pair, executor="slurm", pairing="interleaved")
    wait_for((project.root / "torch-pid").exists, "the measurement in its turns")
    [job_id] = {state.job_id for state in states_of(project, folders)}
    assert job_id is not None
    slurm.run("scancel", "--batch", "--signal=USR2", job_id)
    wait_for(lambda: states_of(project, folders)[0].state == "requeued", "the job back in the queue")
    assert project.records() == []
    assert [state.state for state in states_of(project, folders)] == ["requeued", "requeued"]
    project.gate.touch()

    assert follow(folders, project.results) == 0, logs(project)
    one, other = project.records()
    assert took_turns(one, other)
    assert {record.environment["pairing"]["pair"] for record in (one, other)} == {f"{job_id}.1"}
    assert [state.state for state in states_of(project, folders)] == ["done", "done"]


def test_a_start_that_fails_is_told_of_both_of_an_interleaved_pair(project: BehavingProject, slurm: Cluster) -> None:
    folders = project.submit_pairs(
        project.pair(replicates=1, data="real", data_dir=str(project.root / "nowhere")),
        executor="slurm",
        pairing="interleaved",
    )
    assert follow(folders, project.results) == 1
    states = states_of(project, folders)
    assert [state.state for state in states] == ["failed", "failed"]
    assert "nowhere" in str(states[0].reason)
