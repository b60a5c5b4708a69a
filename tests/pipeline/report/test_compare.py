"""The comparison, from hand-made records whose every number can be worked out."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.paths import Results
from harness.plan import CONDITIONS, FRAMEWORKS, Framework
from harness.results.parity import Judgement
from harness.results.predictions import evaluation_of
from harness.results.record import DataIdentity, EpochPoint, Record
from pipeline.report.command import ReportOptions, print_summary, report_command
from pipeline.report.compare import Comparison, Section, device_name, headline, newest, one_device, scaling, tally
from pipeline.report.compare import sections as judged_sections
from pipeline.report.conditions import Condition
from pipeline.report.csv_files import csv_text
from pipeline.report.reading import read_records
from pipeline.report.wording import differences, scaling_texts, use_case_title, verdict
from tests.made.report_records import (
    A100,
    CELL,
    CPU,
    H200,
    csv_lines,
    pair,
    passed,
    plain,
    plan,
    rank_result,
    record,
    row_of,
    save,
    section_of,
    text,
    with_blocks,
    with_result,
)

PAIR: tuple[tuple[Framework, str], ...] = (("jax", "step.jit"), ("torch", "step.eager"))


def csv_only(path: Path) -> ReportOptions:
    return ReportOptions(csv=path, figures=False)


def sections(records: list[Record]) -> list[Section]:
    return judged_sections(records, passed)


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
    assert [(mode.framework, mode.execution_mode) for mode in row.modes] == [
        ("jax", "step.jit"),
        ("jax", "scan.jit"),
        ("torch", "cuda_graphs"),
        ("torch", "step.eager"),
    ]
    medians = [5000 * math.exp(0.005), 3000, 4000, 2000]
    assert [mode.throughput_samples_per_s for mode in row.modes] == pytest.approx(medians, rel=1e-4)
    ratio = row.ratio
    assert ratio is not None
    # The means of the two orders are 0 and 0.01; four squares of 0.01, over 2 degrees of freedom and 4 pairs, have the
    # root 0.01 / sqrt(2), of which the first look of at most 12 pairs reaches 7.649.
    reach = 7.649 * 0.01 / math.sqrt(2)
    assert ratio.value == pytest.approx(1.25 * math.exp(0.005))
    assert ratio.interval == pytest.approx([ratio.value * math.exp(sign * reach) for sign in (-1, 1)])
    assert (ratio.verdict, ratio.replicates, ratio.at_most) == ("JAX faster", 4, 12)
    assert row.comparison and (row.comparison.rules_version, row.comparison.newest) == (3, None)
    # Latency: 95 calls of 12 ms, 105 of 50 ms: the median and the 95th percentile are 50 ms.
    assert row.modes[0].numbers["step_time_p50_s"] == pytest.approx(0.05)
    assert row.modes[0].numbers["compile_time_s"] == 2.5
    assert row.modes[0].flags == {}


def test_a_pair_tells_how_many_predictions_are_the_same() -> None:
    """Of the fastest modes; where one side has none, nothing is told."""

    def predicting(framework: Framework, mode: str, throughput: float, labels: list[int]) -> Record:
        made = record(framework, mode, throughput)
        evaluation = evaluation_of(np.array(labels), None, "the weights are drawn")
        assert made.result
        return made.model_copy(update={"result": made.result.model_copy(update={"evaluation": evaluation})})

    ours = predicting("jax", "step.jit", 5000, [1, 2, 3, 4])
    theirs = [
        predicting("torch", "step.compiled", 4000, [1, 2, 3, 3]),
        predicting("torch", "step.eager", 3000, [1, 2, 3, 4]),
    ]
    (comparison,) = [row.comparison for section in sections([ours, *theirs]) for row in section.rows]
    sentence = "Of 4 predictions on the test set, of 4 classes, 75.00% are the same; 1 differ."
    assert comparison and comparison.predictions == sentence
    (without,) = [row.comparison for section in sections([ours, record("torch", "step.eager")]) for row in section.rows]
    assert without and without.predictions is None


def test_short_replicates_are_in_the_ratio_and_not_in_the_numbers_that_they_lack() -> None:
    """The fourth has no latency: its p50 is no zero, and the ratio of p50 is that of the other three."""
    records = []
    for framework, mode in PAIR:
        made = [record(framework, mode, 1000, replicate=replicate) for replicate in range(4)]
        assert made[3].result
        short = made[3].result.model_copy(update={"latency": None})
        records += [*made[:3], made[3].model_copy(update={"result": short})]
    row = row_of(records)
    assert row.comparison and row.comparison.estimate
    assert (row.comparison.estimate.replicates, row.comparison.of_quantities["step_time_p50_s"].replicates) == (4, 3)
    assert [mode.replicates_with["step_time_p50_s"] for mode in row.modes] == [3, 3]
    assert [mode.flags.keys() & {"too_few_latency_calls"} for mode in row.modes] == [set(), set()]


def test_an_interval_that_holds_1_decides_nothing() -> None:
    records = [
        record(framework, "step.jit" if framework == "jax" else "step.eager", throughput, replicate=replicate)
        for framework, throughputs in (("jax", (1000, 1100, 1200, 1000)), ("torch", (1100, 1000, 1150, 1100)))
        for replicate, throughput in enumerate(throughputs)
    ]
    ratio = sections(records)[0].rows[0].ratio
    assert ratio is not None
    assert (ratio.verdict, ratio.replicates, ratio.doubt) == ("undecided", 4, None)


def test_one_replicate_has_a_ratio_and_no_interval() -> None:
    section = section_of([record("jax", "step.jit", 2000), record("torch", "loop.eager", 4000)])
    ratio = section.rows[0].ratio
    assert ratio is not None
    assert (ratio.value, ratio.interval, ratio.verdict) == (pytest.approx(0.5), None, "undecided")
    assert verdict(ratio) == "so far: 1 of at most 12 pairs, no verdict before 4"
    assert section.rows[0].flags == {}


def test_only_common_replicates_are_paired() -> None:
    records = [record("jax", "step.jit", 1000 * (r + 1), replicate=r) for r in range(3)]
    records += [record("torch", "step.eager", 500 * (r + 1), replicate=r) for r in (1, 2, 3)]
    ratio = sections(records)[0].rows[0].ratio
    assert ratio is not None
    # Replicates 1 and 2: 2000/1000 and 3000/1500.
    assert (ratio.value, ratio.replicates, ratio.interval) == (pytest.approx(2), 2, pytest.approx((2, 2)))
    assert ratio.verdict == "undecided"


def test_devices_quick_runs_and_samples_never_meet_in_one_number() -> None:
    records = [
        record("jax", "step.jit", 1000),
        record("torch", "step.eager", 2000, environment=A100),
        record("torch", "step.eager", 3000, quick=True),
        record("torch", "step.eager", 4000, data="sample"),
        record("torch", "step.eager", 5000, environment=CPU),
    ]
    compared = sections(records)
    assert [(s.setup.device, s.setup.data, s.setup.quick) for s in compared] == [
        ("CPU: Xeon", "real", False),
        ("NVIDIA A100", "real", False),
        ("NVIDIA H200", "real", False),
        ("NVIDIA H200", "sample", False),
        ("NVIDIA H200", "real", True),
    ]
    assert all(row.ratio is None for section in compared for row in section.rows)


def test_a_jax_for_the_cpu_beside_a_gpu_is_not_compared_with_the_gpu() -> None:
    on_cpu = H200 | {"framework": {"platform": "cpu"}, "cpu": {"model": "Xeon"}}
    compared = sections([record("jax", "step.jit", environment=on_cpu), record("torch", "step.eager")])
    assert [section.setup.device for section in compared] == ["CPU: Xeon", "NVIDIA H200"]


def test_other_settings_and_precisions_have_rows_of_their_own() -> None:
    records = [
        record("jax", "step.jit", 1000, settings={"epochs": 2}),
        record("torch", "step.eager", 2000, settings={"epochs": 3}),
        record("torch", "step.eager", 3000, precision="bf16"),
    ]
    section = section_of(records)
    labels = [row.label for row in section.rows]
    assert labels[0] == "cnn-b100-bf16"
    assert sorted(labels[1:]) == ["cnn-b100-fp32 (epochs 2)", "cnn-b100-fp32 (epochs 3)"]
    assert all(row.ratio is None for row in section.rows)


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
    rows = {row.label: row for row in section.rows}
    assert list(rows) == ["cnn-b100-fp32 (data 0a0a0a0a)", "cnn-b100-fp32 (data 0b0b0b0b)", "cnn-b200-fp32"]
    assert [len(row.modes) for row in section.rows] == [2, 1, 2]
    assert [row.ratio is not None for row in section.rows] == [False, False, True]
    sentence = "JAX has no number on this data; records of different data are never compared"
    assert rows["cnn-b100-fp32 (data 0b0b0b0b)"].why_no_ratio == sentence
    compared = rows["cnn-b200-fp32"].comparison
    assert compared is not None and compared.conditions[0] == Condition(name="data", state="equal", detail="")
    lines = csv_lines([section])
    assert {(line["batch_size"], line["data_id"]) for line in lines} == {
        ("100", "0a0a0a0a"),
        ("100", "0b0b0b0b"),
        ("200", "0a0a0a0a"),
    }


def test_generated_data_are_known_by_how_they_are_drawn() -> None:
    drawn = [on_data(record(framework, mode), None, "normal numbers") for framework, mode in PAIR]
    section = section_of(drawn)
    assert section.rows[0].ratio is not None
    section = section_of([drawn[0], on_data(drawn[1], None, "other numbers")])
    assert [row.ratio for row in section.rows] == [None, None]


def test_planted_slowdowns_are_no_results(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    for framework, mode in PAIR:
        save(record(framework, mode), results)
    one = record("jax", "step.jit", replicate=1)
    variant = one.measurement.variant.model_copy(update={"planted": next(iter(CONDITIONS))})
    measurement = one.measurement.model_copy(update={"variant": variant})
    save(one.model_copy(update={"measurement": measurement}), results)
    paths = sorted(results.records().rglob("*.json"))
    assert len(paths) == 3
    assert [r.measurement.variant.planted for r in read_records(paths).records] == [None, None]
    assert [r.measurement.variant.planted for r in read_records(paths, planted=True).records] == [variant.planted]


def test_the_newest_settled_record_counts() -> None:
    records = [
        record("jax", "step.jit", 1000, ended_at="2026-11-21T10:00:00+00:00"),
        record("jax", "step.jit", 2000, ended_at="2026-11-21T11:00:00+00:00"),
        record(
            "jax",
            "step.jit",
            ended_at="2026-11-21T12:00:00+00:00",
            outcome="failed",
            reason="node died",
            result=None,
        ),
    ]
    section = section_of(records)
    assert section.rows[0].modes[0].throughputs == {0: pytest.approx(2000)}
    assert section.without_number == ()


def test_flags_are_recorded_ones_and_those_of_todays_rules() -> None:
    section = section_of([record("jax", "step.jit", 100_000, flags={"other_processes": "up to 2", "noisy": "30%"})])
    # `noisy` was one up to the rules of version 2.
    # 1000 samples at 100,000 samples/s: blocks of 10 ms.
    assert set(section.rows[0].modes[0].flags) == {"other_processes", "short_blocks"}


def test_a_failure_before_the_device_was_known_stands_beside_its_cell() -> None:
    failed = record(
        "torch", "step.compiled", environment={"scheduler": "slurm"}, outcome="failed", reason="no", result=None
    )
    section = section_of([record("jax", "step.jit"), failed])
    assert section.setup.device == "NVIDIA H200"
    assert section.without_number == (failed,)


def test_the_headline_says_what_may_not_be_quoted() -> None:
    def of(**changes: Any) -> str:
        return headline(sections([record("jax", "step.jit", **changes)])[0].setup)

    assert of() == "mnist, use case 1 (train), on NVIDIA H200."
    assert of(quick=True, data="sample", environment=CPU) == (
        "mnist, use case 1 (train), on CPU: Xeon. Quick run on sample data: not a result to quote."
    )
    assert of(data="sample").endswith("Sample data: not a result to quote.")


def test_the_summary_of_plans_on_80_columns(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    epochs = [EpochPoint(epoch=1, train_time_s=1, train_loss=0.4, test_loss=0.3, test_metric=0.9876)]
    for replicate in range(4):
        save(record("jax", "step.jit", 12345, replicate=replicate, epochs=epochs), results)
        save(record("torch", "step.eager", 10000, replicate=replicate, epochs=epochs), results)
        save(
            record(
                "torch",
                "cuda_graphs",
                replicate=replicate,
                outcome="refused",
                reason="[CPU] has no CUDA graphs",
                result=None,
            ),
            results,
        )
    save(record("jax", "step.jit", 1, quick=True), results)  # of no plan, so left out
    console = plain()
    print_summary(
        results, [plan("jax", "step.jit", "scan.jit"), plan("torch", "step.eager", "cuda_graphs")], console, passed
    )
    output = text(console)
    assert max(len(line) for line in output.splitlines()) <= 80
    joined = " ".join(output.split())
    assert "On NVIDIA H200: Train a small CNN: JAX 1.23 × faster (1.23 to 1.23)" in joined  # 12,345 / 10,000
    assert "JAX 12,345 images/s, PyTorch 10,000 images/s; ready after 2.5 / 2.5 s; 4 of at most 12 pairs" in joined
    assert (
        "No number: mnist: PyTorch cnn-b100-fp32-cuda_graphs: refused (4 replicates): [CPU] has no CUDA graphs"
        in joined
    )
    # Up to the first look; the other eight replicates of each of the four modes are asked for when it has been taken.
    assert "Not measured yet: 4 of 16 (JAX cnn-b100-fp32-scan.jit-r0," in joined
    assert "Not needed so far, by the screening and by the looks at each ratio: 32 of 48." in joined
    assert "quick" not in output


def test_the_report_writes_csv_and_names_corrupt_records(tmp_path: Path) -> None:
    results = Results(root=tmp_path / "results")
    for replicate in range(4):
        save(record("jax", "step.jit", 3000, replicate=replicate), results)
        save(record("torch", "step.eager", 1500, replicate=replicate), results)
        save(record("torch", "step.compiled", 2000, replicate=replicate), results)
    corrupt = save(record("jax", "scan.jit"), results)
    corrupt.write_text(corrupt.read_text()[:100])
    target = tmp_path / "tables" / "all.csv"
    console = plain()
    assert report_command(results, csv_only(target), console, passed) == 0
    assert f"Warning: {corrupt}: not a record" in text(console)
    assert corrupt.exists()
    lines = list(csv.DictReader(target.read_text().splitlines()))
    assert [(line["framework"], line["execution_mode"], line["fastest"]) for line in lines] == [
        ("jax", "step.jit", "True"),
        ("torch", "step.compiled", "True"),
        ("torch", "step.eager", "False"),
    ]
    assert [float(line["throughput_samples_per_s"]) for line in lines] == pytest.approx([3000, 2000, 1500])
    assert float(lines[0]["ratio_jax_over_torch"]) == pytest.approx(1.5)
    assert float(lines[1]["ratio_low"]) == pytest.approx(1.5)
    assert lines[2]["ratio_jax_over_torch"] == ""
    assert (lines[0]["device"], lines[0]["batch_size"], lines[0]["replicates"]) == ("NVIDIA H200", "100", "4")
    assert lines[0]["quick"] == "False"
    report_command(results, csv_only(target), plain(), passed)  # a second report replaces the file
    assert csv_text(sections([])).count("\n") == 1


TWO = CELL.model_copy(update={"use_case": 2, "devices": 2})


def efficiencies(records: list[Record]) -> dict[tuple[str, str], tuple[str, str]]:
    """Strong and weak, by execution mode and batch size, of the lines for two devices."""
    lines = csv_lines(sections(records))
    return {
        (line["execution_mode"], line["batch_size"]): (
            line["strong_scaling_efficiency"],
            line["weak_scaling_efficiency"],
        )
        for line in lines
        if line["devices"] == "2"
    }


def test_scaling_efficiency_is_against_the_same_batch_and_against_half_of_it() -> None:
    one = [record("jax", "step.jit", 1000, batch_size=100), record("jax", "step.jit", 1250, batch_size=200)]
    two = [
        record("jax", "step.jit", 1500, batch_size=100, cell=TWO),
        record("jax", "step.jit", 1600, batch_size=200, cell=TWO),
    ]
    found = efficiencies(one + two)
    assert found["step.jit", "100"][1] == ""  # nobody measured 50 on one device
    strong_100, strong_200, weak_200 = found["step.jit", "100"][0], *found["step.jit", "200"]
    assert float(strong_100) == pytest.approx(1500 / 2000)
    assert float(strong_200) == pytest.approx(1600 / 2500)
    assert float(weak_200) == pytest.approx(1600 / 2000)


def test_one_process_per_node_is_compared_with_the_mode_that_does_the_same_on_one_device() -> None:
    one = record("jax", "step.jit", 1000)
    two = record("jax", "step.process_per_node", 1500, cell=TWO)
    assert two.result is not None
    per_node = two.result.model_copy(update={"details": {"one_device_mode": "step.jit"}})
    found = efficiencies([one, two.model_copy(update={"result": per_node})])
    assert float(found["step.process_per_node", "100"][0]) == pytest.approx(1500 / 2000)
    assert efficiencies([one, two])["step.process_per_node", "100"] == ("", "")


def test_communication_is_what_a_step_takes_more_than_alone() -> None:
    """A block of 10 steps takes 0.5 s, and 0.4 s with nothing moved: a fifth of the step's time."""
    two = record("jax", "step.jit", 2000, cell=TWO)
    assert two.result is not None and two.result.blocks is not None
    alone = two.result.blocks.model_copy(update={"block_times_s": [0.4, 0.4, 0.4]})
    with_control = two.model_copy(update={"result": two.result.model_copy(update={"blocks_alone": alone})})
    section = section_of([with_control])
    ((mode,),) = [row.modes for row in section.rows]
    assert mode.numbers["step_time_alone_s"] == pytest.approx(0.04)
    assert scaling(section.setup, section.rows[0], mode, {}).communication == pytest.approx(0.2)
    (line,) = csv_lines([section])
    assert float(line["step_time_alone_s"]) == pytest.approx(0.04)


def test_an_efficiency_has_the_interval_of_its_replicates() -> None:
    """On two devices 1.5 and 1.6 times as fast as on one: efficiencies of 0.75 and 0.8, whose logarithms are d apart,
    so Student's t of 12.706 reaches 12.706 * d / 2."""
    records = [record("jax", "step.jit", 1000, replicate=number) for number in range(2)]
    records += [record("jax", "step.jit", 1500 + 100 * number, cell=TWO, replicate=number) for number in range(2)]
    compared = sections(records)
    section = next(section for section in compared if section.setup.cell.devices == 2)
    (row,) = section.rows
    found = scaling(section.setup, row, row.modes[0], one_device(compared))
    middle, reach = math.sqrt(0.75 * 0.8), 12.706 / 2 * math.log(0.8 / 0.75)
    assert found.weak is None and found.strong is not None and found.strong.interval is not None
    assert found.strong.value == pytest.approx(middle)
    assert found.strong.interval == pytest.approx((middle * math.exp(-reach), middle * math.exp(reach)))
    assert scaling_texts(found) == ["77% [51%, 117%]", "", ""]


def test_what_failed_before_its_device_was_known_is_forgotten_once_it_is_measured() -> None:
    measured = record("jax", "step.jit")
    failed = record("jax", "step.jit", environment={}, outcome="failed", reason="no such file", result=None)
    assert newest([failed, measured]) == [measured]
    assert newest([measured, failed]) == [measured]
    assert newest([failed]) == [failed]
    refused = failed.model_copy(update={"outcome": "refused"})  # such as a precision that its device does not have
    assert newest([refused]) == [refused]
    assert newest([measured, refused]) == [measured]


@pytest.mark.parametrize(
    "other",
    [
        record("jax", "scan.jit"),
        record("torch", "step.jit"),
        record("jax", "step.jit", precision="tf32"),
        record("jax", "step.jit", settings={"epochs": 3}),
        record("jax", "step.jit", environment=CPU),
        record("jax", "step.jit", quick=True),
        record("jax", "step.jit", data="sample"),
        record("jax", "step.jit", cell=CELL.model_copy(update={"benchmark": "cifar10"})),
        record("jax", "step.jit", cell=CELL.model_copy(update={"use_case_name": "per_sample_gradients"})),
    ],
    ids=["mode", "framework", "precision", "settings", "device", "quick", "data", "benchmark", "use case"],
)
def test_scaling_efficiency_is_against_the_same_work_only(other: Record) -> None:
    assert efficiencies([other, record("jax", "step.jit", cell=TWO)]) == {("step.jit", "100"): ("", "")}


def test_a_plan_for_two_devices_is_shown_with_its_efficiency(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    several = plan("jax", "step.jit").model_copy(update={"cell": TWO})
    save(record("jax", "step.jit", 1500, cell=TWO), results)
    console = plain()
    print_summary(results, [several], console, passed)
    assert "times one device" not in text(console)
    save(record("jax", "step.jit", 1000), results)
    console = plain()
    print_summary(results, [several], console, passed)
    output = text(console)
    assert output.count("Train a small CNN on 2 devices") == 2  # in the headline, and above its answer
    assert "Of 2 times one device: JAX 75% (strong)" in output
    assert max(len(line) for line in output.splitlines()) <= 80


def test_a_report_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    console = plain()
    assert report_command(Results(root=tmp_path), ReportOptions(), console, passed) == 1
    assert f"No records under {tmp_path / 'records'}. Measure first: python main.py" in text(console)


# Parity: a ratio only where the gate has passed the pair.


@pytest.mark.parametrize("state", ["failed", "unchecked"])
def test_a_pair_that_the_gate_did_not_pass_has_no_ratio_and_says_why(state: Any, tmp_path: Path) -> None:
    def judge(jax: Record, torch: Record) -> Judgement:
        assert (jax.measurement.framework, torch.measurement.framework) == ("jax", "torch")
        assert jax.measurement.replicate == torch.measurement.replicate
        return Judgement(state=state, sentence="conv2.kernel differs by 3e-2")

    results = Results(root=tmp_path)
    records = pair()
    for one in records:
        save(one, results)
    (section,) = judged_sections(records, judge)
    (row,) = section.rows
    assert row.ratio is None
    assert row.why_no_ratio == f"parity {state}: conv2.kernel differs by 3e-2"
    assert tally(section.rows).without_ratio == 1
    line = csv_lines([section])[0]
    assert (line["parity"], line["ratio_jax_over_torch"], line["verdict"]) == (state, "", "")
    console = plain()
    report_command(results, ReportOptions(figures=False), console, judge)
    output = " ".join(text(console).split())
    assert f"no ratio: parity {state}: conv2.kernel differs by 3e-2" in output
    assert "1.50" not in output


def test_one_failed_replicate_fails_the_row_and_an_unchecked_one_is_left_out() -> None:
    def judge(jax: Record, torch: Record) -> Judgement:
        state = states[jax.measurement.replicate]
        return Judgement(state=state, sentence=f"replicate {jax.measurement.replicate}")

    def compared() -> Comparison:
        speeds = {"jax": (3000, 9000, 4500), "torch": (2000, 1000, 2000)}
        found = [
            record(framework, "step.jit", speed, replicate=replicate, environment=H200 | {"node": f"n{replicate}"})
            for framework in FRAMEWORKS
            for replicate, speed in enumerate(speeds[framework])
        ]
        (section,) = judged_sections(found, judge)
        comparison = section.rows[0].comparison
        assert comparison is not None
        (line, _) = csv_lines([section])
        assert line["left_out"] == (comparison.left_out or "")
        return comparison

    states: list[Any] = ["passed", "unchecked", "passed"]
    comparison = compared()
    assert comparison.estimate is not None
    assert comparison.estimate.value == pytest.approx(math.sqrt(1.5 * 2.25))  # without the 9 of replicate 1
    assert (comparison.estimate.replicates, comparison.replicates) == (2, 3)
    assert comparison.left_out == "1 of 3 replicates, parity unchecked: replicate 1"
    assert differences(comparison).endswith("left out: 1 of 3 replicates, parity unchecked: replicate 1")
    states = ["passed", "passed", "failed"]
    comparison = compared()
    assert (comparison.estimate, comparison.left_out) == (None, None)
    assert comparison.judgement.sentence == "replicate 2"


def test_what_was_recompiled_once_is_compared_with_nothing() -> None:
    scans = [record("jax", "scan.jit", 9000, replicate=replicate) for replicate in range(4)]
    scans[1] = with_result(scans[1], recompiles=2)
    row = row_of([*pair(), *scans])
    assert [mode.execution_mode for mode in row.modes] == [
        "scan.jit",
        "step.jit",
        "step.compiled",
    ]  # listed all the same
    best = row.best("jax")
    assert best is not None and best.execution_mode == "step.jit"
    assert row.ratio is not None and row.ratio.value == pytest.approx(1.5)
    alone = [one for one in scans + pair() if one.measurement.variant.execution_mode != "step.jit"]
    row = row_of(alone)
    assert row.ratio is None
    assert row.why_no_ratio == (
        "JAX scan.jit: recompiled: 2 compilation(s) inside the timed windows: the times are worthless"
    )
    assert tally([row]).without_ratio == 1


def test_a_jaxlib_that_is_known_to_be_slow_is_no_speed_of_jax() -> None:
    """On GPUs of one kind in all replicates; what such a release computed on a CPU is a number like any other."""
    for platform, packages, is_compared in (
        ("gpu", {"jaxlib": "0.11.0"}, False),
        ("gpu", {"jaxlib": "0.11.1"}, True),
        ("cpu", {"jaxlib": "0.11.0"}, True),
    ):
        framework = {"name": "jax", "platform": platform}
        environment = {**H200, "framework": framework, "packages": packages}
        jax = [record("jax", "step.jit", 1000, replicate=replicate, environment=environment) for replicate in range(3)]
        torch = [
            record(
                "torch",
                "step.eager",
                900,
                replicate=replicate,
                environment={**H200, "framework": {"platform": platform}},
            )
            for replicate in range(3)
        ]
        row = row_of([*jax, *torch])
        assert [mode.execution_mode for mode in row.modes] == ["step.jit", "step.eager"]
        assert (row.ratio is not None) == is_compared
        if not is_compared:
            assert row.why_no_ratio is not None
            assert row.why_no_ratio.startswith(
                "JAX step.jit: known_slow_jaxlib: jaxlib 0.11.0 has a scatter-add that is "
            )


def test_a_recompiled_record_has_no_scaling_efficiency() -> None:
    one, two = record("jax", "step.jit", 1000), record("jax", "step.jit", 1500, cell=TWO)
    assert float(efficiencies([one, two])["step.jit", "100"][0]) == pytest.approx(0.75)
    assert efficiencies([with_result(one, recompiles=1), two])["step.jit", "100"] == ("", "")
    assert efficiencies([one, with_result(two, recompiles=1)])["step.jit", "100"] == ("", "")


def test_calls_of_many_steps_are_compared_with_their_like_only() -> None:
    records = [record("jax", "step.jit", 1000), record("torch", "step.eager", 2000)]
    records += [
        with_blocks(record("jax", "scan.jit", 500), steps_per_call=8),
        with_blocks(record("torch", "epoch.compiled_graph", 800), steps_per_call=5),
    ]
    section = section_of(records)
    found = {row.label: [mode.execution_mode for mode in row.modes] for row in section.rows}
    assert found == {
        "cnn-b100-fp32": ["step.jit", "step.eager"],
        "cnn-b100-fp32, many steps in a call": ["scan.jit", "epoch.compiled_graph"],
    }
    alone = {row.label: row for row in sections(records[:3])[0].rows}
    assert alone["cnn-b100-fp32, many steps in a call"].why_no_ratio == "PyTorch has no number here"


def test_what_sets_nothing_is_shown_and_decides_nothing() -> None:
    records = [
        record(framework, mode, 2000 if framework == "jax" else 1000, replicate=replicate, precision="default")
        for framework, mode in PAIR
        for replicate in range(4)
    ]
    row = row_of(records)
    assert row.ratio is not None and row.ratio.value == pytest.approx(2)
    assert verdict(row.ratio) == (
        "no verdict: precision `default`: nothing was set, so each side has arithmetic of its own"
    )
    assert tally([row]).mean is None


@pytest.mark.parametrize(
    ("flags", "number", "times_s", "ratio"),
    [
        # Tenths of the blocks have one median, so nothing is imprecise: what blocks vary by is a number.
        (set(), "block_spread", [0.2, 0.4] * 10, 1.875),  # the middle half spreads by 0.2 over a median of 0.3 s
        # The first third is 0.3, the last 0.32 s, which is 6.5 % as a logarithm, and the tenths' error is 0.76 %:
        # 4 of 10 have log(0.3), 6 log(0.32), so it is 0.0645 * sqrt(4 * 6 / 10 / 9 / 10) = 1.05 %; three errors of the
        # difference of thirds are 3 * sqrt(6) * 1.05 = 7.7 %, more than the change.
        (set(), "block_drift", [0.3] * 8 + [0.32] * 12, 1.5625),
    ],
)
def test_noise_and_drift_of_blocks_leave_the_verdict_and_the_mean(
    flags: set[str], number: str, times_s: list[float], ratio: float
) -> None:
    """PyTorch at 2,000 samples/s; JAX at the median of 1,000 over each block's time: 3,750 and 3,125."""
    found = pair()
    for replicate in range(4):
        found[replicate] = with_blocks(found[replicate], block_times_s=[time_s + replicate / 1e9 for time_s in times_s])
    section = section_of(found)
    (row,) = section.rows
    assert row.flags.keys() == flags and row.modes[0].flags == {}
    expected = {"block_spread": 0.2 / 0.3, "block_drift": 0.32 / 0.3 - 1}[number]
    assert row.modes[0].numbers[number] == pytest.approx(expected, rel=1e-4)
    assert row.ratio is not None and (row.ratio.verdict, row.ratio.doubt) == ("JAX faster", None)
    found_tally = tally(section.rows)
    assert found_tally.mean is not None and (found_tally.mean.replicates, found_tally.verdicts["JAX faster"]) == (1, 1)
    assert found_tally.mean.value == row.ratio.value == pytest.approx(ratio, rel=1e-4)


def test_the_same_times_under_two_numbers_decide_nothing() -> None:
    """Of 20 blocks of 0.5 s, which the second of PyTorch's processes took once more, to the last digit."""
    found = pair()
    found[5], found[6] = (with_blocks(one, block_times_s=[0.5] * 19 + [0.6]) for one in found[5:7])
    row = row_of(found)
    assert row.ratio is not None and row.ratio.value == pytest.approx(1.5)
    assert verdict(row.ratio) == "no verdict: identical replicates of PyTorch: copied records?"
    assert tally([row]).mean is None


def test_replicates_of_different_environments_are_flagged() -> None:
    def flags(*environments: dict[str, Any]) -> dict[str, str]:
        found = [record("jax", "step.jit", replicate=r, environment=one) for r, one in enumerate(environments)]
        section = section_of(found)
        return section.rows[0].modes[0].flags

    first = H200 | {
        "gpu": {"name": "NVIDIA H200", "driver_version": "570.1", "uuid": "GPU-1"},
        "packages": {"jax": "0.10.1"},
        "variables": {"CUDA_VISIBLE_DEVICES": "0", "JAX_COMPILATION_CACHE_DIR": "/tmp/a"},
        "git": {"commit": "a" * 40, "clean": True},
    }
    elsewhere = first | {  # another card of the same node is no other environment
        "gpu": {"name": "NVIDIA H200", "driver_version": "570.1", "uuid": "GPU-2"},
        "variables": {"CUDA_VISIBLE_DEVICES": "1", "JAX_COMPILATION_CACHE_DIR": "/tmp/b"},
    }
    assert "mixed_environment" not in flags(first, elsewhere, first)
    upgraded = first | {"packages": {"jax": "0.10.2", "nvidia-nccl-cu13": "2.30"}}
    assert flags(first, first, upgraded)["mixed_environment"] == (
        "replicates of different environments: libraries: jax 0.10.1 / 0.10.2, nvidia-nccl absent / 2.30"
    )
    later = first | {
        "gpu": {"name": "NVIDIA H200", "driver_version": "580.1"},
        "variables": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"},
        "git": {"commit": "a" * 40, "clean": False},
    }
    assert flags(first, later)["mixed_environment"] == (
        "replicates of different environments: driver: 570.1 / 580.1; variables: XLA_FLAGS unset / "
        "--xla_gpu_autotune_level=0; code: aaaaaaaaaa / aaaaaaaaaa with changes"
    )


def test_devices_without_nvml_and_slices_are_devices_of_their_own() -> None:
    without_nvml = {"gpu": {"absent": "no NVML"}, "framework": {"platform": "cuda", "device": "NVIDIA H200"}}
    board: dict[str, Any] = {"name": "NVIDIA H200", "mig": True, "memory_total_bytes": 18 * 2**30}
    named = {"gpu": board, "framework": {"platform": "gpu", "device": "NVIDIA H200 MIG 1g.18gb"}}
    unnamed = {"gpu": board, "framework": {"platform": "gpu"}}
    found = [record("jax", "step.jit", environment=one) for one in (H200, without_nvml, named, unnamed)]
    assert [device_name(one) for one in found] == [
        "NVIDIA H200",
        "NVIDIA H200",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA H200 MIG 18.0 GiB",
    ]
    assert newest(found) == [found[1], *found[2:]]  # the same measurement, on three devices
    assert device_name(record("jax", "step.jit", environment=CPU | {"cpu": {"model": "Xeon"}})) == "CPU: Xeon"


def test_ranks_on_different_cards_are_compared_with_nothing() -> None:
    def on(*names: str) -> list[Record]:
        return pair(cell=TWO, ranks=[rank_result(rank, gpu_names=[name]) for rank, name in enumerate(names)])

    assert sections(on("NVIDIA H200", "NVIDIA H200"))[0].rows[0].ratio is not None
    (row,) = sections(on("NVIDIA H200", "NVIDIA A100"))[0].rows
    assert row.ratio is None
    assert row.why_no_ratio == "JAX step.jit: mixed_gpus: its devices are of different kinds: NVIDIA A100, NVIDIA H200"
    several = H200 | {"gpu": {"name": "NVIDIA H200", "names": ["NVIDIA H200", "NVIDIA A100"]}}
    assert (
        "mixed_gpus" in sections([record("jax", "step.jit", cell=TWO, environment=several)])[0].rows[0].modes[0].flags
    )


def test_numbers_among_options_are_sorted_as_numbers() -> None:
    found = [record("jax", "step.jit", options={"models": models, "of": "x"}) for models in (64, 8, 1, 32)]
    section = section_of(found)
    assert [row.variant.options["models"] for row in section.rows] == [1, 8, 32, 64]


def test_without_a_common_replicate_there_is_no_ratio() -> None:
    found = [record("jax", "step.jit", replicate=0), record("torch", "step.eager", replicate=1)]
    row = row_of(found)
    assert (row.ratio, row.why_no_ratio) == (None, "no replicate is common to both")
    (row,) = sections(found[:1])[0].rows
    assert (row.comparison, row.why_no_ratio) == (None, "PyTorch has no number here")


def test_a_tally_counts_verdicts_and_takes_the_geometric_mean() -> None:
    records = [*pair(), *pair(1000, 1500, precision="bf16"), record("jax", "step.jit", 1, precision="tf32")]
    found = tally(section_of(records).rows)
    assert found.verdicts == {"JAX faster": 1, "PyTorch faster": 1, "same": 0, "undecided": 0}
    assert found.without_ratio == 1
    assert found.mean is not None and found.mean.value == pytest.approx(1.0)  # of 3/2 and 2/3


def test_beside_the_ratio_stands_what_was_not_equal(tmp_path: Path) -> None:
    sides = {"jax": H200 | {"node": "n1"}, "torch": H200 | {"node": "n2"}}
    speeds: list[tuple[Framework, str, float]] = [("jax", "step.jit", 3000), ("torch", "step.eager", 2000)]
    found = [record(f, mode, speed, replicate=r, environment=sides[f]) for f, mode, speed in speeds for r in range(4)]
    for one in found:
        save(one, Results(root=tmp_path))
    console = plain(200)
    report_command(Results(root=tmp_path), ReportOptions(figures=False), console, passed)
    sentence = (
        "not equal: node: n1 / n2; not recorded: GPU, driver, CPUs, libraries, variables, Slurm job, code, pairing"
    )
    assert "But: not equal on both sides: node: n1 / n2" in text(console)
    assert sentence.replace(", Slurm job", "") in (tmp_path / "report" / "report.html").read_text()


def test_what_differs_on_one_device_stands_beside_the_scaling_efficiency(tmp_path: Path) -> None:
    one, several = (H200 | {"packages": {"jax": version}, "python": "3.12"} for version in ("0.10.1", "0.10.2"))
    found = [
        record("jax", "step.jit", 1000, environment=one),
        record("jax", "step.jit", 1500, cell=TWO, environment=several),
    ]
    sentence = "not equal: libraries: jax 0.10.1 / 0.10.2; not recorded: CPU, driver, variables, code"
    lines = csv_lines(sections(found))
    assert [line["scaling_differences"] for line in lines] == ["", sentence]
    for each in found:
        save(each, Results(root=tmp_path))
    console = plain(300)
    report_command(Results(root=tmp_path), ReportOptions(figures=False, details=True), console, passed)
    assert sentence in text(console)
    assert sentence in (tmp_path / "report" / "report.html").read_text()


# Use cases that the report has never heard of.


def test_an_unknown_use_case_appears_like_any_other() -> None:
    many = CELL.model_copy(update={"use_case": 6, "use_case_name": "many_models"})
    (section,) = sections(pair(cell=many))
    assert use_case_title(section.setup.cell) == "Many models"
    assert section.rows[0].ratio is not None
    assert headline(section.setup).startswith("mnist, use case 6 (many_models)")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (ReportOptions(gpus=("h200",)), {"NVIDIA H200"}),
        (ReportOptions(gpus=("A100", "cpu")), {"NVIDIA A100", "CPU: Xeon"}),
        (ReportOptions(benchmarks=("mnist",)), {"NVIDIA H200", "NVIDIA A100", "CPU: Xeon"}),
        (ReportOptions(use_cases=(3,)), set()),
        (ReportOptions(use_cases=(3, "train")), {"NVIDIA H200", "NVIDIA A100", "CPU: Xeon"}),
        (ReportOptions(use_cases=("inference",)), set()),
    ],
)
def test_filters(options: ReportOptions, shown: set[str]) -> None:
    everything = sections([record("jax", "step.jit", environment=one) for one in (H200, A100, CPU)])
    assert {section.setup.device for section in everything if options.takes(section)} == shown


# Processes that took turns


def in_turns(framework: Framework, replicate: int, times_s: list[float], turns: str | None) -> Record:
    """1,000 samples in each block."""
    environment = H200 | {"pairing": {"kind": "interleaved", "position": replicate, "pair": "12.0", "turns": turns}}
    mode = "step.eager" if framework == "torch" else "step.jit"
    made = record(framework, mode, replicate=replicate, environment=environment)
    return with_blocks(made, block_times_s=times_s)


def test_the_ratio_of_processes_that_took_turns_is_that_of_neighbouring_blocks() -> None:
    """The machine gets slower from quad to quad, and JAX is twice as fast in each but for one block of PyTorch, which
    took 16 times as long: the median of its samples per second is then 1 / 1.6, and JAX would be 2.67 times as fast."""
    jax = [[0.1, 0.1, 0.2, 0.2, 0.4, 0.4 + number / 1e6] for number in range(4)]
    torch = [[0.2, 0.2, 0.4, 6.4, 0.8, 0.8 + number / 1e6] for number in range(4)]
    records = [in_turns("jax", number, times_s, f"t{number}") for number, times_s in enumerate(jax)]
    records += [in_turns("torch", number, times_s, f"t{number}") for number, times_s in enumerate(torch)]
    row = row_of(records)
    assert row.ratio is not None and row.comparison is not None
    assert row.ratio.value == pytest.approx(2.0)
    assert row.ratio.replicates == 4
    pairing = next(one for one in row.comparison.conditions if one.name == "pairing")
    assert pairing.state == "equal"


def test_a_replicate_that_lost_its_turns_is_left_out_of_the_ratio() -> None:
    """In the second JAX took turns with another process, and would be 3 times as fast; in the first it is 2."""
    jax = in_turns("jax", 0, [0.1, 0.1, 0.4, 0.4], "t0"), in_turns("jax", 1, [0.1, 0.2, 0.4], "other")
    torch = in_turns("torch", 0, [0.2, 0.2, 0.8, 0.8], "t0"), in_turns("torch", 1, [0.3, 0.6, 1.2], "t1")
    row = row_of([*jax, *torch])
    assert row.ratio is not None and row.comparison is not None
    assert (row.ratio.value, row.ratio.replicates) == (pytest.approx(2.0), 1)
    assert row.comparison.left_out == "1 of 2 replicates, which lost their turns"
    assert row.flags == {}


def test_modes_that_took_turns_with_others_are_not_paired() -> None:
    records = [
        in_turns(framework, number, [0.5] * 19 + [0.5 + number / 1e6], f"{framework}{number}")
        for framework in FRAMEWORKS
        for number in range(2)
    ]
    row = row_of(records)
    assert row.flags == {"not_paired": "its two modes took turns with other modes, and not with each other"}
