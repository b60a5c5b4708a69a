"""`main.py check`: whether both frameworks compute the same with a model, by the parity gate alone. Times nothing."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand
from harness.experiments.model import Config
from harness.job.job import Job
from harness.job.main import verified_weights
from harness.paths import Results
from harness.printable import printable
from harness.suggest import valid_names
from harness.work import datasets
from harness.work.declared import benchmark, use_case

WORDS = {"passed": "the same", "failed": "NOT the same"}


def check(config: Config, selection: Selection) -> int:
    """Prints a line for each model: what agrees, or the first cause. Exit status: 0, or 1 where something differs or
    cannot be computed.

    Raises:
        ConfigError: a use case or name that is not declared, or nothing that both frameworks have.
        DataError: the data are not there, or damaged.
    """
    differing = checked = 0
    for number in selection.use_cases:
        if number not in config.use_cases:
            raise ConfigError(
                f"--use_case {number}: not defined in experiments.yaml; {valid_names(number, config.use_cases)}"
            )
        modes = gate_modes(config.use_cases[number].name)
        selected = replace(selection, use_cases=(number,), quick=True, narrowing=selection.narrowing.with_modes(*modes))
        for pair in expand(config, selected):
            with tempfile.TemporaryDirectory(prefix="jax-vs-torch-check-") as folder:
                results = Results(root=Path(folder))
                first = pair.jobs[0]
                data = datasets.verify(benchmark(pair.cell.benchmark).data, first.data, Path(first.data_dir))
                print(f"{pair.cell.words}: {' and '.join(modes)} on the gate's small batch ...", flush=True)
                job_folder = results.new_job_folder(pair)
                verdicts = Job(pair, job_folder, results, data=data, weights=verified_weights(pair)).check()
            for verdict in verdicts.values():
                judgement, variant = verdict.judgement, verdict.measurements["jax"].variant.comparison_key
                checked += 1
                differing += judgement.state != "passed"
                words = WORDS.get(judgement.state, "could not be compared")
                print(f"{pair.cell.words}, {variant}: {words}: {printable(judgement.sentence)}")
    if not checked:
        print("Nothing was checked: no variant that both frameworks have.", file=sys.stderr)
    return int(differing > 0 or not checked)


def gate_modes(use_case_name: str) -> tuple[str, str]:
    """A mode of JAX and one of PyTorch: the declared ones, but eager PyTorch where it exists: it compiles nothing."""
    declared = use_case(use_case_name)
    ours, theirs = declared.headline["jax"], declared.headline["torch"]
    eager = f"{theirs.partition('.')[0]}.eager"
    return ours, eager if eager in {mode.name for mode in declared.modes["torch"]} else theirs
