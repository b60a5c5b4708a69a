"""Digests of the code that a measurement runs: what a record contains of it, and how two records are compared by it.

A digest is one hash over the syntax trees of modules. Docstrings, comments, formatting, import statements and the names
of modules are not part of it: they can be edited without making records differ. Constants, names and operators are. The
files on disk are read, not the git commit: somebody may edit while a job waits, and not every folder is a repository.
"""

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Cell, Framework

PACKAGES = frozenset({"harness", *(f"{framework}_runner" for framework in FRAMEWORKS)})
"""Packages of this project that a measurement's process imports from."""
OF_RUNNERS = ("device", "forward", "trace", "products")
"""Modules of a runner that harness/measure imports by name, besides those of the use case and of the benchmark."""


def code_digests(framework: Framework, cell: Cell, repository: Path = REPOSITORY) -> dict[str, str]:
    """Return the digest of the shared code under `harness`, and that of the framework's own under its runner's name.

    The modules are found by their import statements and not in sys.modules, so that all processes of a cell have the
    same digests: those of both frameworks, of one and of several devices, of every mode, and of the parity check.
    """
    digests: dict[str, list[str]] = defaultdict(list)
    for name, module in _imported(entry_points(cell), repository).items():
        digests[name.partition(".")[0]].append(module.digest)
    return {
        package: _hash("".join(sorted(filter(None, digests[package]))).encode())
        for package in ("harness", f"{framework}_runner")
    }


def entry_points(cell: Cell) -> Iterator[str]:
    """Yield the modules from which a measurement's process begins, and those that it imports by a name in a string."""
    yield "harness.measure.process"
    yield f"harness.work.benchmarks.{cell.benchmark}"
    yield f"harness.work.use_cases.{cell.use_case_name}"
    for framework in FRAMEWORKS:
        for module in (*OF_RUNNERS, f"use_cases.{cell.use_case_name}", f"models.{cell.benchmark}"):
            yield f"{framework}_runner.{module}"


def common_code(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return both digests of each part that both records name: they ran the same code where these are equal. Empty
    where the records have no part in common, so that nothing can be said."""
    return {name: (digest, other[name]) for name, digest in one.items() if name in other}


def is_same_code(one: Mapping[str, str] | None, other: Mapping[str, str] | None) -> bool:
    """Return whether all common digests are equal. False where there are none."""
    pairs = common_code(one or {}, other or {}).values()
    return bool(pairs) and all(ours == theirs for ours, theirs in pairs)


class _Module(NamedTuple):
    digest: str
    """Empty where the file contains nothing but docstrings and imports."""
    imports: tuple[str, ...]
    """Names of this project's modules."""


def _imported(names: Iterable[str], repository: Path) -> dict[str, _Module]:
    """Return the named modules and all that they import, also inside functions, by name. Missing ones are skipped."""
    found: dict[str, _Module] = {}
    to_do = [parent for name in names for parent in _with_parents(name)]
    while to_do:
        name = to_do.pop()
        if name not in found and (path := _file_of(name, repository)):
            found[name] = _examine(path.read_bytes(), repository)
            to_do += found[name].imports
    return found


def _file_of(module: str, repository: Path) -> Path | None:
    if module.partition(".")[0] not in PACKAGES:
        return None
    path = repository.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _examine(source: bytes, repository: Path) -> _Module:
    """Parse a module, once in a process for the same content."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # half saved by an editor; the measurement's process will report it
        return _Module(digest=_hash(source), imports=())
    imports: list[str] = []
    module_names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
            module_names |= {alias.asname for alias in node.names if alias.asname and _file_of(alias.name, repository)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.append(node.module)
            for alias in node.names:
                if _file_of(name := f"{node.module}.{alias.name}", repository):
                    imports.append(name)
                    module_names.add(alias.asname or alias.name)
    words = list(_words(tree, module_names, {}))
    of_project = {parent for name in imports for parent in _with_parents(name) if parent.split(".")[0] in PACKAGES}
    digest = _hash(" ".join(words).encode()) if len(words) > 1 else ""
    return _Module(digest=digest, imports=tuple(sorted(of_project)))


def _with_parents(module: str) -> Iterator[str]:
    """Yield `a`, `a.b` and `a.b.c`, all of which an import of `a.b.c` executes."""
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _words(node: Any, module_names: set[str], numbers: dict[str, int]) -> Iterator[str]:
    """Yield a syntax tree as words. ast.dump writes empty fields in some versions of Python and not in others, and both
    frameworks may have a Python of their own.

    Args:
        module_names: local names of imported modules of this project.
        numbers: what stands for each of them, in the order of their use.
    """
    if isinstance(node, list):
        yield "["
        for element in node:
            if not _is_wording(element):
                yield from _words(element, module_names, numbers)
        yield "]"
    elif isinstance(node, ast.Name) and node.id in module_names:
        yield f"module {numbers.setdefault(node.id, len(numbers))}"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if value is None and not isinstance(node, ast.Constant):
                continue
            if name == "kind" or value == [] or (isinstance(value, list) and all(map(_is_wording, value))):
                continue
            yield name
            yield from _words(value, module_names, numbers)
    else:
        yield ascii(node)


def _is_wording(node: Any) -> bool:
    """Whether a statement computes nothing: a docstring, also one below a field, an import, or a block of imports that
    only a type checker reads."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(map(_is_wording, body))
    return False


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
