"""What neighbours cost, by hand-made throughputs with known answers."""

from pathlib import Path

from harness.paths import Results
from harness.results.record import Record
from pipeline.report.neighbours import neighbours_table
from tests.made.report_records import with_blocks
from tests.pipeline.report.shown import reported
from tests.pipeline.report.test_baseline import NOVEMBER, OCTOBER, THEN, fill, made


def slowed(record: Record, by: float) -> Record:
    return with_blocks(record, block_times_s=[time_s / by for time_s in record.result.blocks.block_times_s])


ALONE = made(THEN | {"neighbours": 0}, OCTOBER)
WITH_7 = made(THEN | {"neighbours": 7}, NOVEMBER)
BESIDE = [slowed(one, 0.96 if one.measurement.framework == "jax" else 0.98) for one in WITH_7]


def test_what_neighbours_cost_each_framework_and_the_ratio() -> None:
    """0.96 * exp(+-2.447 * 0.00816 * sqrt(2 / 4)), as in test_baseline.py. In the ratio, what replicates differ by is
    the same on both sides, so its interval has no width: 0.96 / 0.98."""
    table = neighbours_table(ALONE, BESIDE)
    title, *lines = [line.cells for line in table.lines]
    assert title == ["mnist train, cnn-b100-fp32, on CPU: Xeon, 7 neighbours"]
    assert lines == [
        ["JAX step.jit", "-4.0 % (-5.3 % to -2.6 %)", "4 and 4"],
        ["PyTorch step.eager", "-2.0 % (-3.4 % to -0.6 %)", "4 and 4"],
        ["JAX / PyTorch", "-2.0 % (-2.0 % to -2.0 %)", "4 and 4"],
    ]
    assert not neighbours_table([], BESIDE).lines and not neighbours_table(ALONE, []).lines
    assert not neighbours_table(ALONE, ALONE).lines  # measured before the node was shared


def test_the_report_has_it_where_something_was_measured_alone(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    assert "neighbours" not in reported(results, *BESIDE)[0]
    fill(results.alone.root, *ALONE)
    shown, page = reported(results)
    assert "JAX step.jit -4.0 %" in " ".join(shown.split())
    assert "What neighbours on the node cost" in page
    assert (results.report / "tables" / "neighbours.tex").is_file()
