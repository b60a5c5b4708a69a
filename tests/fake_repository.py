"""A copy of the repository's harness in a temporary folder, with tests/fake_framework as its torch_runner.

The job, its children, the channel and the records are the real ones; only what the child imports is fake. So a run
takes a second, and every fault can be had when it is wanted.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.heartbeat import Heartbeat, read_heartbeat
from harness.job import write_plan
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import Cell, JobPlan, Variant
from harness.record import Record, read_record
from harness.settings import MeasurementSettings, Precision, WandbSettings

QUICK = {
    "replicates": 1,
    "warmup_s": 0.01,
    "block_min_s": 0.002,
    "min_blocks": 3,
    "max_blocks": 3,
    "latency_calls": 3,
    "idle_s": 0,
}


@dataclass(frozen=True, kw_only=True)
class Repository:
    root: Path

    @property
    def results(self) -> Results:
        return Results(root=self.root / "results")

    @property
    def gate(self) -> Path:
        return self.root / "gate"

    @property
    def pid(self) -> Path:
        return self.root / "pid"

    def plan(
        self,
        *modes: str,
        precision: Precision = "fp32",
        force: bool = False,
        devices: int = 1,
        nodes: int = 1,
        **protocol: Any,
    ) -> JobPlan:
        return JobPlan(
            framework="torch",
            cell=Cell(gpu="any", benchmark="mnist", use_case=1, use_case_name="behave", devices=devices, nodes=nodes),
            variants=tuple(
                Variant(model="cnn", batch_size=8, precision=precision, execution_mode=mode) for mode in modes
            ),
            settings={"gate": str(self.gate), "pid": str(self.pid)},
            protocol=MeasurementSettings(**(QUICK | protocol)),
            wandb=WandbSettings(mode="disabled"),
            data="sample",
            quick=True,
            force=force,
        )

    def job(self, plan: JobPlan) -> JobFolder:
        folder = self.results.new_job_folder(plan)
        write_plan(plan, folder)
        return folder

    def command(self, folder: JobFolder) -> list[str]:
        run = [sys.executable, "-u", "torch_runner/run.py"]
        return [*run, "--job-folder", str(folder.root), "--results", str(self.results.root)]

    def start(self, folder: JobFolder) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(folder),
            cwd=self.root,
            env=without_slurm(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, plan: JobPlan) -> tuple[int, str, JobFolder]:
        """Exit status, output, and the job's folder."""
        folder = self.job(plan)
        with self.start(folder) as process:
            output, _ = process.communicate(timeout=60)
        return process.returncode, output, folder

    def records(self) -> dict[str, Record]:
        """By execution mode; one each."""
        found = [read_record(path) for path in self.results.records().rglob("*.json")]
        by_mode = {record.measurement.variant.execution_mode: record for record in found}
        assert len(by_mode) == len(found)
        return by_mode

    def heartbeat(self, folder: JobFolder) -> Heartbeat:
        heartbeat = read_heartbeat(folder.heartbeat)
        assert heartbeat is not None
        return heartbeat


def make_repository(root: Path) -> Repository:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "harness", root / "harness", ignore=ignored)
    runner = root / "torch_runner"
    shutil.copytree(REPOSITORY / "tests" / "fake_framework", runner, ignore=ignored)
    for name in ("run.py", "__init__.py"):
        shutil.copyfile(REPOSITORY / "torch_runner" / name, runner / name)
    return Repository(root=root)


def without_slurm() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
