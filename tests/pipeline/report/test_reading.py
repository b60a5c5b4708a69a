"""A file that is no record is named, and costs the others nothing; records in less memory have the same numbers."""

import pickle
from pathlib import Path

from harness.packs import record_paths
from harness.paths import REPOSITORY, Results
from harness.results.columns import Columns, column_of
from harness.results.parity_gate import ParityGate
from pipeline.report.compare import sections
from pipeline.report.csv_files import csv_text, phases_csv_text
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


def test_columns_are_the_rows_again() -> None:
    states = [{"clock": 1980, "words": ("hot",)}, {"clock": 1980, "watts": 350.5}, {}]
    columns = Columns(states)
    assert list(columns) == states and len(columns) == 3 and columns[-2] == states[1] and columns[1:] == states[1:]
    for key in ("clock", "words", "watts", "nothing"):
        assert list(column_of(columns, key)) == list(column_of(states, key))
    assert columns == Columns(states) != Columns(states[:2])


def test_compact_records_give_the_same_numbers_in_less_memory() -> None:
    shelf = Results(root=REPOSITORY / "results" / "published" / "cpu-2-cores")
    plain, compact = (read_records(record_paths(shelf.records()), compact=flag).records for flag in (False, True))
    compared = [sections(records, ParityGate(shelf).judge) for records in (plain, compact)]
    assert csv_text(compared[0]) == csv_text(compared[1])
    assert phases_csv_text(compared[0]) == phases_csv_text(compared[1])
    first, *others = (record.measurement for record in compact)
    assert any(other.protocol is first.protocol for other in others)
    assert len({id(record.environment["cpu"]) for record in compact}) < len(compact) / 4
    assert len(pickle.dumps(compact)) < 0.7 * len(pickle.dumps(plain))
