"""Made-up records of imagenet100, inference and training, for tests of the report and for looking at it.

Every number follows from `images_per_s`; nothing here was measured.
"""

from collections.abc import Iterator
from typing import Any

from harness.plan import Cell, DataKind, Framework, Measurement, MeasurementSettings, Variant
from harness.results.record import Blocks, DataIdentity, Energy, EpochPoint, Latency, Memory, Record, Result
from harness.work.declared import benchmark
from tests.made.report_records import H200, finished_record

MODELS = {model.name: model for model in benchmark("imagenet100").models}
BATCH_SIZES = (1, 8, 32, 128)
INFERENCE = Cell(gpu="any", benchmark="imagenet100", use_case=5, use_case_name="inference")
TRAINING = Cell(gpu="any", benchmark="imagenet100", use_case=1, use_case_name="train")
SPEEDS: dict[tuple[Framework, str], float] = {
    ("jax", "jit"): 1.0,
    ("jax", "jit_graph"): 1.5,
    ("torch", "eager"): 0.5,
    ("torch", "compiled_graph"): 1.25,
}
"""By run. Relative to `images_per_s`. So the best of each are in a ratio of 1.2."""


def images_per_s(model: str, batch_size: int) -> float:
    """Of speed 1: a call takes 1 ms, and 1 ms more for each 8 G multiply-adds."""
    multiply_adds = MODELS[model].multiply_adds
    assert multiply_adds is not None
    return batch_size / (1e-3 + batch_size * multiply_adds / 8e12)


def vision_record(
    framework: Framework,
    mode: str,
    model: str,
    batch_size: int,
    speed: float,
    *,
    replicate: int = 0,
    cell: Cell = INFERENCE,
    precision: Any = "bf16",
    calls: int = 1000,
    environment: dict[str, Any] = H200,
    data: DataKind = "real",
    quick: bool = False,
    on_gpu: bool = True,
    sizes: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """A step takes batch_size / (images_per_s * speed); of 100 calls waited for, 93 take that, 5 twice, 2 three times
    as long. 350 W gross, 100 W idle; 0.25 GiB and 1 MiB for each image in a steady step."""
    inference = cell.use_case_name == "inference"
    options = {"batch_norm": "folded", "inputs": "on_device"} if inference else {}
    measurement = Measurement(
        framework=framework,
        cell=cell,
        variant=Variant(model=model, batch_size=batch_size, precision=precision, execution_mode=mode, options=options),
        replicate=replicate,
        settings={"weights": "drawn"} if inference else {"epochs": 2},
        sizes=sizes or {},
        protocol=MeasurementSettings(),
        data=data,
        quick=quick,
    )
    step_s = batch_size / (images_per_s(model, batch_size) * speed)
    block_step_s = step_s * (1 + (framework == "torch") * replicate / 1e9)  # no two replicates have quite one ratio
    steps = max(1, round(0.1 / step_s))
    call_times_s = [step_s * (3 if one % 100 >= 98 else 2 if one % 100 >= 93 else 1) for one in range(calls)]
    result = Result(
        compile_time_s=20.0 if not mode.endswith(".eager") else 0.5,
        compile_time_warm_s=4.0 if not mode.endswith(".eager") and replicate == 0 else None,
        compile_time_warm_absent="only the first replicate is started twice" if replicate else None,
        blocks=Blocks(
            calls_per_block=steps,
            steps_per_call=1,
            samples_per_step=batch_size,
            block_times_s=[steps * block_step_s] * 19 + [steps * block_step_s * (1 + replicate / 1e6)],
            warmup_times_s=[],
        ),
        latency=Latency(steps_per_call=1, call_times_s=call_times_s),
        memory=Memory(
            step_peak_bytes=2**28 + batch_size * 2**20, pool_peak_bytes=2**30 + batch_size * 2**20, process_bytes=2**31
        )
        if on_gpu
        else Memory(absent="no GPU"),
        energy=Energy(
            gross_joules=350 * 5.0, window_s=5.0, busy_s=5.0, samples=round(5 * batch_size / step_s), idle_watts=100
        )
        if on_gpu
        else Energy(absent="no NVIDIA driver"),
        epochs=[] if inference else list(_epochs(128_000 / batch_size * step_s)),
        parameter_count=MODELS[model].parameter_count,
    )
    identity = DataIdentity(source="ImageNet", kind=data, sha256="1e" * 32)
    return finished_record(measurement, result, environment, identity, **changes)


def _epochs(time_s: float) -> Iterator[EpochPoint]:
    """128,000 images in each."""
    for epoch in (1, 2):
        yield EpochPoint(
            epoch=epoch,
            train_time_s=time_s,
            train_loss=1 / epoch,
            test_loss=1 / epoch,
            test_metric=1 - 0.5**epoch,
            further_metrics={"top_5_accuracy": 1 - 0.1**epoch},
            input_time_s=2.5,
        )


def vision_records(cell: Cell = INFERENCE, *, replicates: int = 4, **changes: Any) -> list[Record]:
    """Four models, four batch sizes (training: two), four modes."""
    formulation = "forward" if cell.use_case_name == "inference" else "step"
    return [
        vision_record(
            framework, f"{formulation}.{run}", model, batch_size, speed, replicate=replicate, cell=cell, **changes
        )
        for model in MODELS
        for batch_size in (BATCH_SIZES if cell is INFERENCE else (32, 128))
        for (framework, run), speed in SPEEDS.items()
        for replicate in range(replicates)
    ]
