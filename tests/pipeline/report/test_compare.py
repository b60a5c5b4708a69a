"""The comparison, from hand-made records whose every number can be worked out."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.paths import Results
from harness.plan import FRAMEWORKS
from harness.results.parity import Judgement
from harness.results.predictions import evaluation_of
from harness.results.record import DataIdentity, EpochPoint, Record
from pipeline.report.command import ReportOptions
from pipeline.report.compare import Comparison, Section, device_name, placed, scaling, tally
from pipeline.report.compare import sections as judged_sections
from pipeline.report.conditions import Condition
from pipeline.report.csv_files import csv_text
from pipeline.report.wording import differences, use_case_title
from tests.made.report_records import (
    A100,
    CELL,
    CPU,
    H200,
    csv_lines,
    pair,
    passed,
    plan,
    rank_result,
    record,
    row_of,
    save,
    section_of,
    with_blocks,
    with_result,
)
from tests.pipeline.report.shown import reported, summary_of

TWO = CELL.model_copy(update={"use_case": 2, "devices": 2})


def sections(records: list[Record]) -> list[Section]:
    return judged_sections(records, passed)


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


def test_short_replicates_are_in_the_ratio_and_not_in_the_numbers_that_they_lack() -> None:
    """The fourth has no latency: its p50 is no zero, and the ratio of p50 is that of the other three."""
    made = pair(1000, 1000)
    for number in (3, 7):
        made[number] = with_result(made[number], latency=None)
    row = row_of(made)
    assert row.comparison and row.comparison.estimate
    assert (row.comparison.estimate.replicates, row.comparison.of_quantities["step_time_p50_s"].replicates) == (4, 3)
    assert [mode.replicates_with["step_time_p50_s"] for mode in row.modes] == [3, 3]


def test_only_common_replicates_are_in_a_ratio() -> None:
    """Replicates 1 and 2: 2000/1000 and 3000/1500."""
    jax = [record("jax", "step.jit", 1000 * number, replicate=number - 1) for number in (1, 2, 3)]
    torch = [record("torch", "x", 500 * number, replicate=number - 1) for number in (2, 3, 4)]
    ratio = row_of([*jax, *torch]).ratio
    assert (ratio.value, ratio.replicates) == (pytest.approx(2.0), 2)
    apart, alone = row_of([jax[0], torch[0]]), row_of(jax)
    assert (apart.ratio, apart.why_no_ratio) == (None, "no replicate is common to both")
    assert (alone.comparison, alone.why_no_ratio) == (None, "PyTorch has no number here")


# What never meets in one number.


def test_devices_quick_runs_and_samples_never_meet_in_one_number() -> None:
    others: list[dict[str, Any]] = [{"environment": A100}, {"quick": True}, {"data": "sample"}, {"environment": CPU}]
    compared = sections([record("jax", "step.jit"), *(record("torch", "step.eager", **other) for other in others)])
    places = [one.setup.place.removeprefix("mnist, use case 1 (train), on ") for one in compared]
    of_h200 = [f"NVIDIA H200{doubt}" for doubt in ("", " (sample data)", " (quick run)")]
    assert places == ["CPU: Xeon", "NVIDIA A100", *of_h200]
    assert all(row.ratio is None for section in compared for row in section.rows)


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


def test_other_settings_and_precisions_have_rows_of_their_own() -> None:
    records = [
        record("jax", "step.jit", 1000, settings={"epochs": 2}),
        record("torch", "step.eager", 2000, settings={"epochs": 3}),
        record("torch", "step.eager", 3000, precision="bf16"),
    ]
    rows = section_of(records).rows
    assert rows[0].label == "cnn-b100-bf16"
    assert sorted(row.label for row in rows[1:]) == ["cnn-b100-fp32 (epochs 2)", "cnn-b100-fp32 (epochs 3)"]
    assert all(row.ratio is None for row in rows)
    found = [record("jax", "step.jit", options={"models": models, "of": "x"}) for models in (64, 8, 1, 32)]
    assert [row.variant.options["models"] for row in section_of(found).rows] == [1, 8, 32, 64]  # as numbers


def on_data(one: Record, sha256: str | None, source: str = "MNIST") -> Record:
    return one.model_copy(update={"data": DataIdentity(source=source, kind="real", sha256=sha256)})


def test_records_of_different_data_are_never_compared() -> None:
    old, new = "0a" * 32, "0b" * 32
    records = [
        on_data(record("jax", "step.jit", 1000), old),
        on_data(record("torch", "step.eager", 2000), new),
        on_data(record("torch", "step.eager", 3000, replicate=1), old),  # no median over both, either
        on_data(record("jax", "step.jit", 4000, batch_size=200), old),
        on_data(record("torch", "step.eager", 2000, batch_size=200), old),
    ]
    section = section_of(records)
    _, of_new, same = section.rows
    labels = ["cnn-b100-fp32 (data 0a0a0a0a)", "cnn-b100-fp32 (data 0b0b0b0b)", "cnn-b200-fp32"]
    assert [(row.label, len(row.modes), row.ratio is None) for row in section.rows] == [
        *zip(labels, (2, 1, 2), (True, True, False), strict=True)
    ]
    assert of_new.why_no_ratio == "JAX has no number on this data; records of different data are never compared"
    assert same.comparison.conditions[0] == Condition(name="data", state="equal", detail="")
    assert [line["data_id"] for line in csv_lines([section])] == ["0a0a0a0a"] * 2 + ["0b0b0b0b"] + ["0a0a0a0a"] * 2
    jax, torch = pair(replicates=1)  # drawn on the device: known by how
    drawn = on_data(jax, None, "normal numbers")
    assert row_of([drawn, on_data(torch, None, "normal numbers")]).ratio is not None
    assert [row.ratio for row in section_of([drawn, on_data(torch, None, "other numbers")]).rows] == [None, None]


def test_calls_of_many_steps_are_compared_with_their_like_only() -> None:
    records = [
        *(record("jax", "step.jit", 1000), record("torch", "step.eager", 2000)),
        with_blocks(record("jax", "scan.jit", 500), steps_per_call=8),
        with_blocks(record("torch", "epoch.compiled_graph", 800), steps_per_call=5),
    ]
    assert {row.label: [mode.execution_mode for mode in row.modes] for row in section_of(records).rows} == {
        "cnn-b100-fp32": ["step.jit", "step.eager"],
        "cnn-b100-fp32, many steps in a call": ["scan.jit", "epoch.compiled_graph"],
    }


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


def test_what_was_recompiled_once_is_compared_with_nothing() -> None:
    scans = [record("jax", "scan.jit", 9000, replicate=replicate) for replicate in range(4)]
    scans[1] = with_result(scans[1], recompiles=2)
    row = row_of([*pair(), *scans])
    assert [mode.execution_mode for mode in row.modes] == ["scan.jit", "step.jit", "step.compiled"]  # listed
    assert (row.best("jax").execution_mode, row.ratio.value) == ("step.jit", pytest.approx(1.5))
    alone = row_of([*scans, *pair()[4:]])
    words = "JAX scan.jit: recompiled: 2 compilation(s) inside the timed windows: the times are worthless"
    assert (alone.ratio, alone.why_no_ratio, tally([alone]).without_ratio) == (None, words, 1)


def test_ranks_on_different_cards_are_compared_with_nothing() -> None:
    def on(*names: str) -> list[Record]:
        return pair(cell=TWO, ranks=[rank_result(rank, gpu_names=[name]) for rank, name in enumerate(names)])

    assert row_of(on("NVIDIA H200", "NVIDIA H200")).ratio is not None
    row = row_of(on("NVIDIA H200", "NVIDIA A100"))
    words = "JAX step.jit: mixed_gpus: its devices are of different kinds: NVIDIA A100, NVIDIA H200"
    assert (row.ratio, row.why_no_ratio) == (None, words)
    several = H200 | {"gpu": {"name": "NVIDIA H200", "names": ["NVIDIA H200", "NVIDIA A100"]}}
    assert "mixed_gpus" in row_of([record("jax", "step.jit", cell=TWO, environment=several)]).modes[0].flags


def test_replicates_of_different_environments_are_flagged() -> None:
    def mixed(*environments: dict[str, Any]) -> str:
        found = [record("jax", "step.jit", replicate=r, environment=one) for r, one in enumerate(environments)]
        return row_of(found).modes[0].flags.get("mixed_environment", "")

    gpu = {"name": "NVIDIA H200", "driver_version": "570.1", "uuid": "GPU-1"}
    variables = [{"CUDA_VISIBLE_DEVICES": one, "JAX_COMPILATION_CACHE_DIR": f"/tmp/{one}"} for one in "01"]
    first = H200 | {"gpu": gpu, "packages": {"jax": "0.10.1"}, "code": {"harness.clock": "h1"}}
    first["variables"] = variables[0]
    elsewhere = first | {"gpu": gpu | {"uuid": "GPU-2"}, "variables": variables[1]}
    assert mixed(first, elsewhere, first) == ""  # another card of the same node is no other environment
    upgraded = first | {"packages": {"jax": "0.10.1", "nvidia-nccl-cu13": "2.30"}}
    assert mixed(first, first, upgraded) == "replicates of different environments: libraries: nvidia-nccl absent / 2.30"
    later = first | {"gpu": gpu | {"driver_version": "580.1"}, "variables": {"XLA_FLAGS": "-x"}}
    assert mixed(first, later | {"code": {"harness.clock": "h2"}}) == (
        "replicates of different environments: driver: 570.1 / 580.1; variables: XLA_FLAGS unset / -x; "
        "code: harness.clock h1 / h2"
    )


# Parity: a ratio only where the gate has passed the pair.


@pytest.mark.parametrize("state", ["failed", "unchecked"])
def test_a_pair_that_the_gate_did_not_pass_has_no_ratio_and_says_why(state: Any, tmp_path: Path) -> None:
    def judge(jax: Record, torch: Record) -> Judgement:
        assert (jax.measurement.framework, torch.measurement.framework) == ("jax", "torch")
        assert jax.measurement.replicate == torch.measurement.replicate
        return Judgement(state=state, sentence="conv2.kernel differs by 3e-2")

    (section,) = judged_sections(pair(), judge)
    (row,) = section.rows
    assert row.ratio is None and tally([row]).without_ratio == 1
    assert row.why_no_ratio == f"parity {state}: conv2.kernel differs by 3e-2"
    line = csv_lines([section])[0]
    assert (line["parity"], line["ratio_jax_over_torch"], line["verdict"]) == (state, "", "")
    output, _ = reported(Results(root=tmp_path), *pair(), judge=judge)
    assert f"no ratio: parity {state}: conv2.kernel differs by 3e-2" in output and "1.50" not in output


def test_one_failed_replicate_fails_the_row_and_an_unchecked_one_is_left_out() -> None:
    speeds = {"jax": (3000, 9000, 4500), "torch": (2000, 1000, 2000)}
    found = [
        record(framework, "step.jit", speed, replicate=number, environment=H200 | {"node": f"n{number}"})
        for framework in FRAMEWORKS
        for number, speed in enumerate(speeds[framework])
    ]

    def compared(*states: Any) -> Comparison:
        def judge(jax: Record, torch: Record) -> Judgement:
            number = jax.measurement.replicate
            return Judgement(state=states[number], sentence=f"replicate {number}")

        (section,) = judged_sections(found, judge)
        comparison = section.rows[0].comparison
        assert csv_lines([section])[0]["left_out"] == (comparison.left_out or "")
        return comparison

    comparison = compared("passed", "unchecked", "passed")
    assert comparison.estimate.value == pytest.approx(math.sqrt(1.5 * 2.25))  # without the 9 of replicate 1
    assert (comparison.estimate.replicates, comparison.replicates) == (2, 3)
    assert comparison.left_out == "1 of 3 replicates, parity unchecked: replicate 1"
    assert differences(comparison).endswith(f"left out: {comparison.left_out}")
    comparison = compared("passed", "passed", "failed")
    assert (comparison.estimate, comparison.left_out) == (None, None)
    assert comparison.judgement.sentence == "replicate 2"


# Several devices.


def efficiency(*records: Record) -> str:
    """The strong one, of the only line for two devices."""
    (line,) = [line for line in csv_lines(sections([*records])) if line["devices"] == "2"]
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


def test_one_process_per_node_is_compared_with_the_mode_that_does_the_same_on_one_device() -> None:
    one, two = record("jax", "step.jit", 1000), record("jax", "step.process_per_node", 1500, cell=TWO)
    of_one = with_result(two, details={"one_device_mode": "step.jit"})
    assert (efficiency(one, two), float(efficiency(one, of_one))) == ("", pytest.approx(1500 / 2000))


def test_communication_is_what_a_step_takes_more_than_alone() -> None:
    """A block of 10 steps takes 0.5 s, and 0.4 s with nothing moved: a fifth of the step's time."""
    two = record("jax", "step.jit", 2000, cell=TWO)
    alone = two.result.blocks.model_copy(update={"block_times_s": [0.4, 0.4, 0.4]})
    section = section_of([with_result(two, blocks_alone=alone)])
    (row,) = section.rows
    assert scaling(section, row, row.modes[0]).communication == pytest.approx(0.2)
    assert float(csv_lines([section])[0]["step_time_alone_s"]) == pytest.approx(0.04)


def test_a_plan_for_two_devices_is_shown_with_its_efficiency(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    several = plan("jax", "step.jit").model_copy(update={"cell": TWO})
    save(record("jax", "step.jit", 1500, cell=TWO), results)
    assert "No scaling efficiency: nothing was measured of this work on one device" in summary_of(results, [several])
    save(record("jax", "step.jit", 1000), results)
    output = summary_of(results, [several])
    assert output.count("Train a small CNN on 2 devices") == 2  # in the headline, and above its answer
    assert "Of 2 times one device: JAX 75% (strong)" in output
    assert max(len(line) for line in output.splitlines()) <= 80


def test_a_use_case_that_the_report_has_never_heard_of() -> None:
    unknown = CELL.model_copy(update={"use_case": 6, "use_case_name": "of_long_ago"})
    row = row_of(pair(cell=unknown))
    assert use_case_title(unknown) == "Of long ago" and row.ratio is not None and row.declared is None


def test_the_summary_of_plans_on_80_columns(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    epochs = [EpochPoint(epoch=1, train_time_s=1, train_loss=0.4, test_loss=0.3, test_metric=0.9876)]
    for one in pair(12345, 10000, epochs=epochs):
        save(one, results)
    reason: dict[str, Any] = {"outcome": "refused", "reason": "[CPU] has no CUDA graphs", "result": None}
    for replicate in range(4):
        save(record("torch", "cuda_graphs", replicate=replicate, **reason), results)
    save(record("jax", "step.jit", 1, quick=True), results)  # of no plan, so left out
    plans = [plan("jax", "step.jit", "scan.jit"), plan("torch", "step.compiled", "cuda_graphs")]
    output = summary_of(results, plans)
    assert max(len(line) for line in output.splitlines()) <= 80
    joined = " ".join(output.split())
    assert "On NVIDIA H200: Train a small CNN: JAX 1.23 × faster (1.23 to 1.23)" in joined  # 12,345 / 10,000
    assert "JAX 12,345 images/s, PyTorch 10,000 images/s; ready after 2.5 / 2.5 s; 4 of at most 12 pairs" in joined
    words = "refused (4 replicates): [CPU] has no CUDA graphs"
    assert f"No number: mnist: PyTorch cnn-b100-fp32-cuda_graphs: {words}" in joined
    # Up to the first look; the other eight replicates of each of the four modes are asked for when it has been taken.
    assert "Not measured yet: 4 of 16 (JAX cnn-b100-fp32-scan.jit-r0," in joined
    assert "Not needed so far, by the screening and by the looks at each ratio: 32 of 48." in joined
    assert "quick" not in output


def test_the_report_writes_csv_and_names_corrupt_records(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    corrupt = save(record("jax", "scan.jit"), results)
    corrupt.write_text(corrupt.read_text()[:100])
    shown, _ = reported(results, *pair())
    assert f"Warning: {corrupt}: not a record" in shown and corrupt.exists()
    assert (results.report / "comparison.csv").read_text() == csv_text(sections(pair()))
    assert csv_text([]).count("\n") == 1


def test_what_was_not_equal_stands_beside_the_ratio_and_the_efficiency(tmp_path: Path) -> None:
    sides = {"jax": H200 | {"node": "n1"}, "torch": H200 | {"node": "n2"}}
    found = [one.model_copy(update={"environment": sides[one.measurement.framework]}) for one in pair()]
    one, two = (H200 | {"packages": {"jax": version}, "python": "3.12"} for version in ("0.10.1", "0.10.2"))
    scaled = [record("jax", "scan.jit", environment=one), record("jax", "scan.jit", 1500, cell=TWO, environment=two)]
    in_csv = "not equal: libraries: jax 0.10.1 / 0.10.2; not recorded: CPU, driver, variables, code"
    assert [line["scaling_differences"] for line in csv_lines(sections(scaled))] == ["", in_csv]
    shown, page = reported(Results(root=tmp_path), *found, *scaled)
    assert "But: not equal on both sides: node: n1 / n2" in shown
    of_ratio = "not equal: node: n1 / n2; not recorded: GPU, driver, CPUs, libraries, variables, code, pairing"
    assert of_ratio in page
    efficiency = "Of 2 times one device: JAX 75% (strong), not equal: libraries: jax 0.10.1 / 0.10.2"
    assert efficiency in shown and efficiency in page


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
    everything = sections([record("jax", "step.jit", environment=one) for one in (H200, A100, CPU)])
    assert {section.setup.device for section in everything if options.takes(section)} == shown
