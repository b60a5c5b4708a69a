"""A busy laboratory: 5,000 jobs queued and 100,000 records in one results folder. How long `status`, `report` and the
look before a submission take, and how much memory: `python -m bench.load [RECORDS]`."""

import contextlib
import io
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.generated_records import CARDS, write_records
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.paths import REPOSITORY, Results
from harness.plan import FRAMEWORKS
from harness.plan_file import write_plan
from harness.results.record import find_settled_record
from pipeline.report.command import ReportOptions, report_command
from pipeline.submission.submit import job_that_measures
from pipeline.watching.follow import show_status
from pipeline.watching.jobs import Submission, job_states

JOBS = 5_000
GOALS_S = {"status": 3, "before a submission": 5, "report": 120}
GOAL_GIB = 2.0


def main(records: int = 100_000) -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Results(root=Path(folder))
        written = write_records(results, records)
        queue_jobs(results)
        took_s = {
            "status": seconds(lambda: show_status(results, watch=False)),
            "before a submission": seconds(lambda: look_before_a_submission(results)),
            "report": seconds(
                lambda: report_command(results, ReportOptions(), Console(file=io.StringIO(), width=80)),
            ),
        }
    print(f"{written} records, {JOBS} jobs")
    for what, goal_s in GOALS_S.items():
        print(f"{what}: {took_s[what]:.1f} s (goal: under {goal_s} s)")
    memory_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"memory: {memory_gib:.2f} GiB at most (goal: under {GOAL_GIB:g} GiB)")
    return int(memory_gib >= GOAL_GIB or any(took_s[what] >= goal_s for what, goal_s in GOALS_S.items()))


def queue_jobs(results: Results) -> None:
    """As main.py leaves them, in the queue of another machine."""
    config = load_config(REPOSITORY / "experiments.yaml")
    pairs = expand(config, Selection(gpus=tuple(CARDS)))
    for number in range(JOBS):
        pair = pairs[number % len(pairs)]
        folder = results.new_job_folder(pair)
        write_plan(pair, folder)
        submission = Submission(
            executor="local",
            job_id=str(number + 1),
            script="job.sh",
            command=("bash", "job.sh"),
            node=f"not-{socket.gethostname()}",
            submitted_at_unix_s=time.time(),
        )
        folder.submission.write_text(submission.model_dump_json())


def look_before_a_submission(results: Results) -> None:
    """What main.py asks of the folder for a cell in both frameworks, before it hands anything over."""
    config = load_config(REPOSITORY / "experiments.yaml")
    active = [state for state in job_states(results) if state.is_active]
    [pair] = expand(config, Selection(gpus=("h200",), benchmarks=("mnist",), use_cases=(1,), frameworks=FRAMEWORKS))
    for plan in pair.jobs:
        job_that_measures(plan, active)
        for each in plan.measurements():
            find_settled_record(each, results, "slurm")


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
