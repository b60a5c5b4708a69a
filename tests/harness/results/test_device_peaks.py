"""Device peaks by hand-worked times."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RecordError
from harness.plan import Framework
from harness.results.device_peaks import (
    DevicePeaksRecord,
    Peak,
    device_peaks,
    has_device_peaks,
    read_device_peaks,
    write_device_peaks,
)
from tests.made.records import blocks

CUBE = (1000, 1000, 1000)


def peak(kind: Any, call_s: float, *shape: int, **more: Any) -> Peak:
    made_of = {"kind": kind, "precision": "fp32", "shape": shape, "blocks": blocks([10 * call_s] * 3)}
    return Peak.model_validate(made_of | more)


product, triad = (partial(peak, kind) for kind in ("product", "triad"))


def made(framework: Framework, *peaks: Peak, minute: int = 0) -> DevicePeaksRecord:
    return DevicePeaksRecord(
        framework=framework,
        started_at="2026-11-21T10:00:00+00:00",
        ended_at=f"2026-11-21T10:{minute:02}:00+00:00",
        environment={"gpu": {"name": "NVIDIA H200"}, "framework": {"platform": "gpu"}},
        peaks=list(peaks),
    )


def test_best_of_all_shapes_and_frameworks() -> None:
    """JAX: 2e9 in 1 ms, and 16e9 in 4 ms. PyTorch: 2e9 in 0.52 ms."""
    jax = made("jax", product(1e-3, *CUBE), product(4e-3, 2000, 2000, 2000), triad(1e-3, 10**6))
    torch = made("torch", product(0.52e-3, *CUBE), product(1e-4, *CUBE, precision="bf16"))
    found = device_peaks([jax, torch])
    assert found.operations_per_s["fp32"].by_framework == pytest.approx({"jax": 4e12, "torch": 2e9 / 0.52e-3})
    assert found.peak("fp32") == pytest.approx(4e12)
    assert found.operations_per_s["fp32"].differ  # 3.85 is 4 % less than 4
    assert found.peak("bf16") == pytest.approx(2e13) and not found.operations_per_s["bf16"].differ
    assert found.peak("tf32") is None
    assert found.bytes_per_s is not None and found.bytes_per_s.best == pytest.approx(12e9)
    newer = made("jax", product(1e-3, *CUBE), minute=5)  # of a framework the newest counts
    assert device_peaks([newer, jax]).peak("fp32") == pytest.approx(2e12)


def test_a_record_is_written_and_read(tmp_path: Path) -> None:
    record = made("jax", triad(1e-6, 1000))
    write_device_peaks(record, tmp_path / "one.json")
    assert read_device_peaks(tmp_path / "one.json") == record
    for text in ("{}", "[" * 10_000):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(RecordError, match="odd.json"):
            read_device_peaks(tmp_path / "odd.json")


def test_a_device_is_known_by_its_gpu_or_else_by_its_cpu(tmp_path: Path) -> None:
    """A record that cannot be read, and one of the other framework, count as none."""
    gpu, cpu = {"name": "NVIDIA H200", "mig": False, "memory_total_bytes": 2**37}, {"model": "EPYC"}
    (tmp_path / "jax-odd.json").write_text("{}")
    assert not has_device_peaks(tmp_path, "jax", gpu, cpu)
    record = made("jax", product(1e-3, *CUBE))
    for name, environment in {
        "jax-1": {"gpu": gpu, "cpu": cpu},
        "torch-1": {"gpu": {"absent": ""}, "cpu": cpu},
    }.items():
        of_framework = {"framework": name.partition("-")[0], "environment": environment}
        write_device_peaks(record.model_copy(update=of_framework), tmp_path / f"{name}.json")
    assert has_device_peaks(tmp_path, "jax", gpu, {"model": "another"})
    assert not has_device_peaks(tmp_path, "jax", gpu | {"mig": True}, cpu)
    assert not has_device_peaks(tmp_path, "jax", {}, cpu)
    assert has_device_peaks(tmp_path, "torch", {}, cpu)
    assert not has_device_peaks(tmp_path, "torch", {}, {"model": "another"})
    assert not has_device_peaks(tmp_path, "torch", gpu, cpu)
