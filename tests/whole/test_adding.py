"""docs/adding.md, followed to the letter in a copy of the repository: its model and its execution mode run."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.paths import REPOSITORY, Results
from harness.results.parity_gate import ParityGate
from harness.results.record import read_record
from tests.made.project import copy_repository

pytestmark = pytest.mark.takes(25)

PAGE = (REPOSITORY / "docs" / "adding.md").read_text()
MODEL = (
    *("--benchmark", "cifar10", "--use_case", "1", "--model", "vit", "--precision", "fp32"),
    *("--set", "epochs=1", "--set", "epoch_steps=2", "--set", "evaluation_samples=16"),
)
MODE = (
    *("--benchmark", "synthetic", "--use_case", "6", "--model", "mlp", "--precision", "fp32"),
    *("--formulation", "map_of_groups", "--run", "jit", "--option", "models=3"),
)


def new_files() -> dict[str, str]:
    """The code of each block of Python by its first line, which is the file's name."""
    return dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def changes() -> Iterator[tuple[str, str, str]]:
    """File, old and new text of each hunk of the page's diffs."""
    for block in re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for name, hunks in re.findall(r"^--- (\S+)\n(.*?)(?=^--- |\Z)", block, re.MULTILINE | re.DOTALL):
            for hunk in hunks.split("@@\n"):
                lines = hunk.splitlines(keepends=True)
                assert {line[0] for line in lines} <= set(" +-"), hunk
                old, new = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
                yield name, old, new


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("extended")
    copy_repository(repository)
    for name, text in new_files().items():
        assert not (repository / name).exists(), name
        (repository / name).write_text(text)
    for name, old, new in changes():
        before = (repository / name).read_text()
        assert before.count(old) == 1, (name, old)
        (repository / name).write_text(before.replace(old, new))
    return repository


def run(repository: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def measured(repository: Path, cell: str, framework: str, *arguments: str) -> Path:
    """The only record of a short measurement on sample data."""
    short = ("--data", "sample", "--quick", "--results", str(repository / "results"))
    assert "1 measured, 0 had a record, 0 failed" in run(repository, f"{framework}_runner/run.py", *arguments, *short)
    (path,) = (repository / "results" / "records" / "any" / cell / framework).glob("*.json")
    return path


def result_of(record: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(record.read_text())["result"]
    return result


def test_recipe_adds_a_model_that_both_frameworks_agree_on(extended: Path) -> None:
    said = run(extended, "main.py", "check", "--benchmark", "cifar10", "--model", "vit")
    assert re.search(r"^cifar10 train, vit-b\d+-fp32: the same: \d+ tensors agree in fp32", said, re.MULTILINE), said


@pytest.mark.nightly
def test_model_of_the_recipe_is_measured(extended: Path) -> None:
    # Patches 4 * 4 * 3 * 128 + 128, positions 64 * 128, each block's two LayerNorms 2 * 256, attention
    # 4 * 128 * 128 + 4 * 128 and dense layers 2 * 128 * 256 + 256 + 128, LayerNorm 256, head 128 * 10 + 10.
    parameters = 6_272 + 8_192 + 4 * (512 + 66_048 + 65_920) + 256 + 1_290
    paths = [
        measured(extended, "cifar10_1", framework, *MODEL, "--batch_size", "16", "--execution_mode", mode)
        for framework, mode in (("jax", "step.jit"), ("torch", "step.eager"))
    ]
    assert [result_of(path)["parameter_count"] for path in paths] == [parameters, parameters]
    judgement = ParityGate(Results(root=extended / "results")).judge(*map(read_record, paths))
    assert judgement.state == "passed", judgement.sentence


def test_recipe_adds_an_execution_mode(extended: Path) -> None:
    """Its numbers are held against models trained alone in float64."""
    checks = result_of(measured(extended, "synthetic_6", "jax", *MODE))["checks"]
    assert checks and all(check["error"] <= check["tolerance"] for check in checks)
