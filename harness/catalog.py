"""What the two runners can do, read from their files without importing them (that would import a framework).

Each `<framework>_runner/benchmarks/<name>.py` holds the literal MODELS; each `use_cases/<name>.py` holds
EXECUTION_MODES, OPTIONS, SETTINGS and REFUSED_MODELS, and where they apply PROCESS_PER_NODE and ONE_DEVICE;
`parity/<name>.py` belongs to the use case of that name. A file that is there is known: nothing is registered.
"""

import ast
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.errors import ProjectError
from harness.paths import REPOSITORY
from harness.plan import Scalar
from harness.settings import FRAMEWORKS, Framework, Frozen

SETTING_RULES = ("positive integer", "positive number", "non-negative number", "fraction")
"""The words that SETTINGS and OPTIONS use for what a value may be; harness/config_checks.py knows what they mean."""


class BenchmarkFile(Frozen):
    """The constants of one benchmarks/*.py."""

    MODELS: tuple[str, ...]


class UseCaseFile(Frozen):
    """The constants of one use_cases/*.py."""

    EXECUTION_MODES: tuple[str, ...]
    """How this framework can run the use case. In this and PROCESS_PER_NODE the runners may differ, in nothing else."""
    OPTIONS: dict[str, tuple[Scalar, ...] | str]
    """The use case's own axes: their values, or one of SETTING_RULES where any value that fits the rule will do."""
    SETTINGS: dict[str, str]
    """Name of a setting to its rule, one of SETTING_RULES."""
    REFUSED_MODELS: dict[str, str]
    """Model to the reason why this use case makes no sense with it."""
    PROCESS_PER_NODE: tuple[str, ...] = ()
    """Execution modes that run one process for all devices of a node; the others run one for each device."""
    ONE_DEVICE: bool = False
    """It splits no work among devices: each of several would do all of it."""


Constants = TypeVar("Constants", BenchmarkFile, UseCaseFile)


class Runner(Frozen):
    """What one framework's runner has, by file name."""

    benchmarks: dict[str, BenchmarkFile]
    use_cases: dict[str, UseCaseFile]
    parity: tuple[str, ...]
    """Use cases with parity numbers; the others are measured and not compared."""


Catalog = dict[Framework, Runner]


def read_catalog(repository: Path = REPOSITORY) -> Catalog:
    """Raises ProjectError that names the file and the constant: missing, no literal, of the wrong shape."""
    return {framework: read_runner(repository / f"{framework}_runner") for framework in FRAMEWORKS}


def read_runner(folder: Path) -> Runner:
    return Runner(
        benchmarks={path.stem: read_constants(path, BenchmarkFile) for path in _modules(folder / "benchmarks")},
        use_cases={path.stem: read_constants(path, UseCaseFile) for path in _modules(folder / "use_cases")},
        parity=tuple(path.stem for path in _modules(folder / "parity")),
    )


def read_constants(path: Path, model: type[Constants]) -> Constants:
    found: dict[str, Any] = {}
    for statement in _parse(path).body:
        target = _assigned_name(statement)
        if target in model.model_fields:
            assert isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
            try:
                found[target] = ast.literal_eval(statement.value)
            except ValueError as error:
                raise ProjectError(
                    f"{path}:{statement.lineno}: {target} must be a literal, as the file is not run"
                ) from error
    try:
        constants = TypeAdapter(model).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise ProjectError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if isinstance(constants, UseCaseFile):
        rules = [("SETTINGS", name, rule) for name, rule in constants.SETTINGS.items()]
        rules += [("OPTIONS", name, rule) for name, rule in constants.OPTIONS.items() if isinstance(rule, str)]
        for constant, name, rule in rules:
            if rule not in SETTING_RULES:
                raise ProjectError(f"{path}: {constant}: {name}: {rule}: must be one of {', '.join(SETTING_RULES)}")
    return constants


def process_per_node(runner: Path, use_case_name: str) -> tuple[str, ...]:
    """PROCESS_PER_NODE of one use case, whatever else its file has; empty where the file or the constant is missing."""
    path = runner / "use_cases" / f"{use_case_name}.py"
    if not path.exists():
        return ()
    for statement in _parse(path).body:
        if _assigned_name(statement) == "PROCESS_PER_NODE":
            assert isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
            return tuple(ast.literal_eval(statement.value))
    return ()


def differences(catalog: Catalog) -> list[str]:
    """One sentence for each thing in which the two runners differ and must not; empty when they agree."""
    jax, torch = catalog["jax"], catalog["torch"]
    found = []
    for folder in ("benchmarks", "use_cases"):
        files_jax, files_torch = getattr(jax, folder), getattr(torch, folder)
        for name in sorted(files_jax.keys() | files_torch.keys()):
            if name not in files_jax or name not in files_torch:
                missing = "jax" if name not in files_jax else "torch"
                found.append(f"{missing}_runner/{folder}/{name}.py is missing; the other runner has it")
                continue
            for constant in type(files_jax[name]).model_fields:
                of_jax, of_torch = getattr(files_jax[name], constant), getattr(files_torch[name], constant)
                if constant not in ("EXECUTION_MODES", "PROCESS_PER_NODE") and of_jax != of_torch:
                    found.append(f"{folder}/{name}.py: {constant} differs: jax {of_jax!r}, torch {of_torch!r}")
    for name in sorted({*jax.parity} ^ {*torch.parity}):
        missing = "jax" if name not in jax.parity else "torch"
        found.append(f"{missing}_runner/parity/{name}.py is missing; the other runner has it")
    for name in sorted({*jax.parity, *torch.parity} - jax.use_cases.keys() - torch.use_cases.keys()):
        found.append(f"parity/{name}.py belongs to no use case; use_cases/{name}.py is missing")
    return found


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if not path.stem.startswith("_"))


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ProjectError(f"{path}:{error.lineno}: not valid Python: {error.msg}") from error


def _assigned_name(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return name
    return ""
