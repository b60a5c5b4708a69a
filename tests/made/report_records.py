"""Hand-made records whose every number can be worked out."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.paths import Results
from harness.plan import FRAMEWORKS, Cell, Framework, JobPlan, Measurement, MeasurementSettings, Variant, WandbSettings
from harness.results.parity import Judgement
from harness.results.parity_gate import ParityGate
from harness.results.record import DataIdentity, EpochPoint, Latency, RankResult, Record, Result, write_record
from pipeline.report.compare import Row, Section, sections
from pipeline.report.csv_files import csv_text
from tests.made.records import bare_record, blocks

H200 = {"gpu": {"name": "NVIDIA H200"}, "scheduler": "slurm", "framework": {"platform": "gpu"}}
A100 = {"gpu": {"name": "NVIDIA A100"}, "scheduler": "slurm", "framework": {"platform": "gpu"}}
CPU = {"cpu": {"model": "Xeon"}, "scheduler": "local", "framework": {"platform": "cpu"}}
CELL = Cell(gpu="any", benchmark="mnist", use_case=1, use_case_name="train")


def record(
    framework: Framework,
    mode: str,
    throughput: float = 1000.0,
    *,
    replicate: int = 0,
    environment: dict[str, Any] = H200,
    data: Any = "real",
    quick: bool = False,
    settings: dict[str, Any] | None = None,
    epochs: list[EpochPoint] | None = None,
    precision: Any = "fp32",
    model: str = "cnn",
    sizes: dict[str, Any] | None = None,
    cell: Cell = CELL,
    batch_size: int = 100,
    options: dict[str, Any] | None = None,
    details: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """`throughput` samples/s from 20 blocks, of which the last takes a trifle longer in each replicate; a step of 100
    samples. No two replicates have quite the same ratio. JAX is started first in replicates 0, 2, ..., PyTorch in the
    others."""
    variant = Variant(
        model=model, batch_size=batch_size, precision=precision, execution_mode=mode, options=options or {}
    )
    measurement = Measurement(
        framework=framework,
        cell=cell,
        variant=variant,
        replicate=replicate,
        settings=settings or {"epochs": 2},
        sizes=sizes or {},
        protocol=MeasurementSettings(),
        data=data,
        quick=quick,
    )
    # calls * 100 samples / time = throughput, with 10 calls a block.
    time_s = 1000 / throughput * (1 + (framework == "torch") * replicate / 1e9)
    result = Result(
        compile_time_s=2.5,
        blocks=blocks([time_s] * 19 + [time_s * (1 + replicate / 1e6)], samples=100),
        latency=Latency(steps_per_call=1, call_times_s=[0.012] * 95 + [0.05] * 105),
        epochs=epochs or [],
        time_to_target_s=1.25 if epochs else None,
        details=details or {},
    )
    second = (replicate + FRAMEWORKS.index(framework)) % 2
    fields = {
        "started_at": f"2026-11-21T10:00:0{second}+00:00",
        "ended_at": f"2026-11-21T10:01:0{second}+00:00",
        "data": DataIdentity(source="MNIST", kind=data, sha256="5e" * 32),
        "environment": environment,
        "result": result,
    }
    return bare_record(measurement, **(fields | changes))


def save(record: Record, results: Results) -> Path:
    path = results.new_record(record.measurement)
    write_record(record, path)
    return path


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def passed(jax: Record, torch: Record) -> Judgement:
    """A parity gate that has nothing to say against any pair."""
    return Judgement(state="passed", sentence="")


class Gate(ParityGate):
    """It says the same of every pair."""

    def __init__(self, state: Any = "passed") -> None:
        super().__init__(Results(root=Path("unread")))
        self.state = state

    def judge(self, jax: Record, torch: Record) -> Judgement:
        assert (jax.measurement.framework, torch.measurement.framework) == ("jax", "torch")
        return Judgement(state=self.state, sentence="")


def plan(framework: Framework, *modes: str, batch_sizes: Sequence[int] = (100,), **changes: Any) -> JobPlan:
    """Of the measurements that `record` makes, with no screening. `changes`: to the plan itself."""
    made = JobPlan(
        framework=framework,
        cell=CELL,
        variants=tuple(
            Variant(model="cnn", batch_size=size, precision="fp32", execution_mode=mode)
            for size in batch_sizes
            for mode in modes
        ),
        settings={"epochs": 2},
        protocol=MeasurementSettings(),
        wandb=WandbSettings(mode="disabled"),
    )
    return made.model_copy(update=changes)


def pair(jax: float = 3000, torch: float = 2000, replicates: int = 4, **changes: Any) -> list[Record]:
    """Of `step.jit` and `step.compiled`, with these samples per second."""
    both: tuple[tuple[Framework, str, float], ...] = (("jax", "step.jit", jax), ("torch", "step.compiled", torch))
    return [record(*one, replicate=number, **changes) for one in both for number in range(replicates)]


def with_result(one: Record, **changes: Any) -> Record:
    """With other numbers."""
    assert one.result is not None
    return one.model_copy(update={"result": one.result.model_copy(update=changes)})


def with_blocks(one: Record, **changes: Any) -> Record:
    assert one.result is not None and one.result.blocks is not None
    return with_result(one, blocks=one.result.blocks.model_copy(update=changes))


def section_of(records: Iterable[Record]) -> Section:
    """The only one of them; the parity gate passes all."""
    (section,) = sections(records, passed)
    return section


def row_of(records: Iterable[Record]) -> Row:
    (row,) = section_of(records).rows
    return row


def csv_lines(compared: Sequence[Section]) -> list[dict[str, str]]:
    return list(csv.DictReader(csv_text(compared).splitlines()))


def rank_result(rank: int, **of_gpus: list[str]) -> RankResult:
    nothing = {"block_times_s": [], "call_times_s": [], "memory": {}, "energy": {}}
    return RankResult.model_validate({"rank": rank, "node": "n1"} | nothing | of_gpus)
