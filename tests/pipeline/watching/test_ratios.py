"""Ratios while the jobs still run: what is new, and what grows."""

from pathlib import Path

import pytest

from harness.paths import Results
from harness.plan import Framework, JobPlan, Screening
from harness.results.record import Record
from pipeline.report.wording import WHOSE_SIDE
from pipeline.watching.ratios import RatiosSoFar
from tests.made.report_records import CELL, passed, plain, record, save, text
from tests.made.report_records import plan as plan_of_modes


def plan(framework: Framework, *modes: str) -> JobPlan:
    return plan_of_modes(framework, *modes).model_copy(update={"screening": Screening(always=())})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(root=tmp_path)


def as_screening(one: Record) -> Record:
    measurement = one.measurement.model_copy(update={"stage": "screening"})
    return one.model_copy(update={"measurement": measurement, "measurement_id": measurement.id})


def test_a_ratio_grows_and_says_what_it_rests_on(results: Results) -> None:
    ratios = RatiosSoFar([plan("jax", "step.jit", "taps.jit"), plan("torch", "step.eager")], results, passed)
    assert ratios.news() == []
    save(as_screening(record("jax", "step.jit", 2000)), results)
    save(as_screening(record("jax", "taps.jit", 2100)), results)
    save(record("jax", "step.jit", 2000), results)
    assert ratios.news() == []  # one framework, and screenings

    save(record("torch", "step.eager", 1000), results)
    [first] = ratios.news()
    assert (
        str(first)
        == "any/mnist_1 cnn-b100-fp32: JAX / PyTorch 2.00 (so far: 1 of at most 12 pairs, no verdict before 4; "
        "step.jit, step.eager)"
    )
    assert ratios.news() == []

    for framework, mode, throughput in (("jax", "step.jit", 2000), ("torch", "step.eager", 1000)):
        save(record(framework, mode, throughput, replicate=1), results)
    [second] = ratios.news()
    two_pairs = "so far: 2 of at most 12 pairs, no verdict before 4"
    assert (second.ratio, second.rests_on) == ("2.00 [2.00, 2.00]", two_pairs)

    # The screening prefers taps, as soon as that has a number.
    save(record("jax", "taps.jit", 1500), results)
    [third] = ratios.news()
    one_pair = "so far: 1 of at most 12 pairs, no verdict before 4"
    assert (third.modes, third.rests_on) == ("taps.jit, step.eager", one_pair)
    console = plain(120)
    console.print(ratios.table())
    assert "1.50" in text(console) and "2.00" not in text(console) and WHOSE_SIDE in text(console)

    for framework, mode, throughput in (("jax", "taps.jit", 1500), ("torch", "step.eager", 1000)):
        for replicate in range(1 if framework == "jax" else 2, 4):
            save(record(framework, mode, throughput, replicate=replicate), results)
    [fourth] = ratios.news()
    assert (fourth.ratio, fourth.rests_on) == ("1.50 [1.50, 1.50]", "JAX faster: after 4 of at most 12 pairs")


def test_other_records_of_the_folder_are_not_shown(results: Results) -> None:
    for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
        save(record(framework, mode, settings={"epochs": 9}), results)
    (results.records(CELL, "jax") / "broken.json").write_text("{")
    assert RatiosSoFar([plan("jax", "step.jit"), plan("torch", "step.eager")], results, passed).news() == []
