"""Ways to get what a fake GPU made among measurements; none of them may work."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import ConfigError, ProjectError, RecordError
from harness.fake_gpu.environment import card_words
from harness.paths import Results
from harness.results.fake_gpu import HEADLINE, LEFT_OUT, found_fakes, require_place
from harness.results.parity_file import read_parity
from harness.results.record import Record, find_settled_record, read_record
from harness.work.cards import card
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.publish import publish
from tests.made.processes import run_python
from tests.made.project import BehavingProject, make_behaving_project, without_slurm
from tests.made.report_records import H200, record, save

FOUND = {"found": ["FAKE_CUDA_CARD is set"], "left_out": LEFT_OUT}
CODE = {"harness": "0" * 16, "runner": "1" * 16, "fake_gpu": "2" * 16}


@pytest.fixture
def project(tmp_path: Path) -> BehavingProject:
    return make_behaving_project(tmp_path / "project")


ON_A_FAKE = {"FAKE_CUDA_CARD": card_words(card("a100"))}


def run(project: BehavingProject, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = project.command(project.job(project.plan("well")))
    assert command[0] == sys.executable
    return run_python(*command[1:], cwd=project.root, env=without_slurm() | variables)


def of_a_fake(results: Results, **environment: object) -> tuple[Path, Record]:
    made = record("torch", "step.eager", 2000, environment=H200 | {"fake_gpu": FOUND, "code": CODE} | environment)
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


def test_a_job_does_not_begin(project: BehavingProject) -> None:
    done = run(project, **ON_A_FAKE)
    assert done.returncode == 2
    assert "this GPU is a fake (FAKE_CUDA_CARD is set)" in done.stderr
    assert not project.results.records().exists()


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


def test_a_record_that_is_moved_counts_as_not_measured(tmp_path: Path) -> None:
    of_fakes, of_measurements = marked(tmp_path / "fakes"), Results(root=tmp_path / "results")
    path, made = of_a_fake(of_fakes)
    assert read_record(path) == made
    assert find_settled_record(made.measurement, of_fakes, None) == path
    shutil.copytree(of_fakes.records(), of_measurements.records())
    assert find_settled_record(made.measurement, of_measurements, None) is None
    status, said = reported(of_measurements)
    assert (status, HEADLINE in said, "2,000" in said) == (1, True, False)
    with pytest.raises(ProjectError, match="has no record of a full measurement"):
        publish(of_measurements, "fakes", tmp_path / "published")


@pytest.mark.parametrize("without", ["fake_gpu", "code"])
def test_each_of_its_two_marks_is_enough(tmp_path: Path, without: str) -> None:
    path, _ = of_a_fake(Results(root=tmp_path), **{without: None})
    with pytest.raises(RecordError, match=HEADLINE):
        read_record(path)


def test_a_report_of_them_begins_with_what_they_are(tmp_path: Path) -> None:
    results = marked(tmp_path / "fakes")
    of_a_fake(results)
    status, said = reported(results)
    assert (status, said.splitlines()[0]) == (0, HEADLINE.upper())
    assert "FAKE NVIDIA H200" in said
    assert f"<h1>{HEADLINE}</h1>" in (results.report / "report.html").read_text()
    assert "FAKE NVIDIA H200" in (results.report / "comparison.csv").read_text()


def test_they_are_not_for_everybody(tmp_path: Path) -> None:
    results = marked(tmp_path / "fakes")
    of_a_fake(results)
    with pytest.raises(ProjectError, match=HEADLINE):
        publish(results, "fakes", tmp_path / "published")
    readme = tmp_path / "README.md"
    readme.write_text("before")
    with pytest.raises(ProjectError, match=HEADLINE):
        report_command(results, ReportOptions(figures=False, readme=readme))
    assert readme.read_text() == "before"
    assert not (tmp_path / "published").exists()


def test_their_folder_takes_no_measurement(project: BehavingProject) -> None:
    project.results.root.mkdir()
    project.results.fake_gpu.touch()
    done = run(project)
    assert (done.returncode, "is for what tests make on a fake GPU" in done.stderr) == (2, True)
    assert not project.results.records().exists()


def test_a_framework_that_runs_on_no_fake_is_refused(project: BehavingProject) -> None:
    """As JAX; here it is what stands in for PyTorch."""
    project.results.root.mkdir()
    project.results.fake_gpu.touch()
    assert run(project, **ON_A_FAKE).returncode == 0
    [made] = project.records()
    assert (made.outcome, made.reason, made.result) == ("refused", "torch does not run on a fake GPU", None)
    assert made.environment["fake_gpu"] == FOUND


def test_a_real_place_is_taken(tmp_path: Path) -> None:
    assert found_fakes() == []
    require_place(Results(root=tmp_path), [])
    require_place(marked(tmp_path / "fakes"), ["FAKE_CUDA_CARD is set"])
    with pytest.raises(ConfigError):
        require_place(Results(root=tmp_path), ["FAKE_CUDA_CARD is set"])


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_nor_is_it_a_ceiling(tmp_path: Path) -> None:
    done = run_python("-m", "harness.job.ceilings", "torch", str(tmp_path / "torch.json"), env=os.environ | ON_A_FAKE)
    assert (done.returncode, "this GPU is a fake" in done.stdout) == (1, True)
    assert not (tmp_path / "torch.json").exists()


def test_only_the_mark_of_its_own_folder_counts(tmp_path: Path) -> None:
    marked(tmp_path / "fakes")
    path, _ = of_a_fake(Results(root=tmp_path / "fakes" / "below"))
    with pytest.raises(RecordError, match=HEADLINE):
        read_record(path)
