"""Ways to get what a fake GPU made among measurements; none of them may work."""

import json
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import ProjectError, RecordError
from harness.fake_gpu.environment import CARD, card_words
from harness.job.ceilings import measured
from harness.paths import Results
from harness.results.fake_gpu import HEADLINE, LEFT_OUT
from harness.results.parity_file import read_parity
from harness.results.record import Record, find_settled_record, read_record
from harness.work.cards import card
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.publish import publish
from tests.made.processes import run_python
from tests.made.project import BehavingProject, make_behaving_project, without_slurm
from tests.made.report_records import H200, record, save

FOUND = {"found": ["FAKE_CUDA_CARD is set"], "left_out": LEFT_OUT}


@pytest.fixture
def project(tmp_path: Path) -> BehavingProject:
    return make_behaving_project(tmp_path / "project")


ON_A_FAKE = {CARD: card_words(card("a100"))}


def run(project: BehavingProject, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = project.command(project.job(project.plan("well")))
    assert command[0] == sys.executable
    return run_python(*command[1:], cwd=project.root, env=without_slurm() | variables)


def of_a_fake(results: Results) -> tuple[Path, Record]:
    made = record("torch", "step.eager", 2000, environment=H200 | {"fake_gpu": FOUND})
    return save(made, results), made


def marked(root: Path) -> Results:
    results = Results(root=root)
    root.mkdir()
    results.fake_gpu.touch()
    return results


def reported(results: Results) -> tuple[int, str]:
    console = Console(file=StringIO(), width=200)
    status = report_command(results, ReportOptions(figures=False), console)
    assert isinstance(console.file, StringIO)
    return status, console.file.getvalue()


def test_a_job_begins_on_a_fake_in_a_marked_folder_alone_and_there_on_nothing_else(project: BehavingProject) -> None:
    """And with a framework that runs on a fake: JAX does not, and here what stands in for PyTorch does not."""
    done = run(project, **ON_A_FAKE)
    assert (done.returncode, "this GPU is a fake (FAKE_CUDA_CARD is set)" in done.stderr) == (2, True)
    project.results.fake_gpu.touch()
    done = run(project)
    assert (done.returncode, "is for what tests make on a fake GPU" in done.stderr) == (2, True)
    assert not project.results.records().exists()
    assert run(project, **ON_A_FAKE).returncode == 0
    [made] = project.records()
    assert (made.outcome, made.reason, made.result) == ("refused", "torch does not run on a fake GPU", None)
    assert made.environment["fake_gpu"] == FOUND


def test_nor_is_anything_submitted() -> None:
    selection = ["--benchmark", "mnist", "--use_case", "1", "--data", "sample", "--quick", "--dry-run"]
    done = run_python("main.py", *selection, env=os.environ | ON_A_FAKE)
    assert (done.returncode, "this GPU is a fake" in done.stderr) == (2, True)


def test_what_only_its_process_loads_makes_a_failed_record_that_nobody_reads(
    project: BehavingProject, library: Path
) -> None:
    """The variable is not set, and the job itself loads no NVML before its first measurement."""
    done = run(project, LD_LIBRARY_PATH=str(library))
    assert done.returncode == 1, done.stderr
    [path] = project.results.records().rglob("*.json")
    content = json.loads(path.read_text())
    assert (content["outcome"], content["reason"], content["result"]) == ("failed", HEADLINE, None)
    assert content["environment"]["fake_gpu"]["found"] == ["libnvidia-ml.so.1 is a fake"]
    with pytest.raises(RecordError, match=HEADLINE):
        read_record(path)
    [numbers] = project.results.records().rglob("parity-*.npz")
    metadata = read_parity(numbers).metadata
    assert (metadata.outcome, metadata.reason) == ("failed", HEADLINE)


def test_a_record_counts_in_a_marked_folder_alone(tmp_path: Path) -> None:
    """There it is read and found again. In a folder below, which has no mark of its own, it is as if it were not."""
    of_fakes, of_measurements = marked(tmp_path / "fakes"), Results(root=tmp_path / "fakes" / "below")
    path, made = of_a_fake(of_fakes)
    assert read_record(path) == made
    assert find_settled_record(made.measurement, of_fakes, None) == path
    shutil.copytree(of_fakes.records(), of_measurements.records())
    assert find_settled_record(made.measurement, of_measurements, None) is None
    status, said = reported(of_measurements)
    assert (status, HEADLINE in said, "2,000" in said) == (1, True, False)
    with pytest.raises(ProjectError, match="has no record of a full measurement"):
        publish(of_measurements, "fakes", tmp_path / "published")


def test_a_report_of_them_begins_with_what_they_are_and_is_not_for_everybody(tmp_path: Path) -> None:
    results, readme = marked(tmp_path / "fakes"), tmp_path / "README.md"
    of_a_fake(results)
    status, said = reported(results)
    assert (status, said.splitlines()[0]) == (0, HEADLINE.upper())
    assert f"<h1>{HEADLINE}</h1>" in (results.report / "report.html").read_text()
    for told in (said, (results.report / "comparison.csv").read_text()):
        assert "FAKE NVIDIA H200" in told
    readme.write_text("before")
    with pytest.raises(ProjectError, match=HEADLINE):
        publish(results, "fakes", tmp_path / "published")
    with pytest.raises(ProjectError, match=HEADLINE):
        report_command(results, ReportOptions(figures=False, readme=readme))
    assert readme.read_text() == "before" and not (tmp_path / "published").exists()


def test_nor_is_it_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv(CARD, ON_A_FAKE[CARD])
    with pytest.raises(ProjectError, match="this GPU is a fake"):
        measured("torch", print)
