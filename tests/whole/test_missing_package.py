"""A Python without this project's packages: every command says so in one line, and ends with status 2."""

import os
import subprocess
import sys

import pytest

from harness.paths import REPOSITORY

COMMANDS = ("main.py", "main.py --help", "main.py doctor", "main.py data", "main.py report", "main.py status")
COMMANDS += (
    "main.py check --benchmark mnist",
    "jax_runner/run.py --help",
    "torch_runner/run.py --rank 0",
    "-m harness.job --help",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_named_with_the_way_out(command: str) -> None:
    """-S leaves out what is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-S", *command.split()]
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"{sys.executable} has no ")
    assert "source .venv/bin/activate (none there yet? make env)" in done.stderr


def test_a_missing_module_of_our_own_is_no_missing_package() -> None:
    code = "import sys; sys.argv = ['main.py', 'status']; sys.modules['pipeline.watching.follow'] = None\n"
    code += "import runpy; runpy.run_path('main.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr and "make env" not in done.stderr
