"""Who is faster, by how much, and what that rests on: the answers in words, from records worked out by hand. What is
rounded away must not hide what a verdict turned on."""

from dataclasses import replace
from typing import Any

import pytest

from harness.results.record import Record
from harness.results.sequential import RatioEstimate
from harness.results.statistics import Interval
from pipeline.report.answer import Answer, answer_of, answers_table, groups_of, place_on_axis
from pipeline.report.compare import sections
from pipeline.report.declared import task_of
from pipeline.report.page import axis_of
from pipeline.report.table import Line, Table, group, latex, markdown, numbers, terminal_table, texts
from pipeline.report.tables import modes_table
from pipeline.report.wording import absent_lines, pays_after, quantity_lines, times, verdict
from tests.made.report_records import A100, CELL, CPU, H200, pair, passed, plain, record, section_of, text, with_result
from tests.pipeline.report.shown import answers_of, page_of

ESTIMATE = RatioEstimate(1.5, Interval(1.4, 1.6), 4, "JAX faster", p=0.01, at_most=12)


def answered(records: list[Record]) -> Answer:
    section = section_of(records)
    return answer_of(section, section.rows[0])


def judged(flags: dict[str, str] | None = None, **changes: Any) -> Answer:
    """Of a ratio with these flags and changes."""
    section = section_of(pair())
    (row,) = section.rows
    comparison = replace(row.comparison, estimate=ESTIMATE._replace(**changes), flags=flags or {})
    return answer_of(section, replace(row, comparison=comparison))


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict", "outcome", "sentence"),
    [
        (1.5, 1.4, 1.6, "JAX faster", "faster", "JAX 1.50 × faster (1.40 to 1.60)"),
        # 1 / 0.8, and the interval's ends turned: 1 / 0.85, 1 / 0.75.
        (0.8, 0.75, 0.85, "PyTorch faster", "faster", "PyTorch 1.25 × faster (1.18 to 1.33)"),
        (1.001, 0.998, 1.004, "same", "same", "the same: within 1 % (0.998 to 1.004)"),
        # 1 / 0.96 is 1.0417.
        (1.01, 0.96, 1.05, "undecided", "open", "not decided: between JAX 5 % and PyTorch 4.2 % faster"),
    ],
)
def test_a_ratio_in_words(value: float, low: float, high: float, verdict: str, outcome: str, sentence: str) -> None:
    found = judged(value=value, interval=Interval(low, high), verdict=verdict)
    assert (found.outcome, found.sentence, found.doubt) == (outcome, sentence, "")


def test_a_ratio_without_a_verdict_in_words() -> None:
    early = judged(verdict="undecided", p=None, interval=None)
    assert (early.outcome, early.sentence) == ("open", "so far JAX: 1.50 ×")
    copied = judged(verdict="undecided", doubt="copied records?")
    assert (copied.outcome, copied.sentence) == ("open", "no verdict, JAX: 1.50 × (1.40 to 1.60)")
    assert copied.doubt == "copied records?"


def test_all_that_an_answer_says() -> None:
    found = answered(pair())
    assert (found.work, found.detail) == ("Train a small CNN", "mnist, batch 100, fp32")
    assert found.speeds == "JAX 3,000 images/s, PyTorch 2,000 images/s"
    assert found.sides == ["3,000 (step.jit)", "2,000 (step.compiled)"]
    assert (found.ready, found.rests_on, found.faster) == ("2.5 / 2.5 s", "4 of at most 12 pairs", "jax")
    assert found.ratio == pytest.approx(1.5)
    in_turns = H200 | {"pairing": {"kind": "interleaved", "turns": "a"}}
    assert answered(pair(environment=in_turns)).rests_on == "4 of at most 12 pairs in turns"


def test_a_compilation_that_is_lost_among_long_calls_has_no_time() -> None:
    """Steps of 100 samples at 3,000 samples/s take 0.033 s."""
    lost = [with_result(one, compile_time_s=0.0) for one in pair()[:4]]
    assert answered([*lost, *pair()[4:]]).ready == "under 0.033 / 2.5 s"


def test_without_a_ratio_the_reason_stands_in_its_place() -> None:
    found = answered(pair()[:4])
    assert (found.outcome, found.sentence) == ("none", "no ratio: PyTorch has no number here")
    assert found.sides == ["3,000 (step.jit)", "none"] and axis_of(found, 2.0) is None


def test_a_flag_is_named_where_it_changes_the_answer() -> None:
    """An interval has what processes differ by, so that is no doubt of a verdict; another process on the GPU is."""
    differ = {"processes_differ": "replicates differ by 9%"}
    both = differ | {"overruled": "the replicates chose taps.jit"}
    for flags, judgement, doubt in (
        (differ, "undecided", "replicates differ by 9%"),
        (differ, "JAX faster", ""),
        (both, "undecided", "the replicates chose taps.jit"),
        (both, "JAX faster", "the replicates chose taps.jit"),
    ):
        assert judged(flags, verdict=judgement).doubt == doubt


def test_groups_are_one_for_each_device_full_and_real_first() -> None:
    found = [*pair(quick=True, replicates=1), *pair(data="sample"), *pair(environment=A100), *pair(jax=1000)]
    groups = groups_of(sections(found, passed))
    assert [one.device for one in groups] == ["NVIDIA A100", "NVIDIA H200", "NVIDIA H200", "NVIDIA H200"]
    assert [(one.quick, one.sample) for one in groups] == [(False, False), (False, False), (False, True), (True, False)]
    assert groups[1].headline == "On NVIDIA H200: Train a small CNN: PyTorch 2.00 × faster (2.00 to 2.00)"
    assert groups[0].about == ""
    assert groups[2].about.startswith("Data: a small sample") and groups[3].about.startswith("A quick run")


def test_the_headline_counts() -> None:
    found = [*pair(batch_size=1), *pair(jax=1000, batch_size=2), *pair(jax=2000, batch_size=3)]
    found += [*pair(batch_size=4, replicates=3), *pair(batch_size=5)[:4]]
    (one,) = groups_of(sections(found, passed))
    assert one.headline == (
        "On NVIDIA H200: JAX is faster at 1 of 5; PyTorch is faster at 1; JAX is ahead without a verdict at 1; both "
        "are the same at 1; no ratio at 1"
    )
    assert one.scale == 2.0  # the smallest that holds 1 / 2 and 1.5


@pytest.mark.parametrize(
    ("second", "headline"),
    [
        ({"jax": 1000, "torch": 2000, "replicates": 1}, "After one pair: JAX ahead in 1 of 2, PyTorch in 1"),
        ({"replicates": 3}, "After at most 3 pairs: JAX ahead in 2 of 2"),
    ],
)
def test_before_the_first_look_the_headline_says_after_how_many_pairs(second: dict[str, Any], headline: str) -> None:
    (one,) = groups_of(sections([*pair(batch_size=1, replicates=1), *pair(batch_size=2, **second)], passed))
    assert one.headline == f"On NVIDIA H200: {headline}"


def test_many_rows_are_one_answer_for_each_section() -> None:
    """Thirteen variants of one benchmark, of which JAX is faster by 2, and one of another."""
    other = CELL.model_copy(update={"benchmark": "cifar10"})
    found = [one for size in range(1, 14) for one in pair(jax=4000, batch_size=size)] + pair(cell=other)
    found += pair(9000, precision="default")  # nothing was set: shown, and in no mean
    (one,) = groups_of(sections(found, passed))
    of_cifar10, of_mnist = one.answers
    assert (of_mnist.work, of_mnist.detail) == ("Train", "mnist, 14 variants")
    assert of_mnist.sentence == "JAX 2.00 × faster (2.00 to 2.00)"
    assert (of_mnist.speeds, of_mnist.rests_on) == ("JAX faster in 13, undecided in 1", "geometric mean of 13 ratios")
    assert (of_cifar10.detail, of_cifar10.outcome) == ("cifar10, 1 variants", "faster")


def test_places_on_the_axis_by_hand() -> None:
    """At a scale of 4, the square root of it is half way from the middle to an end."""
    assert [place_on_axis(ratio, 4.0) for ratio in (1, 2, 4, 0.25, 0.5, 9)] == pytest.approx([50, 75, 100, 0, 25, 100])
    found = judged(value=2.0, interval=Interval(1.0, 4.0))
    assert axis_of(found, 4.0) == (75, 50, 100)


def test_the_terminal_says_it_in_80_columns() -> None:
    on_cpu: dict[str, Any] = {"environment": CPU, "data": "sample"}
    shown = answers_of([section_of([*pair(**on_cpu), *pair(**on_cpu, jax=1000, batch_size=200)])], 80)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1] == "On CPU: Xeon: JAX is faster at 1 of 2; PyTorch is faster at 1"
    assert "Train a small CNN (mnist, batch 100, fp32)" in lines
    assert "  JAX 1.50 × faster (1.50 to 1.50)" in lines
    assert "  PyTorch 2.00 × faster (2.00 to 2.00)" in lines
    assert "2 comparisons have 2 winners. Chance alone would give 0.1." in lines


def test_the_page_begins_with_the_answer() -> None:
    page = page_of([*pair(), *pair(quick=True, replicates=1, environment=A100)])
    assert "Not calibrated on this device: <code>python main.py calibrate</code> measures" in page
    assert "<h1>On NVIDIA H200: Train a small CNN: JAX 1.50 × faster (1.50 to 1.50)</h1>" in page
    assert page.index("JAX, 1.50 × (1.50 to 1.50)") < page.index("How sure is this?") < page.index("A quick run")
    assert page.count("A quick run, one short process of each side") == 1


TABLE = Table(
    name="x",
    title="Modes [all]",
    caption="Medians.",
    columns=[*texts("mode"), *numbers("samples/s")],
    lines=[group("cnn_1"), Line(["JAX a|b", "3,000"], "jax"), Line(["PyTorch", "2 %"], "torch", is_pale=True)],
    notes=["None of a_b."],
)


def test_one_table_has_its_writers() -> None:
    console = plain(60)
    console.print(terminal_table(TABLE))
    rows = [line.split() for line in text(console).splitlines() if line.strip()]
    assert ["cnn_1"] in rows and ["JAX", "a|b", "3,000"] in rows and ["PyTorch", "2", "%"] in rows
    of_latex = latex(TABLE, ["where"])
    assert r"\begin{tabular}{lr}" in of_latex and r"\multicolumn{2}{l}{\textbf{cnn\_1}} \\" in of_latex
    assert r"PyTorch & 2 \% \\" in of_latex and r"None of a\_b." in of_latex and of_latex.startswith("% where")
    assert markdown(replace(TABLE, lines=TABLE.lines[1:])) == (
        "| mode | samples/s |\n| --- | --- |\n| JAX a/b | 3,000 |\n| PyTorch | 2 % |\n\nMedians. None of a_b."
    )


def test_the_table_of_answers_has_each_doubt_once() -> None:
    one = replace(answered(pair()), doubt="other processes")
    table = answers_table("overview", "JAX or PyTorch", [one, replace(one, detail="b"), replace(one, doubt="")])
    assert table.notes == ["Train a small CNN (mnist, batch 100, fp32); Train a small CNN (b): other processes."]
    assert len(table.lines) == 3 and table.lines[0].cells[1:3] == ["JAX", "1.50 × (1.50 to 1.50)"]


# Numbers and verdicts.


def test_a_ratio_has_the_decimals_that_its_verdict_needs() -> None:
    expected = {1.25: "1.25", 1.1: "1.10", 0.8: "0.80", 0.0123: "0.0123", 1.0199: "1.020", 0.95: "0.950", 1.0: "1.000"}
    # 1 / 1.01 is 0.990099, and 1.01 the other end of what counts as the same; the last is the machine's own rounding.
    expected |= {1.00046: "1.0005", 0.99996: "0.99996", 1.0101: "1.0101", 0.9902: "0.9902", 0.9901: "0.9901"}
    expected |= {0.99: "0.990", 1 + 1e-12: "1.000"}
    assert {ratio: times(ratio) for ratio in expected} == expected


OPEN = RatioEstimate(1.02, Interval(0.993, 1.047), 6, "undecided", p=0.2, at_most=12)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"verdict": "JAX faster", "replicates": 4}, "JAX faster: after 4 of at most 12 pairs"),
        # 1 / 0.993 is 1.00705.
        ({}, "not decided after 6 of at most 12 pairs: between JAX 4.7 % and PyTorch 0.7 % faster"),
        (
            {"interval": Interval(0.25, 3.0), "replicates": 20, "at_most": 20, "is_extended": True},
            "not decided after 20 pairs, extended after a look: between JAX 200 % and PyTorch 300 % faster",
        ),
        ({"p": None, "replicates": 3}, "so far: 3 of at most 12 pairs, no verdict before 4"),
        ({"p": None, "replicates": 1, "at_most": 0}, "so far: 1 replicate, no verdict before 4"),
        ({"doubt": "identical pairs: copied records?"}, "no verdict: identical pairs: copied records?"),
    ],
)
def test_a_verdict_says_after_how_many_pairs(changes: dict[str, Any], text: str) -> None:
    assert verdict(OPEN._replace(**changes)) == text


def test_what_is_missing_beside_a_throughput_is_said_once_for_all_modes_of_the_same_reason() -> None:
    records = [
        with_result(record("jax", mode, replicate=replicate), blocks_alone_absent="failed: rank 1 on n2: killed")
        for mode in ("step.jit", "scan.jit")
        for replicate in range(2)
    ]
    records.append(with_result(record("torch", "step.eager"), compile_time_warm_absent="timeout: not done after 9 s"))
    section = section_of(records)
    about_communication = "Communication: failed: rank 1 on n2: killed; JAX cnn-b100-fp32 step.jit (and 1 more)"
    about_warm = "Compile time with warm caches: timeout: not done after 9 s; PyTorch cnn-b100-fp32 step.eager"
    about_device = "Memory, Energy: not measured; JAX cnn-b100-fp32 step.jit (and 2 more)"
    assert absent_lines(section.rows) == [about_communication, about_warm, about_device]
    assert f"No number for {about_communication}" in modes_table(section).notes


def test_a_lead_pays_for_the_longer_compilation_by_hand() -> None:
    """PyTorch compiles 10 s longer, and saves 1/1000 - 1/2000 s of a sample: 20,000 samples, which take it 10 s."""
    sides = [("jax", "step.jit", 1000, 2.0), ("torch", "step.eager", 2000, 12.0)]
    found = [
        with_result(record(framework, mode, speed, replicate=number), compile_time_s=seconds)
        for number in range(4)
        for framework, mode, speed, seconds in sides
    ]
    (row,) = section_of(found).rows
    assert pays_after(row) == "PyTorch's lead has paid for its compilation, 10 s longer, after 20,000 samples (10 s)"
    (alike,) = section_of([with_result(one, compile_time_s=2.0) for one in found]).rows
    assert pays_after(alike) == ""
    # The same 12 s in every replicate have no spread, so their p is 0; p50 is alike on both sides but for the blocks.
    lines = {line[1]: line[2:] for line in quantity_lines([row], task_of("mnist").metric)}
    assert lines["compile, cold, s"] == ["2", "12", "0.17 [0.17, 0.17]", "JAX", "4"]
