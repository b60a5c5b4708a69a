"""What this machine can do, by one framework: `python -m harness.job.ceilings FRAMEWORK FILE` (main.py ceilings).

Takes the machine's turn as a job does, times matrix products and a triad with the project's clock, and leaves a record.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import ProjectError, Refused
from harness.job.turn import turn
from harness.measure import clock
from harness.measure.gpu import open_gpus
from harness.plan import FRAMEWORKS, Framework, Precision
from harness.printable import printable
from harness.results.ceilings import Ceiling, CeilingsRecord, Kind, write_ceilings
from harness.results.environment import code_digests, describe_environment, loaded_code
from harness.results.fake_gpu import found_fakes

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
Shape = tuple[int, int, int]
SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192), (6144, 2816, 17920))
SHAPES_ON_CPU: tuple[Shape, ...] = ((1024, 1024, 1024),)
TRIAD_ELEMENTS, TRIAD_ELEMENTS_ON_CPU = 2**27, 2**24
"""512 MiB for each of three arrays, which is many times a GPU's second-level cache; 64 MiB on a CPU."""
WARM_UP_S, MEASURED_S = 0.3, 1.0
"""Of each: with three shapes in three precisions some 13 s."""
BLOCK_S, MOST_BLOCKS = 0.05, 20

Say = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 1 where the framework or the machine cannot do it."""
    framework, file = arguments
    say: Say = lambda text: print(f"{framework}: {printable(text)}", flush=True)  # noqa: E731
    try:
        with turn(tell=say, warn=say):
            write_ceilings(measured(next(one for one in FRAMEWORKS if one == framework), say), Path(file))
    except (ProjectError, ImportError) as error:
        say(f"no ceilings: {error}")
        return 1
    return 0


def measured(framework: Framework, say: Say) -> CeilingsRecord:
    """Raises ProjectError where the framework cannot use the GPU that is there; ImportError where it is missing."""
    started_at = _now()
    gpu = open_gpus(0, 1)
    device: Any = importlib.import_module(f"{framework}_runner.device").Device()
    if fakes := found_fakes():
        raise ProjectError(f"this GPU is a fake ({'; '.join(fakes)})")
    runner: Any = importlib.import_module(f"{framework}_runner.ceilings")
    found: list[Ceiling] = []
    refused: dict[str, str] = {}

    def add(kind: Kind, precision: Precision, shape: tuple[int, ...], step: clock.Step) -> None:
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
        found.append(Ceiling(kind=kind, precision=precision, shape=shape, blocks=blocks, gpu_state=gpu.state() or {}))
        unit = "TFLOP/s" if kind == "product" else "TB/s"
        say(f"{precision} {kind} {' x '.join(map(str, shape))}: {found[-1].per_s / 1e12:.3g} {unit}")

    for precision in PRECISIONS:
        try:
            device.set_up(precision)
        except Refused as error:
            refused[precision] = str(error)
            say(str(error))
            continue
        for shape in SHAPES if device.on_gpu else SHAPES_ON_CPU:
            add("product", precision, shape, runner.matrix_product(device, precision, shape))
    device.set_up("fp32")
    elements = TRIAD_ELEMENTS if device.on_gpu else TRIAD_ELEMENTS_ON_CPU
    add("triad", "fp32", (elements,), runner.triad(device, elements))
    of_process = {"framework": device.describe(), "gpu": gpu.describe(), "code": loaded_code(code_digests(framework))}
    return CeilingsRecord(
        framework=framework,
        started_at=started_at,
        ended_at=_now(),
        environment=describe_environment() | of_process,
        ceilings=found,
        refused=refused,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
