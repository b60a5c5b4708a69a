"""gpt_nano with one layer, which compiles in a few seconds: every other number is its own."""

from dataclasses import replace

import pytest

from harness.work.benchmarks import enwik8
from harness.work.declared import benchmark, benchmark_names

LAYERS = 1


def use_small_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the benchmark's declaration and of both runners, which read the same table."""
    small = replace(enwik8.SIZES["gpt_nano"], layers=LAYERS)
    monkeypatch.setitem(enwik8.SIZES, "gpt_nano", small)
    models = tuple(size.model(name) for name, size in enwik8.SIZES.items())
    monkeypatch.setattr(enwik8, "BENCHMARK", replace(enwik8.BENCHMARK, models=models))
    assert "enwik8" in benchmark_names() and benchmark("enwik8").model("gpt_nano") == small.model("gpt_nano")
