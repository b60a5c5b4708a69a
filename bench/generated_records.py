"""As many plausible records as are wanted, drawn from a seed: what a laboratory's results folder looks like."""

import math
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.paths import REPOSITORY, Results
from harness.plan import Measurement
from harness.results.parity import ParityMetadata, ParityNumbers, kept_shape, key_of
from harness.results.parity_file import write_parity
from harness.results.record import (
    Blocks,
    Check,
    DataIdentity,
    Energy,
    EpochPoint,
    Latency,
    Memory,
    Outcome,
    RankResult,
    Record,
    Result,
    write_record,
)

CARDS = {
    "h200": ("NVIDIA H200", 3.0, 1980),
    "a100": ("NVIDIA A100-SXM4-80GB", 1.6, 1410),
    "rtx3080": ("NVIDIA GeForce RTX 3080", 1.0, 1710),
    "h100": ("NVIDIA H100 80GB HBM3", 2.6, 1980),
}
"""Name, speed, highest SM clock in MHz."""
MODE_SPEED = {
    **{"step.jit": 1.0, "scan.jit": 1.25, "outer_product.jit": 1.3, "chunked.jit": 0.8},
    **{"step.eager": 0.4, "step.compiled": 0.95, "step.reduce_overhead": 1.15, "loop.eager": 0.05},
    **{"step.max_autotune": 1.0, "step.compiled_graph": 1.2},
    **{"outer_product.compiled": 1.4, "chunked.compiled": 0.9},
}
PRECISION_SPEED = {"fp32": 1.0, "tf32": 1.7, "bf16": 2.3}
COMPILE_TIMES_S = {
    **{"step.eager": (0.4, 0.3), "loop.eager": (0.2, 0.2)},
    **{"step.compiled": (21.0, 4.0), "step.reduce_overhead": (24.0, 5.0)},
}
"""Cold and with warm caches; of other modes 6.0 and 0.9."""
PACKAGES = {"numpy": "2.3.0", "jax": "0.10.2", "jaxlib": "0.10.2", "torch": "2.15.0", "nvidia-cudnn-cu13": "9.13.0"}


def measurements(gpus: tuple[str, ...], use_cases: tuple[int, ...] = (1, 2, 3, 4)) -> Iterator[Measurement]:
    """Everything that experiments.yaml would measure: first what is under `matrix`, then the other benchmarks."""
    config = load_config(REPOSITORY / "experiments.yaml")
    others = tuple(name for name in config.benchmarks if name not in config.matrix.benchmarks)
    for benchmarks in (config.matrix.benchmarks, others):
        for pair in expand(config, Selection(gpus=gpus, benchmarks=benchmarks, use_cases=use_cases)):
            for job in pair.jobs:
                yield from job.measurements()


def write_records(
    results: Results, count: int, *, seed: int = 0, gpus: tuple[str, ...] = tuple(CARDS), with_parity: bool = False
) -> int:
    """Returns how many there are; fewer than asked for where experiments.yaml has no more.

    Args:
        with_parity: each job also leaves a parity file for each of its keys, as large as a real one.
    """
    draw = random.Random(seed)
    numbers = ParityMaker(results)
    written = 0
    for measurement in measurements(gpus):
        if written == count:
            break
        record = generated(measurement, draw)
        if with_parity:
            record = record.model_copy(update={"parity": numbers.file_of(measurement)})
        write_record(record, results.new_record(measurement))
        written += 1
    return written


class ParityMaker:
    """Numbers on which both frameworks agree but for a rounding error, in the tensors of the real models."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._files: dict[tuple[str, str], str] = {}

    def file_of(self, measurement: Measurement) -> str:
        """One for each key and cell, as a job leaves it."""
        key = key_of(measurement)
        place = measurement.cell.name, key.digest
        if place not in self._files:
            path = self._results.new_parity(measurement.cell, measurement.framework, key.digest)
            kept, shapes = _tensors(measurement.variant.model, key.use_case_name)
            rounding = 1e-7 if measurement.framework == "jax" else 0.0
            kept = {name: _as_computed(value * (1 + rounding), shapes[name]) for name, value in kept.items()}
            metadata = ParityMetadata(key=key, outcome="ok", shapes=shapes, created_at="2026-11-20T10:00:00+00:00")
            write_parity(ParityNumbers(metadata=metadata, kept=kept), path)
            self._files[place] = path.name
        return self._files[place]


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


def _as_computed(value: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """What is kept whole was computed in fp32, and its file is half as large; a sketch is a sum in float64."""
    return np.asarray(value if kept_shape(shape) != shape else value.astype(np.float32), np.float64)


def generated(measurement: Measurement, draw: random.Random) -> Record:
    outcome: Outcome
    outcome, reason, result = "ok", None, None
    if measurement.cell.gpu == "rtx3080" and measurement.variant.model == "resnet18" and draw.random() < 0.2:
        outcome, reason = "out_of_memory", "CUDA out of memory: tried to allocate 512 MiB of 10 GiB"
    elif draw.random() < 0.01:
        outcome, reason = "failed", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
    else:
        result = _result(measurement, draw)
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
        outcome=outcome,
        reason=reason,
        started_at="2026-11-20T10:00:00+00:00",
        ended_at="2026-11-20T10:01:00+00:00",
        data=DataIdentity(source=measurement.cell.benchmark, kind=measurement.data, sha256="5e" * 32),
        environment=_environment(measurement, draw),
        result=result,
        ranks=ranks,
    )


def _environment(measurement: Measurement, draw: random.Random) -> dict[str, object]:
    name, _, clock = CARDS[measurement.cell.gpu]
    other_node = measurement.cell.use_case == 1 and measurement.framework == "torch" and measurement.replicate == 2
    return {
        "python": "3.12.4",
        "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
        "node": "node02" if other_node else "node01",
        "scheduler": "slurm",
        "slurm": {"job_id": str(4000 + measurement.cell.use_case), "restart_count": 0, "partition": "gpu"},
        "pairing": {
            "kind": "together",
            "position": 2 * measurement.replicate + (measurement.framework == "torch"),
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
            "max_sm_clock_mhz": clock,
        },
    }


def _result(measurement: Measurement, draw: random.Random) -> Result:
    cell, variant = measurement.cell, measurement.variant
    _, card, clock = CARDS[cell.gpu]
    speed = 40_000 * card * MODE_SPEED.get(variant.execution_mode, 1.0) * PRECISION_SPEED[variant.precision]
    speed *= {"mnist": 1.0, "cifar10": 0.3}.get(cell.benchmark, 1.0) * (0.2 if variant.model == "resnet18" else 1.0)
    speed *= (variant.batch_size / 256) ** 0.3
    speed *= cell.devices * 0.9 if cell.devices > 1 else 1
    speed *= 1.1 if measurement.framework == "jax" and cell.use_case in (3, 4) else 1.0
    speed *= math.exp(draw.gauss(0, 0.015))
    spread = 0.3 if draw.random() < 0.02 else 0.004
    blocks = 60
    calls = max(1, round(0.1 * speed / variant.batch_size))
    times_s = [calls * variant.batch_size / speed * math.exp(draw.gauss(0, spread)) for _ in range(blocks)]
    step_s = variant.batch_size / speed
    bytes_ = int(2e8 + variant.batch_size * 4e6 * (1.1 if measurement.framework == "jax" else 1))
    window_s = sum(times_s)
    cold_s, warm_s = COMPILE_TIMES_S.get(variant.execution_mode, (6.0, 0.9))
    return Result(
        compile_time_s=cold_s * math.exp(draw.gauss(0, 0.1)),
        cold_call_times_s=[5.0, 0.1, 0.01],
        compile_time_warm_s=warm_s if measurement.replicate == 0 else None,
        blocks=Blocks(
            calls_per_block=calls,
            steps_per_call=1,
            samples_per_step=variant.batch_size,
            block_times_s=times_s,
            warmup_times_s=[step_s] * 20,
        ),
        latency=Latency(
            steps_per_call=1, call_times_s=[step_s * 1.2 * math.exp(abs(draw.gauss(0, 0.05))) for _ in range(200)]
        ),
        memory=Memory(
            allocator_peak_bytes=bytes_ * 2,
            step_peak_bytes=bytes_,
            pool_peak_bytes=bytes_ * 3,
            process_bytes=bytes_ * 3 + 500_000_000,
            host_peak_bytes=3_000_000_000,
        ),
        energy=Energy(
            gross_joules=400 * window_s,
            window_s=window_s,
            samples=calls * blocks * variant.batch_size,
            idle_watts=90.0,
        ),
        gpu_states=[
            {
                "sm_clock_mhz": clock - 15,
                "memory_clock_mhz": 2600,
                "temperature_c": 55,
                "power_watts": 400.0,
                "throttle_reasons": ("sw_power_cap",) if draw.random() < 0.0005 else (),
                "other_processes": 0,
            }
            for _ in range(blocks)
        ],
        epochs=_epochs(measurement, draw, step_s) if cell.use_case_name == "train" else [],
        time_to_target_s=draw.uniform(2, 3) if cell.use_case_name == "train" and draw.random() < 0.8 else None,
        checks=[Check(name="per_sample_gradients", error=1e-6, tolerance=2e-3, passed=True)]
        if cell.use_case_name == "per_sample_gradients"
        else [],
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
