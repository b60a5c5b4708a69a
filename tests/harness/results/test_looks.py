"""Which replicates a cell goes on with, from look to look: on records whose ratios are worked out by hand.

The log ratio of replicate n is its row's, and +-0.05 by turns of two, so that each order of start has as many of both.
At four pairs s**2 is 4 * 0.05**2 / 2 = 0.005, and the error sqrt(0.005 / 4) = 0.0353553: 0.3 is 8.49 of these, over
7.649, and 0.25 is 7.07, under. At six the squares of an order are 0.0066667, so the error is
sqrt(2 * 0.0066667 / 4 / 6) = 0.0235702: 0.25 and the third of 0.05 that is left of the turns are 11.3 of these.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from harness.plan import Framework, JobPlan, Measurement, MeasurementSettings, Screening, Variant
from harness.results import looks
from harness.results.looks import Part, needed, rounds
from harness.results.record import Record, Result
from tests.made.records import bare_record, blocks
from tests.made.report_records import CELL, Gate, plan, save

MODES: dict[Framework, tuple[str, ...]] = {
    "jax": ("step.jit", "fast.jit", "other.jit"),
    "torch": ("step.compiled", "step.eager"),
}
"""Of the use case `train`, whose declared pair is step.jit and step.compiled. By the screening fast.jit is JAX's."""
RATIOS = {64: 0.3, 128: 0.25, 256: 0.0}
"""By batch size: of fast.jit over step.compiled. The first is decided at 4 pairs, the second at 6, the third never."""
SCREENED = {"fast.jit": 3.0, "step.jit": 2.0, "other.jit": 1.0, "step.compiled": 2.0, "step.eager": 1.0}


def plan_of(framework: Framework, *sizes: int, most: int = 12, modes: Sequence[str] = (), **changes: Any) -> JobPlan:
    own = {"protocol": MeasurementSettings(replicates=most), "screening": Screening(always=MODES[framework])}
    return plan(framework, *(modes or MODES[framework]), batch_sizes=sizes, **own | changes)


class Machine:
    """Measures at once, and remembers the records. `declared`: of step.jit over step.compiled; decided at 4 pairs
    unless a test has another one."""

    def __init__(self, declared: float = -0.5, *, fails: Callable[[Measurement], bool] = lambda _: False) -> None:
        self.declared, self.fails = declared, fails
        self.records: dict[str, Record] = {}

    def log_rate(self, one: Measurement) -> float:
        noise = 0.05 if one.replicate % 4 < 2 else -0.05
        of_jax = {"step.jit": self.declared, "fast.jit": RATIOS[one.variant.batch_size], "other.jit": -1.0}
        of_torch = {"step.compiled": 0.0, "step.eager": -1.0}
        own = of_jax[mode] + noise if (mode := one.variant.execution_mode) in of_jax else of_torch[mode]
        return own + one.replicate * 1e-9  # no two processes take the same times

    def measure(self, one: Measurement) -> Record:
        is_first = (one.framework == "jax") == (one.replicate % 2 == 0)
        result = Result(blocks=blocks([math.exp(-self.log_rate(one))] * 3))
        self.records[one.id] = bare_record(
            one,
            **({"outcome": "failed"} if self.fails(one) else {"result": result}),
            environment={"scheduler": "local"},
            started_at=f"2026-11-21T10:00:{'00' if is_first else '30'}+00:00",
        )
        return self.records[one.id]

    def find(self, one: Measurement) -> Record | None:
        found = self.records.get(one.id)
        return found if found and found.outcome == "ok" else None


def screened(variant: Variant) -> Result:
    return Result(blocks=blocks([1 / SCREENED[variant.execution_mode]] * 5))


def pair_of(*batch_sizes: int, **changes: Any) -> list[JobPlan]:
    return [plan_of(framework, *batch_sizes, **changes) for framework in ("jax", "torch")]


def measured(plans: Sequence[JobPlan], machine: Machine, state: str = "passed") -> dict[int, list[str]]:
    """By the replicates up to each look: batch size and mode of what is measured, each once."""
    parts = []
    for of in plans:
        records = {v.key: bare_record(next(of.replicates([v])), result=screened(v)) for v in of.variants}
        parts.append(Part(of, records, of.variants))
    found: dict[int, list[str]] = {}
    before = 0
    for replicates in rounds(parts, machine.find, Gate(state)):
        stop = 1 + max(each.replicate for each in replicates)
        names = [f"{each.variant.batch_size} {each.variant.execution_mode}" for each in replicates]
        assert [names.count(name) for name in names] == [stop - before] * len(names)  # all replicates of each
        found[stop], before = sorted(set(names)), stop
        for each in replicates:
            machine.measure(each)
    return found


ALL_OF_64 = ["64 fast.jit", "64 other.jit", "64 step.compiled", "64 step.eager", "64 step.jit"]


def test_only_the_pair_of_an_undecided_row_goes_on() -> None:
    """Of three rows: one until 4 pairs, one until 6, and one until the end. One that is decided needs no more."""
    assert measured(pair_of(64), Machine()) == {4: ALL_OF_64}
    found = measured(pair_of(64, 128, 256), Machine())
    assert list(found) == [4, 6, 8, 12] and len(found[4]) == 15
    of_256 = ["256 fast.jit", "256 step.compiled"]
    assert found[6] == sorted(["128 fast.jit", "128 step.compiled", *of_256])
    assert found[8] == found[12] == of_256
    declared = ["64 step.compiled", "64 step.jit"]  # which goes on for itself
    assert measured(pair_of(64), Machine(declared=0.0)) == {4: ALL_OF_64, 6: declared, 8: declared, 12: declared}


def test_a_failed_replicate_is_made_up_by_a_later_one() -> None:
    """Without r1 there is one pair that PyTorch begins: no look. r5 is the second."""
    machine = Machine(fails=lambda one: one.framework == "jax" and one.replicate == 1)
    assert measured(pair_of(64), machine) == {4: ALL_OF_64, 6: ["64 fast.jit", "64 step.compiled", "64 step.jit"]}


@pytest.mark.parametrize("why", ["failed", "unchecked", "always fails", "doubted"])
def test_what_has_no_ratio_does_not_go_on(why: str) -> None:
    """By the gate, as one of the modes always fails, or as more replicates would be doubted like these."""
    machine = Machine(fails=lambda one: why == "always fails" and one.framework == "torch")
    plans = pair_of(256)
    if why == "doubted":
        unfair = [tuple(v.model_copy(update={"precision": "default"}) for v in of.variants) for of in plans]
        plans = [of.model_copy(update={"variants": own}) for of, own in zip(plans, unfair, strict=True)]
    assert list(measured(plans, machine, why if why in ("failed", "unchecked") else "passed")) == [4]


def test_a_framework_alone_a_calibration_and_what_has_no_looks_have_all_replicates() -> None:
    assert list(measured([plan_of("jax", 64)], Machine())) == [12]
    calibration = CELL.model_copy(update={"is_calibration": True})
    assert list(measured(pair_of(64, cell=calibration), Machine())) == [12]
    assert list(measured(pair_of(256, most=1), Machine())) == [1]


# The same from records on the disk.


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.setattr(looks, "ParityGate", lambda _: Gate())
    return Results(root=tmp_path)


def declared_pair() -> list[JobPlan]:
    """A mode each, which has no screening."""
    return [plan_of("jax", 64, modes=("step.jit",)), plan_of("torch", 64, modes=("step.compiled",))]


@pytest.mark.parametrize(("declared", "counts"), [(0.3, [8]), (0.25, [8, 12])])
def test_the_records_of_a_job_ask_for_the_same_after_a_requeue(
    declared: float, counts: list[int], results: Results
) -> None:
    """`counts`: measurements up to each look. The records of one round ask for the next one, those of all for none."""
    machine, plans = Machine(declared), declared_pair()
    for count in counts:
        asked_for = list(needed(plans, results, "local"))
        assert len(asked_for) == count
        new = [machine.measure(one) for one in asked_for if one.id not in machine.records]
        assert list(needed(plans, results, "local")) == asked_for  # nothing is on the disk yet
        for one in new:
            save(one, results)
    assert [one.id for one in needed(plans, results, "local")] == list(machine.records)
    assert len(list(needed(plans, results, "slurm"))) == 8  # records of a laptop are none of a cluster
    assert len(list(needed(plans[:1], results, "local"))) == 12


def test_what_is_needed_stops_at_a_gap(results: Results) -> None:
    """What comes after a round is not known before all of it has its records; a failed one is to be tried again."""
    machine = Machine(0.0, fails=lambda one: one.key.endswith("step.jit-r2"))
    first = list(needed(declared_pair(), results, "local"))
    for one in first:
        save(machine.measure(one), results)
    assert list(needed(declared_pair(), results, "local")) == first


def test_screenings_come_first_and_choose(results: Results) -> None:
    plans = pair_of(64, screening=Screening(always=("step.jit",)))
    everything = list(needed(plans, results, "local"))
    assert [one.is_screening for one in everything] == [True] * 5 + [False] * 20
    for one in everything[:5]:
        save(bare_record(one, result=screened(one.variant), environment={"scheduler": "local"}), results)
    kept = {one.variant.execution_mode for one in needed(plans, results, "local") if not one.is_screening}
    assert kept == {"fast.jit", "step.jit", "step.compiled"}
