"""Who may import what, as one table; the clock and the runners' files, held by the same reading of the sources."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from harness.paths import REPOSITORY

OF_BOTTOM = ("errors", "suggest", "files", "locks", "printable", "removed", "slurm_words", "missing_package")
BOTTOM = tuple(f"harness.{name}" for name in OF_BOTTOM)
GROUND = (*BOTTOM, "harness.plan", "harness.paths", "harness.plan_file")
WORK = (*GROUND, "harness.results", "harness.work")
OF_RUNNERS = tuple(f"harness.measure.{name}" for name in ("program", "use_cases", "world", "gpu"))
OF_JOBS = tuple(f"harness.job.{name}" for name in ("launch", "progress"))

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # A room, or a module of it, and what of our own code it may import besides itself. The longest name counts.
    "harness": (),
    "harness.files": ("harness.errors", "harness.printable"),
    "harness.plan": BOTTOM,
    "harness.paths": (*BOTTOM, "harness.plan"),
    "harness.plan_file": (*BOTTOM, "harness.plan", "harness.paths"),
    "harness.results": GROUND,
    "harness.results.looks": ("harness.results", *GROUND, "harness.work.declared.headline_of"),
    "harness.work": (*GROUND, "harness.results"),
    # These two do not know each other.
    "harness.experiments": WORK,
    "harness.measure": WORK,
    "harness.job": (*WORK, "harness.experiments", "harness.measure"),
    "jax_runner": (*WORK, *OF_RUNNERS, "harness.measure.clock.COLD_CALLS"),
    "jax_runner.run": ("harness.job", "harness.missing_package"),
    "torch_runner": (*WORK, *OF_RUNNERS, "harness.measure.clock.COLD_CALLS"),
    "torch_runner.run": ("harness.job", "harness.missing_package"),
    # It never loads the machinery of a node, but in submitit's worker, which is the job.
    "pipeline": (*WORK, *OF_JOBS, "harness.experiments", "harness.measure.gpu", "harness.measure.other_cpu_load"),
    "pipeline.submission.slurm": ("harness.job.main",),
    # `main.py check` is a job that only compares.
    "pipeline.check": (*WORK, "harness.experiments", "harness.job"),
    "main": ("harness", "pipeline"),
}
FRAMEWORKS = {"jax": ("jax", "jaxlib", "flax", "optax"), "torch": ("torch", "torchvision", "functorch", "opacus")}
ALL_FRAMEWORK_PACKAGES = {package for packages in FRAMEWORKS.values() for package in packages}
MAY_USE_NUMPY = ("harness.results", "harness.work", "harness.measure", "harness.job", "jax_runner", "torch_runner")
OUR_OWN = ("harness", "pipeline", "jax_runner", "torch_runner", "main", "tests", "bench")
THE_CLOCK = ("harness.measure.clock", "harness.measure.slowdown")


def source_files(repository: Path) -> Iterator[Path]:
    for floor in ("harness", "pipeline", "jax_runner", "torch_runner"):
        yield from sorted((repository / floor).rglob("*.py"))
    if (repository / "main.py").exists():
        yield repository / "main.py"


def module_name(path: Path) -> str:
    """`path` is relative to the repository."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import, at the top or in a function, and those through importlib.import_module("..."): `module.name`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, level=level, names=names):
                if level or not module:
                    yield node.lineno, "a relative import"
                else:
                    yield from ((node.lineno, f"{module}.{name.name}") for name in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def is_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{room}.") for room in rooms)


def may_import(importer: str, name: str) -> bool:
    """`importer`: a module; `name`: a module, or what is taken from one."""
    package = name.partition(".")[0]
    if name == "a relative import":
        return False
    if package in OUR_OWN:
        row = max((room for room in MAY_IMPORT if is_in(importer, (room,))), key=len)
        own = () if row == "harness" else (row,)
        return is_in(name, (*MAY_IMPORT[row], *own))
    if package == "numpy":
        return is_in(importer, MAY_USE_NUMPY)
    if package in ALL_FRAMEWORK_PACKAGES:
        runner = importer.partition(".")[0].removesuffix("_runner")
        is_fetched_by = package == "torchvision" and is_in(importer, ("harness.work",))
        return package in FRAMEWORKS.get(runner, ()) or is_fetched_by
    return True


def violations(repository: Path) -> list[str]:
    found = []
    for path in source_files(repository):
        relative = path.relative_to(repository)
        importer, tree = module_name(relative), ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{relative}:{line}: {name}" for line, name in imported_names(tree) if not may_import(importer, name)]
        if not is_in(importer, ("torch_runner",)):
            found += [f"{relative}:{line}: torchvision, but not to fetch" for line in _early_torchvision(tree)]
        if importer not in THE_CLOCK:
            found += [f"{relative}:{line}: a second clock" for line in _second_clocks(tree)]
    return found


def _early_torchvision(tree: ast.Module) -> list[int]:
    """Lines. Who fetches needs torchvision while it does: never when it is imported, and never in `load`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "load"]
    late = {line for function in functions for line, _ in imported_names(function)}
    return [line for line, name in imported_names(tree) if name.startswith("torchvision") and line not in late]


def _second_clocks(tree: ast.Module) -> list[int]:
    """Lines. How long a program takes is measured in THE_CLOCK; time.monotonic is for how long to wait."""
    clocks = {"perf_counter", "perf_counter_ns"}
    imported = [line for line, name in imported_names(tree) if name.rpartition(".")[2] in clocks]
    return imported + [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in clocks
    ]


def test_everybody_imports_what_the_table_allows() -> None:
    files = {str(path.relative_to(REPOSITORY)) for path in source_files(REPOSITORY)}
    assert {"main.py", "harness/plan.py", "pipeline/submission/render.py", "torch_runner/use_cases/train.py"} <= files
    assert violations(REPOSITORY) == []


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("harness/errors.py", ["from . import paths", "import numpy"]),
        ("harness/work/datasets.py", ["def load():\n    import torchvision", "def fetch():\n    import torch"]),
        ("harness/job/job.py", ["import time\ntime.perf_counter_ns()"]),
        ("pipeline/data.py", ["importlib.import_module('flax.nnx')", "import harness.job.main"]),
        ("jax_runner/task.py", ["import torch", "from harness.measure.clock import time_call"]),
        ("main.py", ["if True:\n    import jax"]),
    ],
)
def test_what_the_check_finds_in_the_last_line(path: str, texts: list[str], tmp_path: Path) -> None:
    for text in texts:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        assert [found.partition(": ")[0] for found in violations(tmp_path)] == [f"{path}:{text.count(chr(10)) + 1}"]


def test_no_module_imports_itself_through_others() -> None:
    """Imports within functions count, too."""
    paths = {module_name(path.relative_to(REPOSITORY)): path for path in source_files(REPOSITORY)}
    imports = {}
    for module, path in paths.items():
        names = [name for _, name in imported_names(ast.parse(path.read_text()))]
        imports[module] = {known for name in names for known in (name, name.rpartition(".")[0]) if known in paths}
    assert "harness.results.record" in imports["harness.work.datasets"]
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


# The mirror: a reviewer of the runners' fairness reads `diff -r jax_runner torch_runner`.

FRAMEWORKS_OWN_WAYS = ("captured.py", "compiler.py", "formulations.py", "several_devices.py")
"""How a framework compiles, lets a layer be watched, computes N models at once and meets other devices is what is
compared here."""
OF_ONE_SIDE = {
    "jax_runner/executable.py": "XLA tells what it has made in texts of its own",
    "jax_runner/layers.py": "torchvision's models bring theirs",
    "jax_runner/models/pooling.py": "PyTorch has kernels for pooling",
}
"""Files without a counterpart, and why."""
WITHOUT_COUNTERPART = {
    "jax_runner/device.py: FLOAT64": "PyTorch's float64 is a type; JAX has to be told to keep it",
    "jax_runner/device.py: model_dtypes": "Flax's layers take two types, PyTorch's modules one: model_dtype",
    "torch_runner/device.py: model_dtype": "see model_dtypes",
    "torch_runner/device.py: compute_dtype": "see model_dtypes",
    "torch_runner/models/__init__.py: with_attention": "JAX's kernel is part of the model; see layers.py",
    "torch_runner/models/__init__.py: write_out_attention": "JAX's is written out where no mode says otherwise",
    "torch_runner/models/__init__.py: for_vmap": "JAX's layers are all that vmap makes one call of",
    "torch_runner/graphs.py: Sums": "JAX's sums are one function, which is told what is sorted; vmap knows it",
    "torch_runner/graphs.py: use_scatter_sums": "see Sums",
    "torch_runner/optimizer.py: clip_gradients": "optax clips as a part of the optimizer",
    "torch_runner/optimizer.py: reset_optimizer": "JAX makes a new state; a CUDA graph keeps PyTorch's in its place",
    "torch_runner/task.py: in_layout": "XLA lays out images",
    "torch_runner/task.py: to_device": "JAX takes numpy's arrays",
    "jax_runner/weights.py: Params": "PyTorch's parameters are the module's own, in the neutral layout",
    "jax_runner/weights.py: Path": "see Params",
    "jax_runner/weights.py: arrays_of": "see Params",
    "jax_runner/weights.py: flattened_of": "see Params",
}


def defined_in(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def without_counterpart(repository: Path) -> list[str]:
    """What other modules of a runner import from a file and the other runner's file does not have."""
    found = []
    for runner, other in (("jax_runner", "torch_runner"), ("torch_runner", "jax_runner")):
        imported = {
            name
            for path in (repository / runner).rglob("*.py")
            for _, name in imported_names(ast.parse(path.read_text()))
            if is_in(name, (runner,))
        }
        for path in sorted((repository / runner).rglob("*.py")):
            relative = path.relative_to(repository / runner)
            if str(relative) in FRAMEWORKS_OWN_WAYS or f"{runner}/{relative}" in OF_ONE_SIDE:
                continue
            module = module_name(path.relative_to(repository))
            shared = {name for name in defined_in(path) if f"{module}.{name}" in imported}
            found += [
                f"{runner}/{relative}: {name}" for name in sorted(shared - defined_in(repository / other / relative))
            ]
    return found


def test_both_runners_have_the_same_files() -> None:
    def files(runner: str) -> set[Path]:
        there = {path.relative_to(REPOSITORY / runner) for path in (REPOSITORY / runner).rglob("*.py")}
        return {path for path in there if f"{runner}/{path}" not in OF_ONE_SIDE}

    jax, torch = files("jax_runner"), files("torch_runner")
    assert all((REPOSITORY / path).exists() for path in OF_ONE_SIDE)
    assert Path("use_cases/train.py") in jax and jax == torch


def test_what_one_runners_modules_share_the_others_share_under_the_same_name() -> None:
    assert sorted(without_counterpart(REPOSITORY)) == sorted(WITHOUT_COUNTERPART)


def test_every_use_case_is_built_by_the_same_call() -> None:
    for path in REPOSITORY.glob("*_runner/use_cases/*.py"):
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        arguments = [node.args for node in functions if node.name == "build"]
        found = [[one.arg for one in (*of.args, *of.kwonlyargs)] for of in arguments]
        assert found == ([] if path.name == "__init__.py" else [["session", "joined"]]), path


def modules_after_importing(*names: str) -> set[str]:
    """The top packages that a fresh Python has loaded then."""
    tell = "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]; print(*sys.modules)"
    command = [sys.executable, "-c", tell, *names]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_no_framework_is_loaded_by_main_pipeline_and_harness() -> None:
    """Also none through a third package."""
    names = [module_name(path.relative_to(REPOSITORY)) for path in source_files(REPOSITORY)]
    loaded = modules_after_importing(*(name for name in names if "_runner" not in name))
    assert {"main", "pipeline", "harness"} <= loaded
    assert loaded & ALL_FRAMEWORK_PACKAGES == set()


def test_nothing_slow_is_loaded_before_it_is_needed() -> None:
    """By main.py: tests/whole/test_main.py."""
    assert modules_after_importing("pipeline.doctor") & {"jax", "torch", "wandb", "rich"} == set()
