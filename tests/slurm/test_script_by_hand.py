"""A rendered script, given to a real sbatch by hand: Slurm reads the header as it is meant."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.render import write_scripts
from tests.made.config_text import MINIMAL
from tests.made.patience import patience
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm


def test_blanks_percent_signs_and_hashes_in_the_header(slurm: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "jax vs torch"
    (project / "jax_runner").mkdir(parents=True)
    (project / "jax_runner/run.py").write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:])\n")
    results = tmp_path / "50% of #1"
    text = MINIMAL.replace("/opt/jax/bin/python", sys.executable).replace(
        "  time_limit_minutes: 30\n", "  time_limit_minutes: 7\n  sbatch_options: ['--comment=two \"words\" #1']\n"
    )
    config_path = project / "experiments.yaml"
    config_path.write_text(text)
    config = load_config(config_path)
    jobs = [QueueJob.of(pair) for pair in expand(config, Selection())]
    scripts = write_scripts(jobs, config, config_path=config_path, results=results, repository=project)
    command = ["sbatch", "--parsable", str(scripts["any/jax_mnist_1"])]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    said = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    for expected in ("JobName=jax_mnist_1", "TimeLimit=00:07:00", 'Comment=two "words" #1', "Requeue=1"):
        assert expected in said
    output = results / "slurm" / f"jax_mnist_1-{job}.out"
    deadline = time.monotonic() + patience()
    while not (output.exists() and "mnist" in output.read_text()) and time.monotonic() < deadline:
        time.sleep(0.5)
    expected = f"{project} ['--benchmark', 'mnist', '--use_case', '1', '--results', '{results}']\n"
    assert output.read_text() == expected
