"""Ceilings by hand-worked times."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RecordError
from harness.plan import Framework
from harness.results.ceilings import (
    Ceiling,
    CeilingsRecord,
    attainable,
    datasheet,
    read_ceilings,
    write_ceilings,
)
from tests.made.records import blocks

CUBE = (1000, 1000, 1000)


def ceiling(kind: Any, call_s: float, *shape: int, **more: Any) -> Ceiling:
    made_of = {"kind": kind, "precision": "fp32", "shape": shape, "blocks": blocks([10 * call_s] * 3)}
    return Ceiling.model_validate(made_of | more)


product, triad, all_reduce = (partial(ceiling, kind) for kind in ("product", "triad", "all_reduce"))


def made(framework: Framework, *ceilings: Ceiling, minute: int = 0) -> CeilingsRecord:
    return CeilingsRecord(
        framework=framework,
        started_at="2026-11-21T10:00:00+00:00",
        ended_at=f"2026-11-21T10:{minute:02}:00+00:00",
        environment={"gpu": {"name": "NVIDIA H200"}, "framework": {"platform": "gpu"}},
        ceilings=list(ceilings),
    )


def test_best_of_all_shapes_and_frameworks() -> None:
    """JAX: 2e9 in 1 ms, and 16e9 in 4 ms. PyTorch: 2e9 in 0.52 ms."""
    jax = made("jax", product(1e-3, *CUBE), product(4e-3, 2000, 2000, 2000), triad(1e-3, 10**6))
    torch = made("torch", product(0.52e-3, *CUBE), product(1e-4, *CUBE, precision="bf16"))
    found = attainable([jax, torch])
    assert found.operations_per_s["fp32"].by_framework == pytest.approx({"jax": 4e12, "torch": 2e9 / 0.52e-3})
    assert found.peak("fp32") == pytest.approx(4e12)
    assert found.operations_per_s["fp32"].differ  # 3.85 is 4 % less than 4
    assert found.peak("bf16") == pytest.approx(2e13) and not found.operations_per_s["bf16"].differ
    assert found.peak("tf32") is None
    assert found.bytes_per_s is not None and found.bytes_per_s.best == pytest.approx(12e9)
    newer = made("jax", product(1e-3, *CUBE), minute=5)  # of a framework the newest counts
    assert attainable([newer, jax]).peak("fp32") == pytest.approx(2e12)


def test_a_record_is_written_and_read(tmp_path: Path) -> None:
    record = made("jax", triad(1e-6, 1000))
    write_ceilings(record, tmp_path / "one.json")
    assert read_ceilings(tmp_path / "one.json") == record
    for text in ("{}", "[" * 10_000):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(RecordError, match="odd.json"):
            read_ceilings(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("device", "name", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756e12),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti", None),
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA H200 MIG 1g.18gb", None, None),
        ("NVIDIA A100-PCIE-40GB", None, None),
    ],
)
def test_datasheet_of_a_name(device: str, name: str | None, bf16: float | None) -> None:
    found = datasheet(device)
    assert (found and found.name, found and found.per_s("bf16")) == (name, bf16)


def test_an_all_reduce_has_bus_bandwidth_beside_the_ceilings_of_one_device() -> None:
    """Of 8 devices each sends 2 * 7 / 8 of its 4 MB: 7 MB in 1 ms. A later record of it replaces no products."""
    of_one, of_two = product(1e-3, *CUBE), all_reduce(1e-3, 10**6, devices=2)
    of_eight = [all_reduce(1e-3, 10**6, devices=8), all_reduce(1e-4, 10**3, devices=8)]
    found = attainable([made("jax", of_one), made("jax", *of_eight, minute=1), made("jax", of_two, minute=2)])
    assert found.peak("fp32") == pytest.approx(2e12) and found.bytes_per_s is None
    assert {key: one.best for key, one in found.all_reduce.items()} == pytest.approx(
        {(2, 4 * 10**6): 4e9, (8, 4000): 7e7, (8, 4 * 10**6): 7e9}
    )
