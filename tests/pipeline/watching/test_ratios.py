"""Ratios while the jobs still run: what is new, and what grows."""

from functools import partial
from pathlib import Path

import pytest

from harness.paths import Results
from harness.plan import Framework, Screening
from pipeline.watching.ratios import RatiosSoFar
from tests.made.constructed_records import as_screening
from tests.made.report_records import CELL, passed, record, save
from tests.made.report_records import plan as plan_of_modes

plan = partial(plan_of_modes, screening=Screening(always=()))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(root=tmp_path)


def test_a_ratio_grows_and_says_what_it_rests_on(results: Results) -> None:
    ratios = RatiosSoFar([plan("jax", "step.jit", "taps.jit"), plan("torch", "step.eager")], results, passed)
    assert ratios.news() == []
    save(as_screening(record("jax", "step.jit", 2000)), results)
    save(as_screening(record("jax", "taps.jit", 2100)), results)
    save(record("jax", "step.jit", 2000), results)
    assert ratios.news() == []  # one framework, and screenings

    save(record("torch", "step.eager", 1000), results)
    [first] = ratios.news()
    of_row = "Train a small CNN (mnist, batch 100, fp32)"
    assert first.sentence == f"{of_row}: so far JAX: 2.00 ×; 1 of at most 12 pairs; step.jit / step.eager"
    assert ratios.of_cell(CELL) == first.short == "so far JAX 2.00 ×"
    assert ratios.news() == [] and ratios.of_several(9) == []

    for framework, mode, throughput in (("jax", "step.jit", 2000), ("torch", "step.eager", 1000)):
        save(record(framework, mode, throughput, replicate=1), results)
    [second] = ratios.news()
    two_pairs = "so far JAX: 2.00 × (2.00 to 2.00); 2 of at most 12 pairs; step.jit / step.eager"
    assert second.sentence == f"{of_row}: {two_pairs}"

    # The screening prefers taps, as soon as that has a number.
    save(record("jax", "taps.jit", 1500), results)
    [third] = ratios.news()
    assert (third.modes, third.short) == ("taps.jit / step.eager", "so far JAX 1.50 ×")

    for framework, mode, throughput in (("jax", "taps.jit", 1500), ("torch", "step.eager", 1000)):
        for replicate in range(1 if framework == "jax" else 2, 4):
            save(record(framework, mode, throughput, replicate=replicate), results)
    [fourth] = ratios.news()
    assert fourth.short == ratios.of_cell(CELL) == "JAX 1.50 × faster"
    assert "JAX 1.50 × faster (1.50 to 1.50); 4 of at most 12 pairs; taps.jit / step.eager" in fourth.sentence


def test_of_several_comparisons_the_line_of_the_job_counts_them(results: Results) -> None:
    both: tuple[tuple[Framework, str], ...] = (("jax", "step.jit"), ("torch", "step.eager"))
    plans = [plan(*one, batch_sizes=(100, 200)) for one in both]
    ratios = RatiosSoFar(plans, results, passed)
    for batch_size, throughput in ((100, 2000.0), (200, 500.0)):
        save(record("jax", "step.jit", throughput, batch_size=batch_size), results)
        save(record("torch", "step.eager", 1000.0, batch_size=batch_size), results)
    found = ratios.news()
    assert ratios.of_cell(CELL) == "JAX ahead in 1 of 2"
    assert [one.short for one in found] == ["so far JAX 2.00 ×", "so far PyTorch 2.00 ×"]
    assert ratios.of_several(1) == found[-1:]


def test_other_records_of_the_folder_are_not_shown(results: Results) -> None:
    for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
        save(record(framework, mode, settings={"epochs": 9}), results)
    (results.records(CELL, "jax") / "broken.json").write_text("{")
    assert RatiosSoFar([plan("jax", "step.jit"), plan("torch", "step.eager")], results, passed).news() == []
