"""As many records as are wanted, drawn from a seed, of the kinds and sizes of a laboratory's results folder."""

import math
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.paths import REPOSITORY, Results
from harness.plan import Measurement
from harness.results.parity import LARGE, SKETCH_SIZE, ParityKey, ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import write_parity
from harness.results.record import (
    Blocks,
    DataIdentity,
    Energy,
    EpochPoint,
    Latency,
    Memory,
    RankResult,
    Record,
    Result,
    write_record,
)

CARDS = {
    "h200": "NVIDIA H200",
    "a100": "NVIDIA A100-SXM4-80GB",
    "rtx3080": "NVIDIA GeForce RTX 3080",
    "h100": "NVIDIA H100 80GB HBM3",
}
"""By their names in experiments.yaml, those that devices give themselves."""
BLOCKS, LATENCY_CALLS, CLOCK_MHZ = 60, 200, 1980
PACKAGES = {"numpy": "2.3.0", "jax": "0.10.2", "jaxlib": "0.10.2", "torch": "2.15.0", "nvidia-cudnn-cu13": "9.13.0"}


def measurements() -> Iterator[Measurement]:
    """Everything that experiments.yaml would measure: first what is under `matrix`, then the other benchmarks."""
    config = load_config(REPOSITORY / "experiments.yaml")
    others = tuple(name for name in config.benchmarks if name not in config.matrix.benchmarks)
    for benchmarks in (config.matrix.benchmarks, others):
        for pair in expand(config, Selection(gpus=tuple(CARDS), benchmarks=benchmarks, use_cases=(1, 2, 3, 4))):
            for job in pair.jobs:
                yield from job.measurements()


def write_records(results: Results, count: int) -> int:
    """Each job also leaves a parity file for each of its keys. Returns how many records there are; fewer than asked for
    where experiments.yaml has no more."""
    draw = random.Random(0)
    parity: dict[tuple[str, str], str] = {}
    written = 0
    for measurement in islice(measurements(), count):
        key = key_of(measurement)
        place = measurement.cell.name, key.digest
        if place not in parity:
            parity[place] = _write_parity(measurement, key, results)
        record = generated(measurement, draw).model_copy(update={"parity": parity[place]})
        write_record(record, results.new_record(measurement))
        written += 1
    return written


def _write_parity(measurement: Measurement, key: ParityKey, results: Results) -> str:
    """Numbers on which both frameworks agree but for a rounding error, in the tensors of the real models. Returns the
    file's name."""
    path = results.new_parity(measurement.cell, measurement.framework, key.digest)
    kept, shapes = _tensors(measurement.variant.model, key.use_case_name)
    rounding = 1e-7 if measurement.framework == "jax" else 0.0
    kept = {name: _as_computed(value * (1 + rounding), shapes[name]) for name, value in kept.items()}
    metadata = ParityMetadata(key=key, outcome="ok", shapes=shapes, created_at="2026-11-20T10:00:00+00:00")
    write_parity(ParityNumbers(metadata=metadata, kept=kept), path)
    return path.name


@cache
def _tensors(model: str, use_case_name: str) -> tuple[dict[str, NDArray[np.float64]], dict[str, tuple[int, ...]]]:
    """ResNet-18 has 62 parameters and 20 BatchNorms, the small networks a few of each size."""
    draw = np.random.default_rng(0)
    widths = [64] * 5 + [128] * 5 + [256] * 5 + [512] * 5
    layers: dict[str, tuple[int, ...]] = {"conv": (32, 16, 3, 3), "head": (10, 512)}
    if model == "resnet18":
        layers = {f"layer{i}": (width, width, 3, 3) for i, width in enumerate(widths)} | layers
    parameters: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in layers.items()}
    parameters |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    parameters |= {f"{name}.scale": shape[:1] for name, shape in layers.items()}
    shapes: dict[str, tuple[int, ...]] = {"outputs": (16, 10), "loss": ()}
    if use_case_name == "train":
        shapes |= {f"gradients/{name}": shape for name, shape in parameters.items()}
        shapes |= {f"updates/{name}": shape for name, shape in parameters.items()}
        shapes |= {f"statistics/{name}": shape for name, shape in parameters.items() if name.endswith("bias")}
        shapes |= {"losses_of_steps": (5,)}
    else:
        shapes |= {f"per_sample_gradients/{name}": (16, *shape) for name, shape in parameters.items()}
    return {name: np.asarray(draw.standard_normal(kept_shape(shape))) for name, shape in shapes.items()}, shapes


def kept_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what is kept of a tensor."""
    return (SKETCH_SIZE,) if math.prod(shape) > LARGE else shape


def _as_computed(value: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """What is kept whole was computed in fp32, and its file is half as large; a sketch is a sum in float64."""
    return np.asarray(value if kept_shape(shape) != shape else value.astype(np.float32), np.float64)


def generated(measurement: Measurement, draw: random.Random) -> Record:
    """One in a hundred has failed."""
    result = None if draw.random() < 0.01 else _result(measurement, draw)
    ranks = [
        RankResult(
            rank=rank,
            node="node01",
            gpu_uuids=[f"GPU-{measurement.cell.gpu}-{rank}"],
            block_times_s=result.blocks.block_times_s,
            call_times_s=[],
            memory=result.memory,
            energy=Energy(absent="not of this rank"),
        )
        for rank in range(measurement.cell.devices)
        if result and result.blocks and measurement.cell.devices > 1
    ]
    return Record(
        measurement_id=measurement.id,
        measurement=measurement,
        outcome="ok" if result else "failed",
        reason=None if result else "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        started_at="2026-11-20T10:00:00+00:00",
        ended_at="2026-11-20T10:01:00+00:00",
        data=DataIdentity(source=measurement.cell.benchmark, kind=measurement.data, sha256="5e" * 32),
        environment=_environment(measurement, draw),
        result=result,
        ranks=ranks,
    )


def _environment(measurement: Measurement, draw: random.Random) -> dict[str, object]:
    name = CARDS[measurement.cell.gpu]
    other_node = measurement.cell.use_case == 1 and measurement.framework == "torch" and measurement.replicate == 2
    return {
        "python": "3.12.4",
        "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
        "node": "node02" if other_node else "node01",
        "scheduler": "slurm",
        "slurm": {"job_id": str(4000 + measurement.cell.use_case), "restart_count": 0, "partition": "gpu"},
        "pairing": {
            "kind": "together",
            "pair": f"{4000 + measurement.cell.use_case}.0",
        },
        "cpu": {"model": "AMD EPYC 9454 48-Core Processor", "count": 96, "affinity": [0, 1, 2, 3]},
        "memory_total_bytes": 256 * 2**30,
        "load_average": [draw.random(), 0.5, 0.5],
        "packages": PACKAGES,
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "clean": True, "absent": None},
        "variables": {"CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        "framework": {
            "name": measurement.framework,
            "version": PACKAGES[measurement.framework],
            "platform": "gpu",
            "device": name,
        },
        "gpu": {
            "name": name,
            "uuid": f"GPU-{measurement.cell.gpu}-{1 if other_node else 0}",
            "driver_version": "580.65.06",
            "cuda_driver_version": "13.0",
            "max_sm_clock_mhz": CLOCK_MHZ,
        },
    }


def _result(measurement: Measurement, draw: random.Random) -> Result:
    """JAX is 10 % faster in two use cases of four."""
    cell, batch_size = measurement.cell, measurement.variant.batch_size
    speed = 44_000 if measurement.framework == "jax" and cell.use_case in (3, 4) else 40_000
    step_s = batch_size / speed * math.exp(draw.gauss(0, 0.015))
    calls = max(1, round(0.1 / step_s))
    times_s = [calls * step_s * math.exp(draw.gauss(0, 0.004)) for _ in range(BLOCKS)]
    bytes_ = int(2e8 + batch_size * 4e6)
    return Result(
        compile_time_s=6 * math.exp(draw.gauss(0, 0.1)),
        cold_call_times_s=[5.0, 0.1, 0.01],
        compile_time_warm_s=0.9 if measurement.replicate == 0 else None,
        blocks=Blocks(
            calls_per_block=calls,
            steps_per_call=1,
            samples_per_step=batch_size,
            block_times_s=times_s,
            warmup_times_s=[step_s] * 20,
        ),
        latency=Latency(
            steps_per_call=1,
            call_times_s=[step_s * 1.2 * math.exp(abs(draw.gauss(0, 0.05))) for _ in range(LATENCY_CALLS)],
        ),
        memory=Memory(
            allocator_peak_bytes=bytes_ * 2,
            step_peak_bytes=bytes_,
            pool_peak_bytes=bytes_ * 3,
            process_bytes=bytes_ * 3 + 500_000_000,
            host_peak_bytes=3_000_000_000,
        ),
        energy=Energy(
            gross_joules=400 * sum(times_s),
            window_s=sum(times_s),
            samples=calls * BLOCKS * batch_size,
            idle_watts=90.0,
        ),
        gpu_states=[
            {
                "sm_clock_mhz": CLOCK_MHZ - 15,
                "memory_clock_mhz": 2600,
                "temperature_c": 55,
                "power_watts": 400.0,
                "throttle_reasons": ("sw_power_cap",) if draw.random() < 0.0005 else (),
                "other_processes": 0,
            }
            for _ in range(BLOCKS)
        ],
        epochs=_epochs(measurement, draw, step_s) if cell.use_case_name == "train" else [],
        time_to_target_s=draw.uniform(2, 3) if cell.use_case_name == "train" and draw.random() < 0.8 else None,
        parameter_count=26_010,
    )


def _epochs(measurement: Measurement, draw: random.Random, step_s: float) -> list[EpochPoint]:
    count = int(str(measurement.settings.get("epochs", 5)))
    steps = 60_000 // measurement.variant.batch_size
    return [
        EpochPoint(
            epoch=epoch,
            train_time_s=steps * step_s * math.exp(draw.gauss(0, 0.02)),
            train_loss=2.0 * 0.7**epoch,
            test_loss=2.0 * 0.75**epoch,
            test_metric=0.99 - 0.5 * 0.6**epoch + draw.gauss(0, 0.004),
        )
        for epoch in range(1, count + 1)
    ]
