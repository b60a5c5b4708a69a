"""Stands in for harness/job/main.py where a test is about queues and signals, not about frameworks: the same flags,
exit statuses, records and heartbeats, but a measurement is a short sleep. The plan's `settings` contain its behaviour:
`sleep_s`, `fail`, `crash`, and `gate`, a file that each measurement waits for."""

import argparse
import os
import signal
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.job.job import Stopped, stop_on_signal
from harness.job.progress import Heartbeat, write_heartbeat
from harness.paths import JobFolder, Results
from harness.plan import Pair
from harness.plan_file import read_plan
from harness.results.record import Record, find_settled_record, write_record

SEEN = ("CUDA_VISIBLE_DEVICES", "SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SUBMITIT_EXECUTOR")


def main(framework: str | None = None, arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--benchmark", "--use_case", "--gpu", "--data", "--config"):
        parser.add_argument(flag)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--job-folder", type=Path, required=True)
    parsed = parser.parse_args(arguments)
    results, folder = Results(root=parsed.results), JobFolder(root=parsed.job_folder)
    pair = read_plan(folder.plan)
    assert framework is None or pair.frameworks == (framework,)
    if any(plan.settings.get("crash") for plan in pair.jobs):
        raise ImportError("No module named 'framework'")
    try:
        with stop_on_signal():
            return run(pair, folder, results)
    except Stopped as stopped:
        if stopped.number == signal.SIGUSR2 and callable(signal.getsignal(signal.SIGUSR2)):
            signal.raise_signal(signal.SIGUSR2)  # to submitit, as harness/job/main.py does
        return 75


def run(pair: Pair, folder: JobFolder, results: Results) -> int:
    scheduler = "slurm" if "SLURM_JOB_ID" in os.environ else "local"
    measurements = [(each, plan.settings) for plan in pair.jobs for each in plan.measurements()]
    done = failed = 0

    def beat(state: Any) -> None:
        heartbeat = Heartbeat(
            state=state,
            measurements_total=len(measurements),
            measurements_done=done,
            measurements_failed=failed,
            last_error="measurement 1: no such kernel" if failed else None,
            node=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
            pid=os.getpid(),
            slurm_job_id=os.environ.get("SLURM_JOB_ID"),
            updated_at_unix_s=time.time(),
        )
        write_heartbeat(heartbeat, folder.heartbeat)

    try:
        for measurement, settings in measurements:
            beat("running")
            if pair.force or not find_settled_record(measurement, results, scheduler):
                started_at = datetime.now(UTC)
                time.sleep(float(settings.get("sleep_s", 0.1) or 0))
                while (gate := settings.get("gate")) and not Path(str(gate)).exists():
                    time.sleep(0.02)
                failed += bool(settings.get("fail"))
                record = Record(
                    measurement_id=measurement.id,
                    measurement=measurement,
                    outcome="failed" if settings.get("fail") else "ok",
                    job=folder.name,
                    started_at=started_at.isoformat(),
                    ended_at=datetime.now(UTC).isoformat(),
                    environment={"scheduler": scheduler, "seen": {name: os.environ.get(name) for name in SEEN}},
                )
                write_record(record, results.new_record(measurement))
            done += 1
    except Stopped:
        beat("stopped")
        raise
    beat("done")
    return 1 if failed else 0
