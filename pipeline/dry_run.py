"""`main.py --dry-run`: what would be submitted, line by line. It asks no scheduler and needs none."""

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.paths import Results
from harness.plan import JobPlan, Pair


def print_dry_run(pairs: Iterable[Pair], scripts: Mapping[str, Path], results: Results, *, executor: str) -> int:
    """`executor` as on the command line; `auto` shows sbatch lines also where there is no sbatch."""
    plans = [plan for pair in pairs for plan in pair.jobs]
    measurements = 0
    lines = []
    for plan in plans:
        count = measurement_count(plan)
        measurements += count
        command = submission_command(scripts[plan.name], results.new_job_folder(plan).root, executor=executor)
        lines.append(f"# {plan.name}: {count} measurements\n{shlex.join(command)}\n")
    lines.append(f"# {len(plans)} jobs, {measurements} measurements; nothing was submitted.\n")
    if executor == "auto" and shutil.which("sbatch") is None:
        lines.append("# There is no sbatch here: they would run on this machine, one after the other.\n")
    sys.stdout.writelines(lines)
    return 0


def measurement_count(plan: JobPlan) -> int:
    return len(plan.variants) * plan.protocol.replicates


def submission_command(script: Path, folder: Path, *, executor: str) -> list[str]:
    if executor == "local":
        return ["bash", str(script), "local", str(folder)]
    from pipeline.executors import sbatch_command

    return sbatch_command(script, folder)
