"""`main.py --dry-run`: what would be submitted, line by line. It asks no scheduler and needs none."""

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.paths import Results
from harness.plan import JobPlan, Pair, Pairing
from pipeline.submission.estimate import estimate_in_words, estimates_of
from pipeline.submission.pairing import arms_of, is_interleaved
from pipeline.submission.submit import run_arguments, script_name, split
from pipeline.submission.time_use import advice


def print_dry_run(
    pairs: Iterable[Pair],
    scripts: Mapping[str, Path],
    results: Results,
    *,
    pairing: Pairing,
    executor: str,
    time_limit_minutes: int,
) -> int:
    """`executor` as on the command line; `auto` shows sbatch lines also where there is no sbatch."""
    parts = [part for pair in pairs for part in split(pair, pairing)]
    screened: dict[int, int] = {}  # by the identity of the variants, which thousands of plans share
    for part in parts:
        for plan in part.jobs:
            if id(plan.variants) not in screened:
                screened[id(plan.variants)] = len(plan.screened_variants())
    lines = []
    for part in parts:
        counts = " + ".join(in_words(screened[id(plan.variants)], measurement_count(plan)) for plan in part.jobs)
        how = "in turns, block by block" if is_interleaved(part) else "in turn"
        frameworks = f" ({', '.join(plan.framework for plan in part.jobs)} {how})" if len(part.jobs) > 1 else ""
        lines.append(f"# {script_name(part)}: {counts} measurements{frameworks}\n")
        lines += [f"{shlex.join(command)}\n" for command in submission_commands(part, scripts, results, executor)]
    plans = [plan for part in parts for plan in part.jobs]
    measurements = sum(screened[id(plan.variants)] + measurement_count(plan) for plan in plans)
    at_most = "at most " if any(screened.values()) else ""
    jobs = f"{len(parts)} job{'' if len(parts) == 1 else 's'}"
    lines.append(f"# {jobs}, {at_most}{measurements} measurements; nothing was submitted.\n")
    scheduler = "local" if executor == "local" else "slurm"
    estimates = estimates_of(parts, results, scheduler)
    if any(one.measurements for one in estimates):
        lines.append(f"# {estimate_in_words(estimates, time_limit_minutes, has_limit=scheduler == 'slurm')}\n")
    lines += [f"# {cell}: {text}\n" for cell, text in advice(parts, results).items()]
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


def submission_commands(part: Pair, scripts: Mapping[str, Path], results: Results, executor: str) -> list[list[str]]:
    """One sbatch for all of `part`; the local queue starts each arm by itself."""
    folders = {plan.framework: results.new_job_folder(plan) for plan in part.jobs}
    if executor != "local":
        from pipeline.submission.slurm import sbatch_command

        return [sbatch_command(scripts[script_name(part)], *(folder.root for folder in folders.values()))]
    script_of = {plan.framework: str(scripts[plan.name]) for plan in part.jobs}
    if len(part.jobs) == 1:
        return [["bash", script, *run_arguments(folders[name], results)] for name, script in script_of.items()]
    return [
        [
            *("bash", script_of[arm.framework]),
            *run_arguments(folders[arm.framework], results, arm, partner=folders[arm.partner] if arm.partner else None),
        ]
        for arm in arms_of(part)
    ]
