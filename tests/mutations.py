"""Lines where a mistake would cost most, each with the one test that must fail when the line is gone.

    python -m tests.mutations             all of them (`make test-mutations`; every night in Actions)
    python -m tests.mutations WORDS       those whose symbol or test has one of the words in it

The repository is copied; in the copy one line is changed, and only its test runs. The line prints `red` if the test
fails, as it must. Whoever moves or rewrites such a line names its successor in tests/mutations.yaml: a line that is not
found is an error, by night and in tests/whole/test_mutations.py, which only looks.
"""

import argparse
import ast
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

REPOSITORY = Path(__file__).parents[1]
TIMEOUT_S = 600
AT_ONCE = 2
"""Tests that run at a time, each in a copy of its own."""

Outcome = Literal["red", "GREEN", "NOT FOUND", "NO TEST", "HANGS"]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    symbol: str
    """`module:function`, `module:Class.method` or `module:CONSTANT`; or the path of a file that is not Python."""
    old: str
    """Text that the symbol's source has once."""
    new: str
    test: str
    """The id of one test, or of all cases of one."""

    @property
    def path(self) -> Path:
        """In the repository."""
        module, colon, _ = self.symbol.partition(":")
        return Path(f"{module.replace('.', '/')}.py" if colon else module)

    @property
    def name(self) -> str:
        """For the table: the symbol, and the line that is changed."""
        lines = [line.strip() for line in self.old.strip().splitlines()]
        return f"{self.symbol}  {lines[0]}{' ...' if len(lines) > 1 else ''}"


TABLE = Path(__file__).with_suffix(".yaml")
MUTATIONS = [Mutation(**row) for rows in yaml.safe_load(TABLE.read_text(encoding="utf-8")).values() for row in rows]


class NotFoundError(Exception):
    """A symbol or its line is not there any more."""


def mutated(mutation: Mutation, source: str) -> str:
    """Return the source of the symbol's file with the change in it.

    Raises:
        NotFoundError: the file has no such symbol, or the symbol has the text not once.
    """
    first, last = _lines_of(mutation, source)
    lines = source.splitlines(keepends=True)
    own = "".join(lines[first:last])
    if (count := own.count(mutation.old)) != 1:
        raise NotFoundError(
            f"{mutation.symbol} has the text {count} times that it should have once: {mutation.old!r}. "
            f"Name its successor in tests/mutations.yaml"
        )
    return "".join([*lines[:first], own.replace(mutation.old, mutation.new), *lines[last:]])


def _lines_of(mutation: Mutation, source: str) -> tuple[int, int]:
    """Return the first line of the symbol, counted from 0, and the line behind its last."""
    if ":" not in mutation.symbol:
        return 0, len(source.splitlines())
    body: Sequence[ast.stmt] = ast.parse(source).body
    names = mutation.symbol.partition(":")[2].split(".")
    for name in names:
        node = next((one for one in body if name in _names_of(one)), None)
        if node is None:
            raise NotFoundError(f"there is no {mutation.symbol}: name its successor in tests/mutations.yaml")
        body = getattr(node, "body", [])
    return node.lineno - 1, node.end_lineno or node.lineno


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@dataclass(frozen=True)
class Result:
    mutation: Mutation
    outcome: Outcome
    said: str = ""
    """Why it is not red."""


def copy_of(repository: Path, folder: Path) -> Path:
    """Copy what git knows of the repository, or would know."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, folder / name)
    return folder


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """The exit status of pytest, None if it took too long, and what it said at its end."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *tests]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"longer than {TIMEOUT_S} s"
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-15:])


def result_of(mutation: Mutation, folder: Path) -> Result:
    """Change the copy, run the test, and change it back."""
    path = folder / mutation.path
    try:
        before = path.read_text(encoding="utf-8")
        path.write_text(mutated(mutation, before), encoding="utf-8")
    except (NotFoundError, FileNotFoundError) as error:
        return Result(mutation, "NOT FOUND", str(error))
    try:
        status, said = run_tests(folder, [mutation.test])
    finally:
        path.write_text(before, encoding="utf-8")
    if status is None:
        return Result(mutation, "HANGS", said)
    outcome: Outcome = {0: "GREEN", 1: "red"}.get(status, "NO TEST")  # type: ignore[assignment]
    return Result(mutation, outcome, "" if outcome == "red" else said)


def results_of(mutations: Sequence[Mutation], repository: Path = REPOSITORY) -> Iterator[Result]:
    """In the order of `mutations`, as they come."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as base:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(min(AT_ONCE, len(mutations))):
            folders.put(copy_of(repository, Path(base) / str(number)))

        def result(mutation: Mutation) -> Result:
            folder = folders.get()
            try:
                return result_of(mutation, folder)
            finally:
                folders.put(folder)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(result, mutations)


def why_not_green(mutations: Sequence[Mutation], repository: Path = REPOSITORY) -> str | None:
    """Return the output of the tests without any mutation, or None if all pass: else a red one would mean nothing."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as base:
        status, said = run_tests(copy_of(repository, Path(base)), sorted({one.test for one in mutations}))
    return None if status == 0 else said


def main(arguments: Sequence[str] | None = None, mutations: Sequence[Mutation] = MUTATIONS) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutations whose symbol or test has one of these in it")
    words = parser.parse_args(arguments).words
    chosen = [one for one in mutations if not words or any(word in f"{one.symbol} {one.test}" for word in words)]
    if (said := why_not_green(chosen)) is not None:
        print(f"Without any mutation, these tests do not pass:\n{said}")
        return 1
    print("mutation | test | outcome")
    wrong = 0
    for result in results_of(chosen):
        print(f"{result.mutation.name} | {result.mutation.test} | {result.outcome}", flush=True)
        if result.outcome != "red":
            wrong += 1
            print("    " + result.said.replace("\n", "\n    "), flush=True)
    print(f"{len(chosen)} mutations, {wrong} of them not red")
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
