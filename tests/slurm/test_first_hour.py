"""From the command that people type to a ratio that they can quote, on a real Slurm, and its script by hand. The
measurements are of fake_framework, in the full protocol."""

from pathlib import Path

from pipeline.watching.jobs import job_states
from tests.made.config_text import BEHAVING, changed
from tests.made.project import make_behaving_repository
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import run_main, wait_for

CONFIG = changed("block_min_s: 0.1", "block_min_s: 0.02", changed("torch: [slow]}", "torch: [slower]}", BEHAVING))


def test_from_the_command_to_the_ratio(slurm: Cluster, tmp_path: Path) -> None:
    """Steps of 10 ms against steps of 20 ms, in four replicates."""
    project = make_behaving_repository(tmp_path, CONFIG)
    cell = ("--benchmark", "mnist", "--use_case", "1", "--data", "sample")
    out = run_main(project.root, *cell, "--wait")
    assert out.index("Estimate: ") < out.index("submitted as job") < out.index("so far JAX: 2.0")
    assert "JAX 2.00 × faster" in out
    assert "mnist behave: done: 8 measurements" in out
    assert out.index("\nOn CPU: ") > out.rindex("so far JAX")

    again = run_main(project.root, *cell)
    assert again.count("every measurement has a record") == 2 and "Estimate" not in again

    # `sbatch slurm_scripts/torch_mnist_1.sh`, with one record taken away, makes just that one again.
    before = project.records()
    removed = next(path for path in project.results.records().rglob("*.json") if before[-1].measurement_id in path.name)
    removed.unlink()
    script = f"slurm_scripts/{before[-1].measurement.framework}_mnist_1.sh"
    number = slurm.run("sbatch", "--parsable", str(project.root / script)).strip()
    wait_for(lambda: len(project.records()) == len(before), "it is measured again")
    made = project.records()[-1]
    assert (made.measurement_id, made.environment["scheduler"]) == (before[-1].measurement_id, "slurm")
    wait_for(lambda: job_states(project.results)[-1].state == "done", "the job's end")
    by_hand = job_states(project.results)[-1]
    assert (by_hand.executor, by_hand.job_id) == ("by hand", number)
