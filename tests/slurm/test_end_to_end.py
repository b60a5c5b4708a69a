"""The whole way of a user, on a real Slurm: main.py, the rendered scripts, both frameworks, records."""

import importlib.util
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from harness.paths import Results
from harness.results.record import Record, read_record
from pipeline.watching.jobs import job_states
from tests.made.patience import patience
from tests.made.project import copy_repository
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import run_main

pytestmark = pytest.mark.slurm
for framework in ("jax", "torch"):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed", allow_module_level=True)

SELECTION = ("--benchmark", "mnist", "--use_case", "3", "--data", "sample", "--quick")


@pytest.fixture(scope="module")
def repository(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, because main.py writes its scripts and results beside itself. A mode of each framework, and one that this
    machine refuses."""
    root = tmp_path_factory.mktemp("repository")
    copy_repository(root)
    config = root / "experiments.yaml"
    quick_formulations = re.compile(
        r"(\n    3:\n      batch_sizes: \[64\]\n.*?formulations:\n).*?\n(      options)", re.DOTALL
    )
    text, places = quick_formulations.subn(
        r"\1        jax: [vmap]\n        torch: [vmap: [eager, compiled_graph]]\n\2", config.read_text()
    )
    assert places == 1
    config.write_text(text)
    return root


def records(repository: Path) -> list[Record]:
    return [read_record(path) for path in (repository / "results" / "records").rglob("*.json")]


@pytest.fixture(scope="module")
def first_run(repository: Path) -> str:
    return run_main(repository, *SELECTION, "--wait")


def test_a_cell_is_measured_in_both_frameworks(repository: Path, first_run: str) -> None:
    found = records(repository)
    failed = {f"{r.measurement.framework} {r.measurement.key}: {r.reason}" for r in found if r.outcome == "failed"}
    assert not failed
    [state] = job_states(Results(root=repository / "results"))
    assert state.pair is not None
    expected = {measurement.id for measurement in state.pair.measurements()}
    assert {record.measurement_id for record in found} == expected
    assert {record.measurement.framework for record in found} == {"jax", "torch"}
    assert {record.environment["scheduler"] for record in found} == {"slurm"}
    measured = [record for record in found if record.outcome == "ok"]
    assert measured and all(r.result and r.result.blocks and min(r.result.blocks.block_times_s) > 0 for r in measured)


def test_status_tells_it_without_accounting(repository: Path, slurm: Cluster, first_run: str) -> None:
    assert subprocess.run(["sacct"], capture_output=True).returncode == 1
    lines = run_main(repository, "status").splitlines()
    assert sum(line.startswith("mnist per sample gradients (quick, sample)  done: ") for line in lines) == 1


def test_a_second_call_submits_nothing(repository: Path, slurm: Cluster, first_run: str) -> None:
    before = len(records(repository))
    newest_job = slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()
    out = run_main(repository, *SELECTION, "--wait")
    assert "any/jax_mnist_3: every measurement has a record" in out
    assert "any/torch_mnist_3: every measurement has a record" in out
    assert len(records(repository)) == before
    assert sorted(slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()) == sorted(newest_job)


def test_a_script_by_hand_leaves_a_record(repository: Path, slurm: Cluster, first_run: str) -> None:
    """`sbatch slurm_scripts/torch_mnist_3.sh`, with one record taken away, makes just that one again."""
    script = repository / "slurm_scripts" / "torch_mnist_3.sh"
    folder = repository / "results" / "records" / "any" / "mnist_3" / "torch"
    removed = next(path for path in sorted(folder.glob("*.json")) if "graph" not in path.name)
    measurement_id = json.loads(removed.read_text())["measurement_id"]
    removed.unlink()
    job_id = slurm.run("sbatch", "--parsable", str(script)).strip()
    deadline = time.monotonic() + patience(60)
    while slurm.run("squeue", "-h", "-j", job_id, "-t", "PENDING,RUNNING,COMPLETING"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    log = (repository / "results" / "slurm" / f"torch_mnist_3-{job_id}.out").read_text()
    [made] = folder.glob(f"*-{measurement_id}-*.json")
    assert made.name != removed.name, log
    assert read_record(made).environment["scheduler"] == "slurm"
    by_hand = job_states(Results(root=repository / "results"))[-1]
    assert (by_hand.executor, by_hand.state, by_hand.job_id) == ("by hand", "done", job_id)
