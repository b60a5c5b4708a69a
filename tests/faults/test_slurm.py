"""Faults of jobs in a real Slurm. See conftest.py."""

import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from harness.paths import JobFolder
from pipeline.watching.follow import follow
from pipeline.watching.jobs import job_states
from tests.harness.job.test_several_ranks import read_pids
from tests.made.patience import wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, logs

wait_for = partial(wait_until, quiet_s=60.0)


@pytest.fixture(autouse=True)
def _no_job_left(slurm: Cluster) -> object:
    yield
    slurm.cancel_all()


def gated_pair(project: BehavingProject) -> JobFolder:
    """In Slurm, where JAX's measurement waits for the gate."""
    [folder] = project.submit_pairs(project.pair(jax=("gated",), replicates=1), executor="slurm")
    wait_for((project.root / "jax-pid").exists, "the gated measurement", partial(logs, project))
    return folder


def goes_on(project: BehavingProject) -> None:
    """The same command, with the gate open: what had no record is measured."""
    project.gate.touch()
    assert follow([gated_pair(project)], project.results) == 0, logs(project)
    assert {mode: record.outcome for mode, record in project.by_mode().items()} == {"gated": "ok", "well": "ok"}


def test_the_controller_is_away_while_a_job_runs(project: BehavingProject, slurm: Cluster) -> None:
    """The allocation is kept, and no measurement is lost: srun waits, and where it does not, the job does."""
    modes = ("all_gated", "well", "prints_much")
    [folder] = project.submit(project.plan(*modes, devices=2, nodes=2), executor="slurm")
    read_pids(project, 2)
    slurm.stop_controller()
    try:
        [state] = job_states(project.results, [folder])
        assert state.state == "running"
        project.gate.touch()
        wait_for(lambda: len(project.records()) == 1, "the first is measured", partial(logs, project))
        time.sleep(15.0)
    finally:
        slurm.start_controller()
    assert follow([folder], project.results) == 0, logs(project)
    assert {mode: record.outcome for mode, record in project.by_mode().items()} == dict.fromkeys(modes, "ok")


def test_a_job_that_is_killed_goes_on_with_the_same_command(project: BehavingProject) -> None:
    """The worker is the job; the measurement dies with it."""
    folder = gated_pair(project)
    child = int((project.root / "jax-pid").read_text())
    os.kill(project.heartbeat(folder).pid, signal.SIGKILL)
    assert follow([folder], project.results) == 1
    wait_for(lambda: not is_alive(child), "the measurement is gone")
    assert project.records() == []
    goes_on(project)


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


def test_a_job_that_waits_in_slurm_for_a_device_gives_it_up(project: BehavingProject) -> None:
    """What Slurm gave to it is its own: who is there hangs, and will not go."""
    project.change("harness/job/turn.py", ("PATIENCE_IN_SLURM_S = 600.0", "PATIENCE_IN_SLURM_S = 2.0"))
    held = "import time; from harness.job.turn import keep_busy; keep_busy(); time.sleep(900)"
    command = shlex.join(project.command(project.job(project.plan("well"))))
    command = f'{sys.executable} -c "{held}" & sleep 1; exec {command}'
    options = [f"--chdir={project.root}", "--gres=gpu:1", f"--output={project.root}/stuck"]
    done = subprocess.run(["sbatch", "--wait", *options, "--wrap", command], capture_output=True)
    said = (project.root / "stuck").read_text()
    assert done.returncode != 0
    assert "still measures on" in said and "Nothing is measured beside it" in said, said
    assert project.records() == []
