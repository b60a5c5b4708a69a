"""Records in less memory say the same, and share what is equal."""

import pickle

from harness.packs import record_paths
from harness.paths import REPOSITORY, Results
from harness.results.columns import Columns, column_of
from harness.results.parity_gate import ParityGate
from pipeline.report.compare import sections
from pipeline.report.csv_files import csv_text, phases_csv_text
from pipeline.report.reading import read_records

SHELF = Results(root=REPOSITORY / "results" / "published" / "cpu-2-cores")
STATES = [{"clock": 1980, "words": ("hot",)}, {"clock": 1980, "watts": 350.5}, {}]


def test_columns_are_the_rows_again() -> None:
    columns = Columns(STATES)
    assert list(columns) == STATES and len(columns) == 3 and columns[-2] == STATES[1] and columns[1:] == STATES[1:]
    for key in ("clock", "words", "watts", "nothing"):
        assert list(column_of(columns, key)) == list(column_of(STATES, key))
    assert columns == Columns(STATES) != Columns(STATES[:2])


def test_compact_records_give_the_same_numbers_in_less_memory() -> None:
    paths = record_paths(SHELF.records())
    plain, compact = (read_records(paths, compact=flag) for flag in (False, True))
    texts = []
    for reading in (plain, compact):
        compared = sections(reading.records, ParityGate(SHELF).judge)
        texts.append((csv_text(compared), phases_csv_text(compared)))
    assert texts[0] == texts[1]
    first, *others = (record.measurement for record in compact.records)
    assert any(other.protocol is first.protocol for other in others)
    assert len({id(record.environment["cpu"]) for record in compact.records}) < len(compact.records) / 4
    assert len(pickle.dumps(compact.records)) < 0.7 * len(pickle.dumps(plain.records))
