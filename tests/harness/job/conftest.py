"""What the tests of the job run in."""

from pathlib import Path

import pytest

from tests.made.project import BehavingProject, make_behaving_project


@pytest.fixture
def repository(tmp_path: Path) -> BehavingProject:
    return make_behaving_project(tmp_path)
