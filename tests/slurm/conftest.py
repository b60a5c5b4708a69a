"""One Slurm for all tests of this folder. Without its programs they are skipped, or fail where
REQUIRE_SLURM=1."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.made.project import BehavingProject, make_behaving_project
from tests.slurm.cluster import Cluster, missing_programs, running_cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """In the environment of the tests too: sbatch, squeue and main.py find this cluster and no other."""
    if missing := missing_programs():
        reason = f"Slurm's programs are missing: {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)"
        if os.environ.get("REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with running_cluster() as cluster, pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
                patch.delenv(name)
        for name, value in cluster.environment().items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture
def behaving(slurm: Cluster, tmp_path: Path) -> Iterator[BehavingProject]:
    """Its jobs do not outlive the test."""
    yield make_behaving_project(tmp_path)
    slurm.cancel_all()
