"""A file that is no record is named, and costs the others nothing."""

from pathlib import Path

from harness.paths import Results
from pipeline.report.reading import read_records
from tests.made.calibration_records import process
from tests.made.report_records import record, save
from tests.pipeline.report.shown import reported


def test_a_damaged_file_costs_only_itself_and_is_named_with_the_reason(tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    path = save(record("torch", "step.compiled"), results)
    save(record("torch", "step.eager"), results)
    path.write_text(path.read_text()[:-20])
    shown, page = reported(results, record("jax", "step.jit"))
    (line,) = (line for line in shown.splitlines() if path.name in line)
    assert line.startswith(f"Warning: {path}: not a record of schema 2: ")
    assert path.name in page
    assert "step.eager" in (results.report / "comparison.csv").read_text()


def test_what_was_planted_is_no_result(tmp_path: Path) -> None:
    measured, planted = record("torch", "step.eager"), process(0, "unslowed_a")
    paths = [save(one, Results(root=tmp_path)) for one in (measured, planted)]
    found = [[one.measurement for one in read_records(paths, planted=asked).records] for asked in (False, True)]
    assert found == [[measured.measurement], [planted.measurement]]
