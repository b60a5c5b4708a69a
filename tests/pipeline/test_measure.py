"""How `--wait` ends: with the comparison, the report's page, and the page's path as the last line."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.errors import DataError
from harness.paths import REPOSITORY
from pipeline.measure import JobFlags, hand_over, require_data
from pipeline.report.page import PAGE_BEGINS
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
    flags = JobFlags(
        config=REPOSITORY / "experiments.yaml",
        results=project.results,
        executor="local",
        pairing="separate",
        dry_run=False,
        wait=True,
    )
    plan = project.plan(measurements=1, **settings).model_copy(update={"data": "sample"})
    return hand_over([alone(plan)], project.config, flags, lambda _: print("the comparison"))


@pytest.mark.parametrize(("settings", "status"), [({}, 0), ({"fail": True}, 1)])
def test_the_last_line_is_the_path_of_the_reports_page(
    project: FakeProject, capsys: pytest.CaptureFixture[str], settings: dict[str, bool], status: int
) -> None:
    assert wait_for(project, **settings) == status
    *_, comparison, empty, words, path = capsys.readouterr().out.splitlines()
    assert (comparison, empty, words) == ("the comparison", "", "The report, a page for your browser:")
    assert Path(path) == project.results.report / "report.html"
    page = Path(path).read_text()
    assert page.startswith(PAGE_BEGINS) and "mnist" in page


def test_there_is_no_page_of_nothing(project: FakeProject, capsys: pytest.CaptureFixture[str]) -> None:
    assert wait_for(project, crash=True) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the comparison"
    assert not project.results.report.exists()


def test_whoever_stops_watching_waits_for_no_page(
    project: FakeProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait_for(project) == 0  # so that there is something to report

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "_follow_in_lines", interrupted)
    capsys.readouterr()
    assert wait_for(project, force=True) == follow.INTERRUPTED
    assert capsys.readouterr().out.splitlines()[-1] == "the comparison"


def test_missing_data_are_reported_before_anything_is_submitted(project: FakeProject, tmp_path: Path) -> None:
    pair = alone(project.plan())
    config = project.config.model_copy(update={"data_dir": str(tmp_path / "nothing")})
    with pytest.raises(DataError, match="the data of mnist are not in .*/nothing. Bring them: python main.py data --b"):
        require_data([pair], config, is_here=True)
    require_data([pair], config, is_here=False)  # of Slurm's nodes, perhaps
    drawn = pair.model_copy(update={"cell": pair.cell.model_copy(update={"benchmark": "synthetic"})})
    require_data([drawn], config, is_here=True)
