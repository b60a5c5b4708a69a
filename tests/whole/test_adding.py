"""docs/adding.md, followed to the letter in a copy of the repository: its benchmark, mode and use case run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from tests.made.project import copy_repository

ADDING = REPOSITORY / "docs" / "adding.md"


def recipe_blocks() -> dict[str, str]:
    """The code of each block by its first line, which says where it goes."""
    blocks = re.findall(r"^```(?:python|yaml)\n# ([^\n]+)\n(.*?)^```", ADDING.read_text(), re.MULTILINE | re.DOTALL)
    return dict(blocks)


def apply_recipe(repository: Path) -> None:
    for where, text in recipe_blocks().items():
        name, _, place = where.partition(", ")
        path = repository / name
        if not place:
            path.write_text(text)
            continue
        anchor = {
            "under benchmarks": "\nbenchmarks:\n",
            "under use_cases": "\nuse_cases:\n",
            'behind "map"': ': a loop in the program", runs=JAX_RUNS),\n',
            "in use_cases.6.formulations.jax": "    name: many_models\n",
            "at the end": "",
        }[place]
        before, found, after = path.read_text().partition(anchor) if anchor else (path.read_text() + "\n\n", "\n", "")
        assert found, where
        if place.endswith("formulations.jax"):
            until, of_list, after = after.partition("      jax: [")
            found, text = found + until + of_list, text.strip() + " "
        path.write_text(before + found + text + after)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("extended")
    copy_repository(repository)
    apply_recipe(repository)
    return repository


def run(repository: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_recipe_has_all_of_its_blocks() -> None:
    assert list(recipe_blocks()) == [
        "harness/work/benchmarks/fashion_mnist.py",
        "torch_runner/models/fashion_mnist.py",
        "jax_runner/models/fashion_mnist.py",
        "experiments.yaml, under benchmarks",
        'harness/work/use_cases/many_models.py, behind "map"',
        "jax_runner/formulations.py, at the end",
        "experiments.yaml, in use_cases.6.formulations.jax",
        "harness/work/use_cases/evaluate.py",
        "torch_runner/use_cases/evaluate.py",
        "jax_runner/use_cases/evaluate.py",
        "experiments.yaml, under use_cases",
    ]


def test_recipe_adds_a_benchmark_and_a_use_case(extended: Path) -> None:
    output = run(extended, "main.py", "--dry-run", "--benchmark", "fashion_mnist", "--use_case", "7", "--use_case", "3")
    # Twelve replicates at most, of one variant in JAX and two in PyTorch, which are screened.
    counts = "12 + (2 screened, then at most 24) measurements (jax, torch in turn)"
    assert f"any/pair_fashion_mnist_7: {counts}" in output
    assert (extended / "slurm_scripts" / "jax_fashion_mnist_3.sh").exists()


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_recipe_measures(extended: Path, framework: str) -> None:
    text = (extended / "experiments.yaml").read_text()
    eager_only = extended / "eager.yaml"  # compiling says nothing new about the recipe and takes half a minute
    assert text.count("torch: [loop: [eager, compiled]]") == 1
    eager_only.write_text(text.replace("torch: [loop: [eager, compiled]]", "torch: [loop: [eager]]"))
    output = run(
        extended,
        f"{framework}_runner/run.py",
        *("--benchmark", "fashion_mnist", "--use_case", "7", "--data", "sample", "--quick"),
        *("--config", str(eager_only), "--results", str(extended / "results")),
    )
    assert "1 measured, 0 had a record, 0 failed" in output
    (record,) = (extended / "results" / "records" / "any" / "fashion_mnist_7" / framework).glob("*.json")
    result = json.loads(record.read_text())["result"]
    # conv1 3*3*1*32 + 32, conv2 3*3*32*64 + 64, fc 3136*10 + 10
    assert result["parameter_count"] == 320 + 18_496 + 31_370
    assert result["blocks"]["samples_per_step"] == 4 * 128


def test_recipe_passes_the_parity_gate(extended: Path) -> None:
    """The records of the test above."""
    from harness.paths import Results
    from harness.results.parity_gate import ParityGate
    from harness.results.record import read_record

    results = Results(root=extended / "results")
    ours, theirs = (
        read_record(next((results.records() / "any" / "fashion_mnist_7" / framework).glob("*.json")))
        for framework in ("jax", "torch")
    )
    judgement = ParityGate(results).judge(ours, theirs)
    assert judgement.state == "passed", judgement.sentence


def test_recipe_adds_an_execution_mode(extended: Path) -> None:
    """In the plan, and measured: what it computes is held against models trained alone in float64."""
    mode = (
        "--benchmark",
        "synthetic",
        "--use_case",
        "6",
        "--model",
        "mlp",
        "--formulation",
        "map_of_groups",
        "--precision",
        "fp32",
    )
    assert "# any/jax_synthetic_6: 4 measurements" in run(
        extended, "main.py", *mode, "--framework", "jax", "--run", "jit", "--dry-run", "--set", "replicates=1"
    )
    output = run(
        extended,
        *("jax_runner/run.py", *mode, "--run", "jit", "--option", "models=3", "--data", "sample", "--quick"),
        *("--results", str(extended / "results")),
    )
    assert "1 measured, 0 had a record, 0 failed" in output
    (record,) = (extended / "results" / "records" / "any" / "synthetic_6" / "jax").glob("*.json")
    checks = json.loads(record.read_text())["result"]["checks"]
    assert checks and all(check["error"] <= check["tolerance"] for check in checks)
