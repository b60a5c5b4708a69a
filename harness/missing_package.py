"""The answer to a Python without this project's packages. Imports nothing but the standard library."""

import sys
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parent.parent
OUR_OWN = frozenset({"harness", "pipeline", "jax_runner", "torch_runner"})
USAGE_ERROR = 2


def exit_without_package(error: ModuleNotFoundError) -> NoReturn:
    """Say which package is missing and where it is, and exit. A missing module of this project is raised again."""
    name = (error.name or "").partition(".")[0]
    if not name or name in OUR_OWN:
        raise error
    fix = "This project's packages are in .venv: source .venv/bin/activate (none there yet? make env)"
    if Path(sys.prefix).resolve() == REPOSITORY / ".venv":
        fix = "It belongs to this project's packages: make -B env installs them again"
    print(f"{sys.executable} has no {name}. {fix}", file=sys.stderr)
    sys.exit(USAGE_ERROR)
