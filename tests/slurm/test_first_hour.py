"""From the command that people type to a ratio that they can quote, on a real Slurm: what it says beforehand, which
modes it screens, how the ratio narrows. The measurements are of fake_framework, in the full protocol."""

import re
from pathlib import Path

import pytest

from pipeline.watching.jobs import job_states
from tests.made.config_text import BEHAVING, changed
from tests.made.project import make_behaving_repository
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import run_main, wait_for

MODES = "{jax: [varies, slow, slower], torch: [slow, slower]}"
CONFIG = changed("{jax: [slow], torch: [slow]}", MODES, changed("block_min_s: 0.1", "block_min_s: 0.02", BEHAVING))
SO_FAR = re.compile(
    r"^[\d:]{8} [^()]* \(mnist, batch 8, fp32\): (so far )?JAX:? ([\d.]+) ×(?: faster)?(?: \(([\d.]+) to ([\d.]+)\))?; "
    r"(\d) [^;]*pairs?[^;]*; varies\.eager / slow\.eager$",
    re.MULTILINE,
)


def test_from_the_command_to_the_ratio(slurm: Cluster, tmp_path: Path) -> None:
    """Three modes of JAX and two of PyTorch. Of each one goes on, so 5 screenings and 8 replicates are measured, and
    not the 20 replicates of all modes. Its replicates take 4, 4.4, 4.2 and 4 ms, against 10 ms: of the logarithms of
    4.1 ms (JAX first) and 4.2 ms the geometric mean is 4.15 ms."""
    project = make_behaving_repository(tmp_path, CONFIG)
    cell = ("--benchmark", "mnist", "--use_case", "1", "--data", "sample")
    out = run_main(project.root, *cell, "--wait")
    estimate = " ".join(out[: out.index("submitted as job")].split())
    assert "about 13 measurements, 5 of them a short screening" in estimate
    assert out.index("submitted as job") < out.index("so far JAX")

    stages = [(one.measurement.framework, one.measurement.stage, one.outcome) for one in project.records()]
    screened = [("jax", "screening", "ok")] * 3 + [("torch", "screening", "ok")] * 2
    assert stages[:5] == screened
    assert sorted(stages[5:]) == [("jax", "replicate", "ok")] * 4 + [("torch", "replicate", "ok")] * 4
    replicates = {one.measurement.variant.execution_mode for one in project.records()[5:]}
    assert replicates == {"varies.eager", "slow.eager"}

    shown = SO_FAR.findall(out)
    found = [(int(count), float(ratio), low, high) for _, ratio, low, high, count in shown]
    assert [count for count, *_ in found] in ([1, 2, 3, 4], [2, 3, 4])  # a slow look may miss the first
    assert [words for words, *_ in shown] == ["so far "] * (len(shown) - 1) + [""]
    assert [bool(low) for _, _, low, _ in found] == [count > 1 for count, *_ in found]
    widths = [float(high) / float(low) for _, _, low, high in found if low]
    assert widths[1] < widths[0] / 1.2
    assert found[-1][1] == pytest.approx(10 / 4.15, rel=1e-3)
    assert "mnist behave: done: 13 measurements" in out
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
