"""Sessions as a use case gets them, without a parent process: the real device and data, and a channel to nowhere."""

import atexit
import importlib
import os
from pathlib import Path
from typing import Any

from harness import data
from harness.channel import Channel
from harness.gpu import NoGpu
from harness.plan import Cell, Measurement, Variant
from harness.session import Session
from harness.settings import Framework, MeasurementSettings
from harness.world import ALONE, World

CHANNEL = Channel(os.open(os.devnull, os.O_WRONLY))
atexit.register(CHANNEL._pipe.close)

NUMBERS = {"train": 1, "per_sample_gradients": 3, "many_models": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 1, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "target_accuracy": 0.5},
    "per_sample_gradients": {"chunk_size": 8, "clip_norm": 1.0},
    "many_models": {
        "learning_rate": 0.1,
        "momentum": 0.9,
        "in_features": 6,
        "hidden_features": 7,
        "out_features": 5,
        "channels": 2,
        "image_size": 5,
        "hidden_channels": 4,
        "classes": 3,
    },
}
PROTOCOL = MeasurementSettings(
    replicates=1,
    seed=3,
    warmup_s=0.01,
    warmup_min_calls=2,
    block_min_s=0.001,
    min_blocks=3,
    max_blocks=3,
    latency_calls=1,
    idle_s=0,
)


def make_session(
    framework: Framework,
    use_case: str,
    *,
    benchmark: str = "mnist",
    model: str = "cnn",
    batch_size: int = 8,
    execution_mode: str = "",
    options: dict[str, Any] | None = None,
    device: Any = None,
    world: World = ALONE,
    **settings: Any,
) -> Session:
    measurement = Measurement(
        framework=framework,
        cell=Cell(gpu="any", benchmark=benchmark, use_case=NUMBERS[use_case], use_case_name=use_case),
        variant=Variant(
            model=model,
            batch_size=batch_size,
            precision="fp32",
            execution_mode=execution_mode or {"jax": "jit", "torch": "eager"}[framework],
            options=options or {},
        ),
        replicate=0,
        settings=SETTINGS[use_case] | settings,
        protocol=PROTOCOL,
        data="sample",
        quick=True,
    )
    device = device or importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    return Session(
        measurement=measurement,
        dataset=data.load(benchmark, "sample", Path("nowhere")),
        gpu=NoGpu("not asked in this test"),
        channel=CHANNEL,
        device=device,
        world=world,
    )
