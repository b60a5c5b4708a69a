"""`python main.py`: from what the flags select to submitted jobs; with --wait until they are over."""

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import ProjectError
from harness.experiments.expand import Selection, baselines, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.paths import REPOSITORY, Results
from harness.plan import Pair, Pairing

DEFAULT_RESULTS = REPOSITORY / "results"


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """How jobs are handed over and followed."""

    config: Path
    results: Results
    executor: Literal["auto", "slurm", "local"]
    pairing: Pairing | None
    """None: as in experiments.yaml."""
    dry_run: bool
    wait: bool


def measure(selection: Selection, flags: JobFlags, *, baseline: bool) -> int:
    """Returns the exit status.

    Args:
        baseline: of cells on several devices, also measure on one what the scaling efficiency is compared with.
    """
    config = load_config(flags.config)
    pairs = expand(config, selection)
    if baseline:
        alone = baselines(config, pairs, selection)
        for pair in alone:
            print(f"{pair.cell.name}: measured too, for the scaling efficiency (not with --no-baseline)")
        pairs = alone + pairs

    for pair in pairs:
        asked = config.settings(pair.cell.benchmark, pair.cell.use_case, quick=selection.quick)
        if any(plan.settings.get("weights") != asked.get("weights") for plan in pair.jobs):
            print(f"{pair.cell.name}: weights are drawn, not pretrained: the sample has no classes of ImageNet")

    def compare(results: Results) -> None:
        from pipeline.report.command import print_summary

        print_summary(results, [plan for pair in pairs for plan in pair.jobs])

    return hand_over(pairs, config, flags, compare)


def hand_over(pairs: list[Pair], config: Config, flags: JobFlags, conclude: Callable[[Results], object]) -> int:
    """Render and submit, or show what would be submitted; with --wait, follow the jobs and `conclude`."""
    from pipeline.submission.dry_run import print_dry_run
    from pipeline.submission.render import write_scripts

    results = flags.results
    require_writable(results)
    scripts = write_scripts(pairs, config, config_path=flags.config, results=results.root)
    pairing = flags.pairing or config.pairing
    if flags.dry_run:
        return print_dry_run(pairs, scripts, results, pairing=pairing, executor=flags.executor)

    from pipeline.submission.submit import choose_executor, submit
    from pipeline.watching.follow import follow

    executor = choose_executor(flags.executor)
    folders = submit(pairs, config, scripts, pairing=pairing, executor=executor, results=results)
    if flags.wait:
        status = follow(folders, results)
        conclude(results)
        return status
    if folders:
        elsewhere = "" if results.root == DEFAULT_RESULTS else f" --results {shlex.quote(str(results.root))}"
        print(f"To follow them: python main.py status --watch{elsewhere}")
    return 0


def require_writable(results: Results) -> None:
    """Raises ProjectError now, not hours later in a job, where the folder cannot be written."""
    try:
        results.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results.root):
            pass
    except OSError as error:
        raise ProjectError(
            f"{results.root}: cannot be written: {error.strerror}; choose another with --results DIR"
        ) from error
