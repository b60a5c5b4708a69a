"""How `--wait` ends: with the comparison, the report's page, and the page's path as the last line."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import ConfigError, ProjectError
from harness.paths import REPOSITORY
from harness.plan import Launch
from pipeline import builds, measure
from pipeline.measure import JobFlags, hand_over
from pipeline.submission import dry_run, render
from pipeline.watching import follow
from pipeline.watching.cancel import cancel
from tests.made.faults import programs
from tests.made.project import BehavingProject, alone, make_behaving_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BehavingProject]:
    project = make_behaving_project(tmp_path)
    monkeypatch.setattr(render, "write_scripts", partial(render.write_scripts, repository=project.root))
    yield project
    cancel(project.results)


def wait_for(project: BehavingProject, mode: str = "well") -> int:
    where = {"config": REPOSITORY / "experiments.yaml", "results": project.results}
    flags = JobFlags(**where, executor="local", pairing="together", dry_run=False, wait=True)
    return hand_over(
        [alone(project.plan(mode, explain=False))], project.config, flags, lambda _: print("the comparison")
    )


def test_the_last_line_is_the_path_of_the_reports_page(
    project: BehavingProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a failure, but for whoever stops watching. That the machine is busy is told before all else."""
    monkeypatch.setattr(measure, "busy_machine", lambda: "This machine is busy.")
    assert wait_for(project, "raises") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("This machine is busy.") < next(i for i, line in enumerate(lines) if "queued" in line)
    *_, comparison, empty, words, path = lines
    assert (comparison, empty, words) == ("the comparison", "", "The report, a page for your browser:")
    assert Path(path) == project.results.report / "report.html"
    page = Path(path).read_text()
    assert page.startswith("<!doctype html>") and "mnist" in page

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "_follow_in_lines", interrupted)
    assert wait_for(project) == follow.INTERRUPTED
    assert capsys.readouterr().out.splitlines()[-1] == "the comparison"


def test_there_is_no_page_of_nothing(project: BehavingProject, capsys: pytest.CaptureFixture[str]) -> None:
    project.rewrite("torch_runner/run.py", "raise ImportError\n")
    assert wait_for(project) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the comparison"
    assert not project.results.report.exists()


def test_a_variable_that_disables_a_compiler_submits_nothing(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=fusion")
    with pytest.raises(ConfigError, match="so nothing is measured"):
        wait_for(project)
    assert not project.results.jobs.exists()


def test_frameworks_for_the_cpu_are_not_submitted_for_a_gpu(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run says so, too. On this machine and for `--gpu cpu` they are right."""
    monkeypatch.setattr(builds, "lacks_cuda", lambda _framework: True)
    monkeypatch.setattr(dry_run, "print_dry_run", lambda *_jobs, beside, **_how: print(*beside))
    programs(project.root, **dict.fromkeys(("sbatch", "srun", "squeue", "sacct", "scancel", "sinfo"), ":"))
    monkeypatch.setenv("PATH", f"{project.root}:/usr/bin:/bin")
    flags = {"config": REPOSITORY / "experiments.yaml", "results": project.results, "wait": False, "pairing": None}

    def submit(executor: Any, *, is_dry: bool, gpu: str = "any", launch: Launch | None = None) -> str:
        plan = project.plan(gpu=gpu).model_copy(update={"launch": launch or Launch()})
        shown = JobFlags(**flags, executor=executor, dry_run=is_dry)
        hand_over([alone(plan)], project.config, shown, lambda _: None)
        return " ".join(capsys.readouterr().out.split())

    words = "torch is installed here for the CPU alone, and the jobs ask for GPUs"
    with pytest.raises(ProjectError, match=f"{words}.*make env LOCK=cuda13 PYTHON=python3.12"):
        submit("slurm", is_dry=False)
    assert words in submit("slurm", is_dry=True)
    for others in ({"gpu": "cpu"}, {"launch": Launch(python="/opt/conda/bin/python")}):
        assert words not in submit("slurm", is_dry=True, **others)
    assert words not in submit("local", is_dry=True)


def test_builds_are_told_apart_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch writes its version.py, and by the plugins of JAX."""
    monkeypatch.setattr(builds, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / name / "__init__.py")))
    (tmp_path / "torch").mkdir()
    for text, lacks in (
        ("cuda: Optional[str] = None", True),
        ("cuda: Optional[str] = '13.0'", False),
        ("cuda = None", True),
        ("hip: Optional[str] = None", False),
    ):
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.15.0'\n{text}\n")
        assert builds.lacks_cuda("torch") == lacks, text
    (tmp_path / "torch" / "version.py").unlink()
    assert not builds.lacks_cuda("torch")
    for plugins, lacks in (([], True), (["xla_cuda13"], False)):
        monkeypatch.setattr(
            builds, "entry_points", lambda group, plugins=plugins: [SimpleNamespace(name=one) for one in plugins]
        )
        assert builds.lacks_cuda("jax") == lacks
    monkeypatch.setattr(builds, "find_spec", lambda _name: None)
    assert not builds.lacks_cuda("jax")
