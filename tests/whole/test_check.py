"""`main.py check`, with both frameworks: a model that agrees, and one that lacks a bias on one side."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from tests.made.patience import patience
from tests.made.project import copy_repository


def check(root: Path, *arguments: str) -> tuple[int, str]:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    command = [sys.executable, "main.py", "check", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=patience(120), check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_model_that_agrees() -> None:
    status, said = check(REPOSITORY, "--benchmark", "mnist")
    assert status == 0, said
    assert "mnist train: step.jit and step.eager on the gate's small batch" in said
    assert re.search(r"^mnist train, cnn-b\d+-fp32: the same: \d+ tensors agree in fp32", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ("--benchmark", "mnist", "--use_case", "9"),
            "--use_case 9: not defined in experiments.yaml; valid: 1, 2,",
        ),
        (("--benchmark", "cifar10", "--model", "resnet-18"), "valid: cnn, resnet18; did you mean resnet18?"),
        (("--benchmark", "mnist", "--run", "jit"), "--run: there is no such flag; valid: "),
    ],
)
def test_a_wrong_word_is_answered(arguments: tuple[str, ...], answer: str) -> None:
    status, said = check(REPOSITORY, *arguments)
    assert status == 2 and answer in said


def test_a_missing_bias_is_named(tmp_path: Path) -> None:
    """26,010 parameters, of which fc2 has 10 biases."""
    copy_repository(tmp_path)
    model = tmp_path / "torch_runner" / "models" / "mnist.py"
    text = model.read_text()
    assert text.count("nn.Linear(32, 10)") == 1
    model.write_text(text.replace("nn.Linear(32, 10)", "nn.Linear(32, 10, bias=False)"))
    status, said = check(tmp_path, "--benchmark", "mnist")
    assert status == 1, said
    assert "NOT the same: the models have other parameters: only JAX has fc2.bias" in said
    assert "(JAX has 26,010 parameters, PyTorch 26,000)" in said
