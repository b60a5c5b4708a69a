"""Why one side is slower, and what share of what is attainable both reach, from records whose answer is known."""

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from harness.plan import Framework
from harness.results.device_peaks import DevicePeaksRecord, Peak, write_device_peaks
from harness.results.record import Record
from pipeline.report.charts import TERM_COLORS
from pipeline.report.compare import Section, sections
from pipeline.report.csv_files import why_csv_text
from pipeline.report.device_peaks import PeaksByDevice, device_peaks_table, peaks_by_device
from pipeline.report.figures import section_charts
from pipeline.report.why import TERMS, Terms, Why, terms_of, why_of
from pipeline.report.why_words import OUTSIDE_OF_OPERATORS, TERM_WORDS, not_explained_lines, why_sentence
from tests.made.explained_records import (
    ADD,
    ALL_REDUCE,
    COPY,
    GEMM,
    TENSOR_CORE_GEMM,
    explained,
    explanation,
    launch_bound_pair,
)
from tests.made.records import blocks
from tests.made.report_records import CPU, H200, csv_lines, passed, row_of, with_result
from tests.pipeline.report.shown import page_of, reported


def found(records: Any) -> Why:
    return why_of(row_of(records))


def pair(jax: Any, torch: Any, **changes: Any) -> list[Record]:
    return [*explained("jax", "step.jit", jax, **changes), *explained("torch", "step.eager", torch, **changes)]


def test_terms_of_a_launch_bound_side_add_up_and_are_told_with_their_numbers() -> None:
    why = found(launch_bound_pair())
    terms = why.terms["torch"]
    assert terms.step_s == pytest.approx(4e-3)
    assert sum(terms.terms_s.values()) == pytest.approx(4e-3)
    expected = {"product": 1.3e-3, "traffic": 0.9e-3, "layout": 0, "communication": 0, "other": 0, "idle": 1.8e-3}
    assert terms.terms_s == pytest.approx(expected)
    assert sum(cause.difference_s for cause in why.causes) == pytest.approx(why.difference_s)
    assert (why.slow, why.terms["torch"].bound, why.terms["jax"].bound) == ("torch", "launch-bound", "matrix products")
    assert [cause.term for cause in why.named] == ["idle"]  # 1.6 of 2.0 ms is 80 %
    assert why_sentence(why) == (
        "PyTorch's step takes 2 ms more (4 against 2 ms): 1.6 ms in which the GPU waits (45% of its step "
        "against 10%: the host needs 3.9 ms to hand out 100 kernels, the other side 0.2 ms for 30). "
        "PyTorch: launch-bound; JAX: matrix products, and waits for 10% of its time."
    )


def test_sides_swapped_swap_the_sentence() -> None:
    first, second = launch_bound_pair()[0].result.explanation, launch_bound_pair()[4].result.explanation
    swapped = why_sentence(found(pair(second, first)))
    assert swapped.startswith("JAX's step takes 2 ms more (4 against 2 ms)")
    assert swapped.endswith("JAX: launch-bound; PyTorch: matrix products, and waits for 10% of its time.")


FAST = explanation({GEMM: (10, 1.9)}, step_ms=2.0)
SLOW = explanation({GEMM: (10, 3.9)}, step_ms=4.0)
FAST_ON_CPU = explanation({"aten::mm": (10, 1.9)}, step_ms=2.0, on_device=False)


def half_idle(**changes: Any) -> Any:
    return explanation({GEMM: (10, 2.0)}, step_ms=4.0, **changes)


@pytest.mark.parametrize(
    ("slow", "bound"),
    [
        (SLOW, "matrix products"),
        (explanation({ADD: (10, 3.0), GEMM: (1, 0.9)}, step_ms=4.0), "memory traffic"),
        (explanation({COPY: (10, 3.0), GEMM: (1, 0.9)}, step_ms=4.0), "layout"),
        (explanation({GEMM: (10, 3.0), ALL_REDUCE: (1, 0.9)}, step_ms=4.0), "communication-bound"),
        # The host hands everything out in a tenth of the step; and gaps that are not the host's, whatever the dispatch.
        (half_idle(dispatch_ms=0.4, other_gaps_ms=2.0), "waits for something else"),
        (half_idle(dispatch_ms=3.9, host_gaps_ms=0.5, other_gaps_ms=1.5), "waits for something else"),
    ],
)
def test_what_a_step_is_made_of(slow: Any, bound: str) -> None:
    assert found(pair(FAST, slow)).terms["torch"].bound == bound


def test_causes_in_order_and_what_speaks_against_them() -> None:
    """4 ms against 2: 1.5 ms more traffic, 0.8 ms more layout, and 0.3 ms less in products."""
    fast = explanation({GEMM: (10, 1.2), ADD: (10, 0.8)}, step_ms=2.0)
    slow = explanation({GEMM: (10, 0.9), ADD: (50, 2.3), COPY: (5, 0.8)}, step_ms=4.0)
    why = found(pair(fast, slow))
    named = [(cause.term, round(cause.difference_s * 1e3, 6)) for cause in why.named]
    assert named == [("traffic", 1.5), ("layout", 0.8)]
    assert [cause.term for cause in why.against] == ["product"]
    assert "against it, 0.3 ms less in convolutions and matrix products (10 kernels against 10)" in why_sentence(why)


def busy(step_ms: float) -> Any:
    """A step in which nothing runs for 0.1 ms."""
    return explanation({GEMM: (1, step_ms - 0.1)}, step_ms=step_ms)


def measured(jax_ms: float, torch_ms: float, ratios: Sequence[float]) -> str:
    """The sentence on explained steps of these times, and replicates of these ratios, whatever the steps say."""
    records = explained("torch", "step.eager", busy(torch_ms), replicates=len(ratios), throughput=50_000.0)
    for number, ratio in enumerate(ratios):
        of_ratio = explained("jax", "step.jit", busy(jax_ms), replicates=number + 1, throughput=50_000.0 * ratio)
        records.append(of_ratio[number])
    return why_sentence(found(records))


def test_what_is_not_tried_says_why_not() -> None:
    """The logarithms of 0.5, 1, 2 and 1 have the mean 0; those of the next four, of which the even have JAX first, have
    the error sqrt(2 * 0.001**2 / 2 / 4), so a reach of 7.649 * 0.0005 = 0.38 %."""
    is_open = "the ratio's interval includes 1, so which side is faster is open"
    assert measured(2.1, 2.0, [0.5, 1.0, 2.0, 1.0]) == f"Not explained: {is_open}."
    assert measured(2.0, 4.0, [1.001, 1.002, 1.003, 1.002]) == "Not explained: both sides are the same within 1%."
    assert measured(2.0, 2.1, [1.05]) == "Not explained: a difference below 10% that no interval confirms."


@pytest.mark.parametrize("precision", ["fp32", "default"])
def test_a_difference_whose_interval_excludes_1_is_always_explained(precision: str) -> None:
    """2.1 ms against 2 ms: 5 %, as in the replicates. What has no verdict for its precision is different, too."""
    why = found(pair(busy(2.0), busy(2.1), precision=precision))
    assert why.row.ratio.verdict == ("JAX faster" if precision == "fp32" else "undecided")
    assert why_sentence(why).startswith(
        "PyTorch's step takes 0.1 ms more (2.1 against 2 ms): 0.1 ms in convolutions and matrix products"
    )


@pytest.mark.parametrize("ratios", [[1.26, 1.27, 1.28, 1.27], [1.27]])
def test_an_explanation_never_contradicts_its_ratio(ratios: Sequence[float]) -> None:
    other_way_round = "Not explained: in the processes that were traced the order was the other way round "
    assert measured(4.0, 2.0, ratios) == f"{other_way_round}(JAX's step took 4 ms and PyTorch's step took 2 ms)."
    assert measured(2.0, 4.0, [1 / one for one in ratios]).startswith(other_way_round)
    assert "PyTorch's step takes 2 ms more" in measured(2.0, 4.0, ratios)


@pytest.mark.parametrize(
    ("kernels", "sentence"),
    [
        ({GEMM: (10, 3.7), "_v4_kernel": (1, 0.3)}, "8% of the busy time is in kernels whose names are not known"),
        ({GEMM: (10, 4.3)}, "the profiler slowed the step by 5% at the least"),
        ({}, "the tracer saw nothing run"),
    ],
)
def test_what_refuses_an_explanation(kernels: Any, sentence: str) -> None:
    why = found(pair(FAST, explanation(kernels, step_ms=4.1)))
    assert why_sentence(why) == f"Not explained: PyTorch: {sentence}."
    assert why.terms["torch"].bound is None


@pytest.mark.parametrize(
    ("on_device", "traced_ms", "refuses", "doubted"),
    [
        *((True, 3.65, False, False), (True, 3.6, True, False), (True, 4.8, False, False)),
        *((False, 3.1, False, False), (False, 3.0, True, False)),
        *((False, 4.7, False, False), (False, 4.8, False, True)),
    ],
)
def test_a_step_of_another_length_under_its_tracer(
    on_device: bool, traced_ms: float, refuses: bool, doubted: bool
) -> None:
    """4 ms; 20 traced steps last at least as long as 19 whole ones, so 3.65 ms stand for 3.84 at most, 3.6 for 3.79:
    104 and 106 %. On a CPU 3.1 and 3.0 stand for 3.26 and 3.16: 123 and 127 %; and 4.7 and 4.8 for 4.95 and 5.05: 124
    and 126 %. A GPU's kernels take what they take."""
    terms = terms_of_torch(half_idle(on_device=on_device, traced_ms=traced_ms))
    share = f"{4 * 19 / (20 * traced_ms):.0%}"
    refusal = f"a step took {share} of one under the tracer, which makes none faster: something else was computed"
    assert terms.refusals == [refusal] * refuses
    assert terms.doubts == ["a step took 126% of its time under the tracer, and so its operators"] * doubted


def test_doubts_stand_behind_the_explanation() -> None:
    fast = explanation({GEMM: (10, 1.9)}, step_ms=2.0, first_window={GEMM: (10, 1.5)})
    slow = explanation({GEMM: (10, 3.8)}, step_ms=4.0, first_window={GEMM: (11, 3.8)})
    records = [*explained("jax", "step.jit", fast), *explained("torch", "step.eager", slow, throughput=20_000.0)]
    sentence = why_sentence(found(records))
    assert sentence.startswith("PyTorch's step takes 2 ms more")
    assert sentence.endswith(
        " To be read with care: JAX: two traced windows differ by 27% in busy time; PyTorch: not every step runs the "
        "same kernels; PyTorch: the explained process took 80% of the measured step time."
    )


@pytest.mark.parametrize(("others", "doubts"), [(None, 0), (0.25, 0), (1.46, 1)])
def test_company_on_a_cpu_is_a_doubt(others: float | None, doubts: int) -> None:
    slow = explanation({"aten::mm": (10, 3.9)}, step_ms=4.0, on_device=False, other_cpus=others)
    why = found(pair(FAST_ON_CPU, slow))
    assert why.doubts == doubts * [("torch", "other processes kept 1.5 CPUs busy while it was explained")]


def test_on_a_cpu_operators_and_no_verdict_on_launches() -> None:
    slow = explanation({"aten::mm": (10, 2.0), "aten::add": (5, 0.2)}, step_ms=4.0, dispatch_ms=4.0, on_device=False)
    why = found(pair(FAST_ON_CPU, slow))
    assert why.terms["torch"].bound is None
    cause = "1.7 ms outside of the framework's operators (45% of its step against 5%)"
    assert why_sentence(why) == f"PyTorch's step takes 2 ms more (4 against 2 ms): {cause}."


def test_a_cpus_tracer_may_see_more_than_the_clock_and_the_bars_still_add_up() -> None:
    slow = explanation({"aten::mm": (10, 3.0), "aten::add": (5, 2.0)}, step_ms=4.0, on_device=False)
    terms = terms_of_torch(slow)
    assert terms.refusals == []
    assert terms.terms_s["product"] == pytest.approx(2.4e-3)
    assert sum(terms.terms_s.values()) == pytest.approx(4e-3)


def terms_of_torch(found: Any) -> Terms:
    mode = row_of(pair(explanation({GEMM: (1, 1.0)}, step_ms=2.0), found)).best("torch")
    return terms_of(mode)


def test_why_there_is_none_is_told() -> None:
    records = pair(None, None)
    assert why_of(row_of(records)) is None
    broken = with_result(records[0], explanation_absent="failed: CUPTI")
    assert not_explained_lines([row_of([broken, *records[1:]])]) == ["JAX cnn-b100-fp32 step.jit: failed: CUPTI"]


def test_csv_and_bars_have_the_terms_of_each_step() -> None:
    compared = sections(launch_bound_pair(), passed)
    by_framework = {line["framework"]: line for line in csv.DictReader(io.StringIO(why_csv_text(compared)))}
    torch = by_framework["torch"]
    assert sum(float(torch[f"{term}_s"]) for term in TERMS) == pytest.approx(float(torch["step_time_s"]))
    assert (torch["bound"], float(torch["events"]), float(torch["dispatch_s"])) == ("launch-bound", 100, 3.9e-3)
    assert torch["sentence"].startswith("PyTorch's step takes 2 ms more")
    assert [float(line["step_operations"]) for line in csv_lines(compared)] == [6e9, 6e9]
    (bars,) = [chart for chart in section_charts(compared[0]) if chart.name == "time_by_class"]
    sums = {side: sum(one["ms"] for one in bars.points if one["framework"] == side) for side in ("JAX", "PyTorch")}
    assert sums == pytest.approx({"JAX": 2.0, "PyTorch": 4.0})


def test_ten_longest_are_the_longest_and_the_products_that_take_most_say_whether_tensor_cores_are_used() -> None:
    kernels = {f"gemm_{number}": (1, 0.1 + number / 100) for number in range(15)}
    terms = terms_of_torch(explanation(kernels | {TENSOR_CORE_GEMM: (10, 3.0)}, step_ms=9.0))
    assert [one.name for one in terms.longest] == [TENSOR_CORE_GEMM, *(f"gemm_{n}" for n in range(14, 5, -1))]
    assert terms.tensor_cores is True


def test_bars_of_each_device_have_the_words_and_colours_of_its_own_terms() -> None:
    jax, torch = (explanation({GEMM: (1, 1.5)}, step_ms=ms, on_device=False) for ms in (2.0, 4.0))
    page = page_of([*launch_bound_pair(), *pair(jax, torch, environment=CPU)])
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', page)[1])
    found = {}
    for of_place in charts["data"].values():
        if bars := of_place.get("time_by_class"):
            scale = charts["specifications"][bars[0]]["layer"][0]["encoding"]["color"]["scale"]
            found[bars[1][0]["on_device"]] = dict(zip(scale["domain"], scale["range"], strict=True))
    assert found == {
        True: {TERM_WORDS[term]: TERM_COLORS[term] for term in ("product", "traffic", "idle")},
        False: {TERM_WORDS["product"]: TERM_COLORS["product"], OUTSIDE_OF_OPERATORS: TERM_COLORS["idle"]},
    }


# Device peaks: shares of them, the table.


def made(framework: Framework, teraflops: float, terabytes: float) -> DevicePeaksRecord:
    """Of fp32: a product of 2e12 operations, and a triad of 12e9 bytes."""
    peaks = [
        Peak(kind="product", precision="fp32", shape=(10**4,) * 3, blocks=blocks([10 * 2 / teraflops] * 3)),
        Peak(kind="triad", precision="fp32", shape=(10**9,), blocks=blocks([10 * 0.012 / terabytes] * 3)),
    ]
    return DevicePeaksRecord(framework=framework, started_at="", ended_at="", environment=H200, peaks=peaks)


PEAKS: PeaksByDevice = peaks_by_device([made("jax", 50.0, 4.2), made("torch", 40.0, 4.3)])
"""50 TFLOP/s and 4.3 TB/s."""


def compared(records: Iterable[Record], peaks: PeaksByDevice = PEAKS) -> Section:
    (section,) = sections(records, passed, peaks)
    return section


def test_share_of_attainable_by_hand_where_the_peaks_are_known() -> None:
    """6e9 operations at 50e12 per second take 0.12 ms: of JAX's step of 2 ms 6 %, of its 1.2 ms of products 10 %."""
    (row,) = compared(launch_bound_pair()).rows
    jax, torch = (terms_of(mode) for mode in row.modes)
    assert (jax.share_of_attainable, torch.share_of_attainable) == (pytest.approx(0.06), pytest.approx(0.03))
    assert jax.products_share_of_attainable == pytest.approx(0.1)
    reached = "JAX: matrix products, which reach 10% of what was attainable on this GPU, and waits for 10% of its time."
    assert why_sentence(why_of(row)).endswith(reached)
    without = compared(launch_bound_pair(), {"NVIDIA A100": PEAKS["NVIDIA H200"]})
    assert "attainable" not in why_sentence(why_of(without.rows[0]))


@pytest.mark.parametrize(("precision", "work"), [("tf32", {}), ("fp32", {"work": None})])
def test_another_precision_and_what_was_not_counted_have_no_share(precision: str, work: dict[str, None]) -> None:
    one = explanation({GEMM: (1, 1.0)}, step_ms=1.1, **work)
    both = [*explained("jax", "a", one, precision=precision), *explained("torch", "b", one, precision=precision)]
    assert terms_of(compared(both).rows[0].modes[0]).share_of_attainable is None


def test_table_of_the_peaks() -> None:
    table = device_peaks_table(PEAKS)
    products = "matrix products, fp32; the frameworks differ"
    assert [line.cells for line in table.lines] == [
        ["NVIDIA H200", products, "50 TFLOP/s", "50 TFLOP/s", "40 TFLOP/s"],
        ["NVIDIA H200", "memory", "4.3 TB/s", "4.2 TB/s", "4.3 TB/s"],
    ]


def test_causes_and_peaks_in_csv_page_and_terminal(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    for one in (made("jax", 50.0, 4.2), made("torch", 40.0, 4.3)):
        write_device_peaks(one, results.new_device_peaks(one.framework))
    (results.device_peaks / "odd.json").write_text("{}")
    shown, page = reported(results, *launch_bound_pair())
    assert "odd.json: not a record of device peaks" in shown
    assert "50 TFLOP/s" in page and '<td class="n">6.0%</td>' in page
    assert page.index("<h3>Why</h3>") < page.index("PyTorch&#39;s step takes") < page.index("Every execution mode")
    assert "triton_poi_fused_add_1" in page
    lines = list(csv.DictReader(io.StringIO((results.report / "why.csv").read_text())))
    assert [float(line["share_of_attainable"]) for line in lines] == pytest.approx([0.06, 0.03])
    assert float(lines[0]["attainable_operations_per_s"]) == pytest.approx(50e12)
