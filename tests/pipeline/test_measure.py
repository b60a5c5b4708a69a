"""How `--wait` ends: with the comparison, the report's page, and the page's path as the last line."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from pipeline.measure import JobFlags, hand_over
from pipeline.submission import render
from pipeline.watching import follow
from pipeline.watching.cancel import cancel
from tests.made.project import FakeProject, alone, make_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProject]:
    project = make_project(tmp_path)
    monkeypatch.setattr(render, "write_scripts", partial(render.write_scripts, repository=project.root))
    yield project
    cancel(project.results)


def wait_for(project: FakeProject, **settings: bool) -> int:
    where = {"config": REPOSITORY / "experiments.yaml", "results": project.results}
    flags = JobFlags(**where, executor="local", pairing="together", dry_run=False, wait=True)
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
