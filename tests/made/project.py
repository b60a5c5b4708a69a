"""The one maker of projects in a temporary folder: what is real in them, and what stands in for the rest.

copy_repository(root)         all of it is real: main.py, both frameworks, experiments.yaml
make_behaving_project(root)   the job, its children and its records are real; the framework that they import is
                              fake_framework, which takes a second and has every fault when it is wanted
make_behaving_repository(root, config)   the same with main.py, so with all that a user types
"""

import compileall
import itertools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any, Self

from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.job.progress import read_heartbeat
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import FRAMEWORKS, Cell, Framework, JobPlan, MeasurementSettings, Pair, Variant, WandbSettings
from harness.plan_file import write_plan
from harness.results.record import Record, read_record
from pipeline.submission.queue_job import QueueJob, paired
from pipeline.submission.render import write_scripts
from tests.made.guardian import marked_folder
from tests.made.patience import patience

COPIED = ("harness", "pipeline", "jax_runner", "torch_runner", "templates", "clusters", "main.py", "experiments.yaml")
MADE = REPOSITORY / "tests" / "made"
WITHOUT_CACHES = shutil.ignore_patterns("__pycache__")
QUICK = {
    "replicates": 1,
    "warmup_s": 0.01,
    "block_min_s": 0.002,
    "min_blocks": 3,
    "max_blocks": 3,
    "latency_calls": 3,
    "idle_s": 0,
}


@cache
def small_config() -> Config:
    config = load_config(REPOSITORY / "experiments.yaml")
    cluster = config.cluster.model_copy(update={"cpus_per_task": 1, "time_limit_minutes": 30})
    return config.model_copy(update={"cluster": cluster})


@dataclass(frozen=True, kw_only=True)
class BehavingProject:
    """Runners are fake_framework; the job, its heartbeat and its records are real. Without the files of
    make_behaving_project, it plans jobs and has their folders, and runs nothing."""

    root: Path
    config: Config = field(default_factory=small_config)

    @property
    def results(self) -> Results:
        return Results(root=self.root / "results")

    def with_cluster(self, **changes: Any) -> Self:
        cluster = self.config.cluster.model_copy(update=changes)
        return replace(self, config=self.config.model_copy(update={"cluster": cluster}))

    def scripts(self, pairs: list[Pair]) -> dict[str, Path]:
        """Rendered by the real templates."""
        return write_scripts(
            [QueueJob.of(pair) for pair in pairs],
            self.config,
            config_path=self.root / "experiments.yaml",
            results=self.results.root,
            repository=self.root,
        )

    def submit(self, *plans: JobPlan, executor: Any) -> list[JobFolder]:
        """Each in a job of its own."""
        return self.submit_pairs(*map(alone, plans), executor=executor)

    def submit_pairs(self, *pairs: Pair, executor: Any, pairing: Any = "together") -> list[JobFolder]:
        from pipeline.submission.submit import submit

        found = [paired(pair, pairing) for pair in pairs]
        jobs = [QueueJob.of(pair) for pair in found]
        return submit(jobs, self.config, self.scripts(found), executor=executor, results=self.results)

    def records(self) -> list[Record]:
        """In the order of their making."""
        records = [read_record(path) for path in sorted(self.results.records().rglob("*.json"))]
        return sorted(records, key=lambda record: record.ended_at)

    @property
    def gate(self) -> Path:
        """What a measurement of the mode `gated` waits for."""
        return self.root / "gate"

    @property
    def pid(self) -> Path:
        return self.root / "pid"

    def plan(
        self,
        *modes: str,
        framework: Framework = "torch",
        gpu: str = "any",
        use_case: int = 1,
        pid: Path | None = None,
        precision: Any = "fp32",
        force: bool = False,
        devices: int = 1,
        nodes: int = 1,
        quick: bool = True,
        **protocol: Any,
    ) -> JobPlan:
        """Of the formulations in fake_framework. Also where it is not `quick`, the protocol is short."""
        return JobPlan(
            framework=framework,
            cell=Cell(
                gpu=gpu,
                benchmark="mnist",
                use_case=use_case,
                use_case_name="behave",
                devices=devices,
                nodes=nodes,
            ),
            variants=tuple(
                Variant(model="cnn", batch_size=8, precision=precision, execution_mode=f"{mode}.eager")
                for mode in modes or ("well",)
            ),
            settings={"gate": str(self.gate), "pid": str(pid or self.pid)},
            protocol=MeasurementSettings(**(QUICK | protocol)),
            wandb=WandbSettings(mode="disabled"),
            data="sample",
            quick=quick,
            force=force,
        )

    def pair(
        self, jax: Sequence[str] = ("well",), torch: Sequence[str] = ("well",), *, replicates: int = 2, **of_jax: Any
    ) -> Pair:
        """`of_jax` changes JAX's plan only."""
        first, second = (
            self.plan(*modes, framework=name, pid=self.root / f"{name}-pid", replicates=replicates)
            for name, modes in zip(FRAMEWORKS, (jax, torch), strict=True)
        )
        return Pair(cell=first.cell, jobs=(first.model_copy(update=of_jax), second))

    def job(self, work: JobPlan | Pair) -> JobFolder:
        pair = work if isinstance(work, Pair) else alone(work)
        folder = self.results.new_job_folder(pair)
        write_plan(pair, folder)
        return folder

    def command(self, folder: JobFolder) -> list[str]:
        run = [sys.executable, "-u", "-m", "harness.job"]
        return [*run, "--job-folder", str(folder.root), "--results", str(self.results.root)]

    def start(self, folder: JobFolder) -> "Popen[str]":
        """Without a queue."""
        return Popen(self.command(folder), cwd=self.root, env=without_slurm(), text=True, stdout=PIPE, stderr=STDOUT)

    def resume(self, folder: JobFolder) -> tuple[int, str]:
        """Exit status and output."""
        with self.start(folder) as process:
            output, _ = process.communicate(timeout=patience(30))
        return process.returncode, output

    def run(self, work: JobPlan | Pair) -> tuple[int, str, JobFolder]:
        """Exit status, output, and the job's folder."""
        folder = self.job(work)
        return *self.resume(folder), folder

    def finish(self, work: JobPlan | Pair) -> "FinishedJob":
        status, output, folder = self.run(work)
        return FinishedJob(project=self, folder=folder, status=status, output=output, records=self.by_mode())

    def by_mode(self) -> dict[str, Record]:
        """The records by formulation, which fake_framework runs in one way only; one each."""
        records = self.records()
        by_mode = {record.measurement.variant.execution_mode.removesuffix(".eager"): record for record in records}
        assert len(by_mode) == len(records)
        return by_mode

    def by_replicate(self) -> list[Record]:
        return sorted(self.records(), key=lambda one: one.measurement.replicate)

    def arms(self) -> list[tuple[str, int]]:
        """Framework and replicate of every record, by the time of its start; equal neighbours once."""
        records = sorted(self.records(), key=lambda record: record.started_at)
        arms = [(record.measurement.framework, record.measurement.replicate) for record in records]
        return [arm for arm, _ in itertools.groupby(arms)]

    def change(self, module: str, *replacements: tuple[str, str]) -> None:
        """Each text stands there once."""
        text = (self.root / module).read_text()
        for old, new in replacements:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {module}"
            text = text.replace(old, new)
        self.rewrite(module, text)

    def rewrite(self, module: str, text: str) -> None:
        """A new file: the old one is one with that of the other projects."""
        path = self.root / module
        path.unlink()
        path.write_text(text)

    def heartbeat(self, folder: JobFolder) -> Any:
        return read_heartbeat(folder.heartbeat)


@dataclass(frozen=True, kw_only=True)
class FinishedJob:
    """One for many tests."""

    project: BehavingProject
    folder: JobFolder
    status: int
    output: str
    records: Mapping[Any, Record]
    """By what tells them apart."""


def alone(plan: JobPlan) -> Pair:
    """A job of one framework."""
    return Pair(cell=plan.cell, jobs=(plan,))


def make_behaving_project(root: Path) -> BehavingProject:
    files, changed_at = _behaving_files()

    def link(source: str, target: str) -> None:
        assert Path(source).stat().st_mtime_ns == changed_at[source], f"{source}: written by a test without `rewrite`"
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)

    shutil.copytree(files, root, copy_function=link, dirs_exist_ok=True)
    (root / "pipeline").symlink_to(REPOSITORY / "pipeline")
    return BehavingProject(root=root)


@cache
def _behaving_files() -> tuple[Path, dict[str, int]]:
    """Made and compiled once, and when each was changed last. They are in every project until it changes them:
    `BehavingProject.rewrite`."""
    root = marked_folder("behaving-")
    shutil.copytree(REPOSITORY / "harness", root / "harness", ignore=WITHOUT_CACHES)
    declared = MADE / "fake_framework" / "declared_behave.py"
    shutil.copyfile(declared, root / "harness" / "work" / "use_cases" / "behave.py")
    for framework in FRAMEWORKS:
        runner = root / f"{framework}_runner"
        shutil.copytree(MADE / "fake_framework", runner, ignore=WITHOUT_CACHES)
        for name in ("run.py", "__init__.py"):
            shutil.copyfile(REPOSITORY / f"{framework}_runner" / name, runner / name)
    assert compileall.compile_dir(root, quiet=1)
    return root, {str(path): path.stat().st_mtime_ns for path in root.rglob("*")}


def make_behaving_repository(root: Path, config: str) -> BehavingProject:
    """With main.py too, which runs it by this experiments.yaml."""
    project = make_behaving_project(root)
    (root / "templates").symlink_to(REPOSITORY / "templates")
    shutil.copy(REPOSITORY / "main.py", root / "main.py")
    (root / "experiments.yaml").write_text(config)
    return project


def copy_repository(root: Path) -> None:
    """For tests that write beside main.py or change what it runs."""
    for source in (REPOSITORY / name for name in COPIED):
        copy = partial(shutil.copytree, ignore=WITHOUT_CACHES) if source.is_dir() else shutil.copy
        copy(source, root / source.name)


def without_slurm() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
