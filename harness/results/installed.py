"""What is installed where this process runs, and how far it agrees with the lock that it was installed from.

Read without importing any of it. A rank whose Python is not the job's calls `describe_installed()` for itself: its
values replace the job's in a record.
"""

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

LOCK = Path(sys.prefix) / "lock.txt"
"""A copy of the one of constraints/ that install.sh has installed."""
LOCK_HEADER = re.compile(r"# lock (\S+) (\S+)")
"""The first line: the name that all locks of one day have in common, and the file's."""
NOT_OF_A_LOCK = frozenset({"jax-vs-torch", "pip", "setuptools", "uv", "wheel"})
"""This project, and what may stand in an environment before anything is installed."""
MOST_NAMED = 5

PACKAGES = frozenset(
    {
        *("jax", "jaxlib", "flax", "optax", "ml-dtypes"),
        *("torch", "torchvision", "triton"),
        *("numpy", "scipy", "wandb", "submitit", "nvidia-ml-py"),
    }
)
PACKAGE_PREFIXES = ("nvidia-", "jax-cuda", "pytorch-triton")
"""The CUDA libraries that the frameworks load come as packages: nvidia-cudnn-cu13, jax-cuda13-plugin, ..."""


def describe_installed(lock: Path = LOCK, folders: Sequence[str] | None = None) -> dict[str, Any]:
    """For a record's environment.

    Args:
        folders: to look in instead of sys.path.
    """
    installed = installed_versions(folders)
    lines = "".join(f"{name}=={version}\n" for name, version in installed.items())
    return {
        "packages": {
            name: version
            for name, version in installed.items()
            if name in PACKAGES or name.startswith(PACKAGE_PREFIXES)
        },
        "installed_sha256": hashlib.sha256(lines.encode()).hexdigest()[:16],
        "lock": describe_lock(lock, installed),
    }


def installed_versions(folders: Sequence[str] | None = None) -> dict[str, str]:
    """Of all distributions, by normalised name, sorted."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions(path=list(sys.path if folders is None else folders)):
        name = re.sub(r"[-_.]+", "-", distribution.name or "").lower()
        if name and distribution.version:  # or it is what a broken uninstall has left
            versions.setdefault(name, distribution.version)  # the first on sys.path is the one that is imported
    return dict(sorted(versions.items()))


def describe_lock(lock: Path, installed: Mapping[str, str]) -> dict[str, Any] | None:
    """None where there is none. `packages` are those installed; `matching` of them have the lock's version."""
    try:
        text = lock.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    header = LOCK_HEADER.match(text)
    pins = read_pins(text)
    judged = {name: version for name, version in installed.items() if name not in NOT_OF_A_LOCK}
    # As pip has it: a pin without a local version admits each, such as that of PyTorch's own index, 2.15.0+cpu.
    others = {name: own for name, own in judged.items() if pins.get(name) not in (own, own.split("+")[0])}
    return {
        "name": header[1] if header else None,
        "file": header[2] if header else None,
        "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "packages": len(judged),
        "matching": len(judged) - len(others),
        "others": [
            f"{name} {version} ({f'{pins[name]} in the lock' if name in pins else 'not in the lock'})"
            for name, version in list(others.items())[:MOST_NAMED]
        ],
    }


def read_pins(text: str) -> dict[str, str]:
    """Version by name, of the lines `name==version`."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, re.MULTILINE))


def lock_words(lock: Mapping[str, Any]) -> str:
    """`2026-11 cuda13-py312-x86_64: 112 of 112 packages`"""
    return f"{lock['name']} {lock['file']}: {lock['matching']} of {lock['packages']} packages"
