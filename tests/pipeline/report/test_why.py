"""Why one side is slower, and what share of what is attainable both reach, by hand; every sentence of an explanation is
in the golden texts (test_golden.py)."""

from collections.abc import Iterable
from typing import Any

import pytest

from harness.results.record import Record
from pipeline.report.compare import Section, sections
from pipeline.report.device_peaks import PeaksByDevice, peaks_by_device
from pipeline.report.figures import section_charts
from pipeline.report.why import terms_of, why_of
from tests.made.constructed_records import device_peaks
from tests.made.explained_records import GEMM, TENSOR_CORE_GEMM, explained, explanation, launch_bound_pair
from tests.made.report_records import passed, row_of

PEAKS: PeaksByDevice = peaks_by_device(device_peaks())
"""50 TFLOP/s and 4.3 TB/s."""


def compared(records: Iterable[Record], peaks: PeaksByDevice = PEAKS) -> Section:
    (section,) = sections(records, passed, peaks)
    return section


def test_terms_of_a_launch_bound_side_add_up() -> None:
    why = why_of(row_of(launch_bound_pair()))
    terms = why.terms["torch"]
    assert terms.step_s == pytest.approx(4e-3)
    assert sum(terms.terms_s.values()) == pytest.approx(4e-3)
    expected = {"product": 1.3e-3, "traffic": 0.9e-3, "layout": 0, "communication": 0, "other": 0, "idle": 1.8e-3}
    assert terms.terms_s == pytest.approx(expected)
    assert sum(cause.difference_s for cause in why.causes) == pytest.approx(why.difference_s)
    assert (why.slow, why.terms["torch"].bound, why.terms["jax"].bound) == ("torch", "launch-bound", "matrix products")
    assert [cause.term for cause in why.named] == ["idle"]  # 1.6 of 2.0 ms is 80 %


def test_causes_in_order_and_what_speaks_against_them() -> None:
    """4 ms against 2: 1.5 ms more traffic, 0.8 ms more layout, and 0.3 ms less in products."""
    fast = explanation({GEMM: (10, 1.2), "loop_add_fusion": (10, 0.8)}, step_ms=2.0)
    kernels = {GEMM: (10, 0.9), "loop_add_fusion": (50, 2.3), "Memcpy DtoD (Device -> Device)": (5, 0.8)}
    slow = explanation(kernels, step_ms=4.0)
    why = why_of(row_of([*explained("jax", "step.jit", fast), *explained("torch", "step.eager", slow)]))
    named = [(cause.term, round(cause.difference_s * 1e3, 6)) for cause in why.named]
    assert named == [("traffic", 1.5), ("layout", 0.8)]
    assert [cause.term for cause in why.against] == ["product"]


def test_ten_longest_are_the_longest_and_the_products_that_take_most_say_whether_tensor_cores_are_used() -> None:
    kernels = {f"gemm_{number}": (1, 0.1 + number / 100) for number in range(15)}
    made = explanation(kernels | {TENSOR_CORE_GEMM: (10, 3.0)}, step_ms=9.0)
    terms = terms_of(row_of(explained("torch", "step.eager", made)).best("torch"))
    assert [one.name for one in terms.longest] == [TENSOR_CORE_GEMM, *(f"gemm_{n}" for n in range(14, 5, -1))]
    assert terms.tensor_cores is True


def test_share_of_attainable_by_hand_where_the_peaks_are_known() -> None:
    """6e9 operations at 50e12 per second take 0.12 ms: of JAX's step of 2 ms 6 %, of its 1.2 ms of products 10 %."""
    (row,) = compared(launch_bound_pair()).rows
    jax, torch = (terms_of(mode) for mode in row.modes)
    assert (jax.share_of_attainable, torch.share_of_attainable) == (pytest.approx(0.06), pytest.approx(0.03))
    assert jax.products_share_of_attainable == pytest.approx(0.1)
    without = compared(launch_bound_pair(), {"NVIDIA A100": PEAKS["NVIDIA H200"]})
    assert terms_of(without.rows[0].modes[0]).share_of_attainable is None
    assert "roofline" not in {chart.name for chart in section_charts(without)}


@pytest.mark.parametrize(("precision", "work"), [("tf32", {}), ("fp32", {"work": None})])
def test_another_precision_and_what_was_not_counted_have_no_share(precision: str, work: dict[str, Any]) -> None:
    one = explanation({GEMM: (1, 1.0)}, step_ms=1.1, **work)
    both = [*explained("jax", "a", one, precision=precision), *explained("torch", "b", one, precision=precision)]
    assert terms_of(compared(both).rows[0].modes[0]).share_of_attainable is None
