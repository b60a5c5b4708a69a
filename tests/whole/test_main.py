"""The command line as a user meets it: in a process of its own."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.paths import REPOSITORY
from main import main
from tests.made.config_text import MINIMAL, changed
from tests.made.project import copy_repository


def call(
    *words: str | Path, repository: Path = REPOSITORY, without_slurm: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Not from the repository's folder: that must make no difference."""
    environment = os.environ | ({"PATH": "/nowhere"} if without_slurm else {}) | variables
    command = [sys.executable, str(repository / "main.py"), *map(str, words)]
    return subprocess.run(command, env=environment, cwd="/usr", capture_output=True, text=True, check=False)


def complaint(*words: str | Path) -> str:
    """What stands on stderr, where nothing else must stand; the exit status must be 2."""
    done = call(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr


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


@pytest.fixture
def dry_run(copy: Path, config: Path, tmp_path: Path) -> Callable[..., str]:
    """What is printed; nothing on stderr, and status 0."""

    def run(*words: str | Path, **more: Any) -> str:
        usual = ("--config", config, "--results", tmp_path / "results", "--dry-run")
        done = call(*usual, *words, repository=copy, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


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
    everything = call("--help-all").stdout
    for flag in ("--gpu", "--benchmark", "--use_case", "--framework", "--executor", "--dry-run", "--wait"):
        assert flag in text and re.search(rf"^  {flag}\b", everything, re.MULTILINE)
    assert "--use-case" not in text + everything, "the second spelling only makes the help longer"
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--benchmrk", "mnist"], "--benchmrk: there is no such flag; did you mean --benchmark?"),
        (["status", "--wacth"], "main.py status: --wacth: there is no such flag; did you mean --watch?"),
        (["sttus"], "sttus: there is no such command; valid: status, report, data, doctor, "),
        (["--wait", "status"], "status: a command comes first: python main.py status ..."),
        (["--wait", "cancel"], "cancel: this command was removed. Use `python main.py status --cancel`."),
        (["status", "--cancel", "--watch"], "--cancel ends the jobs that --watch follows; give one of the two"),
        (["--executor", "slrum"], "valid: auto, slurm, local; did you mean slurm?"),
        (["--use_case", "3a"], "3a: use cases are called by their number or name, such as 3 or train"),
    ],
)
def test_a_wrong_command_line(words: list[str], message: str) -> None:
    first, second = complaint(*words).splitlines()
    assert message in first
    assert re.fullmatch(r"`python main\.py( status)? --help` says what is valid\.", second)


def test_a_wrong_name_and_a_wrong_file(config: Path) -> None:
    words = "; valid: 1, 3, train, per_sample_gradients; did you mean train?\n"
    assert complaint("--config", config, "--use_case", "trian") == f"--use_case trian: not defined in {config}{words}"
    config.write_text(changed("time_limit_minutes: 30", "time_limit_minutes: -5"))
    assert complaint("--config", config) == (f"{config}:3:23: cluster.time_limit_minutes: -5: must be at least 1\n")


def test_a_clusters_profile(copy: Path, config: Path, dry_run: Callable[..., str]) -> None:
    words = ("--benchmark", "mnist", "--use_case", "1", "--cluster", "modules-features")
    text = dry_run(*words, without_slurm=True)
    assert text.startswith(f"Cluster modules-features: clusters/modules-features.yaml over {config}\n")
    assert "within time_limit_minutes (60). Nothing is requeued" in " ".join(text.split())
    header = (copy / "slurm_scripts" / "a100" / "jax_mnist_1.sh").read_text()
    assert {"#SBATCH --gres=gpu:1", "#SBATCH --constraint=a100", "#SBATCH --no-requeue"} <= set(header.splitlines())
    assert "--cluster modules-features" in header
    assert complaint("--cluster", "modules").startswith("--cluster modules: there is no clusters/modules.yaml; valid: ")


FETCH = "Fetch it where there is a network: python main.py data --benchmark {}. Or measure on the sample: "


def test_missing_data_are_said_before_anything_is_submitted(config: Path, tmp_path: Path) -> None:
    config.write_text(f"{MINIMAL}data_dir: {tmp_path}/data\n")
    said = complaint("--config", config, "--results", tmp_path / "results", "--benchmark", "mnist")
    assert said.startswith(f"{tmp_path}/data/mnist/manifest.json is not here. {FETCH.format('mnist')}")
    assert not (tmp_path / "results").exists()


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


def test_dry_run_of_one_framework(copy: Path, dry_run: Callable[..., str]) -> None:
    text = dry_run("--framework", "torch", without_slurm=True)
    assert re.search(r"^mnist train \(torch only\) +any   1x1x1x1x2  2 \+ 24  ", text, re.MULTILINE)
    assert (copy / "slurm_scripts" / "torch_mnist_1.sh").exists()


def test_the_pairing_of_the_file_and_of_the_flag_that_overrides_it(config: Path, dry_run: Callable[..., str]) -> None:
    config.write_text(MINIMAL + "pairing: interleaved\n")
    said = dry_run("--executor", "slurm", SBATCH_ACCOUNT="lab")
    assert "JAX and PyTorch run in turns, block by block." in said
    assert "\nOptions of sbatch from this shell, which beat experiments.yaml: SBATCH_ACCOUNT\n" in said
    said = dry_run("--executor", "slurm", "--set", "pairing=together", "--set", "epochs=3")
    assert "JAX and PyTorch run one after the other." in said


def test_dry_run_for_this_machine(copy: Path, dry_run: Callable[..., str]) -> None:
    """Of a pair, which takes turns on a CPU; and by the project's own experiments.yaml."""
    dry_run("--executor", "local", CUDA_VISIBLE_DEVICES="")
    assert " --interleaved" in (copy / "slurm_scripts" / "pair_mnist_1.sh").read_text()
    words = ("--config", REPOSITORY / "experiments.yaml", "--benchmark", "mnist", "--use_case", "1", "--executor")
    here, on_slurm = (dry_run(*words, executor, CUDA_VISIBLE_DEVICES="") for executor in ("local", "slurm"))
    assert "JAX and PyTorch run in turns, block by block." in here
    assert "JAX and PyTorch run one after the other." in on_slurm


def test_results_that_are_empty_or_no_folder(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, nowhere = tmp_path / "notes.csv", tmp_path / "nowhere"
    mine.write_text("mine")
    assert "cannot be read: Not a directory" in complaint("--config", config, "--results", mine / "results")
    nothing = {"status": "no job in", "status --cancel": "no job of", "report": "Measure first: python main.py"}
    for command, words in nothing.items():
        assert main([*command.split(), "--results", str(tmp_path)]) == int(command == "report")
        assert words in " ".join(capsys.readouterr().out.split())
        for wrong, why in ((mine, "is not a folder"), (nowhere, "there is no such folder")):
            assert main([*command.split(), "--results", str(wrong)]) == 2
            said = capsys.readouterr().err
            assert str(wrong) in said and why in said
    assert mine.read_text() == "mine"


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
