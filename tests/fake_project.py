"""A repository in a temporary folder: the real harness, pipeline and templates, and fake_run.py as both
runners."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Config, load_config
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import Cell, JobPlan, Pair, Scalar, Variant
from harness.record import Record, read_record
from harness.settings import Framework, MeasurementSettings, WandbSettings
from pipeline.render import write_scripts


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
        from pipeline.submit import submit

        pairs = self.pairs(*plans)
        return submit(pairs, self.config, self.scripts(pairs), executor=executor, results=self.results)


def make_project(root: Path) -> FakeProject:
    for name in ("harness", "pipeline"):
        (root / name).symlink_to(REPOSITORY / name)
    for framework in ("jax", "torch"):
        runner = root / f"{framework}_runner"
        runner.mkdir()
        shutil.copyfile(REPOSITORY / "tests" / "fake_run.py", runner / "run.py")
    config = load_config(REPOSITORY / "experiments.yaml")
    cluster = config.cluster.model_copy(update={"cpus_per_task": 1, "time_limit_minutes": 30})
    return FakeProject(root=root, config=config.model_copy(update={"cluster": cluster}))
