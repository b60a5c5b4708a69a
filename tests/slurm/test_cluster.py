"""Nothing of a run of the tests outlives it, whichever way it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from tests.made.guardian import pids_of
from tests.made.patience import wait_until
from tests.made.processes import words_of
from tests.slurm.cluster import Cluster

TEST = """\
import os, subprocess, time
from pathlib import Path
from tests.made.guardian import MARK

def test_sleeps(slurm):
    for job, how in (("one", ""), ("two", "env -i")):
        slurm.run("sbatch", "--output=/dev/null", "--wrap", f"touch {job}; exec {how} sleep 3601")
    subprocess.Popen(["sleep", "3602"], start_new_session=True)
    while not (Path("one").exists() and Path("two").exists()):
        time.sleep(0.1)
    Path("ready.part").write_text(f"{os.getpid()} {Path(os.environ[MARK]).parent}")
    Path("ready.part").rename("ready")
    time.sleep(3603)
"""
RUNNING = ["munged", *2 * ["sleep 3601"], "sleep 3602", "slurmctld", *2 * ["slurmd"], *2 * ["slurmstepd"]]


@pytest.mark.parametrize(
    ("workers", "killed", "number"),
    [
        (0, "pytest", signal.SIGKILL),
        (1, "pytest", signal.SIGTERM),
        (1, "pytest", signal.SIGKILL),
        (1, "worker", signal.SIGKILL),
        (1, "everybody", signal.SIGINT),  # Ctrl-C
    ],
)
def test_nothing_outlives_pytest(
    slurm: Cluster, tmp_path: Path, workers: int, killed: str, number: signal.Signals
) -> None:
    (tmp_path / "test_sleeps.py").write_text(TEST)
    plugins = ["-p", "tests.conftest", "-p", "tests.slurm.conftest", f"--numprocesses={workers}"]
    command = [sys.executable, "-m", "pytest", "-c", str(REPOSITORY / "pyproject.toml"), *plugins, "test_sleeps.py"]
    of_this_run = ("PYTEST_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_this_run)}
    environment["PYTHONPATH"] = str(REPOSITORY)
    log = tmp_path / "log"
    with log.open("w") as out:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until((tmp_path / "ready").exists, "both jobs run", log.read_text)
        pid_of_worker, path = (tmp_path / "ready").read_text().split()
        folder = Path(path).parent if workers and killed != "worker" else Path(path)
        commands = [" ".join(words_of(pid)) for pid in pids_of(folder)]
        for name in set(RUNNING):
            assert sum(command.startswith(name) for command in commands) == RUNNING.count(name), f"{name} in {commands}"
        if killed == "everybody":
            os.killpg(run.pid, number)
        else:
            os.kill(int(pid_of_worker) if killed == "worker" else run.pid, number)
        wait_until(lambda: not pids_of(folder), "all of it is gone", log.read_text)
        if killed != "worker":
            run.kill()  # xdist's first process, should it not have ended by itself yet; it has no mark
            run.wait()
        wait_until(lambda: not folder.exists(), "its folder is gone", lambda: f"{sorted(folder.rglob('*'))}")
    finally:
        run.kill()
        run.wait()
