"""The report's numbers against those of another program.

golden/ has what recompute.py worked out: a second implementation of the report, in plain Python, written from the docs
alone and without this project's code. It was run on these records before it left the tree (commit a3e52cb has it, as
tests/pipeline/report/recompute.py). `made/` has records for each rule of comparison, and their numbers; `cpu-2-cores/`
real ones of 23 November 2026. Some were registered under the rules of versions 1 and 2, and the other program judged
them by those of version 3, too. `designs.json` has logarithms of pairs, with interval, verdict and p.
"""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.results.sequential import CRITICAL_VALUES, LogRatio, estimate_sequentially
from main import main

GOLDEN = Path(__file__).parent / "golden"
VERDICTS = {"JAX faster", "PyTorch faster", "same", "undecided"}
KEY = (
    *("device", "gpu", "benchmark", "use_case", "use_case_name", "devices", "data", "quick", "model", "batch_size"),
    *("precision", "options", "settings", "data_id", "framework", "execution_mode", "phase"),
)

Lines = dict[tuple[str, ...], dict[str, str]]


def lines_of(file: Path) -> Lines:
    with file.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    by_key = {tuple(line.get(name, "") for name in KEY): line for line in found}
    assert len(by_key) == len(found)
    return by_key


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_equal(found: Lines, expected: Lines) -> None:
    """In each column that the other program has; numbers to a billionth, as only rounding may differ."""
    assert found.keys() == expected.keys()
    for key, line in expected.items():
        for name, value in line.items():
            if name in KEY or not is_number(value):
                assert found[key][name] == value, (key, name)
            else:  # 1 less what is nearly 1 has fewer digits
                close = pytest.approx(float(value), rel=1e-9, abs=1e-12 if name in ("p", "q") else None)
                assert float(found[key][name] or "nan") == close, (key, name)


@pytest.mark.parametrize("name", ["made", "cpu-2-cores"])
def test_every_number_of_the_csv_files(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / name / "records", tmp_path / "results" / "records").parent
    for archive in folder.rglob("records.zip"):
        shutil.unpack_archive(archive, archive.parent)
    assert main(["report", "--no-figures", "--results", str(folder)]) == 0
    require_equal(lines_of(folder / "report" / "comparison.csv"), lines_of(GOLDEN / name / "comparison.csv"))
    require_equal(lines_of(folder / "report" / "phases.csv"), lines_of(GOLDEN / name / "phases.csv"))


def test_ratio_interval_verdict_and_p_of_designs() -> None:
    cases: list[dict[str, Any]] = json.loads((GOLDEN / "designs.json").read_text())
    looks = set()
    for case in cases:
        logs = [LogRatio(number, value, number % 2 == 0) for number, value in enumerate(case["logs"])]
        found = estimate_sequentially(logs, case["at_most"], is_extended=case["extended"])
        answer = case["answer"]
        low, high = found.interval or (None, None)
        numbers = {"ratio_jax_over_torch": found.value, "ratio_low": low, "ratio_high": high, "p": found.p}
        for name, value in numbers.items():
            expected = answer.get(name)
            assert value == (None if expected is None else pytest.approx(expected, rel=1e-6 if name == "p" else 1e-9))
        assert (found.verdict, found.replicates) == (answer["verdict"], answer["ratio_replicates"])
        assert (found.at_most, found.is_judged) == (answer["pairs_at_most"] or 0, answer["is_judged"])
        looks.add((found.at_most, found.replicates))
    assert {case["answer"]["verdict"] for case in cases} == VERDICTS
    assert {(at_most, pairs) for at_most, reaches in CRITICAL_VALUES.items() for pairs in reaches} <= looks
