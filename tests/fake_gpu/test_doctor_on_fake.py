"""What `main.py doctor` says of machines that nobody here has: to a stranger with such a card."""

import json
import subprocess
import sys
from typing import Any

from harness.paths import REPOSITORY
from tests.fake_gpu.conftest import Environment
from tests.made.patience import patience


def run_python(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment | {"COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=patience(90),
    )


def probed(environment: dict[str, str]) -> dict[str, Any]:
    """What PyTorch's probe answers."""
    code = "import json, sys; from pipeline.doctor import *; print(json.dumps(ask(sys.executable, PROBES['torch'])))"
    found: dict[str, Any] = json.loads(run_python(environment, "-c", code).stdout)
    return found


def test_of_two_boards_with_slices_cuda_shows_one_slice(on_card: Environment) -> None:
    found = probed(on_card("a100", devices=2) | {"FAKE_CUDA_MIG": "1"})
    assert found.get("gpus") == ["NVIDIA A100-SXM4-80GB MIG 3g.40gb"], found
    assert found["cudnn"] == 92_400
