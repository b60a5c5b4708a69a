"""`python -m bench [PART]...`: what the project's own machinery costs; every part without a name."""

import argparse
import subprocess
import sys
from collections.abc import Sequence

PARTS: dict[str, tuple[list[str], ...]] = {
    "timed_loop": (["jax"], ["torch"]),
}
"""By the name of the module: the arguments of each of its runs. Each run has a process of its own."""


def main(arguments: Sequence[str]) -> int:
    """0 if every run ends so."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run parts; without a name all of them.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    names = parser.parse_args(arguments).parts
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"{', '.join(unknown)}: no such part; valid: {', '.join(PARTS)}")
    codes = [
        subprocess.run([sys.executable, "-m", f"bench.{name}", *run], check=False).returncode
        for name in names or PARTS
        for run in PARTS[name]
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
