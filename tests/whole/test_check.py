"""`main.py check` on a copy of the repository, with both frameworks: what is right agrees, and each of the mistakes
that somebody makes who adds a model is answered with where it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.made.patience import patience
from tests.made.project import copy_repository

MODEL = "torch_runner/models/mnist.py"
MISTAKES: dict[str, tuple[list[tuple[str, str]], tuple[str, ...]]] = {
    "other mathematics": (
        [("F.relu(self.fc1(", "F.gelu(self.fc1(")],
        ("the first layer that differs is fc2: relative error ", "its inputs differ already", "outputs of fc1 agree"),
    ),
    "missing bias": (
        [("nn.Linear(32, 10)", "nn.Linear(32, 10, bias=False)")],
        ("only JAX has fc2.bias; JAX 26,010 parameters, PyTorch 26,000: not the same model",),
    ),
    "wrong shape": (
        [("nn.Linear(512, 32)", "nn.Linear(512, 64)"), ("nn.Linear(32, 10)", "nn.Linear(64, 10)")],
        ("fc1.weight: JAX (32, 512), PyTorch (64, 512)", "fc2.weight: JAX (10, 32), PyTorch (10, 64)"),
    ),
    "wrong name": (
        [("self.fc2 =", "self.fc_2 ="), ("self.fc2(", "self.fc_2(")],
        ("only JAX has fc2.bias, fc2.weight, only PyTorch has fc_2.weight, fc_2.bias; did you mean fc_2?",),
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


def check(repository: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "main.py", "check", *words]
    done = subprocess.run(
        command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience(200)
    )
    return done.returncode, done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy_repository(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(repository: Path, mistake: str) -> None:
    replacements, expected = MISTAKES[mistake]
    text = (repository / MODEL).read_text()
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (repository / MODEL).write_text(text)
    status, output = check(repository, "--benchmark", "mnist", "--model", "cnn")
    assert status == 1, output
    assert [words for words in expected if words not in output] == [], output
    assert not (repository / "results").exists()


def test_what_is_right_agrees(repository: Path) -> None:
    status, output = check(repository, "--benchmark", "mnist", "--model", "cnn")
    assert status == 0, output
    assert (
        "mnist/cnn, train: JAX and PyTorch agree: outputs, loss, gradient of 8 tensors, sum of 5 updates of 8 tensors, "
        "losses of 5 steps\n"
    ) in output
    assert not (repository / "results").exists()


def test_a_wrong_name_is_answered_with_the_nearest(repository: Path) -> None:
    status, output = check(repository, "--benchmark", "cifar10", "--model", "resnet-18")
    assert status == 2 and "did you mean resnet18?" in output, output
