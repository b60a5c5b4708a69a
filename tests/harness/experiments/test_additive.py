"""Additive: a new benchmark, model and formulation change no plan, id or code of what was there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.made.project import copy_repository

PLANS = """
import json
from pathlib import Path
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.results.code_digest import code_digests

config = load_config(Path("experiments.yaml"))
found, code = {}, {}
benchmarks = tuple(name for name in config.benchmarks if name in ("mnist", "cifar10", "added"))
for pair in expand(config, Selection(benchmarks=benchmarks, use_cases=tuple(config.use_cases))):
    for plan in pair.jobs:
        content = plan.model_dump(mode="json", exclude={"variants"})
        variants = {one.key: one.model_dump(mode="json") for one in plan.variants}
        ids = [one.id for one in plan.measurements()]
        found[plan.name] = {"plan": content, "variants": variants, "ids": ids}
        code[plan.name] = code_digests(plan.framework, plan.cell)
print(json.dumps([found, code]))
"""
ADDED = """
from dataclasses import replace

from harness.work.benchmarks.cifar10 import BENCHMARK as CIFAR10

BENCHMARK = replace(CIFAR10, name="added")
"""
CHANGES = (
    ("harness/work/benchmarks/mnist.py", "models=(", 'models=(Model(name="added", layers=frozenset({Layer.DENSE})), '),
    ("harness/work/use_cases/inference.py", '"jax": (', '"jax": (Formulation(name="added", runs=JAX_RUNS), '),
    ("experiments.yaml", "\nbenchmarks:\n", "\nbenchmarks:\n  added: {models: [cnn]}\n"),
    ("experiments.yaml", "  mnist:\n    models: [", "  mnist:\n    models: [added, "),
    ("experiments.yaml", "jax: [forward: [jit, ", "jax: [added: [jit], forward: [jit, "),
)


def planned(repository: Path) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Every use case of some benchmarks of the copy's experiments.yaml, and the code that its processes would run."""
    done = subprocess.run([sys.executable, "-c", PLANS], cwd=repository, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plans, code = json.loads(done.stdout)
    return plans, code


def change(repository: Path, change: tuple[str, str, str]) -> None:
    name, old, new = change
    text = (repository / name).read_text()
    assert text.count(old) == 1, (name, old)
    (repository / name).write_text(text.replace(old, new))


def test_what_is_added_changes_nothing_else(tmp_path: Path) -> None:
    copy_repository(tmp_path)
    plans_before, code_before = planned(tmp_path)
    (tmp_path / "harness/work/benchmarks/added.py").write_text(ADDED)
    change(tmp_path, CHANGES[0])
    _, code = planned(tmp_path)  # a formulation changes the code of all that import its use case
    assert {name for name, digests in code_before.items() if code[name] != digests} == {
        name for name in code_before if "_mnist_" in name
    }
    for one in CHANGES[1:]:
        change(tmp_path, one)
    plans, _ = planned(tmp_path)

    assert {name.split("_")[1] for name in plans.keys() - plans_before.keys()} == {"added"}
    grown = {name for name, before in plans_before.items() if plans[name] != before}
    assert grown == {name for name in plans_before if "_mnist_" in name or ("/jax_" in name and name.endswith("_5"))}
    for name in grown:
        before, after = plans_before[name], plans[name]
        assert after["plan"] == before["plan"]
        assert after["variants"].items() > before["variants"].items()
        assert {*after["ids"]} > {*before["ids"]}
