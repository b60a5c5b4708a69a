"""Jobs through a real Slurm that has no accounting: submitted, failing, preempted, cancelled, refused."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import SubmissionError
from harness.plan_file import read_plan
from pipeline.submission.spread import spread
from pipeline.watching import slurm_states
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import job_states
from tests.made.project import FakeProject, alone
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, state_of, wait_for

pytestmark = pytest.mark.slurm


def test_a_pair_runs_and_is_not_submitted_again(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    jax, torch = project.plan("jax", gpu="a100"), project.plan("torch", gpu="a100")
    folders = project.submit(jax, torch, executor="slurm")
    assert [read_plan(folder.plan).frameworks for folder in folders] == [("jax",), ("torch",)]
    assert follow(folders, project.results) == 0

    # Two measurements each, on a node's GPU, by submitit's worker.
    seen = [record.environment["seen"] for record in project.records()]
    assert len(seen) == 4
    assert {each["SLURM_JOB_ID"] for each in seen} == {job_id(folder) for folder in folders}
    assert {each["SUBMITIT_EXECUTOR"] for each in seen} == {"slurm"}
    assert {each["CUDA_VISIBLE_DEVICES"] for each in seen} <= {"0", "1"}

    # What Slurm got is the rendered script, byte for byte.
    kept = folders[0].root / f"{job_id(folders[0])}_submission.sh"
    assert kept.read_text() == (project.root / "slurm_scripts/a100/jax_mnist_3.sh").read_text()
    states = job_states(project.results, folders)
    assert [(state.name, state.state) for state in states] == [
        ("a100/jax_mnist_3", "done"),
        ("a100/torch_mnist_3", "done"),
    ]
    assert {state.node for state in states} <= {"n1", "n2"}

    capsys.readouterr()
    assert project.submit(jax, torch, executor="slurm") == []
    assert capsys.readouterr().out.splitlines() == [
        "a100/jax_mnist_3: every measurement has a record (measure again with --force)",
        "a100/torch_mnist_3: every measurement has a record (measure again with --force)",
    ]
    [again] = project.submit(project.plan("jax", gpu="a100", force=True), executor="slurm")
    assert follow([again], project.results) == 0
    assert len(project.records()) == 6


def test_what_is_frozen_at_submission_stays(project: FakeProject, slurm: Cluster) -> None:
    """The job is held back; the plan's script is rendered anew meanwhile, and does not change the job."""
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        plan = project.plan()
        [folder] = project.submit(plan, executor="slurm")
        wait_for(lambda: state_of(project, folder).state == "queued", "the job in the queue")
        (project.root / "slurm_scripts/torch_mnist_3.sh").write_text("#!/bin/bash\nexit 3\n")
        assert project.submit(plan, executor="slurm") == [folder]  # queued already: followed, not submitted again
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert follow([folder], project.results) == 0


def test_a_job_does_not_inherit_the_job_that_it_is_submitted_from(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    monkeypatch.setenv("SLURM_JOB_ID", "987654")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    [folder] = project.submit(project.plan(), executor="slurm")
    assert follow([folder], project.results) == 0
    for record in project.records():
        assert record.environment["seen"]["SLURM_JOB_ID"] == job_id(folder)
        assert "0x1" not in (record.environment["seen"]["SLURM_CPU_BIND"] or "")


def test_a_shells_own_defaults_reach_sbatch(
    project: FakeProject, slurm: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "high")
    [folder] = project.submit(project.plan(), executor="slurm")
    said = "Options of sbatch from this shell, which beat experiments.yaml: SBATCH_PARTITION"
    assert said in capsys.readouterr().out.splitlines()
    assert follow([folder], project.results) == 0
    assert "Partition=high" in slurm.run("scontrol", "show", "job", job_id(folder)).split()


def test_a_failed_measurement_fails_the_job(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    [folder] = project.submit(project.plan(fail=True), executor="slurm")
    assert follow([folder], project.results) == 1
    assert state_of(project, folder).reason == "measurement 1: no such kernel"
    assert f"log: {folder.root / job_id(folder)}_0_log.err" in capsys.readouterr().out


def test_a_run_that_cannot_start_fails_with_its_own_words(project: FakeProject) -> None:
    [folder] = project.submit(project.plan(crash=True), executor="slurm")
    assert follow([folder], project.results) == 1
    state = state_of(project, folder)
    assert (state.state, state.reason) == ("failed", "Slurm: FAILED: ImportError: No module named 'framework'")


def test_cancel_ends_these_jobs_and_no_other(
    project: FakeProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 60").strip()
    done, running, waiting = (project.plan(use_case=n, sleep_s=0.1 if n == 1 else 60) for n in (1, 2, 3))
    [first] = project.submit(done, executor="slurm")
    assert follow([first], project.results) == 0
    second, third = project.with_cluster(max_parallel_jobs=1).submit(running, waiting, executor="slurm")
    wait_for(lambda: state_of(project, second).heartbeat is not None, "the first heartbeat")
    assert state_of(project, third).reason == "Dependency"

    assert cancel(project.results) == 0
    wait_for(lambda: set(slurm.run("squeue", "-h", "-o", "%i").split()) == {stranger}, "the two jobs to be gone")
    states = job_states(project.results, [first, second, third])
    assert [state.state for state in states] == ["done", "cancelled", "cancelled"]
    beat = state_of(project, second).heartbeat
    assert beat is not None and not Path(f"/proc/{beat.pid}").exists()
    out = capsys.readouterr().out
    assert f"any/torch_mnist_2: cancelled job {job_id(second)} (running until now)" in out
    assert f"any/torch_mnist_3: cancelled job {job_id(third)} (queued until now)" in out
    assert "mnist_1: cancelled" not in out
    assert cancel(project.results) == 0
    assert "no job of" in capsys.readouterr().out


def test_scancel_by_somebody_else_is_seen(project: FakeProject, slurm: Cluster) -> None:
    [folder] = project.submit(project.plan(sleep_s=60), executor="slurm")
    wait_for(lambda: state_of(project, folder).state == "running", "the start")
    slurm.run("scancel", "--signal=KILL", job_id(folder))
    slurm.run("scancel", job_id(folder))
    assert follow([folder], project.results) == 1
    assert state_of(project, folder).state in ("cancelled", "failed")


def test_a_refused_job_stops_no_other(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    plans = [project.plan(gpu="h100"), project.plan(gpu="a100"), project.plan(gpu="h200")]
    with pytest.raises(SubmissionError) as refusal:
        project.submit(*plans, executor="slurm")
    assert capsys.readouterr().err == ""  # said once, in the error
    [submitted] = project.results.job_folders()
    words = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    assert str(refusal.value).splitlines() == [
        f"Submitted 1 of 3 jobs: a100/torch_mnist_3 (job {job_id(submitted)}).",
        f"  h100/torch_mnist_3: {words}",
        f"  h200/torch_mnist_3: {words}",
        "Correct `cluster` or `gpus` in experiments.yaml, or wait for the end of some jobs if these "
        f"are too many, and run the same command again: {shlex.join(['python', *sys.argv])}",
    ]
    assert follow([submitted], project.results) == 0


def test_parallel_jobs_are_counted_over_submissions(project: FakeProject) -> None:
    two_lanes = project.with_cluster(max_parallel_jobs=2)
    first, _ = two_lanes.submit(
        project.plan(use_case=1, sleep_s=60), project.plan(use_case=2, sleep_s=60), executor="slurm"
    )
    [third] = two_lanes.submit(project.plan(use_case=3), executor="slurm")
    command = json.loads(third.submission.read_text())["command"]
    assert [word for word in command if "dependency" in word] == [f"--dependency=afterany:{job_id(first)}"]
    assert state_of(project, third).reason == "Dependency"


@pytest.mark.parametrize("taken", [0, 1])
def test_the_same_refusal_three_times_is_not_asked_for_again(
    project: FakeProject, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a job before them was taken."""
    monkeypatch.setattr(sys, "argv", ["main.py", "--preset", "full"])
    project = project.with_cluster(partition=None if taken else "nowhere")
    plans = [project.plan(gpu="h100" if taken else "any", use_case=number) for number in range(1, 11)]
    with pytest.raises(SubmissionError) as refusal:
        project.submit(*[project.plan(gpu="a100")] * taken, *plans, executor="slurm")
    message = str(refusal.value)
    assert message.startswith(f"Submitted {taken} of {10 + taken} jobs")
    assert message.count("configuration is not available" if taken else "invalid partition specified: nowhere") == 3
    names = ", ".join(plan.name for plan in plans[3:8])
    assert f"  not tried after that: {names}, and 2 more\n" in message
    assert message.endswith("and run the same command again: python main.py --preset full")
    assert len(project.results.job_folders()) == taken


def test_states_of_known_and_unknown_jobs(project: FakeProject, slurm: Cluster) -> None:
    done = slurm.run("sbatch", "--parsable", "--wait", "--output=/dev/null", "--wrap", "true").strip()
    assert subprocess.run(["sacct"], capture_output=True).returncode == 1  # there is no accounting here
    states = slurm_states.query([done, "4000000"])
    assert {job: state.name for job, state in states.items()} == {done: "COMPLETED"}
    assert slurm_states.query(["4000000"]) == {}


def test_parts_of_a_cell_run_at_once_and_are_not_submitted_again(
    project: FakeProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part's script has its own plan: their records are those of the whole cell."""
    pair = alone(project.plan(measurements=4, sleep_s=3))
    parts = spread([pair], 2)
    folders = project.submit_pairs(*parts, executor="slurm")
    wait_for(lambda: {state_of(project, one).state for one in folders} == {"running"}, "both at once")
    assert project.submit_pairs(*spread([pair], 2), executor="slurm") == folders
    assert capsys.readouterr().out.count("running already, as job") == 2
    assert follow(folders, project.results) == 0
    assert {one.measurement_id for one in project.records()} == {one.id for one in pair.measurements()}
