"""Faults of jobs in a real Slurm. See conftest.py."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from harness.errors import SubmissionError
from harness.paths import JobFolder
from pipeline.watching.cancel import cancel
from pipeline.watching.follow import follow
from pipeline.watching.jobs import job_states
from tests.harness.job.test_several_ranks import read_pids
from tests.made.faults import overlaps, programs
from tests.made.patience import wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, logs
from tests.slurm.test_several_nodes import BatchJob

pytestmark = pytest.mark.slurm
wait_for = partial(wait_until, quiet_s=60.0)


@pytest.fixture(autouse=True)
def _no_job_left(slurm: Cluster) -> object:
    yield
    slurm.cancel_all()


def gated_pair(project: BehavingProject, *before: str) -> JobFolder:
    """In Slurm, where JAX's measurement waits for the gate."""
    [folder] = project.submit_pairs(project.pair(jax=(*before, "gated"), replicates=1), executor="slurm")
    wait_for((project.root / "jax-pid").exists, "the gated measurement", partial(logs, project))
    return folder


def goes_on(project: BehavingProject) -> None:
    """The same command, with the gate open: what had no record is measured."""
    project.gate.touch()
    assert follow([gated_pair(project)], project.results) == 0, logs(project)
    assert sorted(measured(project)) == [("jax", "gated", "ok"), ("torch", "well", "ok")]


def measured(project: BehavingProject) -> list[tuple[str, str, str]]:
    return [
        (record.measurement.framework, record.measurement.variant.execution_mode.removesuffix(".eager"), record.outcome)
        for record in project.records()
    ]


def test_the_controller_dies_while_a_job_runs(project: BehavingProject, slurm: Cluster) -> None:
    """The next measurement begins all the same: the job asks nobody."""
    folder = gated_pair(project)
    slurm.stop_controller()
    try:
        [state] = job_states(project.results, [folder])
        assert state.state == "running"
        project.gate.touch()
        wait_for(lambda: len(project.records()) == 2, "both are measured", partial(logs, project))
    finally:
        slurm.start_controller()
    assert follow([folder], project.results) == 0, logs(project)
    assert measured(project) == [("jax", "gated", "ok"), ("torch", "well", "ok")]


def test_the_controller_is_away_when_a_step_begins(project: BehavingProject, slurm: Cluster) -> None:
    """The allocation is kept, and no measurement is lost: srun waits, and where it does not, the job does."""
    plan = project.plan("all_gated", "well", "prints_much", devices=2, nodes=2)
    job = BatchJob(project, plan, slurm)
    read_pids(project, 2)
    slurm.stop_controller()
    try:
        project.gate.touch()
        wait_for(lambda: len(project.records()) == 1, "the first is measured", lambda: job.log.read_text())
        time.sleep(15.0)
    finally:
        slurm.start_controller()
    wait_for(lambda: len(project.records()) == 3, "all is measured", lambda: job.log.read_text())
    job.wait()
    assert {mode: record.outcome for mode, record in project.by_mode().items()} == dict.fromkeys(
        ("all_gated", "well", "prints_much"), "ok"
    ), job.log.read_text()


def test_a_number_that_means_another_job(
    project: BehavingProject, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = gated_pair(project)
    thesis = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600").strip()
    mine = job_id(folder)
    folder.submission.write_text(folder.submission.read_text().replace(f'"job_id": "{mine}"', f'"job_id": "{thesis}"'))
    assert job_id(folder) == thesis
    cancel(project.results)
    assert f"nothing to end, as job {thesis} of Slurm is another job by now" in capsys.readouterr().out
    assert set(slurm.run("squeue", "-h", "-o", "%i").split()) == {mine, thesis}


def test_the_answer_of_sbatch_is_lost(
    project: BehavingProject, slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm has the job; nobody knows its number."""
    shim = tmp_path / "shim"
    shim.mkdir()
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    programs(shim, sbatch=f"{shutil.which('sbatch')} --begin=now+600 \"$@\" >/dev/null; echo '{words}' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{shim}:{os.environ['PATH']}")
    with pytest.raises(SubmissionError, match=r"Slurm had taken it as job \d+, which was cancelled"):
        project.submit_pairs(project.pair(), executor="slurm")
    wait_for(lambda: not slurm.run("squeue", "-h"), "no job is left")
    assert project.results.job_folders() == []


def test_a_killed_worker(project: BehavingProject, slurm: Cluster) -> None:
    """It is the job; its measurement dies with it, and the same command goes on."""
    folder = gated_pair(project)
    child = int((project.root / "jax-pid").read_text())
    os.kill(project.heartbeat(folder).pid, signal.SIGKILL)
    assert follow([folder], project.results) == 1
    assert not is_alive(child)
    assert measured(project) == []
    goes_on(project)
    assert overlaps(project.records()) == []


def test_scancel_in_the_middle_of_a_job(project: BehavingProject, slurm: Cluster) -> None:
    folder = gated_pair(project)
    child = int((project.root / "jax-pid").read_text())
    slurm.run("scancel", "--full", "--signal=KILL", job_id(folder))
    slurm.run("scancel", job_id(folder))
    assert follow([folder], project.results) == 1
    wait_for(lambda: not is_alive(child), "the measurement is gone")
    assert project.records() == []
    goes_on(project)


def test_requeue_in_the_middle_of_a_job(project: BehavingProject, slurm: Cluster) -> None:
    """Without a signal in time: what was measured before is not measured again."""
    folder = gated_pair(project, "well")
    slurm.run("scancel", "--signal=KILL", job_id(folder))
    slurm.run("scontrol", "requeue", job_id(folder))
    project.gate.touch()
    wait_for(lambda: len(project.records()) == 3, "all is measured", partial(logs, project))
    assert follow([folder], project.results) == 0, logs(project)
    assert sorted(measured(project)) == [("jax", "gated", "ok"), ("jax", "well", "ok"), ("torch", "well", "ok")]
    assert overlaps(project.records()) == []


def test_a_held_job_says_how_it_goes_on(project: BehavingProject, slurm: Cluster) -> None:
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        folders = project.submit_pairs(project.pair(), executor="slurm")
        slurm.run("scontrol", "hold", job_id(folders[0]))
        reason = str(job_states(project.results, folders)[0].reason)
        assert reason.endswith(f"`scontrol release {job_id(folders[0])}` lets it go on")
        assert cancel(project.results) == 0
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")


def test_where_nothing_may_be_requeued_the_job_stops_and_says_how_it_goes_on(
    project: BehavingProject, slurm: Cluster
) -> None:
    """At its time limit, whose signal comes by hand here: Slurm is not asked for what it would refuse."""
    project = project.with_cluster(requeue=False)
    folder = gated_pair(project)
    slurm.run("scancel", "--batch", "--signal=USR2", job_id(folder))
    assert follow([folder], project.results) == 1
    [state] = job_states(project.results, [folder])
    assert (state.state, state.reason) == (
        "stopped",
        "not requeued; stopped before its end; submit it again and it goes on where it was",
    )
    goes_on(project)


def test_a_rank_that_stops(project: BehavingProject, slurm: Cluster) -> None:
    """Not dead, and never done."""
    job = BatchJob(project, project.plan("all_gated", "well", devices=2, nodes=2, timeout_s=60.0), slurm)
    (_, _), (stopped, _) = read_pids(project, 2)
    os.kill(stopped, signal.SIGSTOP)
    project.gate.touch()
    status, output = job.wait()
    records = project.by_mode()
    assert (status, records["all_gated"].outcome, records["well"].outcome) == (1, "timeout", "ok"), output
    assert not is_alive(stopped)


def test_a_job_that_waits_in_slurm_for_a_device_gives_it_up(project: BehavingProject, slurm: Cluster) -> None:
    """What Slurm gave to it is its own: who is there hangs, and will not go."""
    project.change("harness/job/turn.py", ("PATIENCE_IN_SLURM_S = 600.0", "PATIENCE_IN_SLURM_S = 2.0"))
    held = (
        "import time; from harness.job.turn import keep_busy; keep_busy(); print('busy', flush=True); time.sleep(900)"
    )
    options = [f"--chdir={project.root}", "--gres=gpu:1", f"--output={project.root}/stuck"]
    program = sys.executable
    command = f'{program} -c "{held}" & sleep 1; cd {project.root}; exec {program} -u torch_runner/run.py '
    folder = project.job(project.plan("well"))
    command += f"--job-folder {folder.root} --results {project.results.root}"
    done = subprocess.run(["sbatch", "--wait", *options, "--wrap", command], capture_output=True, text=True)
    said = (project.root / "stuck").read_text()
    assert done.returncode != 0
    assert "still measures on" in said and "Nothing is measured beside it" in said, said
    assert project.records() == []
