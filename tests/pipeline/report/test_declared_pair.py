"""The declared pair beside the fastest modes, and names that may be chance."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from harness.plan import Framework
from harness.results.record import Record
from pipeline.report.answer import answer_of
from pipeline.report.compare import Row, Section, sections
from pipeline.report.csv_files import csv_text
from pipeline.report.wording import chance_mark, chance_sentence
from tests.made.report_records import A100, csv_lines, passed, record, row_of, section_of, with_result
from tests.pipeline.report.shown import answers_of, page_of

QUIET = (-0.001, 0.0, 0.001, 0.0)
"""JAX is first in the first and third: the error is sqrt(2 * 0.001**2 / 2 / 4), 0.0005."""


def of_mode(
    framework: Framework, mode: str, speed: float, noise: Sequence[float] = QUIET, **changes: Any
) -> list[Record]:
    """A replicate for each of the logarithms in `noise`."""
    return [record(framework, mode, speed * math.exp(one), replicate=n, **changes) for n, one in enumerate(noise)]


STILL = (0.0, 0.0, 0.0, 0.0)
DECLARED = "2.80 [2.79, 2.81] JAX faster: after 4 of at most 12 pairs (step.jit / step.compiled)"


def four_modes(**changes: Any) -> list[Record]:
    """Best: taps.jit 3000 / step.eager 2000. Declared: step.jit 2800 / step.compiled 1000."""
    return [
        *of_mode("jax", "step.jit", 2800, **changes),
        *of_mode("jax", "taps.jit", 3000, **changes),
        *of_mode("torch", "step.compiled", 1000, STILL, **changes),
        *of_mode("torch", "step.eager", 2000, STILL, **changes),
    ]


def only(records: list[Record]) -> tuple[Section, Row]:
    section = section_of(records)
    return section, section.rows[0]


def test_declared_pair_stands_beside_the_best_of_the_modes() -> None:
    section, row = only(four_modes())
    assert (row.ratio.value, row.declared_ratio.value) == (pytest.approx(1.5), pytest.approx(2.8))
    assert (row.declared.jax.execution_mode, row.declared.torch.execution_mode) == ("step.jit", "step.compiled")
    assert not row.best_is_declared
    # 7.649 times 0.0005 is 0.0038: 2.8 * exp(+-0.0038)
    assert answer_of(section, row).more == (f"Declared pair: {DECLARED}",)
    for shown in (answers_of([section]), page_of(four_modes())):
        assert f"Declared pair: {DECLARED}" in shown
    lines = {line["execution_mode"]: line for line in csv_lines([section])}
    assert {mode: (line["fastest"], line["declared"]) for mode, line in lines.items()} == {
        **{"step.jit": ("False", "True"), "taps.jit": ("True", "False")},
        **{"step.compiled": ("False", "True"), "step.eager": ("True", "False")},
    }
    assert float(lines["step.jit"]["declared_ratio_jax_over_torch"]) == pytest.approx(2.8)
    assert float(lines["taps.jit"]["ratio_jax_over_torch"]) == pytest.approx(1.5)
    assert lines["taps.jit"]["declared_ratio_jax_over_torch"] == lines["step.jit"]["ratio_jax_over_torch"] == ""
    assert lines["step.compiled"]["declared_verdict"] == "JAX faster"


def test_where_the_best_is_the_declared_pair_it_is_said_once() -> None:
    section, row = only([*of_mode("jax", "step.jit", 3000), *of_mode("torch", "step.compiled", 2000, STILL)])
    assert row.best_is_declared and row.declared_ratio is row.ratio
    assert answer_of(section, row).more == ()


@pytest.mark.parametrize("missing", ["step.jit", "step.compiled"])
def test_without_one_of_its_modes_there_is_no_declared_ratio(missing: str) -> None:
    """Nor with one that is worthless."""
    others, of_it = [], []
    for one in four_modes():
        (of_it if one.measurement.variant.execution_mode == missing else others).append(one)
    section, row = only(others)
    assert row.declared is None and row.ratio is not None
    assert answer_of(section, row).more == ("Declared pair: one of its modes was not measured",)
    assert only([*others, *(with_result(one, recompiles=1) for one in of_it)])[1].declared is None


def many_rows(*shifts: float, **changes: Any) -> list[Record]:
    """One row for each: the logarithm of its ratio, with d = shift + (-0.01, 0, 0.01, 0)."""
    found = []
    for number, shift in enumerate(shifts, start=1):
        of_row = {"batch_size": 100 * number} | changes
        found += of_mode("jax", "step.jit", 1000 * math.exp(shift), (-0.01, 0.0, 0.01, 0.0), **of_row)
        found += of_mode("torch", "step.compiled", 1000, STILL, **of_row)
    return found


def t_of(shift: float) -> float:
    """p with two degrees of freedom: 1 - t / sqrt(2 + t**2), t = shift / 0.005; 5 % at the first look's 7.649."""

    def tails(t: float) -> float:
        return 1 - t / math.sqrt(2 + t**2)

    return 0.05 * tails(shift / 0.005) / tails(7.649)


def test_a_name_that_the_bound_drops_is_marked_and_stays() -> None:
    """Of 4 ratios, p is 0.0458, 0.48, 0.75 and 0.0006: named are the first and the last; q of the first is 2 * p."""
    section = section_of(many_rows(0.04, 0.011, 0.008, 0.35))
    first, *_, last = section.rows
    assert first.ratio.verdict == "JAX faster"
    assert first.q == pytest.approx(2 * t_of(0.04)) and last.q == pytest.approx(4 * t_of(0.35))
    assert [bool(chance_mark(row.ratio, row.q)) for row in section.rows] == [True, False, False, False]
    assert chance_sentence([section]) == (
        "4 comparisons have 2 winners, of which 1 may be luck after a correction for so many. "
        "Chance alone would give 0.2."
    )
    assert "0.0916" in csv_text([section])
    assert "But: may be luck (q 0.09)" in answers_of([section])


def test_same_is_no_name_that_chance_could_have_given_and_too_few_replicates_are_in_no_family() -> None:
    section = section_of([*of_mode("jax", "step.jit", 1000, STILL), *of_mode("torch", "step.compiled", 1000, STILL)])
    assert chance_sentence([section]) == "1 comparison has 0 winners. Chance alone would give 0.05."
    few = [*of_mode("jax", "step.jit", 1020, (0.0, 0.01, 0.0)), *of_mode("torch", "step.compiled", 1000, (0.0,) * 3)]
    section, row = only(few)
    assert row.q is None and chance_sentence([section]) == ""
    row = row_of(many_rows(0.04))
    assert row.q == pytest.approx(t_of(0.04)) and not chance_mark(row.ratio, row.q)


def test_another_device_and_sample_data_change_no_q() -> None:
    alone = row_of(many_rows(0.04)).q
    on_real, _ = sections([*many_rows(0.04), *many_rows(0.001, 0.002, 0.003, data="sample")], passed)
    assert on_real.rows[0].q == alone
    on_a100, on_h200 = sections([*many_rows(0.04), *many_rows(0.001, 0.002, 0.003, environment=A100)], passed)
    assert (len(on_a100.rows), on_h200.rows[0].q) == (3, alone)
