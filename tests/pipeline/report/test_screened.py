"""Modes that were screened: which one is in the ratio, what is shown of the others, and that no number of a screening
is in a ratio, a median or the CSV."""

from typing import Any

import pytest

from harness.plan import Framework
from harness.results.record import Record
from pipeline.report.tables import modes_table
from pipeline.report.wording import best_of, choice_notes, modes_compared
from tests.made.report_records import record, row_of, section_of, with_result
from tests.pipeline.report.shown import answers_of, modes_of
from tests.pipeline.watching.test_ratios import as_screening


def screening(framework: Framework, mode: str, throughput: float, outcome: str = "ok") -> Record:
    failed = {} if outcome == "ok" else {"outcome": outcome, "result": None, "reason": "4 GiB asked for"}
    return as_screening(record(framework, mode, throughput, **failed))


def replicated(framework: Framework, mode: str, *throughputs: float, **changes: Any) -> list[Record]:
    return [record(framework, mode, value, replicate=number, **changes) for number, value in enumerate(throughputs)]


RECORDS = [
    *(screening("jax", "step.jit", 2100), screening("jax", "taps.jit", 2000), screening("jax", "scan.jit", 900)),
    screening("jax", "big", 0.1, "out_of_memory"),
    # The replicates prefer taps, by less than their noise.
    *replicated("jax", "step.jit", 2000, 2050, 2010),
    *replicated("jax", "taps.jit", 2030, 2020, 2080),
    *replicated("torch", "step.eager", 1000, 1025, 1005),
]


def test_the_screening_chooses_and_is_in_no_number() -> None:
    row = row_of(RECORDS)
    assert (row.comparison.jax.execution_mode, row.comparison.torch.execution_mode) == ("step.jit", "step.eager")
    assert row.ratio.value == pytest.approx(2) and row.ratio.replicates == 3
    assert [mode.execution_mode for mode in row.modes] == ["taps.jit", "step.jit", "step.eager"]
    assert row.best("jax").throughputs == {0: 2000, 1: 2050, 2: 2010}
    assert [one.execution_mode for one in row.only_screened] == ["scan.jit"]
    assert (modes_compared(row, "jax"), best_of(row, "jax")) == (3, "first of 3")
    assert (modes_compared(row, "torch"), best_of(row, "torch")) == (1, "only mode")


def test_without_a_screening_the_fastest_of_the_replicates_is_chosen_and_the_note_says_so() -> None:
    records = [one for one in RECORDS if not one.measurement.is_screening]
    row = row_of(records)
    assert (row.comparison.jax.execution_mode, best_of(row, "jax")) == ("taps.jit", "best of 2")
    assert choice_notes([row]) == ["Best of n: chosen after the fact, so slightly optimistic."]
    row = row_of([*RECORDS, *replicated("jax", "added_later", 1990, 1990, 1990)])  # one that was not screened
    assert (row.comparison.jax.execution_mode, best_of(row, "jax")) == ("taps.jit", "best of 4")


def test_the_table_of_modes_shows_what_was_only_screened() -> None:
    section = section_of(RECORDS)
    lines = modes_of(section)
    assert [cell for cell in lines["JAX scan.jit"] if cell] == ["(900)", "0", "screened only"]
    assert lines["JAX step.jit"][0] == "2,010"
    chosen = "First of n: chosen by separate short runs (in brackets, a mode that had no more)"
    assert chosen in modes_table(section).caption
    assert "JAX cnn-b100-fp32-big: out of memory: 4 GiB asked for" in answers_of([section])


def test_while_nothing_has_a_replicate_the_report_says_what_was_screened() -> None:
    section = section_of([screening("jax", "step.jit", 2100), screening("torch", "step.eager", 900)])
    assert (section.rows, section.awaited) == ((), ("cnn-b100-fp32",))
    assert "Screened so far, with no replicate yet: cnn-b100-fp32" in answers_of([section])


def test_one_program_under_two_names_is_one_mode() -> None:
    """`step.jit_graph` would win by 3 %, which as the same program would be luck. `step.tuned` is another one, and
    `taps.jit` says none."""
    records = [
        *replicated("jax", "step.jit", 1000, 1001, 1002, details={"program": "p"}),
        *replicated("jax", "step.jit_graph", 1030, 1031, 1032, details={"program": "p"}),
        *replicated("jax", "step.tuned", 990, 991, 992, details={"program": "q"}),
        *replicated("jax", "taps.jit", 980, 981, 982),
        *replicated("torch", "step.eager", 500, 500.5, 501),
    ]
    row = row_of(records)
    assert row.best("jax").name == "step.jit = step.jit_graph"
    assert [mode.name for mode in row.modes] == ["step.jit = step.jit_graph", "step.tuned", "taps.jit", "step.eager"]
    assert row.ratio.value == pytest.approx(2.0)
    lines = modes_of(section_of(records))
    assert "JAX step.jit = step.jit_graph" in lines and "1,03" not in str(lines)


def test_what_stands_for_a_screened_double_is_what_has_replicates() -> None:
    records = [
        with_result(screening("jax", "grouped.jit", 950), details={"program": "p"}),
        with_result(screening("jax", "vmap.jit_graph", 900), details={"program": "p"}),
        *replicated("jax", "vmap.jit_graph", 900, 901, 902, details={"program": "p"}),
        *replicated("torch", "step.eager", 700, 701, 702),
    ]
    row = row_of(records)
    assert [mode.name for mode in row.modes] == ["vmap.jit_graph = grouped.jit", "step.eager"]
    assert row.only_screened == ()


def test_a_screening_that_the_replicates_overrule_is_flagged() -> None:
    """taps is 20 % faster in all replicates, far beyond three standard errors."""
    others = [one for one in RECORDS if one.measurement.variant.execution_mode != "taps.jit"]
    taps = [screening("jax", "taps.jit", 2000), *replicated("jax", "taps.jit", 2400, 2460, 2412)]
    row = row_of([*others, *taps])
    assert row.comparison.jax.execution_mode == "taps.jit"
    assert "the replicates chose taps.jit of JAX, against the screening" in row.comparison.flags["overruled"]
    assert "overruled" not in row_of(RECORDS).comparison.flags
