"""install.sh: what it asks pip or uv for, with stand-ins that write down what they are asked."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.paths import REPOSITORY

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = "python -m pip install --disable-pip-version-check"
PIP_OF_UV = "python -m pip install --quiet --disable-pip-version-check --retries 1 uv=="
"""What comes first where no uv is on PATH; the release follows."""


def program(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


class Machine:
    """One whose environment is there, and whose programs only note how they are called."""

    def __init__(self, folder: Path, *, uv: int | None = None, python: str = "39", **about: Any) -> None:
        """
        Args:
            uv: its exit status; None where there is none.
            python: the version of the environment's; by default one without locks.
            about: whether PyTorch's index `reaches` here, which torch this `has`, which kind of `machine` this is, and
                the exit status of an `own_uv` that pip can install, if it can.
        """
        given: dict[str, Any] = {"reaches": True, "has": "2.15.0", "machine": "x86_64", "own_uv": None} | about
        self.log, self.venv, self.tools = folder / "log", folder / "venv", folder / "tools"
        folder.mkdir(exist_ok=True)
        self.log.touch()
        program(
            self.venv / "bin" / "python",
            f"""case "$*" in
                *urlopen*) exit {0 if given["reaches"] else 1} ;;
                *version_info*) echo {python}; exit ;;
                *m.version*) exit {0 if "+cpu" in given["has"] else 1} ;;
            esac
            echo "python $*" >> {self.log}
            case "$*" in *uv==*) {self._installs_uv(given["own_uv"])} ;; esac""",
        )
        program(self.tools / "uname", f"echo Linux {given['machine']}")
        if uv is not None:
            program(self.tools / "uv", f'echo "uv $*" >> {self.log}; exit {uv}')

    def _installs_uv(self, status: int | None) -> str:
        if status is None:
            return "exit 1"
        program(self.tools / "uv-of-pip", f'echo "uv $*" >> {self.log}; exit {status}')
        return f"mv {self.tools}/uv-of-pip {self.venv}/bin/uv"

    def install(self, extras: str, lock: str = "", python: str = sys.executable) -> tuple[int, str, list[str]]:
        """Exit status, what was said, and the calls, without that which was to bring uv."""
        command = [REPOSITORY / "install.sh", python, self.venv, extras, lock]
        environment = os.environ | {"PATH": f"{self.tools}:/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        calls = [call for call in self.log.read_text().splitlines() if not call.startswith(PIP_OF_UV)]
        return done.returncode, done.stdout + done.stderr, calls


def test_for_the_cpu_nothing_of_cuda_is_downloaded_where_its_index_can_be_reached(tmp_path: Path) -> None:
    status, said, calls = Machine(tmp_path).install("jax,torch")
    assert status == 0 and "for the CPU, some hundred MB" in said
    assert calls == [f"{PIP} --index-url {CPU_INDEX} --no-deps torch torchvision", f"{PIP} --editable .[jax,torch]"]
    _, said, calls = Machine(tmp_path / "other", reaches=False).install("jax,torch,dev")
    assert "about 3.2 GB" in said and calls == [f"{PIP} --editable .[jax,torch,dev]"]


def test_for_a_gpu_a_wheel_for_the_cpu_is_replaced(tmp_path: Path) -> None:
    _, said, calls = Machine(tmp_path, has="2.15.0+cpu").install("torch")
    assert calls == ["python -m pip uninstall --yes torch torchvision", f"{PIP} --editable .[torch]"]
    assert "3.2 GB" in said


def test_uv_comes_first_and_pip_where_it_fails(tmp_path: Path) -> None:
    machine = Machine(tmp_path, uv=0)
    asked = f"uv pip install --python {machine.venv}/bin/python --torch-backend cpu --editable .[jax,torch]"
    assert machine.install("jax,torch")[2] == [asked]
    failing = Machine(tmp_path / "other", uv=2)
    status, said, calls = failing.install("cuda13,torch")
    assert status == 0 and "uv could not" in said
    wanted = "--editable .[cuda13,torch]"
    assert calls == [f"uv pip install --python {failing.venv}/bin/python {wanted}", f"{PIP} {wanted}"]


def test_pip_brings_uv_where_there_is_none_and_installs_where_that_fails(tmp_path: Path) -> None:
    machine = Machine(tmp_path, own_uv=0)
    asked = f"uv pip install --python {machine.venv}/bin/python --torch-backend cpu --editable .[jax,torch]"
    assert machine.install("jax,torch")[2] == [asked]
    assert machine.log.read_text().startswith(PIP_OF_UV)
    assert machine.install("jax,torch")[2] == [asked, asked]  # it is there now
    assert machine.log.read_text().count(PIP_OF_UV) == 1
    failing = Machine(tmp_path / "failing", own_uv=2)
    status, said, calls = failing.install("torch")
    assert (status, calls[-1]) == (0, f"{PIP} --editable .[torch]") and "uv could not; now with pip" in said
    status, said, calls = Machine(tmp_path / "none").install("torch")
    assert (status, calls) == (0, [f"{PIP} --editable .[torch]"]) and "uv could not be installed" in said


def test_another_python_than_that_of_the_environment_is_told(tmp_path: Path) -> None:
    """Also where nothing is left to be installed. Without extras, nothing is."""
    other, same = tmp_path / "other", tmp_path / "same"
    for path, version in ((other, "312"), (same, "311")):
        program(path, f'case "$*" in *"sys.exit"*) ;; *) echo {version} ;; esac')
    machine = Machine(tmp_path / "machine", python="311")
    status, said, calls = machine.install("", python=str(other))
    assert (status, calls) == (1, [])
    assert f"PYTHON={other} is Python 3.12, and {machine.venv} was made of Python 3.11" in said
    assert f"(rm -r {machine.venv})" in said and "VENV=.venv-3.12" in said
    assert machine.install("", python=str(same)) == (0, "", [])
    check = f"./install.sh {other} {machine.venv}"
    assert make("env", f"VENV={machine.venv}", f"PYTHON={other}")[0] == check
    assert check not in make("env", f"VENV={machine.venv}", PYTHON=str(other))  # of a shell's profile


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


def test_what_could_not_be_installed_leaves_no_lock_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, python="312", uv=2)
    program(machine.venv / "bin" / "python", 'case "$*" in *version_info*) echo 312 ;; *) exit 1 ;; esac')
    assert machine.install("cuda13,torch")[0] != 0 and not (machine.venv / "lock.txt").exists()
    status, said, calls = Machine(tmp_path / "other").install("cuda12,torch-cuda12", "cuda11")
    assert (status, calls) == (1, [])
    assert "LOCK=cuda11: there is no such lock. Valid: none cpu cuda12 cuda13" in said


@pytest.mark.parametrize(("extras", "refused"), [("cuda13,torch", True), ("cuda12", True), ("jax,torch", False)])
def test_cuda_is_refused_on_python_3_11(extras: str, refused: bool, tmp_path: Path) -> None:
    machine = Machine(tmp_path, python="311")
    status, said, calls = machine.install(extras, "none")
    assert (status != 0, not calls) == (refused, refused)
    assert all((words in said) == refused for words in ("refused on Python 3.11", "issue 46225", "python3.12"))
    assert machine.install("cuda13,gpu-compile")[0] == 0


def test_on_aarch64_cuda_12_is_of_pytorchs_own_index(tmp_path: Path) -> None:
    _, _, calls = Machine(tmp_path, python="312", machine="aarch64").install("cuda12,torch-cuda12")
    assert calls[0] == f"{PIP} --index-url {CPU_INDEX.replace('cpu', 'cu126')} --no-deps torch torchvision"
    status, said, calls = Machine(tmp_path / "other", machine="aarch64", reaches=False).install("cuda12,torch-cuda12")
    assert (status, calls) == (1, []) and "cannot be reached" in said


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


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ("driver-too-old", ("older than CUDA 12: Driver Version: 470.182.03", "525.60.13", "make env LOCK=cpu")),
        ("driver-unknown,dev", ("does not say which CUDA", "make env LOCK=cuda13", "LOCK=cpu")),
    ],
)
def test_a_driver_for_which_there_is_no_lock_installs_nothing(
    extras: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    program(machine.tools / "nvidia-smi", 'echo "Driver Version: 470.182.03"')
    status, said, calls = machine.install(extras)
    assert (status, calls) == (1, []) and all(one in said for one in words)


def test_an_old_python_is_named_with_the_way_out(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    program(old, '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    status, said, calls = Machine(tmp_path).install("jax,torch", python=str(old))
    assert (status, calls) == (1, [])
    assert "Python 3.11 or later is needed" in said and "Python 3.9.2" in said and "PYTHON=" in said


def test_compiling_for_gpus_has_an_environment_of_its_own(tmp_path: Path) -> None:
    """Of one resolve: JAX and its plugin must be of one version."""
    lines = make("--always-make", "gpu-compile", "GPU_PYTHON=/opt/python3.12")
    assert './install.sh "/opt/python3.12" .venv-gpu-compile cuda13,gpu-compile' in lines
    _, said, calls = Machine(tmp_path).install("cuda13,gpu-compile")
    assert calls == [f"{PIP} --editable .[cuda13,gpu-compile]"] and "about 2.7 GB" in said


def test_make_demo_installs_and_measures_the_demo_here_without_slurm() -> None:
    """README's first command: what it runs last, as `make` itself says it."""
    said = subprocess.run(
        ["make", "--dry-run", "demo", "VENV=nowhere"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    lines = said.stdout.splitlines()
    assert lines[-1] == "nowhere/bin/python main.py --preset demo --executor local --wait --results results/demo"
    assert any(line.startswith("./install.sh ") for line in lines[:-1])
