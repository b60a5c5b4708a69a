"""The table of mutations (tests/mutations.yaml): each line and each test is still there, and what its outcomes mean.
Whether the tests fail under their mutations is tried by night."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, REPOSITORY, Mutation, NotFoundError, main, mutated

SOURCE = """\
LIMIT = 3


class Sum:
    def of(self, one, other):
        return one + other


def total(*values):
    return sum(values)
"""
TEST = """\
from code import Sum, total

def test_sum():
    assert Sum().of(1, 2) == 3

def test_total_of_nothing():
    assert total() == 0
"""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.symbol)
def test_line_is_there_once_and_the_file_stays_python_without_it(mutation: Mutation) -> None:
    """If this fails, a line has moved or was rewritten: name its successor in tests/mutations.yaml."""
    source = (REPOSITORY / mutation.path).read_text(encoding="utf-8")
    changed = mutated(mutation, source)
    assert changed != source
    if mutation.path.suffix == ".py":
        ast.parse(changed)


@pytest.mark.parametrize("test", sorted({mutation.test for mutation in MUTATIONS}))
def test_test_of_a_mutation_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    body = ast.parse((REPOSITORY / path).read_text(encoding="utf-8")).body
    assert name in {one.name for one in body if isinstance(one, ast.FunctionDef)}


def test_no_mutation_is_named_twice() -> None:
    assert max(Counter((mutation.symbol, mutation.old) for mutation in MUTATIONS).values()) == 1
    assert len(MUTATIONS) >= 40


@pytest.mark.parametrize(
    ("symbol", "old", "complaint"),
    [
        ("code:missing", "1", "there is no code:missing: name its successor"),
        ("code:Sum.missing", "1", "there is no code:Sum.missing: name its successor"),
        ("code:total", "one + other", "0 times that it should have once: 'one [+] other'. Name its successor"),
        ("code:Sum.of", "o", "has the text 5 times"),
    ],
)
def test_missing_line_is_an_error_that_asks_for_its_successor(symbol: str, old: str, complaint: str) -> None:
    """`o` is in `of`, and twice in `one` and in `other`."""
    with pytest.raises(NotFoundError, match=complaint):
        mutated(Mutation(symbol=symbol, old=old, new="", test=""), SOURCE)


def test_only_the_symbols_own_line_is_changed() -> None:
    changed = mutated(Mutation(symbol="code:Sum.of", old="one + other", new="one", test=""), SOURCE)
    assert changed == SOURCE.replace("one + other", "one")
    assert mutated(Mutation(symbol="code:LIMIT", old="3", new="4", test=""), SOURCE).startswith("LIMIT = 4\n")


def test_each_outcome_and_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a repository of two files: red, green, a symbol that has gone, and a test that has gone."""
    package, test = tmp_path / "sums", tmp_path / "test_sums.py"
    package.mkdir()
    (package / "code.py").write_text(SOURCE)
    test.write_text(TEST.replace("from code", "from sums.code"))
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.setattr("tests.mutations.results_of.__defaults__", (tmp_path,))
    monkeypatch.setattr("tests.mutations.why_not_green.__defaults__", (tmp_path,))

    def mutation(symbol: str, old: str, new: str, name: str) -> Mutation:
        return Mutation(symbol=f"sums.code:{symbol}", old=old, new=new, test=f"test_sums.py::{name}")

    red = mutation("Sum.of", "one + other", "one", "test_sum")
    assert main([], [red]) == 0
    assert main([], [red, mutation("total", "sum(values)", "sum(values) + 0", "test_total_of_nothing")]) == 1
    assert main([], [mutation("gone", "1", "2", "test_sum")]) == 1
    assert main(["no-such-word"], [red]) == 1
    assert main([], [mutation("total", "sum(values)", "1", "test_gone")]) == 1
    said = capsys.readouterr().out
    outcomes = [line.rpartition(" | ")[2] for line in said.splitlines() if " | test_sums.py" in line]
    assert outcomes == ["red", "red", "GREEN", "NOT FOUND"]
    assert "there is no sums.code:gone: name its successor in tests/mutations.yaml" in said
    assert "Without any mutation, these tests do not pass:" in said
    assert (package / "code.py").read_text() == SOURCE
