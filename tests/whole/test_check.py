"""`main.py check`, with both frameworks: a model that agrees, and the mistakes of somebody who adds one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from tests.made.patience import patience
from tests.made.project import copy_repository

pytestmark = pytest.mark.takes(25)

MISTAKES: dict[str, tuple[list[tuple[str, str]], tuple[str, ...]]] = {
    "other mathematics": (
        [("F.relu(self.fc1(", "F.gelu(self.fc1(")],
        ("the first layer that differs is fc2: relative error ", "its inputs differ already", "outputs of fc1 agree"),
    ),
    "wrong name": (
        [("self.fc2 =", "self.fc_2 ="), ("self.fc2(", "self.fc_2(")],
        ("only JAX has fc2.bias, fc2.weight; only PyTorch has fc_2.bias, fc_2.weight: did you mean fc_2.bias?",),
    ),
    "forgotten BatchNorm": (
        [
            ("self.fc1 =", "self.bn1 = nn.BatchNorm2d(16)\n        self.fc1 ="),
            ("F.relu(self.conv1(images))", "F.relu(self.bn1(self.conv1(images)))"),
        ],
        ("mnist/cnn has BatchNorm but does not declare it", "harness/work/benchmarks/mnist.py"),
    ),
    "on one side only": (
        [('{"cnn": Cnn}', '{"other": Cnn}')],
        ("torch_runner/models/mnist.py does not know cnn", "add it to its make_model"),
    ),
}
"""What is replaced in PyTorch's model, and what the answer has."""
BY_DAY = ("other mathematics", "wrong name")
"""One mistake in the numbers and one in the declarations. Each starts both frameworks."""


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
    "mistake", [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in MISTAKES]
)
def test_a_mistake_is_named(tmp_path: Path, mistake: str) -> None:
    replacements, expected = MISTAKES[mistake]
    copy_repository(tmp_path)
    model = tmp_path / "torch_runner" / "models" / "mnist.py"
    text = model.read_text()
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    model.write_text(text)
    status, said = check(tmp_path, "--benchmark", "mnist", "--model", "cnn")
    assert status == 1, said
    assert [words for words in expected if words not in said] == [], said
    assert not (tmp_path / "results").exists()
