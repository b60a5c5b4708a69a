"""`cluster.stage_environment` on a real Slurm, whose two nodes share one disk here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.experiments.model import FrameworkConfig
from harness.plan import FRAMEWORKS, Framework, Launch
from pipeline.watching.follow import follow
from tests.harness.job.test_several_ranks import read_pids
from tests.harness.job.test_staging import small_venv
from tests.made.project import BehavingProject, make_behaving_project
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, state_of, wait_for

pytestmark = pytest.mark.slurm


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return small_venv(tmp_path / "venv")


@pytest.fixture
def project(
    slurm: Cluster, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BehavingProject]:
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))
    both: dict[Framework, FrameworkConfig] = dict.fromkeys(FRAMEWORKS, FrameworkConfig(python=launch.python))
    yield make_behaving_project(tmp_path).with_cluster(frameworks=both, stage_environment=True)
    slurm.cancel_all()


def copies(project: BehavingProject) -> list[Path]:
    return list((project.root / "disk").glob("staged-environment-*"))


def test_each_job_has_its_copy_of_one_archive(
    project: BehavingProject, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    interpreters = []
    for _ in range(2):
        pair = project.pair(replicates=1, launch=launch, force=True)
        pair = pair.model_copy(update={"jobs": tuple(plan.model_copy(update={"launch": launch}) for plan in pair.jobs)})
        assert follow(project.submit_pairs(pair, executor="slurm"), project.results) == 0
        [archive] = (project.root / "venv").glob("packed-*")
        records = [record for record in project.records() if record.environment["interpreter"] not in interpreters]
        for record in records:
            assert record.environment["staged"] == {"from": f"{project.root}/venv", "archive": archive.name}
        [interpreter] = {record.environment["interpreter"] for record in records}
        assert interpreter.startswith(f"{project.root}/disk/staged-environment-")
        interpreters.append(interpreter)
        assert copies(project) == []
    assert capsys.readouterr().out.count("packs ") == 1


def test_on_two_nodes_a_stop_removes_the_copy_and_the_next_start_has_its_own(
    project: BehavingProject, launch: Launch, slurm: Cluster
) -> None:
    plan = project.plan("all_gated", devices=2, nodes=2).model_copy(update={"launch": launch})
    [folder] = project.submit(plan, executor="slurm")
    read_pids(project, 2)
    [first] = copies(project)
    slurm.run("scancel", "--batch", "--signal=USR2", job_id(folder))
    wait_for(lambda: state_of(project, folder).state == "requeued", "the job back in the queue")
    assert copies(project) == []
    project.gate.touch()
    assert follow([folder], project.results) == 0
    [record] = project.records()
    assert {rank.node for rank in record.ranks} == {"n1", "n2"}
    assert record.environment["interpreter"].startswith(f"{project.root}/disk/staged-environment-")
    assert not record.environment["interpreter"].startswith(str(first))
    assert copies(project) == []


def test_without_room_the_environment_is_used_where_it_is(project: BehavingProject, launch: Launch) -> None:
    project.change("harness/job/staging.py", ('".zst": 2.5, ".tar": 1.05', '".zst": 1e12, ".tar": 1e12'))
    plan = project.plan("well").model_copy(update={"launch": launch})
    [folder] = project.submit(plan, executor="slurm")
    assert follow([folder], project.results) == 0
    [record] = project.records()
    assert record.environment["interpreter"] == launch.python
    assert " MB of room, and " in record.environment["staged"]["absent"]
    [log] = folder.root.glob("*_log.out")
    assert "warning: stage_environment: the environment is used where it is: " in log.read_text()
    assert copies(project) == []
