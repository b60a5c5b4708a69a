"""Jobs through a real Slurm that has no accounting: submitted, failing, cancelled, refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import SubmissionError
from harness.experiments.expand import Selection, expand
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.render import write_scripts
from pipeline.watching import slurm_states
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import job_states
from tests.made.config_text import MINIMAL, config_of
from tests.made.project import FakeProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, state_of, wait_for


def test_a_job_does_not_inherit_the_job_that_it_is_submitted_from(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in submitit's worker, on a node's GPU."""
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    monkeypatch.setenv("SLURM_JOB_ID", "987654")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    [folder] = project.submit(project.plan(gpu="a100"), executor="slurm")
    assert follow([folder], project.results) == 0
    for record in project.records():
        seen = record.environment["seen"]
        assert (seen["SLURM_JOB_ID"], seen["SUBMITIT_EXECUTOR"]) == (job_id(folder), "slurm")
        assert "0x1" not in (seen["SLURM_CPU_BIND"] or "")
        assert seen["CUDA_VISIBLE_DEVICES"] in ("0", "1")


def test_what_fails_in_a_job_is_its_reason(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    """A measurement, and a run that cannot start."""
    folders = project.submit(project.plan(fail=True), project.plan(use_case=2, crash=True), executor="slurm")
    assert follow(folders, project.results) == 1
    assert [(state.state, state.reason) for state in job_states(project.results, folders)] == [
        ("failed", "measurement 1: no such kernel"),
        ("failed", "Slurm: FAILED: ImportError: No module named 'framework'"),
    ]
    assert f"log: {folders[0].root / job_id(folders[0])}_0_log.err" in capsys.readouterr().out


def test_cancel_ends_these_jobs_and_no_other(
    project: FakeProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that runs, and one that is held."""
    stranger = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 60").strip()
    done, running, waiting = (project.plan(use_case=n, sleep_s=0.1 if n == 1 else 60) for n in (1, 2, 3))
    [first] = project.submit(done, executor="slurm")
    assert follow([first], project.results) == 0
    held = project.with_cluster(sbatch_options=["--hold"])
    [second] = project.submit(running, executor="slurm")
    wait_for(lambda: state_of(project, second).heartbeat is not None, "the first heartbeat")
    [third] = held.submit(waiting, executor="slurm")
    assert state_of(project, third).reason == "JobHeldUser"

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


def test_a_refusal_stops_no_other_job_and_is_not_asked_for_again_after_three(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After three in a row, which the job that is taken interrupts."""
    monkeypatch.setattr(sys, "argv", ["main.py", "--preset", "full"])
    first, *others = (project.plan(gpu="h100", use_case=number) for number in range(1, 11))
    with pytest.raises(SubmissionError) as refusal:
        project.submit(first, project.plan(gpu="a100"), *others, executor="slurm")
    assert capsys.readouterr().err == ""  # said once, in the error
    [submitted] = project.results.job_folders()
    words = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    assert str(refusal.value).splitlines() == [
        f"Submitted 1 of 11 jobs: a100/torch_mnist_3 (job {job_id(submitted)}).",
        *(f"  h100/torch_mnist_{number}: {words}" for number in range(1, 5)),
        f"  not tried after that: {', '.join(f'h100/torch_mnist_{number}' for number in range(5, 10))}, and 1 more",
        "Correct `cluster` or `gpus` in experiments.yaml, or wait for the end of some jobs if these "
        "are too many, and run the same command again: python main.py --preset full",
    ]
    assert follow([submitted], project.results) == 0


def test_states_of_known_and_unknown_jobs(project: FakeProject, slurm: Cluster) -> None:
    done = slurm.run("sbatch", "--parsable", "--wait", "--output=/dev/null", "--wrap", "true").strip()
    assert subprocess.run(["sacct"], capture_output=True).returncode == 1  # there is no accounting here
    states = slurm_states.query([done, "4000000"])
    assert {job: state.name for job, state in states.items()} == {done: "COMPLETED"}
    assert slurm_states.query(["4000000"]) == {}


def test_blanks_percent_signs_and_hashes_in_the_header_of_a_script_by_hand(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "jax vs torch"
    (project / "jax_runner").mkdir(parents=True)
    (project / "jax_runner/run.py").write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:])\n")
    results = tmp_path / "50% of #1"
    text = MINIMAL.replace("/opt/jax/bin/python", sys.executable).replace(
        "  time_limit_minutes: 30\n", "  time_limit_minutes: 7\n  sbatch_options: ['--comment=two \"words\" #1']\n"
    )
    config = config_of(text, project)
    jobs = [QueueJob.of(pair) for pair in expand(config, Selection())]
    path = project / "experiments.yaml"
    scripts = write_scripts(jobs, config, config_path=path, results=results, repository=project)
    monkeypatch.chdir("/")
    job = slurm.run("sbatch", "--parsable", str(scripts["any/jax_mnist_1"])).strip()
    said = slurm.run("scontrol", "show", "job", job)
    for expected in ("JobName=jax_mnist_1", "TimeLimit=00:07:00", 'Comment=two "words" #1', "Requeue=1"):
        assert expected in said
    output = results / "slurm" / f"jax_mnist_1-{job}.out"
    wait_for(lambda: output.exists() and "mnist" in output.read_text(), "the job's output")
    expected = f"{project} ['--benchmark', 'mnist', '--use_case', '1', '--results', '{results}']\n"
    assert output.read_text() == expected
