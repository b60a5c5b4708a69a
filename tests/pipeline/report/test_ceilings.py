"""Shares of what is attainable, the roofline, and the table of ceilings, from records whose answer is known."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.paths import Results
from harness.plan import Framework
from harness.results.ceilings import Ceiling, CeilingsRecord, write_ceilings
from harness.results.record import Record
from pipeline.report.ceilings import DeviceCeilings, attainable_of_devices, ceiling_lines, ceilings_table
from pipeline.report.compare import Section, sections
from pipeline.report.figures import section_charts
from pipeline.report.why import terms_of, why_of
from pipeline.report.why_words import why_sentence
from tests.made.explained_records import GEMM, explained, explanation, launch_bound_pair
from tests.made.records import blocks
from tests.made.report_records import H200, passed
from tests.pipeline.report.shown import reported


def made(framework: Framework, teraflops: float, terabytes: float) -> CeilingsRecord:
    """Of fp32: a product of 2e12 operations, and a triad of 12e9 bytes."""
    ceilings = [
        Ceiling(kind="product", precision="fp32", shape=(10**4,) * 3, blocks=blocks([10 * 2 / teraflops] * 3)),
        Ceiling(kind="triad", precision="fp32", shape=(10**9,), blocks=blocks([10 * 0.012 / terabytes] * 3)),
    ]
    return CeilingsRecord(framework=framework, started_at="", ended_at="", environment=H200, ceilings=ceilings)


CEILINGS: DeviceCeilings = attainable_of_devices([made("jax", 50.0, 4.2), made("torch", 40.0, 4.3)])
"""50 TFLOP/s and 4.3 TB/s."""


def compared(records: Iterable[Record], ceilings: DeviceCeilings = CEILINGS) -> Section:
    (section,) = sections(records, passed, ceilings)
    return section


def test_share_of_attainable_by_hand() -> None:
    """6e9 operations at 50e12 per second take 0.12 ms: of JAX's step of 2 ms 6 %, of its 1.2 ms of products 10 %."""
    (row,) = compared(launch_bound_pair()).rows
    jax, torch = (terms_of(mode) for mode in row.modes)
    assert (jax.share_of_attainable, torch.share_of_attainable) == (pytest.approx(0.06), pytest.approx(0.03))
    assert jax.products_share_of_attainable == pytest.approx(0.1)
    reached = "JAX: matrix products, which reach 10% of what was attainable on this GPU, and waits for 10% of its time."
    assert why_sentence(why_of(row)).endswith(reached)


def test_without_a_ceiling_nothing_is_said_of_one() -> None:
    section = compared(launch_bound_pair(), {"NVIDIA A100": CEILINGS["NVIDIA H200"]})
    assert "attainable" not in why_sentence(why_of(section.rows[0]))
    assert "roofline" not in {chart.name for chart in section_charts(section)}


@pytest.mark.parametrize(("precision", "work"), [("tf32", {}), ("fp32", {"work": None})])
def test_another_precision_and_what_was_not_counted_have_no_share(precision: str, work: dict[str, None]) -> None:
    one = explanation({GEMM: (1, 1.0)}, step_ms=1.1, **work)
    both = [*explained("jax", "a", one, precision=precision), *explained("torch", "b", one, precision=precision)]
    assert terms_of(compared(both).rows[0].modes[0]).share_of_attainable is None


def test_roofline_by_hand() -> None:
    """6e9 operations over 2**20 bytes are 5722 per byte; the ridge is at 50 / 4.3 = 11.628."""
    (chart,) = [one for one in section_charts(compared(launch_bound_pair())) if one.name == "roofline"]
    points = chart.points
    steps = {point["framework"]: point for point in points if point["kind"] == "step"}
    assert steps["JAX"]["intensity"] == pytest.approx(5722, rel=1e-4)
    assert (steps["JAX"]["teraflops"], steps["PyTorch"]["teraflops"]) == (3.0, 1.5)
    assert (steps["JAX"]["share"], steps["PyTorch"]["share"]) == (0.06, 0.03)
    roof = [(point["intensity"], point["teraflops"]) for point in points if point["kind"] == "roof"]
    assert [x for x, _ in roof] == pytest.approx([11.628 / 2, 11.628, 2 * 5722], rel=1e-4)
    assert [y for _, y in roof] == pytest.approx([25, 50, 50], rel=1e-4)


def test_lines_of_the_ceilings_and_their_sources() -> None:
    assert ceiling_lines(CEILINGS) == [
        "NVIDIA H200: matrix products, fp32; the frameworks differ: 50 TFLOP/s attainable "
        "(JAX 50 TFLOP/s, PyTorch 40 TFLOP/s); datasheet 67 TFLOP/s (75%)",
        "NVIDIA H200: memory: 4.3 TB/s attainable (JAX 4.2 TB/s, PyTorch 4.3 TB/s); datasheet 4.8 TB/s (90%)",
    ]
    assert " H200 SXM: NVIDIA's datasheet" in ceilings_table(CEILINGS).caption


def test_ceilings_in_csv_page_and_terminal(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    for one in (made("jax", 50.0, 4.2), made("torch", 40.0, 4.3)):
        write_ceilings(one, results.new_ceilings(one.framework))
    (results.ceilings / "odd.json").write_text("{}")
    shown, page = reported(results, *launch_bound_pair())
    assert "odd.json: no record of ceilings" in shown
    assert "67 TFLOP/s (75%)" in page and '<td class="n">6.0%</td>' in page
    lines = list(csv.DictReader(io.StringIO((results.report / "why.csv").read_text())))
    assert [float(line["share_of_attainable"]) for line in lines] == pytest.approx([0.06, 0.03])
    assert float(lines[0]["attainable_operations_per_s"]) == pytest.approx(50e12)
