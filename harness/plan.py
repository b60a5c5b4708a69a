"""What is measured: cells, variants, jobs and measurements. Pure data; no file, no Slurm, no framework."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from harness.settings import DataKind, Framework, Frozen, MeasurementSettings, Precision, WandbSettings

Scalar = str | int | float | bool | None
PLAN_SCHEMA_VERSION = 1


class Cell(Frozen):
    """One point of GPU x benchmark x use case. Two jobs that differ only in framework measure it."""

    gpu: str
    """A name under `gpus` in experiments.yaml; `any` takes what the scheduler gives."""
    benchmark: str
    use_case: Annotated[int, Field(ge=1)]
    use_case_name: str
    """The module in each runner's use_cases/ that does it, such as `train`."""
    devices: int = Field(default=1, ge=1)
    """GPUs over all nodes."""
    nodes: int = Field(default=1, ge=1)

    @property
    def name(self) -> str:
        """`any/cifar10_3`: unique in a plan, and a relative path."""
        return f"{self.gpu}/{self.benchmark}_{self.use_case}"


class Variant(Frozen):
    """One setting inside a cell."""

    model: str
    batch_size: int = Field(ge=1)
    """Global batch size."""
    precision: Precision
    execution_mode: str
    """How the framework is asked to run the same mathematics: `eager`, `compiled`, `jit`, ..."""
    options: dict[str, Scalar] = {}
    """The use case's own axes, such as {"output": "full"}. They change what is computed, so they are never mixed."""

    @property
    def comparison_key(self) -> str:
        """What both frameworks must share to be compared: everything but the execution mode."""
        options = "".join(f"-{value}" for _, value in sorted(self.options.items()))
        return f"{self.model}-b{self.batch_size}-{self.precision}{options}"

    @property
    def key(self) -> str:
        """Readable, unique in a cell and framework, and a file name."""
        return f"{self.comparison_key}-{self.execution_mode}"


class Measurement(Frozen):
    """One variant in one fresh process: what a record is the record of."""

    framework: Framework
    cell: Cell
    variant: Variant
    replicate: int = Field(ge=0)
    settings: dict[str, Scalar]
    """The use case's own settings (epochs, learning_rate, chunk_size, ...)."""
    protocol: MeasurementSettings
    data: DataKind
    quick: bool

    @property
    def id(self) -> str:
        """Twelve hex digits of the content: the same work has the same id in every session."""
        content = self.model_dump(mode="json")
        for neither_work_nor_result in ("replicates", "timeout_s"):
            del content["protocol"][neither_work_nor_result]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def key(self) -> str:
        return f"{self.variant.key}-r{self.replicate}"


class JobPlan(Frozen):
    """All that one job of a pair measures. Frozen in the job's folder when it is submitted."""

    schema_version: int = PLAN_SCHEMA_VERSION
    framework: Framework
    cell: Cell
    variants: tuple[Variant, ...]
    settings: dict[str, Scalar]
    protocol: MeasurementSettings
    wandb: WandbSettings
    data: DataKind = "real"
    data_dir: str = "data"
    quick: bool = False
    force: bool = False
    """Measure again what has a good record."""

    @property
    def name(self) -> str:
        """`any/jax_cifar10_3`: the rendered script's name without its ending, and a relative path."""
        return f"{self.cell.gpu}/{self.framework}_{self.cell.benchmark}_{self.cell.use_case}"

    def measurements(self) -> Iterator[Measurement]:
        """Replicates outside, variants inside: drift of the machine spreads over all variants."""
        for replicate in range(self.protocol.replicates):
            for variant in self.variants:
                yield Measurement(
                    framework=self.framework,
                    cell=self.cell,
                    variant=variant,
                    replicate=replicate,
                    settings=self.settings,
                    protocol=self.protocol,
                    data=self.data,
                    quick=self.quick,
                )


class Pair(Frozen):
    """The two jobs of a cell, or the one that `--framework` asked for."""

    cell: Cell
    jobs: tuple[JobPlan, ...]

    @property
    def name(self) -> str:
        """`any/pair_cifar10_3`: of the script that runs both in turn."""
        return f"{self.cell.gpu}/pair_{self.cell.benchmark}_{self.cell.use_case}"
