"""What benches of the training step share: a session without a parent process, and a record of their rounds."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from harness.channel import Channel
from harness.data import load
from harness.environment import describe_environment
from harness.gpu import open_gpus
from harness.paths import REPOSITORY
from harness.plan import Cell, Measurement, Variant
from harness.session import Session
from harness.settings import Framework, MeasurementSettings
from harness.world import ALONE, World

RECORDED = ("python", "platform", "cpu", "load_average", "packages", "git")
"""Of the environment: what may matter to a reader, and nothing of where it lies."""

AnySession = TypeVar("AnySession", bound=Session)


def training_session(
    kind: type[AnySession],
    framework: Framework,
    device: Any,
    *,
    benchmark: str,
    batch_size: int,
    execution_mode: str,
    world: World = ALONE,
) -> AnySession:
    """The benchmark's `cnn` in fp32 on sample data. `device`: the runner's, joined and set up."""
    devices = world.device_count
    measurement = Measurement(
        framework=framework,
        cell=Cell(
            gpu="any", benchmark=benchmark, use_case=1 if devices == 1 else 2, use_case_name="train", devices=devices
        ),
        variant=Variant(model="cnn", batch_size=batch_size, precision="fp32", execution_mode=execution_mode),
        replicate=0,
        settings={"epochs": 1, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "target_accuracy": 0.7},
        protocol=MeasurementSettings(),
        data="sample",
        quick=False,
    )
    return kind(
        measurement=measurement,
        dataset=load(benchmark, "sample", REPOSITORY / "data"),
        gpu=open_gpus(0, devices),
        channel=Channel(os.open(os.devnull, os.O_WRONLY)),
        device=device,
        world=world,
    )


def write_rounds(record: Path, session: Session, calls_per_block: int, rounds: Sequence[dict[str, float]]) -> None:
    whole = describe_environment()
    measurement = session.measurement
    content = {
        "framework": measurement.framework,
        "benchmark": measurement.cell.benchmark,
        "batch_size": measurement.variant.batch_size,
        "calls_per_block": calls_per_block,
        "rounds": rounds,
        "environment": {name: whole[name] for name in RECORDED} | {"framework": session.device.describe()},
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(content, indent=1) + "\n")
