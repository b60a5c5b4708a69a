"""The parts of `python -m bench`, each in a process of its own."""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence

Parts = Mapping[str, Sequence[Sequence[str]]]
"""By the name of the module: the arguments of each of its runs."""


def run_parts(package: str, parts: Parts, arguments: Sequence[str]) -> int:
    """0 if every run ends so."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description="Run parts; without a name all of them.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    names = parser.parse_args(arguments).parts
    if unknown := sorted(set(names) - set(parts)):
        parser.error(f"{', '.join(unknown)}: no such part; valid: {', '.join(parts)}")
    codes = [
        subprocess.run([sys.executable, "-m", f"{package}.{name}", *run], check=False).returncode
        for name in names or parts
        for run in parts[name]
    ]
    return int(any(codes))
