"""`cluster.stage_environment` on a real Slurm, whose two nodes share one disk here."""

from pathlib import Path

import pytest

from harness.experiments.model import FrameworkConfig
from harness.plan import FRAMEWORKS, Framework
from pipeline.watching.follow import follow
from tests.harness.job.test_several_ranks import read_pids
from tests.harness.job.test_staging import small_venv
from tests.made.project import BehavingProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, state_of, wait_for


def copies(project: BehavingProject) -> list[Path]:
    return list((project.root / "disk").glob("staged-environment-*"))


def test_each_start_has_its_copy_of_one_archive(
    behaving: BehavingProject, slurm: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job of one process, and one of two nodes, which is stopped and started again."""
    (behaving.root / "disk").mkdir()
    monkeypatch.setenv("TMPDIR", str(behaving.root / "disk"))
    launch = small_venv(behaving.root / "venv")
    both: dict[Framework, FrameworkConfig] = dict.fromkeys(FRAMEWORKS, FrameworkConfig(python=launch.python))
    project = behaving.with_cluster(frameworks=both, stage_environment=True)
    plans = project.plan("well"), project.plan("all_gated", devices=2, nodes=2)
    one, several = (plan.model_copy(update={"launch": launch}) for plan in plans)
    assert follow(project.submit(one, executor="slurm"), project.results) == 0
    [archive] = (project.root / "venv").glob("packed-*")
    assert copies(project) == []

    [folder] = project.submit(several, executor="slurm")
    read_pids(project, 2)
    [stopped] = copies(project)
    slurm.run("scancel", "--batch", "--signal=USR2", job_id(folder))
    wait_for(lambda: state_of(project, folder).state == "requeued", "the job back in the queue")
    assert copies(project) == []
    project.gate.touch()
    assert follow([folder], project.results) == 0
    assert copies(project) == []
    assert capsys.readouterr().out.count("packs ") == 1

    records = project.records()
    assert [record.environment["staged"] for record in records] == 2 * [
        {"from": f"{project.root}/venv", "archive": archive.name}
    ]
    assert {rank.node for rank in records[1].ranks} == {"n1", "n2"}
    interpreters = [str(record.environment["interpreter"]) for record in records]
    assert all(python.startswith(f"{project.root}/disk/staged-environment-") for python in interpreters)
    assert len({*interpreters}) == 2 and not any(python.startswith(str(stopped)) for python in interpreters)
