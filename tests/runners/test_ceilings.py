"""The work of the ceilings, in both frameworks: what comes out is right, and the record holds what was timed."""

import importlib
import os
from pathlib import Path

import numpy as np
import pytest

from harness.job import ceilings as job
from harness.plan import FRAMEWORKS, Framework
from harness.results.ceilings import attainable, read_ceilings
from tests.made.processes import run_python


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_products_and_triads_are_of_random_numbers(framework: Framework) -> None:
    """A sum of 512 products of normal numbers has mean 0 and variance 512. b + 3 c has variance 10; b and c are not the
    same, or it would be 16."""
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    runner = importlib.import_module(f"{framework}_runner.ceilings")
    for step, shape, variance in (
        (runner.matrix_product(device, "fp32", (64, 512, 96)), (64, 96), 512),
        (runner.triad(device, 20_000), (20_000,), 10),
    ):
        first = np.asarray(step()).copy()
        assert (first.shape, first.dtype) == (shape, np.float32)
        assert np.asarray(step()) == pytest.approx(first)
        assert first.var() == pytest.approx(variance, rel=0.05) and abs(first.mean()) < 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_measured_on_this_cpu(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SHAPES_ON_CPU", ((128, 64, 32), (64, 64, 64)))
    monkeypatch.setattr(job, "TRIAD_ELEMENTS_ON_CPU", 10_000)
    monkeypatch.setattr(job, "WARM_UP_S", 0.001)
    monkeypatch.setattr(job, "MEASURED_S", 0.01)
    monkeypatch.setattr(job, "BLOCK_S", 0.001)
    said: list[str] = []
    record = job.measured(framework, said.append)
    assert [(one.kind, one.precision, one.shape) for one in record.ceilings] == [
        ("product", "fp32", (128, 64, 32)),
        ("product", "fp32", (64, 64, 64)),
        ("triad", "fp32", (10_000,)),
    ]
    assert record.refused.keys() == {"tf32", "bf16", "fp16"}
    found = attainable([record])
    assert found.bytes_per_s is not None and found.bytes_per_s.by_framework.keys() == {framework}
    assert said[0].startswith("fp32 product 128 x 64 x 32: ")
    assert record.environment["framework"]["name"] == framework


def test_two_processes_reduce_on_this_cpu(tmp_path: Path) -> None:
    """Both frameworks, as a user runs it; the sums are checked before anything is timed."""
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = run_python("main.py", "ceilings", "--devices", "2", "--results", str(tmp_path), env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [read_ceilings(path) for path in sorted((tmp_path / "ceilings").iterdir())]
    assert [one.framework for one in records] == ["jax", "torch"]
    for record in records:
        assert [(one.kind, one.devices, 4 * one.shape[0]) for one in record.ceilings] == [
            ("all_reduce", 2, size) for size in job.ALL_REDUCE_BYTES_ON_CPU
        ]
    assert "all-reduce over 2 devices, 8 MiB: " in done.stdout
