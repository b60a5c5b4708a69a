"""Edits of a copy, and whether they change the digest of a measurement's code."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Framework
from harness.results import code_digest
from harness.results.code_digest import code_digests, entry_points, is_same_code
from tests.made.project import copy_repository
from tests.made.report_records import CELL

CLOCK = "harness/measure/clock.py"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    copy_repository(tmp_path)
    return tmp_path


def digests(repository: Path) -> dict[str, str]:
    """Return those of both frameworks' records in one cell."""
    by_framework = [code_digests(framework, CELL, repository) for framework in FRAMEWORKS]
    assert by_framework[0]["harness"] == by_framework[1]["harness"]
    return by_framework[0] | by_framework[1]


def replace_in(file: Path, *replacements: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in replacements:
        assert old in text, (file, old)
        text = text.replace(old, new)
    file.write_text(text)


def rewrite_docstrings(file: Path) -> int:
    """Replace all strings that stand as a statement, and return how many there were."""
    lines = file.read_text().splitlines()
    found = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    for node in sorted(found, key=lambda node: -node.lineno):
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + '"""Reworded."""  # and a comment']
    file.write_text("\n".join(lines) + "\n")
    return len(found)


def test_a_renamed_and_moved_module_new_docstrings_and_another_layout_change_nothing(copy: Path) -> None:
    before = digests(copy)
    assert before == digests(REPOSITORY) and before.keys() == {"harness", "jax_runner", "torch_runner"}

    (copy / "harness/timing").mkdir()
    (copy / "harness/timing/__init__.py").write_text('"""A new package."""\n')
    (copy / CLOCK).rename(copy / "harness/timing/stopwatch.py")
    importers = 0
    for file in copy.rglob("*.py"):
        text = file.read_text()
        changed = text.replace("harness.measure.clock", "harness.timing.stopwatch")
        if "from harness.measure import clock\n" in changed:
            changed = changed.replace("from harness.measure import clock\n", "from harness.timing import stopwatch\n")
            changed = re.sub(r"(?<![\w.])clock\.", "stopwatch.", changed)
        importers += changed != text
        file.write_text(changed)
    assert importers >= 8
    run = [sys.executable, "-c", "import harness.measure.process"]
    subprocess.run(run, cwd=copy, env={}, check=True)  # the copy still works
    assert digests(copy) == before

    assert sum(rewrite_docstrings(file) for file in (copy / "harness/measure").glob("*.py")) > 10
    assert digests(copy) == before

    layout = ast.unparse(ast.parse((copy / "jax_runner/task.py").read_text()))  # no comment, one line for a call
    (copy / "jax_runner/task.py").write_text(layout)
    assert digests(copy) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        (CLOCK, "COLD_CALLS = ", "COLD_CALLS = 1 + ", {"harness"}),
        (CLOCK, " < ", " <= ", {"harness"}),
        ("harness/measure/protocol.py", "clock.NO_TURNS", "clock.TURNS", {"harness"}),
        ("torch_runner/models/mnist.py", "padding=3", "padding=2", {"torch_runner"}),
        ("jax_runner/use_cases/train.py", "state.step + 1", "state.step - 1", {"jax_runner"}),
        (CLOCK, "import ", "import ((", {"harness"}),  # half saved, so that nothing can be said but that it differs
        # Not imported in this cell: another benchmark, a page of the report, a test.
        ("torch_runner/models/cifar10.py", "return ", "return not ", set()),
        ("harness/work/benchmarks/cifar10.py", "BENCHMARK = ", "OTHER = ", set()),
        ("pipeline/report/page.py", "def ", "def other_", set()),
    ],
)
def test_a_constant_an_operator_and_a_name_change_what_imports_them(
    copy: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    before = digests(copy)
    replace_in(copy / file, (old, new))
    after = digests(copy)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_that_python_imports_is_found(framework: Framework) -> None:
    """Python itself is the reference: it imports each entry point of the framework."""
    pytest.importorskip(framework)
    names = [name for name in entry_points(CELL) if name.startswith((f"{framework}_runner", "harness"))]
    program = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    imported = {name for name in done.stdout.split() if name.partition(".")[0] in code_digest.PACKAGES}
    assert imported >= set(names)
    assert imported <= code_digest._imported(entry_points(CELL), REPOSITORY).keys()


def test_each_import_by_a_name_in_a_string_has_its_entry_point() -> None:
    """One that is missing would be in no digest."""
    folders = ("harness/measure", "jax_runner", "torch_runner")
    files = [file for folder in folders for file in (REPOSITORY / folder).rglob("*.py")]
    files.append(REPOSITORY / "harness/work/declared.py")
    found = {match for file in files for match in re.findall(r'import_module\(f"(.*?)"\)', file.read_text())}
    values = {"framework": "jax", "measurement.framework": "jax", "session.measurement.framework": "jax"}
    values |= {"name": "", "benchmark.name": CELL.benchmark, "measurement.cell.use_case_name": CELL.use_case_name}
    written_out = {re.sub(r"{(.*?)}", lambda match: values[match[1]], name) for name in found}
    of_no_measurement = {"jax_runner.device_peaks"}
    expected = {*entry_points(CELL), "harness.work.benchmarks.", "harness.work.use_cases."}
    assert written_out - of_no_measurement <= expected and len(written_out) > 6


def test_two_records_are_of_the_same_code_where_all_is_that_both_name() -> None:
    """Nothing can be said where they name nothing in common."""
    assert is_same_code({"a": "1", "b": "2"}, {"b": "2", "c": "3"})
    for one, other in (({"a": "1", "b": "2"}, {"b": "4", "a": "1"}), ({"a": "1"}, {"b": "1"}), (None, {"a": "1"})):
        assert not is_same_code(one, other)
