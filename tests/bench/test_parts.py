"""`python -m bench` runs every part that there is, and none of them needs the tests."""

import re

import pytest

from bench import __main__ as bench
from bench.parts import run_parts
from harness.paths import REPOSITORY


def test_every_module_that_runs_is_a_part() -> None:
    runnable = {path.stem for path in (REPOSITORY / "bench").glob("[!_]*.py") if "__name__ ==" in path.read_text()}
    assert set(bench.PARTS) == runnable


def test_the_worst_end_of_the_runs_counts(tmp_path, monkeypatch) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "ends.py").write_text("import sys\nsys.exit(int(sys.argv[1]))")
    monkeypatch.chdir(tmp_path)
    assert run_parts("made", {"ends": (["0"], ["0"])}, []) == 0
    assert run_parts("made", {"ends": (["3"], ["0"])}, ["ends"]) == 1


def test_an_unknown_part_is_named_with_those_that_there_are(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_parts("bench", bench.PARTS, ["timed_lop"])
    assert "timed_lop: no such part; valid: timed_loop, clocks, opacus" in capsys.readouterr().err


def test_nothing_outside_the_tests_imports_them() -> None:
    importing = [
        str(path.relative_to(REPOSITORY))
        for folder in ("bench", "harness", "pipeline", "jax_runner", "torch_runner")
        for path in (REPOSITORY / folder).rglob("*.py")
        if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)
    ]
    assert importing == []
