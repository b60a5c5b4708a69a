"""The report's numbers against those of another program.

golden/ has what recompute.py worked out: a second implementation of the report, in plain Python, written from the docs
alone and without this project's code. It was run on these records before it left the tree (commit a3e52cb has it, as
tests/pipeline/report/recompute.py). `made/` has records for each rule of comparison, and their numbers; `cpu-2-cores/`
real ones of 23 November 2026. Some were registered under the rules of versions 1 and 2, and the other program judged
them by those of version 3, too. `designs.json` has logarithms of pairs, with interval, verdict and p.

golden/every_column/ is of another kind: whatever this project's report says today, in every column, of the same records
and of the published ones. A change of it may be right, and is accepted as tests/made/golden.py says. A change of the
numbers above never is.
"""

import csv
import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.paths import REPOSITORY
from harness.results.sequential import CRITICAL_VALUES, LogRatio, estimate_sequentially
from main import main
from tests.made.golden import HOW_TO_ACCEPT, accepting

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


RECORDS = {
    "made": GOLDEN / "made" / "records",
    "cpu-2-cores": GOLDEN / "cpu-2-cores" / "records",
    "published": REPOSITORY / "results" / "published" / "cpu-2-cores" / "records",
}
FILES = ("comparison.csv", "phases.csv", "why.csv")


@pytest.fixture(scope="module", params=RECORDS)
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the name of the records, and the folder with the CSV files of their report."""
    folder = tmp_path_factory.mktemp("results")
    shutil.copytree(RECORDS[request.param], folder / "records")
    for archive in folder.rglob("records.zip"):
        shutil.unpack_archive(archive, archive.parent)
    assert main(["report", "--no-figures", "--results", str(folder)]) == 0
    return request.param, folder / "report"


def test_numbers_are_those_of_another_program(reported: tuple[str, Path]) -> None:
    name, report = reported
    if name == "published":
        return  # the other program is gone
    for file in FILES[:2]:
        require_equal(lines_of(report / file), lines_of(GOLDEN / name / file))


def without_empty_columns(lines: Lines) -> Lines:
    used = {name for line in lines.values() for name, value in line.items() if value} | set(KEY)
    return {key: {name: value for name, value in line.items() if name in used} for key, line in lines.items()}


def write_csv(lines: Lines, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, list(next(iter(lines.values()), dict.fromkeys(KEY))), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines.values())


is_close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)


def differences(found: Lines, expected: Lines) -> Iterator[str]:
    """Yield a line for each row and each value that differs; numbers may differ by a billionth."""
    for key in sorted(found.keys() ^ expected.keys()):
        yield f"{'new' if key in found else 'gone'}: {', '.join(filter(None, key))}"
    for key in sorted(found.keys() & expected.keys()):
        ours, theirs = found[key], expected[key]
        for name in dict.fromkeys([*theirs, *ours]):
            new, old = ours.get(name, ""), theirs.get(name, "")
            is_close = (
                is_number(new) and is_number(old) and float(new) == pytest.approx(float(old), rel=1e-9, nan_ok=True)
            )
            if new != old and not is_close:
                yield f"{name}: {old!r} is now {new!r}: {', '.join(filter(None, key))}"


def test_every_column_is_that_of_the_golden_files(reported: tuple[str, Path]) -> None:
    name, report = reported
    wrong = []
    for file in FILES:
        found, golden = without_empty_columns(lines_of(report / file)), GOLDEN / "every_column" / name / file
        if accepting():
            write_csv(found, golden)
        wrong += [f"{file}: {line}" for line in differences(found, lines_of(golden))]
    assert not wrong, "\n".join([*wrong, f"{HOW_TO_ACCEPT} tests/pipeline/report/test_golden.py"])


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
