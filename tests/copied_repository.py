"""A copy of this repository, for tests that write beside main.py or change what it runs."""

import shutil
from pathlib import Path

from harness.paths import REPOSITORY

COPIED = ("harness", "pipeline", "jax_runner", "torch_runner", "templates", "main.py", "experiments.yaml")


def copy_repository(root: Path) -> None:
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
