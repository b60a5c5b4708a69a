"""The ratio that W&B's summary has while a job runs: whose records it takes, and which way up it is."""

from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from harness.results.partner import LOOK, ratio_so_far
from harness.results.record import Record
from tests.made.report_records import CELL, H200, Gate, record, save

HERE = H200 | {"node": "n1"}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(root=tmp_path)


def ratio(one: Record, results: Results, state: str = "passed") -> float | None:
    return ratio_so_far(one, results, Gate(state)).get("ratio_so_far")


def test_against_the_fastest_mode_that_is_there_and_the_same_way_up(results: Results) -> None:
    jax = record("jax", "step.jit", 3000, environment=HERE)
    assert ratio(jax, results) is None
    save(record("torch", "step.eager", 1000, environment=HERE), results)
    assert ratio(jax, results) == pytest.approx(3.0)
    save(record("torch", "step.compiled", 2000, environment=HERE), results)
    assert ratio(jax, results) == pytest.approx(1.5)
    save(jax, results)
    assert ratio(record("torch", "step.eager", 1500, environment=HERE), results) == pytest.approx(2.0)
    assert ratio(jax, results, "failed") is ratio(jax, results, "unchecked") is None  # by the parity gate


@pytest.mark.parametrize(
    "changes",
    [
        {"replicate": 1},
        {"batch_size": 200},
        {"data": "sample"},
        {"quick": True},
        {"settings": {"epochs": 3}},
        {"environment": HERE | {"node": "n2"}},
        {"flags": {"recompiled": "while it was timed"}},
        {"outcome": "failed"},
        {"cell": CELL.model_copy(update={"use_case": 2, "devices": 2})},
    ],
)
def test_other_work_is_no_partner(changes: dict[str, Any], results: Results) -> None:
    save(record("torch", "step.eager", **{"environment": HERE, **changes}), results)
    assert ratio(record("jax", "step.jit", environment=HERE), results) is None


def test_a_record_that_cannot_be_read_and_an_older_attempt_do_not_count(results: Results) -> None:
    old = record("torch", "step.eager", 9000, environment=HERE, ended_at="2026-11-20T10:00:00+00:00")
    save(old, results)
    path = save(record("torch", "step.eager", 1000, environment=HERE), results)
    path.with_name("cnn-b100-fp32-step.compiled-r0-broken.json").write_text("{")
    assert ratio(record("jax", "step.jit", 3000, environment=HERE), results) == pytest.approx(3.0)


def test_against_the_process_that_it_took_turns_with(results: Results) -> None:
    """Not against the mode that is fastest so far. Blocks are all alike, so that the ratio is that of throughputs."""
    turns = [HERE | {"pairing": {"kind": "interleaved", "turns": name}} for name in ("t1", "t2")]
    save(record("torch", "step.eager", 1000, environment=turns[0]), results)
    save(record("torch", "step.compiled", 2000, environment=turns[1]), results)
    assert ratio(record("jax", "step.jit", 3000, environment=turns[0]), results) == pytest.approx(3.0)


def test_the_last_replicate_of_a_look_brings_the_verdict(results: Results) -> None:
    """1 % more or less about 1.5, once in each order: the fourth of at most 12 pairs is the first look."""
    gate = Gate()
    for replicate, jax in enumerate((1500, 1500.5, 1501, 1500.5)):
        save(record("torch", "step.eager", 1000 + replicate / 10, replicate=replicate, environment=HERE), results)
        one = record("jax", "step.jit", jax, replicate=replicate, environment=HERE)
        found = ratio_so_far(one, results, gate)
        save(one, results)
        if replicate < 3:
            assert found.keys() == {"ratio_so_far"}
    assert found["ratio"] == pytest.approx(1.5003, abs=2e-4)
    assert found["ratio_low"] < 1.5003 < found["ratio_high"] and found["ratio_pairs"] == 4  # type: ignore[operator]
    assert (found["ratio_verdict"], found["ratio_partner"]) == ("JAX faster", "step.eager")
    assert found.keys() == {"ratio_so_far", *LOOK}
