"""Jobs through a real Slurm that has no accounting: submitted, failing, cancelled, refused."""

import json
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
from tests.made.faults import overlaps
from tests.made.project import BehavingProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, logs, state_of, wait_for


def test_a_pair_is_one_job_that_is_requeued_and_goes_on(
    behaving: BehavingProject, slurm: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in submitit's worker, and inherits nothing of the job from which it is submitted."""
    monkeypatch.setenv("SLURM_JOB_ID", "987654")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    pair = behaving.pair(jax=("well", "gated"), torch=("well",))
    [folder] = behaving.submit_pairs(pair, executor="slurm")
    wait_for((behaving.root / "jax-pid").exists, "the gated measurement")
    number = job_id(folder)
    assert behaving.submit_pairs(pair, executor="slurm") == [folder]  # followed, not submitted again
    # What Slurm got is the rendered script, byte for byte.
    kept = folder.root / f"{number}_submission.sh"
    assert kept.read_text() == (behaving.root / "slurm_scripts/pair_mnist_1.sh").read_text()
    # The signal that Slurm sends 90 s before the time limit, sent by hand to the same script.
    slurm.run("scancel", "--batch", "--signal=USR2", number)
    wait_for(lambda: state_of(behaving, folder).state == "requeued", "the job back in the queue")
    behaving.gate.touch()

    assert follow([folder], behaving.results) == 0, logs(behaving)
    records = behaving.records()
    assert len({record.measurement_id for record in records}) == len(records) == 6  # none twice
    assert overlaps(records) == []
    of_slurm = [record.environment["slurm"] for record in records]
    assert [one["restart_count"] for one in of_slurm] == [0] + [1] * 5
    assert {(one["job_id"], one["job_gpus"]) for one in of_slurm} in ({(number, "0")}, {(number, "1")})
    runs = [record.environment["pairing"] for record in records]
    assert runs == [{"kind": "together", "pair": f"{number}.{min(place, 1)}"} for place in range(6)]
    capsys.readouterr()
    assert behaving.submit_pairs(pair, executor="slurm") == []
    assert capsys.readouterr().out.count("every measurement has a record") == 2


def test_what_fails_in_a_job_is_its_reason_and_cancel_ends_these_jobs_and_no_other(
    behaving: BehavingProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement that fails, and two jobs of which one waits for the other: parallel jobs are counted over
    submissions."""
    stranger = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 60").strip()
    failed, running, waiting = (
        behaving.plan(mode, use_case=n) for n, mode in enumerate(("raises", "gated", "well"), 1)
    )
    [first] = behaving.submit(failed, executor="slurm")
    assert follow([first], behaving.results) == 1
    assert str(state_of(behaving, first).reason).startswith("torch cnn-b8-fp32-raises.eager-r0: KeyError: 'conv9'")
    assert f"log: {first.root / job_id(first)}_0_log.err" in capsys.readouterr().out
    one_lane = behaving.with_cluster(max_parallel_jobs=1)
    [second] = one_lane.submit(running, executor="slurm")
    wait_for(behaving.pid.exists, "the measurement at the gate")
    [third] = one_lane.submit(waiting, executor="slurm")
    assert f"--dependency=afterany:{job_id(second)}" in json.loads(third.submission.read_text())["command"]
    assert state_of(behaving, third).reason == "Dependency"

    assert cancel(behaving.results) == 0
    wait_for(lambda: set(slurm.run("squeue", "-h", "-o", "%i").split()) == {stranger}, "the two jobs to be gone")
    states = job_states(behaving.results, [first, second, third])
    assert [state.state for state in states] == ["failed", "cancelled", "cancelled"]
    beat = states[1].heartbeat
    assert beat is not None and not Path(f"/proc/{beat.pid}").exists()
    out = capsys.readouterr().out
    assert f"any/torch_mnist_2: cancelled job {job_id(second)} (running until now)" in out
    assert f"any/torch_mnist_3: cancelled job {job_id(third)} (queued until now)" in out
    assert "mnist_1: cancelled" not in out


def test_a_job_that_cannot_start_is_failed(behaving: BehavingProject) -> None:
    behaving.rewrite("harness/job/main.py", "raise ImportError(\"No module named 'framework'\")\n")
    [folder] = behaving.submit(behaving.plan(), executor="slurm")
    assert follow([folder], behaving.results) == 1
    state = state_of(behaving, folder)
    assert (state.state, state.reason) == ("failed", "Slurm: FAILED: ImportError: No module named 'framework'")


def test_a_refusal_stops_no_other_job_and_is_not_asked_for_again_after_three(
    behaving: BehavingProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After three in a row, which the job that is taken interrupts."""
    monkeypatch.setattr(sys, "argv", ["main.py", "--preset", "full"])
    first, *others = (behaving.plan(gpu="h100", use_case=number) for number in range(1, 11))
    with pytest.raises(SubmissionError) as refusal:
        behaving.submit(first, behaving.plan(gpu="a100"), *others, executor="slurm")
    assert capsys.readouterr().err == ""  # said once, in the error
    [submitted] = behaving.results.job_folders()
    words = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    assert str(refusal.value).splitlines() == [
        f"Submitted 1 of 11 jobs: a100/torch_mnist_1 (job {job_id(submitted)}).",
        *(f"  h100/torch_mnist_{number}: {words}" for number in range(1, 5)),
        f"  not tried after that: {', '.join(f'h100/torch_mnist_{number}' for number in range(5, 10))}, and 1 more",
        "Correct `cluster` or `gpus` in experiments.yaml, or wait for the end of some jobs if these "
        "are too many, and run the same command again: python main.py --preset full",
    ]
    assert follow([submitted], behaving.results) == 0


def test_states_of_known_and_unknown_jobs(behaving: BehavingProject, slurm: Cluster) -> None:
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
