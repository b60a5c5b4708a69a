"""Inference of ImageNet-100's models: BatchNorm folded against kept, JAX's depthwise convolutions as sums of products
against grouped ones, and JAX against PyTorch.

    python -m bench.inference MODEL BATCH_SIZE [IMAGE_SIZE]

Each side's plainest compiled or eager mode, fp32, inputs on the device. All take turns in one process; a ratio is the
median over rounds of the other's time over ours: above 1, the first named is faster.
"""

import sys
from functools import partial

from bench.measurement import make_measurement
from bench.turns import Timed, rounds_in_turn, with_interval
from harness.measure.clock import time_block
from harness.measure.process import builder, make_session
from harness.plan import Framework
from harness.work.declared import Layer, benchmark
from jax_runner.device import Device as JaxDevice
from torch_runner.device import Device as TorchDevice

CALLS = 3
"""Back to back for one time."""
ROUNDS = 15
MAX_TIME_S = 40.0
"""Of one comparison."""


def main(model: str, batch_size: int, image_size: int = 224) -> int:
    devices = {"jax": JaxDevice(), "torch": TorchDevice()}
    for device in devices.values():
        device.set_up("fp32")

    def timed(framework: Framework, mode: str, batch_norm: str = "folded") -> Timed:
        """Checked against float64 first."""
        measurement = make_measurement(
            framework,
            "inference",
            benchmark="imagenet100",
            model=model,
            batch_size=batch_size,
            execution_mode=mode,
            options={"batch_norm": batch_norm, "inputs": "on_device"},
            sizes={"image_size": image_size},
        )
        program = builder(measurement)(make_session(measurement, devices[framework]))
        program.check()
        block = partial(time_block, program.step, devices[framework].wait, CALLS)
        block()
        return block

    declared = benchmark("imagenet100").model(model)
    has_depthwise = Layer.DEPTHWISE in declared.layers
    jax_mode = "taps.jit" if has_depthwise else "forward.jit"
    ours = {"JAX": timed("jax", jax_mode), "PyTorch": timed("torch", "forward.eager")}
    pairs = [("JAX", ours["JAX"], "PyTorch", ours["PyTorch"])]
    if declared.batch_norm:
        pairs += [
            (f"{name}, folded", ours[name], "kept", timed(framework, mode, "kept"))
            for name, framework, mode in (("JAX", "jax", jax_mode), ("PyTorch", "torch", "forward.eager"))
        ]
    if has_depthwise:
        pairs.append(("JAX, taps", ours["JAX"], "grouped convolutions", timed("jax", "forward.jit")))
    for name, first, other, second in pairs:
        rounds = rounds_in_turn(first, second, rounds=ROUNDS, max_time_s=MAX_TIME_S)
        ratios = [others_s / firsts_s for firsts_s, others_s in rounds]
        print(
            f"inference of {model}, batch {batch_size}, {image_size} pixels: {name} is {with_interval(ratios)} times "
            f"as fast as {other}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
