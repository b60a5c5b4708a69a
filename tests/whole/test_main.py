"""The command line as a user meets it: in a process of its own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from tests.made.config_text import MINIMAL
from tests.made.project import copy_repository


def call(
    *words: str | Path, repository: Path = REPOSITORY, without_slurm: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Not from the repository's folder: that must make no difference."""
    environment = os.environ | ({"PATH": "/nowhere"} if without_slurm else {}) | variables
    command = [sys.executable, str(repository / "main.py"), *map(str, words)]
    return subprocess.run(command, env=environment, cwd="/usr", capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, for tests that render: the scripts of the one in use stay as they are."""
    root = tmp_path_factory.mktemp("a copy")
    copy_repository(root)
    return root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "my experiments.yaml"
    path.write_text(MINIMAL)
    return path


def test_help_teaches() -> None:
    done = call("--help")
    assert done.returncode == 0
    text = done.stdout
    lines = text.splitlines()
    assert len(lines) <= 51 and max(map(len, lines)) <= 80
    places = [text.index(words) for words in ("use cases:", "examples:", "commands (", "--benchmark NAME  ")]
    assert places == sorted(places)
    for command in ("status", "report", "data", "doctor", "check", "calibrate"):
        assert re.search(rf"^  {command} +\w", text, re.MULTILINE)
        assert max(map(len, call(command, "--help").stdout.splitlines())) <= 80
    assert "  1  train                 train a model, epoch by epoch\n" in text
    assert "benchmarks: mnist, cifar10, text," in text


@pytest.mark.parametrize(("words", "packages"), [("--help", {"harness", "yaml", "_yaml"}), ("--hlp", {"harness"})])
def test_answers_at_once(words: str, packages: set[str]) -> None:
    """In 0.05 s on an idle machine, or 0.1 s where experiments.yaml is read: of all that is installed, only the
    lightest modules are imported."""
    tell = "import runpy, sys; before = {*sys.modules, 'runpy'}; sys.argv = sys.argv[1:]\n"
    tell += "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
    tell += "finally: print(*{name.partition('.')[0] for name in {*sys.modules} - before}, file=sys.stderr)"
    command = [sys.executable, "-c", tell, str(REPOSITORY / "main.py"), words]
    imported = subprocess.run(command, cwd="/usr", capture_output=True, text=True).stderr.splitlines()[-1].split()
    found = {name for name in imported if "cython" not in name} - sys.stdlib_module_names  # which PyYAML is compiled by
    assert {"harness"} <= found <= packages


FETCH = "Fetch it where there is a network: python main.py data --benchmark {}. Or measure on the sample: "


def test_dry_run(copy: Path, config: Path, tmp_path: Path) -> None:
    """In the second spelling of the flags; the first: everywhere."""
    results = tmp_path / "my results"
    flags = ["--config", config, "--results", results, "--benchmark", "cifar10", "--use-case", "3", "--dry_run"]
    done = call(*flags, repository=copy, without_slurm=True)
    assert (done.returncode, done.stderr) == (0, "")
    # cnn only: 2 outputs x 2 batch sizes x 2 precisions x 1 mode, 12 replicates; torch adds loop at batch 16, so there
    # it has two modes to screen: 8 + 96 + 144 measurements. Their times: tests/pipeline/submission/test_estimate.py.
    program = shlex.join(["python", str(copy / "main.py"), *map(str, flags[:-1])])
    said = done.stdout.splitlines()
    assert said[1] == "cifar10 per sample gradients  any   1x2x2x2x1+2  8 + 240   0.7-2.1 h"
    parts = ["variants: ", "The processes of JAX and PyTorch run in turns", "  batch size  16, 32"]
    parts += ["Estimate: 42 min to 2 h 04 min"]
    places = [next(number for number, line in enumerate(said) if line.startswith(words)) for words in parts]
    assert places == sorted(places)
    assert FETCH.format("cifar10") in " ".join(said)
    assert said[-1] == f"Nothing was submitted. To submit: {program}"
    assert not (results / "jobs").exists()
    text = (copy / "slurm_scripts" / "jax_cifar10_3.sh").read_text()
    assert f"--use_case 3 --config '{config}' --results '{results}')" in text
    full = call(*flags, "--full", "--set", "pairing=together", repository=copy, without_slurm=True).stdout
    assert re.search(r"^cifar10 per sample gradients  any   1x2x2x2x1\+2  240  ", full, re.MULTILINE)
    assert "The processes of JAX and PyTorch run one after the other.\n" in full
    assert "--use_case 3 --full --config" in (copy / "slurm_scripts" / "jax_cifar10_3.sh").read_text()


def test_a_safe_path_an_ascii_terminal_a_full_disk_and_a_closed_pipe(copy: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(copy / "main.py"), "--dry-run", "--executor", "local"]
    command += ["--results", str(tmp_path / "Ü"), "--benchmark", "mnist", "--use_case", "1"]
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "ascii", "HOME": "/nowhere"}
    done = subprocess.run(command, env=environment, capture_output=True, cwd="/usr", check=False)
    assert (done.returncode, done.stderr, rb"\xdc" in done.stdout) == (0, b"", True)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, cwd="/usr", check=False)
    assert (done.returncode, done.stderr) == (2, b"the output: No space left on device\n")
    # A reader that has seen enough: `python main.py --dry-run | head -1` ends without a traceback.
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(command, env=environment, stdout=closed, stderr=subprocess.PIPE, cwd="/usr", check=False)
    assert (done.returncode, done.stderr) == (0, b"")
