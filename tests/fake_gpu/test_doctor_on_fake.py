"""What `main.py doctor` says of machines that nobody here has: to a stranger with such a card."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from tests.fake_gpu.conftest import Environment
from tests.made.processes import run_python


def run_wide(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_python(*arguments, env=environment | {"COLUMNS": "400"}, quiet_s=90)


def probed(environment: dict[str, str]) -> dict[str, Any]:
    """What PyTorch's probe answers."""
    ask = "print(json.dumps(ask([sys.executable, '-c', PROBES['torch']])))"
    code = f"import json, sys; from pipeline.doctor import *; {ask}"
    found: dict[str, Any] = json.loads(run_wide(environment, "-c", code).stdout)
    return found


def test_of_two_boards_with_slices_cuda_shows_one_slice(on_card: Environment) -> None:
    found = probed(on_card("a100", devices=2) | {"FAKE_CUDA_MIG": "1"})
    assert found.get("gpus") == ["NVIDIA A100-SXM4-80GB MIG 3g.40gb"], found
    assert found["cudnn"] == 92_400


@pytest.mark.nightly
def test_eight_cards(on_card: Environment, tmp_path: Path) -> None:
    results = Results(root=tmp_path)
    results.fake_gpu.touch()
    command = ["main.py", "doctor", "--executor", "local", "--results", str(tmp_path)]
    done = run_wide(on_card("a100", devices=8), *command)
    assert done.returncode == 0, done.stdout
    assert "8 x NVIDIA A100-SXM4-80GB" in done.stdout
    assert "it and CUDA graphs work on the GPU" in done.stdout
    assert "NVIDIA A100-SXM4-80GB, driver 580.00.fake" in done.stdout
    assert "fake GPU" not in done.stdout


@pytest.mark.nightly
def test_a_consumer_card_and_no_place_for_records(on_card: Environment, tmp_path: Path) -> None:
    command = ["main.py", "doctor", "--executor", "local", "--results", str(tmp_path)]
    done = run_wide(on_card("rtx3080") | {"FAKE_NVML": "no_energy"}, *command)
    assert done.returncode == 1, done.stdout
    assert "NVIDIA GeForce RTX 3080, driver 580.00.fake; refused: ecc, energy_joules, mig" in done.stdout
    assert "To be corrected: fake GPU." in done.stdout
