"""A record for which no report can be made is found, named, and costs the others nothing; records in less memory say
the same."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.paths import REPOSITORY, Results
from harness.results.columns import Columns, column_of
from harness.results.parity_gate import ParityGate
from harness.results.record import Record
from pipeline.report import command
from pipeline.report.compare import sections
from pipeline.report.csv_files import csv_text, phases_csv_text
from pipeline.report.reading import Reading, read_records, without_odd_ones
from tests.made.calibration_records import process
from tests.made.report_records import record, save
from tests.pipeline.report.shown import reported

MODES = ("step.jit", "scan.jit", "taps.jit", "step.jit_graph", "cudnn_attention.jit")


def reading() -> Reading:
    records = tuple(record("jax", mode) for mode in MODES)
    return Reading(records=records, paths=tuple(Path(f"{mode}.json") for mode in MODES), refused=("before",))


def modes(records: Sequence[Record]) -> list[str]:
    return [one.measurement.variant.execution_mode for one in records]


def refusing(*together: str) -> Any:
    """Work that fails where all of these modes are there."""

    def work(records: Sequence[Record]) -> None:
        if set(together) <= set(modes(records)):
            raise ZeroDivisionError(f"no {' and '.join(together)}")

    return work


@pytest.mark.parametrize("odd", MODES)
def test_one_odd_record_is_left_out_and_named(odd: str) -> None:
    sound = without_odd_ones(reading(), refusing(odd))
    assert modes(sound.records) == [mode for mode in MODES if mode != odd]
    assert [path.stem for path in sound.paths] == modes(sound.records)
    assert sound.refused == (
        "before",
        f"{odd}.json: no report can be made with it (ZeroDivisionError: no {odd}). It is left alone.",
    )


def test_what_fails_for_every_record_is_no_records_fault() -> None:
    for together in ((), ("step.jit", "cudnn_attention.jit")):  # nor that of two which do no harm alone
        with pytest.raises(ZeroDivisionError):
            without_odd_ones(reading(), refusing(*together))


def test_the_report_goes_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(root=tmp_path)
    for mode in ("step.eager", "step.compiled"):
        path = save(record("torch", mode), results)
    real = command.latex_tables

    def latex_tables(compared: Any, *more: Any) -> Any:
        refusing("step.compiled")(
            [one for section in compared for row in section.rows for mode in row.modes for one in mode.records]
        )
        return real(compared, *more)

    monkeypatch.setattr(command, "latex_tables", latex_tables)
    monkeypatch.setattr("pipeline.report.files.latex_tables", latex_tables)
    shown, page = reported(results, record("jax", "step.jit"))
    assert f"{path}: no report can be made with it (ZeroDivisionError: no step.compiled)" in shown
    assert f"{path.name}: no report can be made" in page
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
    plain, compact = (
        read_records(sorted(shelf.records().rglob("*.json")), compact=flag).records for flag in (False, True)
    )
    compared = [sections(records, ParityGate(shelf).judge) for records in (plain, compact)]
    assert csv_text(compared[0]) == csv_text(compared[1])
    assert phases_csv_text(compared[0]) == phases_csv_text(compared[1])
    first, *others = (record.measurement for record in compact)
    assert any(other.protocol is first.protocol for other in others)
    assert len({id(record.environment["cpu"]) for record in compact}) < len(compact) / 4
    assert len(pickle.dumps(compact)) < 0.7 * len(pickle.dumps(plain))
