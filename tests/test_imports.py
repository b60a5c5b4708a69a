"""Imports go only down: main > pipeline > runners > harness. Only the runners import a framework, and they mirror."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.paths import REPOSITORY

FLOORS = {"main": 3, "pipeline": 2, "jax_runner": 1, "torch_runner": 1, "harness": 0}
FRAMEWORKS = {
    "jax": ("jax", "jaxlib", "flax", "optax"),
    "torch": ("torch", "torchvision", "functorch", "opacus"),
}
ALL_FRAMEWORK_PACKAGES = {package for packages in FRAMEWORKS.values() for package in packages}


def source_files(repository: Path) -> Iterator[Path]:
    for floor in FLOORS:
        yield from sorted((repository / floor).rglob("*.py"))
    if (repository / "main.py").exists():
        yield repository / "main.py"


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import, at the top or in a function, and those through importlib.import_module("...")."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, level=level):
                yield node.lineno, module if module and not level else "a relative import"
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def may_import(path: Path, module: str) -> bool:
    """`path` is relative to the repository."""
    floor, package = path.parts[0].removesuffix(".py"), module.partition(".")[0]
    if package == "a relative import":
        return False
    if package in FLOORS:
        return package == floor or FLOORS[package] < FLOORS[floor]
    if package in ALL_FRAMEWORK_PACKAGES:
        if floor.endswith("_runner"):
            return package in FRAMEWORKS[floor.removesuffix("_runner")]
        return path == Path("harness/data.py") and package == "torchvision"
    return True


def violations(repository: Path) -> list[str]:
    found = []
    for path in source_files(repository):
        relative = path.relative_to(repository)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [
            f"{relative}:{line}: {module}"
            for line, module in imported_modules(tree)
            if not may_import(relative, module)
        ]
        if relative == Path("harness/data.py"):
            wrong = _torchvision_at_the_wrong_time(tree)
            found += [f"{relative}:{line}: torchvision, but not to fetch" for line in wrong]
    return found


def _torchvision_at_the_wrong_time(tree: ast.Module) -> list[int]:
    """Lines. data.py needs torchvision while it fetches: never when it is imported, and never in `load`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "load"]
    late = {line for function in functions for line, _ in imported_modules(function)}
    return [line for line, module in imported_modules(tree) if module.startswith("torchvision") and line not in late]


def test_imports_go_only_down() -> None:
    assert violations(REPOSITORY) == []


def test_both_runners_have_the_same_files() -> None:
    """A reviewer of their fairness reads `diff -r jax_runner torch_runner`."""
    jax, torch = (
        {path.relative_to(REPOSITORY / runner) for path in (REPOSITORY / runner).rglob("*.py")}
        for runner in ("jax_runner", "torch_runner")
    )
    assert Path("use_cases/train.py") in jax and jax == torch


def test_all_of_the_tree_is_looked_at() -> None:
    files = {str(path.relative_to(REPOSITORY)) for path in source_files(REPOSITORY)}
    assert {"main.py", "harness/plan.py", "pipeline/render.py", "torch_runner/use_cases/train.py"} <= files


@pytest.mark.parametrize(
    ("path", "text", "violation"),
    [
        ("harness/plan.py", "import jax.numpy as jnp", "harness/plan.py:1: jax.numpy"),
        ("harness/plan.py", "def f():\n    from torch import nn", "harness/plan.py:2: torch"),
        ("harness/plan.py", "from pipeline.render import x", "harness/plan.py:1: pipeline.render"),
        ("harness/plan.py", "import jax_runner.run", "harness/plan.py:1: jax_runner.run"),
        ("harness/plan.py", "from . import paths", "harness/plan.py:1: a relative import"),
        ("harness/data.py", "import torchvision", "harness/data.py:1: torchvision, but not to fetch"),
        (
            "harness/data.py",
            "def load():\n    import torchvision",
            "harness/data.py:2: torchvision, but not to fetch",
        ),
        ("harness/data.py", "def fetch():\n    import torch", "harness/data.py:2: torch"),
        ("pipeline/submit.py", "import main", "pipeline/submit.py:1: main"),
        ("pipeline/submit.py", "import optax", "pipeline/submit.py:1: optax"),
        ("pipeline/submit.py", "importlib.import_module('flax.nnx')", "pipeline/submit.py:1: flax.nnx"),
        ("jax_runner/run.py", "import torch_runner.run", "jax_runner/run.py:1: torch_runner.run"),
        ("jax_runner/run.py", "import torch", "jax_runner/run.py:1: torch"),
        ("torch_runner/models/cnn.py", "import flax", "torch_runner/models/cnn.py:1: flax"),
        ("main.py", "if True:\n    import jax", "main.py:2: jax"),
    ],
)
def test_the_check_would_find_it(path: str, text: str, violation: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text + "\n")
    assert violations(tmp_path) == [violation]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("main.py", "from pipeline import render\nfrom harness import plan"),
        ("pipeline/submit.py", "import torch_runner\nimport harness.plan\nimport submitit"),
        ("jax_runner/run.py", "import jax\nimport flax\nimport harness.measure\nimport jax_runner.models"),
        ("harness/data.py", "def fetch():\n    from torchvision.datasets import MNIST"),
    ],
)
def test_what_is_allowed(path: str, text: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text + "\n")
    assert violations(tmp_path) == []


IMPORT_AND_TELL = """\
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def modules_after_importing(*names: str) -> set[str]:
    """The top packages that a fresh Python has loaded then."""
    command = [sys.executable, "-c", IMPORT_AND_TELL, *names]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_no_framework_is_loaded_by_main_pipeline_and_harness() -> None:
    """Also none through a third package."""
    files = [path.relative_to(REPOSITORY) for path in source_files(REPOSITORY)]
    own = [path for path in files if not path.parts[0].endswith("_runner")]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in own]
    loaded = modules_after_importing(*names)
    assert {"main", "pipeline", "harness"} <= loaded
    assert loaded & ALL_FRAMEWORK_PACKAGES == set()


def test_that_check_would_find_it_too() -> None:
    assert "torch" in modules_after_importing("torch")


def test_main_alone_loads_nothing_slow() -> None:
    slow = {"pydantic", "yaml", "jinja2", "rich", "submitit", "wandb", "numpy"}
    assert modules_after_importing("main") & slow == set()
