"""Sessions as a use case gets them: the real device and data, without a parent process and without a clock."""

import importlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from harness.measure import process
from harness.measure.channel import Channel
from harness.measure.gpu import NoGpu
from harness.measure.program import Program, Session
from harness.measure.protocol import Measuring
from harness.measure.world import ALONE, World
from harness.plan import Cell, Framework, Frozen, Measurement, MeasurementSettings, Precision, Variant
from harness.results.record import Result
from harness.work.applies import why_not
from harness.work.declared import Layer, Model
from harness.work.declared import benchmark as declared_benchmark
from harness.work.declared import use_case as declared_use_case
from harness.work.weights import WeightOf

NUMBERS = {"train": 1, "per_sample_gradients": 3, "inference": 5, "many_models": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 1, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "target_metric": 0.5},
    "per_sample_gradients": {"chunk_size": 8, "clip_norm": 1.0},
    "many_models": {"learning_rate": 0.1, "momentum": 0.9},
}
SMALL_SIZES = {
    "in_features": 6,
    "hidden_features": 7,
    "out_features": 5,
    "channels": 2,
    "image_size": 5,
    "hidden_channels": 4,
    "classes": 3,
}
"""Of `synthetic`."""
SMALLER: dict[str, dict[str, Any]] = {
    "synthetic": SMALL_SIZES,
    "imagenet100": {"image_size": 64},
    "fineweb": {"layers": 1, "width": 64, "positions": 64},  # 3 million parameters for 124
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


def make_measurement(
    framework: Framework,
    use_case: str,
    *,
    benchmark: str = "mnist",
    model: str = "cnn",
    batch_size: int = 8,
    precision: Precision = "fp32",
    execution_mode: str = "",
    options: Mapping[str, Any] | None = None,
    protocol: MeasurementSettings = PROTOCOL,
    sizes: dict[str, Any] | None = None,
    **settings: Any,
) -> Measurement:
    """What is not given, of any declared use case, is made up."""
    declared = declared_use_case(use_case)
    all_options = made_up(declared.options) | dict(options or {})
    return Measurement(
        framework=framework,
        cell=Cell(gpu="any", benchmark=benchmark, use_case=NUMBERS.get(use_case, 1), use_case_name=use_case),
        variant=Variant(
            model=model,
            batch_size=batch_size,
            precision=precision,
            execution_mode=execution_mode or plain_mode(framework, use_case, all_options),
            options=all_options,
        ),
        replicate=0,
        settings=made_up(declared.settings) | SETTINGS.get(use_case, {}) | settings,
        sizes=sizes or SMALLER.get(benchmark, {}),
        protocol=protocol,
        data="sample",
        quick=True,
    )


def make_session(
    framework: Framework, use_case: str, *, device: Any = None, world: World = ALONE, **of_measurement: Any
) -> Session[Any]:
    """`precision="fp64"`: both frameworks compute in double precision, so only a mistake can make a difference. JAX
    knows one such switch for a whole process: a program is of use until a session of another precision is made."""
    measurement = make_measurement(framework, use_case, **of_measurement)
    device = device or importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up(measurement.variant.precision)
    return process.make_session(measurement, device, Path("nowhere"), world)


def plain_mode(framework: Framework, use_case: str, options: dict[str, Any] | None = None) -> str:
    """The first declared execution mode that goes with these options."""
    declared = declared_use_case(use_case)
    all_options = made_up(declared.options) | (options or {})
    has_batch_norm = all_options.get("batch_norm") == "kept"
    model = Model(name="plain", layers=frozenset({Layer.BATCH_NORM} if has_batch_norm else {}))
    return next(
        mode.name
        for mode in declared.modes[framework]
        if why_not(declared, declared_benchmark("mnist"), model, mode, "fp32", all_options, 1) is None
    )


def build(session: Session[Any], *, joined: bool = True) -> Program:
    """By the runner's own function."""
    return process.builder(session.measurement)(session, joined=joined)


def with_measurement(session: Session[Any], **changes: Any) -> Session[Any]:
    return replace(session, measurement=session.measurement.model_copy(update=changes))


def with_variant(session: Session[Any], **changes: Any) -> Session[Any]:
    return with_measurement(session, variant=session.measurement.variant.model_copy(update=changes))


def with_pretrained(session: Session[Any], weight_of: WeightOf | None) -> Session[Any]:
    """Its settings ask for pretrained weights, which are these; of no model of the small benchmarks there are any."""
    settings = session.measurement.settings | {"weights": "pretrained"}
    return replace(with_measurement(session, settings=settings), pretrained=weight_of)


def with_first(session: Session[Any], train: int | None = None, test: int | None = None) -> Session[Any]:
    """With as many samples at most; all where no number is given."""
    data = session.dataset
    parts = {"train": (data.train, train), "test": (data.test, test)}
    few = {part: {name: array[:count] for name, array in arrays.items()} for part, (arrays, count) in parts.items()}
    return replace(session, dataset=replace(data, **few))


def with_small_images(session: Session[Any]) -> Session[Any]:
    """CIFAR-10's in float64 at a quarter of their height and width: JAX has no fast convolution of these on a CPU."""
    if session.benchmark.name != "cifar10" or session.measurement.variant.precision != "fp64":
        return session
    parts = {"train": session.dataset.train, "test": session.dataset.test}
    small = {part: {**arrays, "images": arrays["images"][:, ::4, ::4]} for part, arrays in parts.items()}
    return replace(session, dataset=replace(session.dataset, **small))


def measure(session: Session[Any]) -> Result:
    """All that is measured of a variant, with nobody listening."""
    channel = Channel(os.open(os.devnull, os.O_WRONLY))
    return Measuring(session, gpu=NoGpu("not asked"), channel=channel).everything(process.builder(session.measurement))


def made_up(fields: type[Frozen]) -> dict[str, Any]:
    """The first of the values that a field may take; 3 and 0.1 for numbers. What may be left out is."""
    numbers = {int: 3, float: 0.1}
    types = {name: field.annotation for name, field in fields.model_fields.items() if field.is_required()}
    return {name: numbers[kind] if kind in numbers else get_args(kind)[0] for name, kind in types.items()}
