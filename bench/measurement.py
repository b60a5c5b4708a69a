"""The one maker of the measurements that benches build their programs from."""

from collections.abc import Mapping
from typing import Any

from harness.plan import Cell, Framework, Measurement, MeasurementSettings, Variant

NUMBERS = {"train": 1, "per_sample_gradients": 3, "inference": 5, "many_models": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 1, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "target_metric": 0.7},
    "per_sample_gradients": {"chunk_size": 32, "clip_norm": 1.0},
    "inference": {},
    "many_models": {"learning_rate": 0.01, "momentum": 0.9},
}
NOTHING: Mapping[str, Any] = {}


def make_measurement(
    framework: Framework,
    use_case: str,
    *,
    benchmark: str,
    model: str = "cnn",
    batch_size: int,
    execution_mode: str,
    options: Mapping[str, Any] = NOTHING,
    devices: int = 1,
    sizes: Mapping[str, Any] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> Measurement:
    """In fp32, on sample data. `settings`: instead of those that are made up."""
    number = NUMBERS[use_case] + (devices > 1)
    return Measurement(
        framework=framework,
        cell=Cell(gpu="any", benchmark=benchmark, use_case=number, use_case_name=use_case, devices=devices),
        variant=Variant(
            model=model, batch_size=batch_size, precision="fp32", execution_mode=execution_mode, options=dict(options)
        ),
        replicate=0,
        settings=SETTINGS[use_case] | dict(settings),
        sizes=dict(sizes),
        protocol=MeasurementSettings(),
        data="sample",
        quick=False,
    )
