"""`main.py --dry-run`: what would be submitted, line by line. It asks no scheduler and needs none."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiments.model import Config
from harness.paths import Results
from harness.plan import JobPlan, Pair
from pipeline.submission.estimate import estimate_in_words, estimates_of
from pipeline.submission.render import time_limits
from pipeline.submission.submit import job_arguments


def print_dry_run(
    pairs: Sequence[Pair],
    scripts: Mapping[str, Path],
    results: Results,
    *,
    executor: str,
    config: Config,
) -> int:
    """`executor` as on the command line; `auto` shows sbatch lines also where there is no sbatch."""
    screened: dict[int, int] = {}  # by the identity of the variants, which thousands of plans share
    for pair in pairs:
        for plan in pair.jobs:
            if id(plan.variants) not in screened:
                screened[id(plan.variants)] = len(plan.screened_variants())
    lines = []
    for pair in pairs:
        counts = " + ".join(in_words(screened[id(plan.variants)], measurement_count(plan)) for plan in pair.jobs)
        how = "in turns, block by block" if pair.is_interleaved else "in turn"
        frameworks = f" ({', '.join(pair.frameworks)} {how})" if len(pair.jobs) > 1 else ""
        lines.append(f"# {pair.name}: {counts} measurements{frameworks}\n")
        lines.append(f"{shlex.join(submission_command(pair, scripts, results, executor))}\n")
    plans = [plan for pair in pairs for plan in pair.jobs]
    measurements = sum(screened[id(plan.variants)] + measurement_count(plan) for plan in plans)
    at_most = "at most " if any(screened.values()) else ""
    jobs = f"{len(pairs)} job{'' if len(pairs) == 1 else 's'}"
    lines.append(f"# {jobs}, {at_most}{measurements} measurements; nothing was submitted.\n")
    scheduler = "local" if executor == "local" else "slurm"
    estimates = estimates_of(pairs, results, scheduler)
    if any(one.measurements for one in estimates):
        limits = time_limits((pair.cell for pair in pairs), config) if scheduler == "slurm" else []
        lines.append(f"# {estimate_in_words(estimates, limits, requeue=config.cluster.requeue)}\n")
    if scheduler == "slurm":
        from pipeline.submission.slurm import variables_in_words

        lines += [f"# {words}\n"] if (words := variables_in_words()) else []
    if executor == "auto" and shutil.which("sbatch") is None:
        lines.append("# There is no sbatch here: they would run on this machine, one after the other.\n")
    sys.stdout.write("".join(lines))
    return 0


def in_words(screened: int, replicates: int) -> str:
    """`(14 screened, then at most 42)` where a screening will say which modes go on, else `42`."""
    return f"({screened} screened, then at most {replicates})" if screened else f"{replicates}"


def measurement_count(plan: JobPlan) -> int:
    """Without the screening."""
    return len(plan.variants) * plan.protocol.replicates


def submission_command(pair: Pair, scripts: Mapping[str, Path], results: Results, executor: str) -> list[str]:
    """Of sbatch, or what the local queue starts."""
    folder = results.new_job_folder(pair)
    if executor == "local":
        return ["bash", str(scripts[pair.name]), *job_arguments(folder, results)]
    from pipeline.submission.slurm import sbatch_command

    return sbatch_command(scripts[pair.name], folder.root)
