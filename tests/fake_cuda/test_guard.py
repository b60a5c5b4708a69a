"""Nothing that ran on the fake CUDA is recorded as a measurement."""

from pathlib import Path

from harness.results.parity_file import read_parity
from tests.made.processes import run_python
from tests.made.project import make_behaving_project, without_slurm

IS_THE_FAKE = "is the fake CUDA of tests/fake_cuda: nothing is measured on it"


def test_a_measurement_on_the_fake_fails(library: Path, tmp_path: Path) -> None:
    """Its process loads the fake NVML; the job itself loads none of the libraries."""
    project = make_behaving_project(tmp_path / "project")
    command = project.command(project.job(project.plan("well")))
    done = run_python(*command[1:], cwd=project.root, env=without_slurm() | {"LD_LIBRARY_PATH": str(library)})
    assert done.returncode == 1, done.stderr
    [record] = project.records()
    assert (record.outcome, record.result) == ("failed", None)
    assert f"libnvidia-ml.so.1 {IS_THE_FAKE}" in str(record.reason)
    [numbers] = project.results.records().rglob("parity-*.npz")
    assert IS_THE_FAKE in str(read_parity(numbers).metadata.reason)
