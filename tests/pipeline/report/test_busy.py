"""A machine that was busy: every place that shows a ratio shows both speeds and the reason instead, and no factor."""

import re
from pathlib import Path

import pytest

from harness.paths import Results
from harness.results.record import Record
from pipeline.report.compare import sections
from pipeline.report.readme import published_part
from pipeline.watching.ratios import RatiosSoFar
from tests.made.report_records import CPU, csv_lines, pair, passed, plan, row_of, save, with_result
from tests.pipeline.report.shown import answers_of, page_of, reported

ENVIRONMENT = CPU | {"cpu": {"model": "Xeon", "affinity": [0, 1]}}
WORDS = "inconclusive: machine busy (other processes: 38 % of the CPUs)"
SPEEDS = "JAX 3,000 images/s, PyTorch 2,000 images/s"
FACTOR = re.compile(r"\d ×|1\.5|ahead|faster|(?<!so )far JAX")


def busy(*, replicates: int = 4, quiet: tuple[int, ...] = (), **changes: object) -> list[Record]:
    """On PyTorch's side; JAX's processes had the machine for themselves."""
    found = pair(replicates=replicates, environment=ENVIRONMENT, **changes)
    return [
        with_result(one, other_cpus=0.76)
        if one.measurement.framework == "torch" and one.measurement.replicate not in quiet
        else one
        for one in found
    ]


def test_no_place_has_a_factor(tmp_path: Path) -> None:
    records = busy()
    compared = sections(records, passed)
    terminal, page = reported(Results(root=tmp_path), *records)
    readme = published_part(compared, records)
    for text in (answers_of(compared), terminal):
        assert WORDS in text and SPEEDS in text
    for text in (page, page_of(records)):
        assert WORDS in text and "3,000" in text and "2,000" in text
    assert "| inconclusive | machine busy (other processes: 38 % of the CPUs) | 3,000 (step.jit) | 2,000" in readme
    said = [
        line for text in (answers_of(compared), readme) for line in text.splitlines() if "Train a small CNN" in line
    ]
    assert said and not [line for line in said if FACTOR.search(line)]
    assert "1.50" not in page
    for line in csv_lines(compared):
        assert {text for name, text in line.items() if "ratio" in name or "verdict" in name} == {""}


def test_a_busy_pair_among_quiet_ones_is_left_out() -> None:
    """Three are left, which is before the first look: no side is named, and the row says what it lacks."""
    row = row_of(busy(quiet=(0, 1, 2)))
    assert (row.ratio.replicates, row.ratio.verdict) == (3, "undecided")
    assert row.ratio.value == pytest.approx(1.5)
    assert row.comparison.left_out == "1 of 4 replicates: machine busy (other processes: 38 % of the CPUs)"


def test_live_lines_name_no_side(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    ratios = RatiosSoFar([plan("jax", "step.jit"), plan("torch", "step.compiled")], results, passed)
    for one in busy(replicates=1):
        save(one, results)
    [found] = ratios.news()
    assert (found.short, found.jax_is_ahead) == ("inconclusive: machine busy", None)
    assert found.sentence == (
        f"Train a small CNN (mnist, batch 100, fp32): {WORDS}; {SPEEDS}; step.jit / step.compiled"
    )
    assert ratios.of_cell(found.cell) == "inconclusive: machine busy"


def test_live_lines_of_several_rows_count_busy_ones_apart(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    sizes = (100, 200)
    plans = [plan("jax", "step.jit", batch_sizes=sizes), plan("torch", "step.compiled", batch_sizes=sizes)]
    ratios = RatiosSoFar(plans, results, passed)
    for one in [*busy(replicates=1), *pair(replicates=1, environment=ENVIRONMENT, batch_size=200)]:
        save(one, results)
    ratios.news()
    assert ratios.of_cell(plans[0].cell) == "JAX ahead in 1 of 1, machine busy in 1"
