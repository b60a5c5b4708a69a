"""Measure the peaks of a device by one framework: large matrix products in each precision and a triad, timed by the
project's clock. A job has this done once for each device, in a process of its own (harness/job/arm.py)."""

import importlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from harness.errors import Refused
from harness.measure import clock
from harness.measure.channel import Channel
from harness.measure.gpu import Gpus
from harness.measure.program import Device
from harness.plan import Framework, Precision
from harness.results.device_peaks import DevicePeaksRecord, Kind, Peak
from harness.results.environment import describe_environment

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
Shape = tuple[int, int, int]
SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192), (6144, 2816, 17920))
SHAPES_ON_CPU: tuple[Shape, ...] = ((1024, 1024, 1024),)
TRIAD_ELEMENTS, TRIAD_ELEMENTS_ON_CPU = 2**27, 2**24
"""512 MiB for each of three arrays, which is many times a GPU's second-level cache; 64 MiB on a CPU."""
WARM_UP_S, MEASURED_S = 0.3, 1.0
"""Durations for each shape and precision: three shapes in four precisions and the triad take 17 s."""
BLOCK_S, MOST_BLOCKS = 0.05, 20


def measure_device_peaks(
    framework: Framework, device: Device, gpu: Gpus, environment: Mapping[str, Any], channel: Channel
) -> DevicePeaksRecord:
    """Return the peaks of the device.

    Args:
        environment: description of the framework, the GPU and the code, to be added to that of the machine.
    """
    started_at = _now()
    runner = importlib.import_module(f"{framework}_runner.device_peaks")
    on_cpu = environment["framework"]["platform"] == "cpu"
    shapes = SHAPES_ON_CPU if on_cpu else SHAPES
    elements = TRIAD_ELEMENTS_ON_CPU if on_cpu else TRIAD_ELEMENTS
    peaks: list[Peak] = []
    unsupported: dict[str, str] = {}

    def add(kind: Kind, precision: Precision, shape: tuple[int, ...], step: clock.Step) -> None:
        channel.progress("device peaks", len(peaks), len(PRECISIONS) * len(shapes) + 1)
        for seconds in (WARM_UP_S, MEASURED_S):
            blocks = clock.measure_short(
                step,
                device.wait,
                block_min_s=BLOCK_S,
                count=MOST_BLOCKS,
                max_time_s=seconds,
                steps_per_call=1,
                samples=1,
            )
        peaks.append(Peak(kind=kind, precision=precision, shape=shape, blocks=blocks, gpu_state=gpu.state() or {}))

    for precision in PRECISIONS:
        try:
            device.set_up(precision)
        except Refused as error:
            unsupported[precision] = str(error)
            continue
        for shape in shapes:
            add("product", precision, shape, runner.matrix_product(device, precision, shape))
    device.set_up("fp32")
    add("triad", "fp32", (elements,), runner.triad(device, elements))
    return DevicePeaksRecord(
        framework=framework,
        started_at=started_at,
        ended_at=_now(),
        environment=describe_environment() | dict(environment),
        peaks=peaks,
        unsupported=unsupported,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
