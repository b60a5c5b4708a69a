"""install.sh: what it asks pip or uv for, with stand-ins that write down what they are asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = "python -m pip install --disable-pip-version-check"


def program(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


class Machine:
    """One whose environment is there, and whose programs only note how they are called."""

    def __init__(
        self, folder: Path, *, uv: int | None = None, python: str = "39", reaches: bool = True, machine: str = "x86_64"
    ) -> None:
        """
        Args:
            uv: its exit status; None where there is none.
            python: the version of the environment's; by default one without locks.
            reaches: whether PyTorch's index can be reached.
        """
        self.log, self.venv, self.tools = folder / "log", folder / "venv", folder / "tools"
        folder.mkdir(exist_ok=True)
        self.log.touch()
        program(
            self.venv / "bin" / "python",
            f"""case "$*" in
                *urlopen*) exit {0 if reaches else 1} ;;
                *version_info*) echo {python}; exit ;;
                *m.version*|*uv==*) exit 1 ;;
            esac
            echo "python $*" >> {self.log}""",
        )
        program(self.tools / "uname", f"echo Linux {machine}")
        if uv is not None:
            program(self.tools / "uv", f'echo "uv $*" >> {self.log}; exit {uv}')

    def install(self, extras: str, lock: str = "") -> tuple[int, str, list[str]]:
        """Return the exit status, the output, and the calls."""
        command = [REPOSITORY / "install.sh", sys.executable, self.venv, extras, lock]
        environment = os.environ | {"PATH": f"{self.tools}:/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr, self.log.read_text().splitlines()


def test_for_the_cpu_nothing_of_cuda_is_downloaded_where_its_index_can_be_reached(tmp_path: Path) -> None:
    status, said, calls = Machine(tmp_path).install("jax,torch")
    assert status == 0 and "for the CPU, some hundred MB" in said
    assert calls == [f"{PIP} --index-url {CPU_INDEX} --no-deps torch torchvision", f"{PIP} --editable .[jax,torch]"]
    _, said, calls = Machine(tmp_path / "other", reaches=False).install("jax,torch,dev")
    assert "about 3.2 GB" in said and calls == [f"{PIP} --editable .[jax,torch,dev]"]


def test_uv_comes_first_and_pip_where_it_fails(tmp_path: Path) -> None:
    machine = Machine(tmp_path, uv=0)
    asked = f"uv pip install --python {machine.venv}/bin/python --torch-backend cpu --editable .[jax,torch]"
    assert machine.install("jax,torch")[2] == [asked]
    failing = Machine(tmp_path / "other", uv=2)
    status, said, calls = failing.install("cuda13,torch")
    assert status == 0 and "uv could not" in said
    wanted = "--editable .[cuda13,torch]"
    assert calls == [f"uv pip install --python {failing.venv}/bin/python {wanted}", f"{PIP} {wanted}"]


@pytest.mark.parametrize(
    ("extras", "lock", "python", "machine", "uv", "file"),
    [
        ("cuda13,torch,dev", "", "312", "aarch64", 0, "cuda13-py312-aarch64"),
        ("cuda12,torch-cuda12", "", "312", "x86_64", None, "cuda12-py312-x86_64"),
        ("torch", "cuda12", "312", "x86_64", 0, "cuda12-py312-x86_64"),
        ("jax,torch", "", "311", "x86_64", 0, "cpu-py311-x86_64"),
        ("jax,torch", "none", "312", "x86_64", 0, None),
        ("cuda12,torch-cuda12", "", "312", "aarch64", None, None),
    ],
)
def test_the_lock_is_that_of_extras_python_and_machine(
    extras: str, lock: str, python: str, machine: str, uv: int | None, file: str | None, tmp_path: Path
) -> None:
    computer = Machine(tmp_path, python=python, machine=machine, uv=uv)
    left = computer.venv / "lock.txt"
    left.write_text("of another day")
    status, said, calls = computer.install(extras, lock)
    assert status == 0 and all((f"--constraint constraints/{file}.txt" in call) == bool(file) for call in calls)
    if file:
        assert left.read_text() == (REPOSITORY / f"constraints/{file}.txt").read_text() and f" {file}\n" in said
    else:
        words = "is there, so the newest releases are installed; valid: cpu-py311"
        assert not left.exists() and (words in said) == (lock != "none")


@pytest.mark.parametrize(("extras", "refused"), [("cuda13,torch", True), ("cuda12", True), ("jax,torch", False)])
def test_cuda_is_refused_on_python_3_11(extras: str, refused: bool, tmp_path: Path) -> None:
    machine = Machine(tmp_path, python="311")
    status, said, calls = machine.install(extras, "none")
    assert (status != 0, not calls) == (refused, refused)
    assert all((words in said) == refused for words in ("refused on Python 3.11", "issue 46225", "python3.12"))
    assert machine.install("cuda13,gpu-compile")[0] == 0


def make(*words: str, **variables: str) -> list[str]:
    """The lines that it would run, also where make itself runs these tests."""
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    environment = {name: value for name, value in os.environ.items() if name not in outer} | variables
    command = ["make", "--dry-run", *words]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_an_environment_is_asked_for_as_it_was_made(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    chosen = f"./install.sh python3 {venv} cuda12,torch-cuda12 cuda12"
    assert make("env", f"VENV={venv}", "LOCK=cuda12")[0] == chosen
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (venv / "made-of.mk").write_text("LOCK := cuda12\nEXTRAS := cuda12,torch-cuda12\n")
    assert make("env", f"VENV={venv}")[0] == chosen
    assert make("test", f"VENV={venv}")[0] == chosen.replace("torch-cuda12", "torch-cuda12,dev")
    assert make("env", f"VENV={venv}", "EXTRAS=jax,torch")[0].split()[3:] == ["jax,torch"]
    # On a node without a network, nothing is installed.
    assert make("gpu-check", f"VENV={venv}") == [f"tests/gpu/check.sh {venv}/bin/python results/gpu-check"]


@pytest.mark.parametrize(
    ("cuda", "driver", "extras"),
    [
        ("12.4", "550.54.14", "cuda12,torch-cuda12"),
        ("13.1", "590.1", "cuda13,torch"),
        ("14.0", "700.1", "cuda13,torch"),
        ("11.4", "470.182.03", "driver-too-old"),
        ("10.2", "440.1", "driver-too-old"),
        # Where nvidia-smi has no CUDA, the driver's own version says it.
        ("N/A", "580.65.06", "cuda13,torch"),
        ("N/A", "525.60.13", "cuda12,torch-cuda12"),
        ("N/A", "515.1", "driver-too-old"),
        ("N/A", "[N/A]", "driver-unknown"),
    ],
)
def test_the_cuda_of_the_driver_is_chosen(cuda: str, driver: str, extras: str, tmp_path: Path) -> None:
    table = f"| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda}  |"
    program(tmp_path / "nvidia-smi", f'case "$*" in *query*) echo "{driver}" ;; *) echo "{table}" ;; esac')
    lines = make("env", f"VENV={tmp_path}/venv", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert lines[0].split()[3] == extras


def test_without_a_gpu_the_lock_is_that_of_the_cpu(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", "echo no devices were found; exit 6")
    lines = make("env", f"VENV={tmp_path}/venv", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert lines[0].split()[3] == "jax,torch"


def test_make_demo_installs_and_measures_the_demo_here_without_slurm() -> None:
    """README's first command: what it runs last, as `make` itself says it."""
    said = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo", "VENV=nowhere"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = said.stdout.splitlines()
    assert lines[-1] == "nowhere/bin/python main.py --preset demo --executor local --wait --results results/demo"
    assert any(line.startswith("./install.sh ") for line in lines[:-1])
