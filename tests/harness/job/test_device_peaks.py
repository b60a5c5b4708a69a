"""The peaks of a device are measured once for each results folder, before a job's first measurement."""

import pytest

from harness.plan import Pair
from harness.results.device_peaks import read_device_peaks
from tests.made.project import BehavingProject

MODULE = "harness/measure/device_peaks.py"


@pytest.fixture
def project(repository: BehavingProject) -> BehavingProject:
    repository.change(MODULE, ("WARM_UP_S, MEASURED_S = 0.3, 1.0", "WARM_UP_S, MEASURED_S = 0.001, 0.002"))
    return repository


def full(project: BehavingProject, mode: str) -> Pair:
    pair = project.pair((mode,), (mode,), replicates=1)
    return pair.model_copy(update={"jobs": tuple(job.model_copy(update={"quick": False}) for job in pair.jobs)})


def test_they_are_measured_once_and_not_in_a_quick_job(project: BehavingProject) -> None:
    assert project.run(project.pair(replicates=1))[0] == 0
    assert not project.results.device_peaks.exists()

    status, output, _ = project.run(full(project, "well"))
    assert status == 0, output
    assert [output.count(f"{name}: device peaks measured") for name in ("jax", "torch")] == [1, 1]
    peaks = {path: read_device_peaks(path) for path in project.results.device_peaks.glob("*.json")}
    assert sorted(one.framework for one in peaks.values()) == ["jax", "torch"]
    for one in peaks.values():
        assert [(peak.kind, peak.precision) for peak in one.peaks] == [("product", "fp32"), ("triad", "fp32")]
        assert one.unsupported.keys() == {"tf32", "bf16", "fp16"}
        assert one.environment["framework"]["name"] == "fake"
    first = min(record.started_at for record in project.records() if not record.measurement.quick)
    assert max(one.ended_at for one in peaks.values()) <= first

    assert project.run(full(project, "slow"))[0] == 0
    assert {*project.results.device_peaks.glob("*.json")} == peaks.keys()


def test_a_failure_costs_no_measurement(project: BehavingProject) -> None:
    project.rewrite("torch_runner/device_peaks.py", "raise RuntimeError('broken')\n")
    status, output, _ = project.run(full(project, "well"))
    assert status == 0, output
    assert "torch: device peaks not measured: failed: RuntimeError: broken" in output
    assert [path.name.partition("-")[0] for path in project.results.device_peaks.glob("*.json")] == ["jax"]
    assert [record.outcome for record in project.records()] == ["ok", "ok"]
