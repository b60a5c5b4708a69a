"""What this machine can do, by one framework: `python -m harness.job.ceilings FRAMEWORK FILE` (main.py ceilings).

Takes the machine's turn as a job does, times matrix products and a triad with the project's clock, and leaves a record.
With a number of devices behind FILE it is their all-reduce that is timed, by a process for each: `... FILE 4`.
"""

import importlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import ProjectError, Refused
from harness.job.main import die_with_parent
from harness.job.slurm_step import free_port
from harness.job.turn import turn
from harness.measure import clock
from harness.measure.gpu import Gpus, open_gpus
from harness.measure.world import World
from harness.plan import FRAMEWORKS, Framework, Precision
from harness.printable import printable
from harness.results.ceilings import Ceiling, CeilingsRecord, Kind, write_ceilings
from harness.results.cpus import thread_variables
from harness.results.environment import code_digests, describe_environment, loaded_code
from harness.results.fake_gpu import found_fakes
from harness.results.record import Blocks

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
Shape = tuple[int, int, int]
SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192), (6144, 2816, 17920))
SHAPES_ON_CPU: tuple[Shape, ...] = ((1024, 1024, 1024),)
TRIAD_ELEMENTS, TRIAD_ELEMENTS_ON_CPU = 2**27, 2**24
"""512 MiB for each of three arrays, which is many times a GPU's second-level cache; 64 MiB on a CPU."""
ALL_REDUCE_BYTES, ALL_REDUCE_BYTES_ON_CPU = (2**16, 2**20, 2**24, 2**28), (2**16, 2**20, 2**23)
"""Of float32: from what latency bounds to what bandwidth does, with a model's gradients between."""
WARM_UP_S, MEASURED_S = 0.3, 1.0
"""Of each: with three shapes in three precisions some 13 s."""
BLOCK_S, MOST_BLOCKS = 0.05, 20

Say = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 1 where the framework or the machine cannot do it."""
    framework, file, *several = arguments
    say: Say = lambda text: print(f"{framework}: {printable(text)}", flush=True)  # noqa: E731
    try:
        if len(several) > 1:
            devices, rank, port = map(int, several)
            die_with_parent()
            world = World(size=devices, rank=rank, local_rank=rank, coordinator=f"127.0.0.1:{port}")
            record = all_reduce_measured(framework, world, say if rank == 0 else lambda _: None)
            if rank == 0:
                write_ceilings(record, Path(file))
            return 0
        with turn(tell=say, warn=say):
            if several:
                return in_ranks([framework, file], int(several[0]))
            write_ceilings(measured(next(one for one in FRAMEWORKS if one == framework), say), Path(file))
    except (ProjectError, ImportError) as error:
        say(f"no ceilings: {error}")
        return 1
    return 0


def in_ranks(words: Sequence[str], devices: int) -> int:
    """Exit status: 0, or 1 where a process failed; then the others, which wait for it, are ended."""
    environment = os.environ | thread_variables(devices)
    command = [sys.executable, "-m", "harness.job.ceilings", *words, str(devices)]
    port = str(free_port())
    with ExitStack() as stack:
        ranks = [subprocess.Popen([*command, str(rank), port], env=environment) for rank in range(devices)]
        for rank in ranks:
            stack.callback(rank.wait)
            stack.callback(rank.kill)
        while None in (ended := [rank.poll() for rank in ranks]) and not any(ended):
            time.sleep(0.1)
    return int(any(ended))


def all_reduce_measured(framework: str, world: World, say: Say) -> CeilingsRecord:
    """On every rank, which says the same. Raises ProjectError where a sum is wrong, or a device is not there."""
    started_at = _now()
    gpu, device, runner = _opened(framework, world.local_rank)
    device.join(world)
    device.set_up("fp32")
    summed, expected = runner.all_reduce(device, world, 4, float(world.rank + 1))(), world.size * (world.size + 1) / 2
    if (found := runner.on_host(summed).tolist()) != [expected] * 4:
        raise ProjectError(f"the sum of 1 to {world.size} over {world.size} devices is {found}, and not {expected:g}")
    ceilings = []
    for size in ALL_REDUCE_BYTES if device.on_gpu else ALL_REDUCE_BYTES_ON_CPU:
        step = runner.all_reduce(device, world, size // 4, 0.0)
        warm_up = clock.measure_cold(step, device.wait)
        calls = int(device.agree(math.ceil(BLOCK_S / min(warm_up))))
        times_s = [device.agree(clock.time_block(step, device.wait, calls)) for _ in range(MOST_BLOCKS)]
        blocks = Blocks(
            calls_per_block=calls,
            steps_per_call=1,
            samples_per_step=1,
            block_times_s=times_s,
            warmup_times_s=warm_up,
        )
        one = Ceiling(kind="all_reduce", precision="fp32", shape=(size // 4,), devices=world.size, blocks=blocks)
        ceilings.append(one)
        say(f"all-reduce over {world.size} devices, {size / 2**20:g} MiB: {one.per_s / 1e9:.3g} GB/s")
    record = _record(framework, started_at, device, gpu, ceilings, {})
    device.leave()
    return record


def measured(framework: Framework, say: Say) -> CeilingsRecord:
    """Raises ProjectError where the framework cannot use the GPU that is there; ImportError where it is missing."""
    started_at = _now()
    gpu, device, runner = _opened(framework, 0)
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
    return _record(framework, started_at, device, gpu, found, refused)


def _opened(framework: str, position: int) -> tuple[Gpus, Any, Any]:
    """The GPU at that position, the framework's device, and what it times there. Raises ProjectError, ImportError."""
    gpu = open_gpus(position, 1)
    device = importlib.import_module(f"{framework}_runner.device").Device()
    if fakes := found_fakes():
        raise ProjectError(f"this GPU is a fake ({'; '.join(fakes)})")
    return gpu, device, importlib.import_module(f"{framework}_runner.ceilings")


def _record(
    framework: str, started_at: str, device: Any, gpu: Any, found: list[Ceiling], refused: dict[str, str]
) -> CeilingsRecord:
    of_process = {"framework": device.describe(), "gpu": gpu.describe(), "code": loaded_code(code_digests(framework))}
    return CeilingsRecord(
        framework=next(one for one in FRAMEWORKS if one == framework),
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
