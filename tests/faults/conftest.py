"""What a hostile machine, a hostile cluster and a clumsy user could do: each test is one kind of fault.

    make test-faults

`make test` runs those of test_quick.py. What they have in common: what the user sees is said, no record is lost or made
twice, nothing hangs, and nothing is left behind.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.watching.cancel import cancel
from tests.made.project import BehavingProject, make_behaving_project
from tests.slurm.conftest import slurm

__all__ = ["slurm"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[BehavingProject]:
    made = make_behaving_project(tmp_path)
    yield made
    made.gate.touch()
    cancel(made.results)
