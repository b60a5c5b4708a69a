"""The comparison, from hand-made records whose every number can be worked out: what may be compared, which record
counts, and ratios, intervals and q by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.paths import Results
from harness.plan import FRAMEWORKS
from harness.results.parity import Judgement
from harness.results.predictions import evaluation_of
from harness.results.record import Record
from pipeline.report.answer import place_on_axis
from pipeline.report.command import ReportOptions
from pipeline.report.compare import Comparison, device_name, placed, sections, tally
from pipeline.report.wording import chance_mark, pays_after, times
from tests.made.constructed_records import many_rows, on, replicated
from tests.made.report_records import (
    A100,
    CELL,
    CPU,
    H200,
    csv_lines,
    pair,
    passed,
    record,
    row_of,
    section_of,
    with_result,
)
from tests.pipeline.report.shown import reported

TWO = on(2)


def counted(*found: Record) -> list[Record]:
    return [one for of_setup in placed(found).values() for one in of_setup]


def test_the_fastest_modes_are_compared_with_an_interval() -> None:
    records = []
    # Log ratios of step.jit to cuda_graphs: log 1.25 + 0.01 * (-1, 2, 1, 0); JAX is first in 0 and 2.
    for replicate, noise in enumerate((-0.01, 0.02, 0.01, 0.0)):
        records += [
            record("jax", "step.jit", 5000 * math.exp(noise), replicate=replicate),
            record("jax", "scan.jit", 3000, replicate=replicate),
            record("torch", "step.eager", 2000, replicate=replicate),
            record("torch", "cuda_graphs", 4000, replicate=replicate),
        ]
    row = row_of(records)
    assert [mode.execution_mode for mode in row.modes] == ["step.jit", "scan.jit", "cuda_graphs", "step.eager"]
    medians = [5000 * math.exp(0.005), 3000, 4000, 2000]
    assert [mode.throughput_samples_per_s for mode in row.modes] == pytest.approx(medians, rel=1e-4)
    ratio = row.ratio
    # The means of the two orders are 0 and 0.01; four squares of 0.01, over 2 degrees of freedom and 4 pairs, have the
    # root 0.01 / sqrt(2), of which the first look of at most 12 pairs reaches 7.649.
    reach = 7.649 * 0.01 / math.sqrt(2)
    assert ratio.value == pytest.approx(1.25 * math.exp(0.005))
    assert ratio.interval == pytest.approx([ratio.value * math.exp(sign * reach) for sign in (-1, 1)])
    assert (ratio.verdict, ratio.replicates, ratio.at_most) == ("JAX faster", 4, 12)
    # Latency: 95 calls of 12 ms, 105 of 50 ms: the median and the 95th percentile are 50 ms.
    assert row.modes[0].numbers["step_time_p50_s"] == pytest.approx(0.05)
    assert row.modes[0].numbers["compile_time_s"] == 2.5
    assert row.modes[0].flags == {}


def test_a_pair_tells_how_many_predictions_are_the_same() -> None:
    """Of the fastest modes; where one side has none, nothing is told."""

    def predicting(one: Record, *labels: int) -> Record:
        return with_result(one, evaluation=evaluation_of(np.array(labels), None, "the weights are drawn"))

    ours, theirs = predicting(record("jax", "step.jit"), 1, 2, 3, 4), predicting(record("torch", "x", 900), 1, 2, 3, 3)
    slower = predicting(record("torch", "step.eager", 800), 1, 2, 3, 4)
    sentence = "Of 4 predictions on the test set, of 4 classes, 75.00% are the same; 1 differ."
    assert row_of([ours, theirs, slower]).comparison.predictions == sentence
    assert row_of([ours, record("torch", "step.eager")]).comparison.predictions is None


def test_only_common_replicates_are_in_a_ratio() -> None:
    """Replicates 1 and 2: 2000/1000 and 3000/1500."""
    jax = [record("jax", "step.jit", 1000 * number, replicate=number - 1) for number in (1, 2, 3)]
    torch = [record("torch", "x", 500 * number, replicate=number - 1) for number in (2, 3, 4)]
    ratio = row_of([*jax, *torch]).ratio
    assert (ratio.value, ratio.replicates) == (pytest.approx(2.0), 2)


def test_devices_without_nvml_and_slices_are_devices_of_their_own() -> None:
    """A JAX for the CPU beside a GPU is on the CPU."""
    without_nvml = {"gpu": {"absent": "no NVML"}, "framework": {"platform": "cuda", "device": "NVIDIA H200"}}
    board: dict[str, Any] = {"name": "NVIDIA H200", "mig": True, "memory_total_bytes": 18 * 2**30}
    named = {"gpu": board, "framework": {"platform": "gpu", "device": "NVIDIA H200 MIG 1g.18gb"}}
    unnamed = {"gpu": board, "framework": {"platform": "gpu"}}
    beside = H200 | {"framework": {"platform": "cpu"}, "cpu": {"model": "Xeon"}}
    every = (H200, without_nvml, named, unnamed, beside)
    found = [record("jax", "step.jit", environment=one | {"scheduler": "slurm"}) for one in every]
    names = ["NVIDIA H200", "NVIDIA H200", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 18.0 GiB", "CPU: Xeon"]
    assert [device_name(one) for one in found] == names
    assert counted(*found) == found[1:]  # the same measurement, on four devices


# Which record of a measurement counts.


def test_the_newest_settled_record_counts() -> None:
    at = [f"2026-11-21T{hour}:00:00+00:00" for hour in (10, 11, 12)]
    failed = record("jax", "step.jit", ended_at=at[2], outcome="failed", reason="node died", result=None)
    records = [record("jax", "step.jit", 1000 * (1 + number), ended_at=at[number]) for number in range(2)]
    section = section_of([*records, failed])
    assert section.rows[0].modes[0].throughputs == {0: pytest.approx(2000)}
    assert section.without_number == ()


def test_what_failed_before_its_device_was_known_is_forgotten_once_it_is_measured() -> None:
    measured = record("jax", "step.jit")
    failed = record("jax", "step.jit", environment={}, outcome="failed", reason="no such file", result=None)
    assert counted(failed, measured) == counted(measured, failed) == [measured]
    assert counted(failed) == [failed]
    refused = failed.model_copy(update={"outcome": "refused"})  # such as a precision that its device does not have
    assert counted(refused) == [refused]
    assert counted(measured, refused) == [measured]
    other = record("torch", "step.eager", environment={}, outcome="failed", reason="no", result=None)
    section = section_of([measured, other])  # it stands beside its cell
    assert (section.setup.device, section.without_number) == ("NVIDIA H200", (other,))


# Parity: a ratio only where the gate has passed the pair.


@pytest.mark.parametrize("state", ["failed", "unchecked"])
def test_a_pair_that_the_gate_did_not_pass_has_no_ratio_and_says_why(state: Any, tmp_path: Path) -> None:
    def judge(jax: Record, torch: Record) -> Judgement:
        assert (jax.measurement.framework, torch.measurement.framework) == ("jax", "torch")
        assert jax.measurement.replicate == torch.measurement.replicate
        return Judgement(state=state, sentence="conv2.kernel differs by 3e-2")

    (section,) = sections(pair(), judge)
    (row,) = section.rows
    assert row.ratio is None and tally([row]).without_ratio == 1
    assert row.why_no_ratio == f"parity {state}: conv2.kernel differs by 3e-2"
    line = csv_lines([section])[0]
    assert (line["parity"], line["ratio_jax_over_torch"], line["verdict"]) == (state, "", "")
    for output in reported(Results(root=tmp_path), *pair(), judge=judge):
        assert "conv2.kernel differs by 3e-2" in output and "1.50" not in output


def test_one_failed_replicate_fails_the_row_and_an_unchecked_one_is_left_out() -> None:
    speeds = {"jax": (3000, 9000, 4500), "torch": (2000, 1000, 2000)}
    found = [one for framework in FRAMEWORKS for one in replicated(framework, "step.jit", *speeds[framework])]

    def compared(*states: Any) -> Comparison:
        def judge(jax: Record, torch: Record) -> Judgement:
            number = jax.measurement.replicate
            return Judgement(state=states[number], sentence=f"replicate {number}")

        (section,) = sections(found, judge)
        return section.rows[0].comparison

    comparison = compared("passed", "unchecked", "passed")
    assert comparison.estimate.value == pytest.approx(math.sqrt(1.5 * 2.25))  # without the 9 of replicate 1
    assert (comparison.estimate.replicates, comparison.replicates) == (2, 3)
    assert comparison.left_out == "1 of 3 replicates, parity unchecked: replicate 1"
    comparison = compared("passed", "passed", "failed")
    assert (comparison.estimate, comparison.judgement.sentence) == (None, "replicate 2")


# Several devices.


def efficiency(*records: Record) -> str:
    """The strong one, of the only line for two devices."""
    (line,) = [line for line in csv_lines(sections([*records], passed)) if line["devices"] == "2"]
    return line["strong_scaling_efficiency"]


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "scan.jit"},
        {"framework": "torch"},
        {"precision": "tf32"},
        {"settings": {"epochs": 3}},
        {"environment": CPU},
        {"quick": True},
        {"data": "sample"},
        {"cell": CELL.model_copy(update={"benchmark": "cifar10"})},
        {"cell": CELL.model_copy(update={"use_case_name": "per_sample_gradients"})},
        {"flags": {"recompiled": "1 compilation"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_scaling_efficiency_is_against_the_same_work_only(change: dict[str, Any]) -> None:
    other = record(**{"framework": "jax", "mode": "step.jit"} | change)
    one, two = record("jax", "step.jit", 1000), record("jax", "step.jit", 1500, cell=TWO)
    assert efficiency(other, two) == ""
    assert float(efficiency(other, one, two)) == pytest.approx(1500 / 2000)


# Names that may be chance.


def p_of(shift: float) -> float:
    """p with two degrees of freedom: 1 - t / sqrt(2 + t**2), t = shift / 0.005; 5 % at the first look's 7.649."""

    def tails(t: float) -> float:
        return 1 - t / math.sqrt(2 + t**2)

    return 0.05 * tails(shift / 0.005) / tails(7.649)


def test_a_name_that_the_bound_drops_is_marked_and_stays() -> None:
    """Of 4 ratios, p is 0.0458, 0.48, 0.75 and 0.0006: named are the first and the last; q of the first is 2 * p."""
    section = section_of(many_rows(0.04, 0.011, 0.008, 0.35))
    first, *_, last = section.rows
    assert first.ratio.verdict == "JAX faster"
    assert first.q == pytest.approx(2 * p_of(0.04)) and last.q == pytest.approx(4 * p_of(0.35))
    assert [bool(chance_mark(row.ratio, row.q)) for row in section.rows] == [True, False, False, False]


def test_another_device_and_sample_data_change_no_q() -> None:
    alone = row_of(many_rows(0.04)).q
    assert alone == pytest.approx(p_of(0.04))
    on_real, _ = sections([*many_rows(0.04), *many_rows(0.001, 0.002, 0.003, data="sample")], passed)
    assert on_real.rows[0].q == alone
    on_a100, on_h200 = sections([*many_rows(0.04), *many_rows(0.001, 0.002, 0.003, environment=A100)], passed)
    assert (len(on_a100.rows), on_h200.rows[0].q) == (3, alone)


# Numbers in words and on the axis.


def test_a_ratio_has_the_decimals_that_its_verdict_needs() -> None:
    expected = {1.25: "1.25", 1.1: "1.10", 0.8: "0.80", 0.0123: "0.0123", 1.0199: "1.020", 0.95: "0.950", 1.0: "1.000"}
    # 1 / 1.01 is 0.990099, and 1.01 the other end of what counts as the same; the last is the machine's own rounding.
    expected |= {1.00046: "1.0005", 0.99996: "0.99996", 1.0101: "1.0101", 0.9902: "0.9902", 0.9901: "0.9901"}
    expected |= {0.99: "0.990", 1 + 1e-12: "1.000"}
    assert {ratio: times(ratio) for ratio in expected} == expected


def test_places_on_the_axis_by_hand() -> None:
    """At a scale of 4, the square root of it is half way from the middle to an end."""
    assert [place_on_axis(ratio, 4.0) for ratio in (1, 2, 4, 0.25, 0.5, 9)] == pytest.approx([50, 75, 100, 0, 25, 100])


def test_a_lead_pays_for_the_longer_compilation_by_hand() -> None:
    """PyTorch compiles 10 s longer, and saves 1/1000 - 1/2000 s of a sample: 20,000 samples, which take it 10 s."""
    found = [
        *(with_result(one, compile_time_s=2.0) for one in replicated("jax", "step.jit", *[1000] * 4)),
        *(with_result(one, compile_time_s=12.0) for one in replicated("torch", "step.eager", *[2000] * 4)),
    ]
    (row,) = section_of(found).rows
    assert pays_after(row) == "PyTorch's lead has paid for its compilation, 10 s longer, after 20,000 samples (10 s)"
    assert pays_after(row_of([with_result(one, compile_time_s=2.0) for one in found])) == ""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (ReportOptions(gpus=("h200",)), {"NVIDIA H200"}),
        (ReportOptions(gpus=("A100", "cpu")), {"NVIDIA A100", "CPU: Xeon"}),
        (ReportOptions(benchmarks=("mnist",)), {"NVIDIA H200", "NVIDIA A100", "CPU: Xeon"}),
        (ReportOptions(use_cases=(3, "train")), {"NVIDIA H200", "NVIDIA A100", "CPU: Xeon"}),
        (ReportOptions(use_cases=("inference",)), set()),
    ],
)
def test_filters(options: ReportOptions, shown: set[str]) -> None:
    everything = sections([record("jax", "step.jit", environment=one) for one in (H200, A100, CPU)], passed)
    assert {section.setup.device for section in everything if options.takes(section)} == shown
