"""A repository in a temporary folder: the real harness, pipeline and templates. Its two runners are fake_run.py, or
in a BehavingProject the real job with fake_framework."""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Config, load_config
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import Cell, JobPlan, Pair, Scalar, Variant
from harness.record import Record, read_record
from harness.settings import FRAMEWORKS, Framework, MeasurementSettings, Pairing, WandbSettings
from pipeline.render import write_scripts
from tests.fake_repository import QUICK


@dataclass(kw_only=True)
class FakeProject:
    root: Path
    config: Config

    @property
    def results(self) -> Results:
        return Results(root=self.root / "results")

    def plan(
        self,
        framework: Framework = "torch",
        *,
        gpu: str = "any",
        use_case: int = 3,
        measurements: int = 2,
        force: bool = False,
        **settings: Scalar,
    ) -> JobPlan:
        return JobPlan(
            framework=framework,
            cell=Cell(gpu=gpu, benchmark="mnist", use_case=use_case, use_case_name="per_sample_gradients"),
            variants=tuple(
                Variant(model="cnn", batch_size=1 + index, precision="fp32", execution_mode="eager")
                for index in range(measurements)
            ),
            settings=dict(settings),
            protocol=MeasurementSettings(replicates=1),
            wandb=WandbSettings(mode="disabled"),
            force=force,
        )

    def pairs(self, *plans: JobPlan) -> list[Pair]:
        return [Pair(cell=plan.cell, jobs=(plan,)) for plan in plans]

    def scripts(self, pairs: list[Pair]) -> dict[str, Path]:
        """Rendered by the real templates."""
        return write_scripts(
            pairs,
            self.config,
            config_path=self.root / "experiments.yaml",
            results=self.results.root,
            repository=self.root,
        )

    def with_cluster(self, **changes: Any) -> "FakeProject":
        cluster = self.config.cluster.model_copy(update=changes)
        return FakeProject(root=self.root, config=self.config.model_copy(update={"cluster": cluster}))

    def records(self) -> list[Record]:
        """In the order of their making."""
        records = [read_record(path) for path in self.results.records().rglob("*.json")]
        return sorted(records, key=lambda record: record.ended_at)

    def submit(self, *plans: JobPlan, executor: Any) -> list[JobFolder]:
        """Each in a job of its own."""
        return self.submit_pairs(*self.pairs(*plans), executor=executor)

    def submit_pairs(self, *pairs: Pair, executor: Any, pairing: Pairing = "together") -> list[JobFolder]:
        from pipeline.submit import submit

        return submit(
            list(pairs),
            self.config,
            self.scripts(list(pairs)),
            pairing=pairing,
            executor=executor,
            results=self.results,
        )


class BehavingProject(FakeProject):
    """The job is the real one, also its heartbeat and its records."""

    @property
    def gate(self) -> Path:
        """What a measurement of the mode `gated` waits for."""
        return self.root / "gate"

    def pair(
        self, jax: Sequence[str] = ("well",), torch: Sequence[str] = ("well",), *, replicates: int = 2, **of_jax: Any
    ) -> Pair:
        """Of the modes in tests/fake_framework; `of_jax` changes JAX's plan only."""
        plans = []
        for framework, modes in zip(FRAMEWORKS, (jax, torch), strict=True):
            plan = JobPlan(
                framework=framework,
                cell=Cell(gpu="any", benchmark="mnist", use_case=1, use_case_name="behave"),
                variants=tuple(
                    Variant(model="cnn", batch_size=8, precision="fp32", execution_mode=mode) for mode in modes
                ),
                settings={"gate": str(self.gate), "pid": str(self.root / f"{framework}-pid")},
                protocol=MeasurementSettings(**(QUICK | {"replicates": replicates})),
                wandb=WandbSettings(mode="disabled"),
                data="sample",
                quick=True,
            )
            plans.append(plan.model_copy(update=of_jax) if framework == "jax" else plan)
        return Pair(cell=plans[0].cell, jobs=tuple(plans))

    def arms(self) -> list[tuple[str, int]]:
        """Framework and replicate of every record, by the time of its start; equal neighbours once."""
        records = sorted(self.records(), key=lambda record: record.started_at)
        arms = [(record.measurement.framework, record.measurement.replicate) for record in records]
        return [arm for arm, _ in itertools.groupby(arms)]


def make_project(root: Path) -> FakeProject:
    for name in ("harness", "pipeline"):
        (root / name).symlink_to(REPOSITORY / name)
    for framework in ("jax", "torch"):
        runner = root / f"{framework}_runner"
        runner.mkdir()
        shutil.copyfile(REPOSITORY / "tests" / "fake_run.py", runner / "run.py")
    return FakeProject(root=root, config=small_config())


def make_behaving_project(root: Path) -> BehavingProject:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "harness", root / "harness", ignore=ignored)
    (root / "pipeline").symlink_to(REPOSITORY / "pipeline")
    for framework in FRAMEWORKS:
        runner = root / f"{framework}_runner"
        shutil.copytree(REPOSITORY / "tests" / "fake_framework", runner, ignore=ignored)
        for name in ("run.py", "__init__.py"):
            shutil.copyfile(REPOSITORY / f"{framework}_runner" / name, runner / name)
    return BehavingProject(root=root, config=small_config())


def small_config() -> Config:
    config = load_config(REPOSITORY / "experiments.yaml")
    cluster = config.cluster.model_copy(update={"cpus_per_task": 1, "time_limit_minutes": 30})
    return config.model_copy(update={"cluster": cluster})
