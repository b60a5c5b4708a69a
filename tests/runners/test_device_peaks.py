"""The work of device peaks, in both frameworks: what comes out is right, and the record holds what was timed."""

import importlib
import os

import numpy as np
import pytest

from harness.measure import device_peaks as measuring
from harness.measure.channel import Channel
from harness.measure.device_peaks import measure_device_peaks
from harness.measure.gpu import NoGpu
from harness.plan import FRAMEWORKS, Framework
from harness.results.device_peaks import device_peaks

SHORT = {
    "SHAPES_ON_CPU": ((128, 64, 32), (64, 64, 64)),
    "TRIAD_ELEMENTS_ON_CPU": 10_000,
    "WARM_UP_S": 0.001,
    "MEASURED_S": 0.01,
    "BLOCK_S": 0.001,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_products_and_triads_are_of_random_numbers(framework: Framework) -> None:
    """A sum of 512 products of normal numbers has mean 0 and variance 512. b + 3 c has variance 10; b and c are not the
    same, or it would be 16."""
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    runner = importlib.import_module(f"{framework}_runner.device_peaks")
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
    for name, value in SHORT.items():
        monkeypatch.setattr(measuring, name, value)
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    environment = {"framework": device.describe(), "code": {}}
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        channel = Channel(nowhere.fileno())
        record = measure_device_peaks(framework, device, NoGpu("there is none"), environment, channel)
    assert [(one.kind, one.precision, one.shape) for one in record.peaks] == [
        ("product", "fp32", (128, 64, 32)),
        ("product", "fp32", (64, 64, 64)),
        ("triad", "fp32", (10_000,)),
    ]
    assert record.unsupported.keys() == {"tf32", "bf16", "fp16"}
    found = device_peaks([record])
    assert found.bytes_per_s is not None and found.bytes_per_s.by_framework.keys() == {framework}
    assert record.environment["framework"]["name"] == framework
