"""What the tests of a real Slurm ask about jobs, and the command that they try."""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness.paths import JobFolder
from pipeline.watching.jobs import JobState, job_states
from tests.made.patience import patience, wait_until
from tests.made.project import BehavingProject

wait_for = partial(wait_until, quiet_s=30.0)


def state_of(project: BehavingProject, folder: JobFolder) -> JobState:
    [state] = job_states(project.results, [folder])
    return state


def job_id(folder: JobFolder) -> str:
    return str(json.loads(folder.submission.read_text())["job_id"])


def logs(project: BehavingProject) -> str:
    return "\n".join(f"--- {log}\n{log.read_text()}" for log in project.results.jobs.rglob("*_0_log.*"))


def run_main(root: Path, *arguments: str, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
    """What main.py says in that copy of the repository, on both outputs where that is an error."""
    command = [sys.executable, "main.py", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=patience(200))
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")
