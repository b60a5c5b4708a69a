"""The table of injected faults, injected_faults.csv, and the tests that inject them.

Each fault is a mistake in the mathematics of one framework only. A row says what finds it today: `gate` (JAX against
PyTorch in fp32, before anything is timed), `check` (a mode against its own float64 reference, in every measured
process), `float64 tests` (the tests of every mode, none of which runs in a job), `refusal`, `structure` (a test of what
the compiled program contains), or `nothing`. `gate` has the relative error "of" its tolerance, `check` the relative
error; `float64` is that of both frameworks' plain programs in float64 after a few steps, which no job compares today.
The numbers were measured once, on a CPU and small models. Whoever replaces a method finds here what it must not lose.

Where `test` is empty, no test injects the fault yet.
"""

import ast
import csv
from functools import cache
from pathlib import Path

import pytest

from harness.paths import REPOSITORY

METHODS = {"gate", "check", "float64 tests", "refusal", "structure", "nothing"}
NOT_FOUND = {"not found", "not run"}

with Path(__file__).with_name("injected_faults.csv").open(newline="") as lines:
    FAULTS = list(csv.DictReader(lines))


@cache
def names_in(file: str) -> tuple[set[str], set[str]]:
    """Return the names of a file's functions, and all texts in it."""
    nodes = list(ast.walk(ast.parse((REPOSITORY / file).read_text())))
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return functions, {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["id"])
def test_a_row_agrees_with_itself_and_its_test_exists(fault: dict[str, str]) -> None:
    methods = set(fault["found_today_by"].split("; "))
    assert methods <= METHODS
    if fault["gate"] != "not run":
        assert ("gate" in methods) == (fault["gate"] not in NOT_FOUND)
    if fault["check"] != "not run":
        assert ("check" in methods) == (fault["check"] not in NOT_FOUND)
    if fault["test"]:
        file, _, name = fault["test"].partition("::")
        function, _, case = name.partition("[")
        functions, texts = names_in(file)
        assert function in functions
        assert not case or case.removesuffix("]") in texts


def test_every_fault_of_the_gates_tests_has_a_row() -> None:
    """FAULTS of test_gate_bites.py has one case for each key."""
    tree = ast.parse((REPOSITORY / "tests/runners/test_gate_bites.py").read_text())
    [cases] = [
        [ast.literal_eval(key) for key in node.value.keys]
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "FAULTS" and isinstance(node.value, ast.Dict)
    ]
    named = {fault["test"].partition("[")[2].removesuffix("]") for fault in FAULTS}
    assert set(cases) <= named
    assert len({fault["id"] for fault in FAULTS}) == len(FAULTS)
