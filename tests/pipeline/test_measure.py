"""How `--wait` ends: with the comparison, the report's page, and the page's path as the last line."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.errors import ConfigError, SubmissionError
from harness.paths import REPOSITORY
from pipeline import measure
from pipeline.measure import JobFlags, hand_over
from pipeline.submission import render
from pipeline.watching import follow
from pipeline.watching.cancel import cancel
from tests.made.faults import programs
from tests.made.project import FakeProject, alone, make_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProject]:
    project = make_project(tmp_path)
    monkeypatch.setattr(render, "write_scripts", partial(render.write_scripts, repository=project.root))
    yield project
    cancel(project.results)


def wait_for(project: FakeProject, fleet: int | None = None, **settings: bool) -> int:
    """Of a fleet, nobody waits."""
    where = {"config": REPOSITORY / "experiments.yaml", "results": project.results, "fleet": fleet}
    executor = "slurm" if fleet else "local"
    flags = JobFlags(**where, executor=executor, pairing="together", dry_run=False, wait=fleet is None)
    plan = project.plan(measurements=1, **settings)
    return hand_over([alone(plan)], project.config, flags, lambda _: print("the comparison"))


def test_the_last_line_is_the_path_of_the_reports_page(
    project: FakeProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a failure, but for whoever stops watching."""
    assert wait_for(project, fail=True) == 1
    *_, comparison, empty, words, path = capsys.readouterr().out.splitlines()
    assert (comparison, empty, words) == ("the comparison", "", "The report, a page for your browser:")
    assert Path(path) == project.results.report / "report.html"
    page = Path(path).read_text()
    assert page.startswith("<!doctype html>") and "mnist" in page

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "_follow_in_lines", interrupted)
    assert wait_for(project) == follow.INTERRUPTED
    assert capsys.readouterr().out.splitlines()[-1] == "the comparison"


def test_there_is_no_page_of_nothing(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    assert wait_for(project, crash=True) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the comparison"
    assert not project.results.report.exists()


def test_a_busy_machine_is_told_before_a_local_run(
    project: FakeProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "busy_machine", lambda: "This machine is busy.")
    assert wait_for(project) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("This machine is busy.") < next(i for i, line in enumerate(lines) if "queued" in line)


def test_a_variable_that_disables_a_compiler_submits_nothing(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=fusion")
    with pytest.raises(ConfigError, match="so nothing is measured"):
        wait_for(project)
    assert not project.results.jobs.exists()


def test_a_node_of_a_fleet_that_is_refused_costs_no_other(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sinfo = 'echo "n1|idle|main*|gpu:2|(null)"; echo "n2|idle|main*|gpu:2|(null)"'
    sbatch = 'case "$*" in *nodelist=n1*) echo "n1 is reserved" >&2; exit 1;; esac; echo "Submitted batch job 7"'
    programs(project.root, sinfo=sinfo, sbatch=sbatch, **dict.fromkeys(("srun", "squeue", "sacct", "scancel"), ":"))
    monkeypatch.setenv("PATH", f"{project.root}:/usr/bin:/bin")
    with pytest.raises(SubmissionError) as refusal:
        wait_for(project, fleet=2)
    words = "Submitted 1 of 2 jobs: any/torch_mnist_3 on n2 (job 7).\n  any/torch_mnist_3 on n1: n1 is reserved\n"
    assert str(refusal.value).startswith(words)
    assert "any/torch_mnist_3: submitted as job 7 on n2" in capsys.readouterr().out
