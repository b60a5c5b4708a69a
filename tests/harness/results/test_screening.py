"""Which modes have replicates, and which is in the ratio: by numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from harness.plan import JobPlan, Measurement, MeasurementSettings, Screening, Variant
from harness.results.record import Record, Result
from harness.results.screening import (
    NOISE,
    Screened,
    chosen_mode,
    clearly_faster,
    describe_choice,
    going_on,
    screened,
    still_fastest,
)
from tests.made.records import bare_record, blocks
from tests.made.report_records import plan, with_result


@pytest.mark.parametrize(
    ("throughputs", "noise", "kept"),
    [
        ((1000.0,), 0.02, [0]),
        ((), 0.02, []),
        # z of 0.95 is 1.6449, so log(1000 / x) may be 1.6449 * sqrt(2) * 0.02 = 0.04652: 954.5.
        ((1000, 954.6), 0.02, [0, 1]),
        ((1000, 954.4), 0.02, [0]),
        # Two others: z of 0.975 is 1.9600, so 0.05544, 946.07.
        ((946.2, 1000, 945.9), 0.02, [0, 1]),
        # The noise of both counts: hypot(0.02, 0.06) * 1.6449 = 0.10403, so a noisy mode may be 9.88 % behind.
        ((901.3, 1000), 0.06, [0, 1]),
        ((901.1, 1000), 0.06, [1]),
    ],
)
def test_what_can_still_be_the_fastest(throughputs: tuple[float, ...], noise: float, kept: list[int]) -> None:
    """`noise`: of the first one."""
    found = {n: Screened(value, 0.02 if n else noise) for n, value in enumerate(throughputs)}
    assert sorted(still_fastest(found)) == kept


def test_noise_is_that_of_the_blocks_and_a_least_one() -> None:
    # Sorted 0.8, 0.9, 1.0, 1.1, 1.2: the quartiles are 0.9 and 1.1, the median 1.
    found = screened(Result(blocks=blocks([1.0, 0.8, 1.2, 0.9, 1.1], calls=10, samples=2)))
    assert found.throughput_samples_per_s == pytest.approx(20)
    assert found.noise == pytest.approx(0.2 / 1.349)
    assert screened(Result(blocks=blocks([1.0, 1.0, 1.001]))).noise == NOISE
    assert screened(Result(blocks=blocks([1.0, 1.0]), recompiles=1)) is None
    assert screened(Result()) is screened(None) is None


# The variants that go on.


def variant(mode: str, **changes: Any) -> Variant:
    return Variant(model="cnn", precision="fp32", execution_mode=mode, **({"batch_size": 64} | changes))


def result_of(measurement: Measurement, throughput: float | str) -> Record:
    if isinstance(throughput, str):
        return bare_record(measurement, throughput)
    return bare_record(measurement, result=Result(blocks=blocks([20 / throughput] * 5, calls=10, samples=2)))


def plan_with(*variants: Variant) -> JobPlan:
    screening = Screening(always=("step.jit",), many_steps=("scan.jit", "scan.jit_graph"))
    return plan("jax", variants=variants, screening=screening)


@pytest.mark.parametrize(
    ("throughputs", "without", "going"),
    [
        # The headline and the fastest. Many steps in a call have a contest of their own.
        ({"step.jit": 500, "a": 1000, "scan.jit": 9e3, "scan.jit_graph": 8e3}, "", ["step.jit", "a", "scan.jit"]),
        # What has no number does not go on, and what is not screened does.
        ({"step.jit": "out_of_memory", "a": "failed", "b": 1000, "c": 10, "d": 100}, "c", ["b", "c"]),
    ],
)
def test_which_modes_go_on(throughputs: dict[str, float | str], without: str, going: list[str]) -> None:
    """`without`: a mode that was not screened yet."""
    plan = plan_with(*map(variant, throughputs))
    records = {
        one.variant.key: result_of(one, throughputs[one.variant.execution_mode])
        for one in plan.screenings()
        if one.variant.execution_mode != without
    }
    assert [one.execution_mode for one in going_on(plan, records)] == going


def test_contests_of_other_work_are_apart_and_need_a_choice() -> None:
    both = [variant(mode, batch_size=size) for size in (64, 256) for mode in ("step.jit", "taps.jit")]
    both.insert(2, variant("step.jit", batch_size=128))
    plan = plan_with(*both)
    screened = [f"cnn-b{size}-fp32-{mode}.jit-screening" for size in (64, 256) for mode in ("step", "taps")]
    assert [one.key for one in plan.screenings()] == screened
    found = {one.variant.key: result_of(one, 1000 if "step" in one.key else 10) for one in plan.screenings()}
    going = going_on(plan, found)
    assert [one.key for one in going] == ["cnn-b64-fp32-step.jit", "cnn-b128-fp32-step.jit", "cnn-b256-fp32-step.jit"]
    assert list(describe_choice(plan, found, going)) == [
        "cnn-b64-fp32: 1 of 2 modes go on: step.jit",
        "cnn-b256-fp32: 1 of 2 modes go on: step.jit",
    ]
    everything = list(plan.measurements())
    assert [one.stage for one in everything] == ["screening"] * 4 + ["replicate"] * 60
    assert len({one.id for one in everything}) == 64


def test_of_one_program_under_several_names_the_headline_or_the_first_goes_on() -> None:
    """Two digests are one program each; `alone` says none, and `other` failed, so that its digest says nothing."""
    programs = {"taps.jit": "p", "step.jit": "p", "a": "q", "b": "q", "alone": None, "other": "q"}
    plan = plan_with(*map(variant, programs))
    records = {}
    for one in plan.screenings():
        mode = one.variant.execution_mode
        details = {"program": programs[mode]} if programs[mode] else {}
        found = result_of(one, "failed" if mode == "other" else 1000)
        records[one.variant.key] = found if found.result is None else with_result(found, details=details)
    going = going_on(plan, records)
    assert [one.execution_mode for one in going] == ["step.jit", "a", "alone"]
    assert list(describe_choice(plan, records, going)) == [
        "cnn-b64-fp32: 3 of 6 modes go on: step.jit, a, alone",
        "cnn-b64-fp32-taps.jit: the same program as step.jit, which stands for both",
        "cnn-b64-fp32-b: the same program as a, which stands for both",
    ]


def test_a_screening_is_short_and_has_an_id_of_its_own() -> None:
    plan = plan_with(variant("step.jit"), variant("taps.jit"))
    screening, replicate = next(plan.screenings()), next(plan.replicates())
    assert screening.replicate == replicate.replicate == 0 and screening.id != replicate.id
    assert replicate.timing is replicate.protocol == screening.protocol
    assert (screening.timing.max_time_s, screening.timing.max_blocks, screening.timing.idle_s) == (3.0, 20, 0.0)
    short = {"warmup_s": 0.1, "min_blocks": 3, "max_blocks": 3, "target_noise": 0.5, "max_time_s": 1.0}
    plan = plan.model_copy(update={"protocol": MeasurementSettings(**short)})  # does not become longer
    assert next(plan.screenings()).timing.model_dump().items() >= short.items()
    plan = plan.model_copy(update={"screening": None})
    assert list(plan.screenings()) == [] and going_on(plan, {}) == plan.variants


# The mode that is in the ratio.


def replicates(*logs: float) -> dict[int, float]:
    return {number: math.exp(value) for number, value in enumerate(logs)}


def test_the_screening_chooses_not_the_luckiest_replicates() -> None:
    throughputs = {"a": replicates(0.00, 0.02, 0.01), "b": replicates(0.01, 0.00, 0.03)}
    assert chosen_mode(throughputs, {"a": 101.0, "b": 100.0}) == "a"
    assert chosen_mode(throughputs, {"a": 100.0, "b": 101.0}) == "b"
    # A mode that was not screened: by the medians, 0.01 of a and 0.01 of c; b has 0.01 too, so the first.
    assert chosen_mode({"a": replicates(0.0, 0.5, 0.1), "b": replicates(0.2, 0.2, 0.0)}, {"a": 9.0}) == "b"


@pytest.mark.parametrize(("shift", "expected"), [(-0.0026, "b"), (-0.0028, None)])
def test_three_standard_errors_of_all_modes_together_contradict_a_screening(shift: float, expected: str | None) -> None:
    """Three modes. By numpy the standard error is 0.005774, so a lead must be above 0.01732; b's is 0.02 and the shift,
    which is no noise."""
    logs = np.array([[0.0, 0.01, -0.01], [0.03, 0.02, 0.01], [-0.05, -0.05, -0.08]])
    residuals = logs - logs.mean(1, keepdims=True) - logs.mean(0, keepdims=True) + logs.mean()
    assert math.sqrt((residuals**2).sum() / 4 * 2 / 3) == pytest.approx(0.0057735, abs=1e-7)
    logs[1] += shift
    throughputs = {name: replicates(*values) for name, values in zip("abc", logs, strict=True)}
    assert clearly_faster(throughputs, "a") == expected
    assert chosen_mode(throughputs, {"a": 3.0, "b": 2.0, "c": 1.0}) == (expected or "a")
    assert clearly_faster(throughputs, "c") == "b" and clearly_faster(throughputs, "b") is None
    # Two replicates in common, and a mode alone, contradict nothing.
    unequal = {"a": replicates(0.0, 0.001, 0.0), "b": {0: 3.0, 1: 3.0, 7: 3.0}}
    assert clearly_faster(unequal, "a") is clearly_faster({"a": replicates(1, 1, 1)}, "a") is None
