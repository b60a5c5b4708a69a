"""`python -m bench` runs every part that there is, and none of them needs the tests."""

import re

import pytest

from bench import __main__ as bench
from harness.paths import REPOSITORY

MODULES = {path.stem: path.read_text() for path in (REPOSITORY / "bench").glob("[!_]*.py")}


def test_every_module_that_runs_is_a_part_and_none_imports_the_tests() -> None:
    assert set(bench.PARTS) == {name for name, text in MODULES.items() if "__name__ ==" in text}
    assert [name for name, text in MODULES.items() if re.search(r"^\s*(from|import) tests\b", text, re.MULTILINE)] == []


@pytest.mark.parametrize(("ends", "code"), [(["0", "0"], 0), (["3", "0"], 1), (["0", "3"], 1)])
def test_the_worst_end_of_the_runs_counts(ends: list[str], code: int, tmp_path, monkeypatch) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "ends.py").write_text("import sys\nsys.exit(int(sys.argv[1]))")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "PARTS", {"ends": tuple([end] for end in ends)})
    assert bench.main([]) == bench.main(["ends"]) == code
