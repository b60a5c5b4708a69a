"""Ghost norms against per-sample gradients that are made and dropped: the project's own, and those of its peers.

    python -m bench.ghost torch|jax mnist|cifar10 BATCH_SIZE norms|clipped_sum [CONTENDER]...

Same weights, same batch, same outputs (compared first). All take turns in one process; a ratio is the median over
rounds of the other's time over that of the best ghost mode: above 1, ghost is faster. The memory of each is what one
call adds to its process's own, in a process of its own; of JAX, XLA's account of the program.
"""

import copy
import ctypes
import gc
import importlib
import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bench.measurement import SETTINGS, make_measurement
from bench.turns import with_interval
from harness.measure.clock import time_call
from harness.measure.process import builder, make_session
from harness.plan import Framework
from harness.results.statistics import median

Step = Callable[[], Any]

OURS: dict[Framework, tuple[str, ...]] = {"torch": ("ghost.eager", "ghost.compiled"), "jax": ("ghost.jit",)}
MATERIALISING: dict[Framework, tuple[str, ...]] = {
    "torch": ("vmap.compiled", "outer_product.compiled"),
    "jax": ("outer_product.jit",),
}
PEERS: dict[Framework, tuple[str, ...]] = {
    "torch": ("opacus_hooks", "opacus_fast_clipping", "vmap.eager"),
    "jax": ("jax_privacy", "vmap.jit"),
}
"""The last of each is what its framework's own documentation shows. Without jax_privacy installed it is left out."""
MIN_ROUNDS = 9
MIN_TIME_S = 6.0
GOAL = 1.2
AGREEMENT = 2e-3
"""Relative L2; Opacus adds 1e-6 to the norm that it divides by."""
CLIP_NORM: float = SETTINGS["per_sample_gradients"]["clip_norm"]


class Bench:
    """Makes contenders for one cell."""

    def __init__(self, framework: Framework, benchmark: str, batch_size: int, output: str) -> None:
        self.framework, self.benchmark, self.batch_size, self.output = framework, benchmark, batch_size, output
        self.device = importlib.import_module(f"{framework}_runner.device").Device()
        self.device.set_up("fp32")

    def program(self, mode: str) -> Any:
        measurement = make_measurement(
            self.framework,
            "per_sample_gradients",
            benchmark=self.benchmark,
            batch_size=self.batch_size,
            execution_mode=mode,
            options={"output": self.output},
        )
        program = builder(measurement)(make_session(measurement, self.device))
        program.settle()
        return program

    def step(self, name: str) -> Step:
        peers: dict[str, Callable[[], Step]] = {
            "opacus_hooks": self.opacus_hooks,
            "opacus_fast_clipping": self.opacus_fast_clipping,
            "jax_privacy": self.jax_privacy,
        }
        return peers[name]() if name in peers else self.program(name).step

    def opacus_hooks(self) -> Step:
        """Hooks that make every sample's gradients; the output from these."""
        from opacus import GradSampleModule

        from torch_runner.use_cases.per_sample_gradients import reduce_gradients

        program = self.program("loop.eager")
        module = GradSampleModule(copy.deepcopy(program.problem.model), loss_reduction="sum")
        inputs, targets = program.batch

        def compute() -> Any:
            module.zero_grad(set_to_none=True)
            for parameter in module.parameters():
                parameter.grad_sample = None
            program.problem.task.losses(module(inputs), targets).sum().backward()
            gradients = {name.removeprefix("_module."): p.grad_sample for name, p in module.named_parameters()}
            return reduce_gradients(gradients, self.output, CLIP_NORM)

        return compute

    def opacus_fast_clipping(self) -> Step:
        """Two backward passes: one for the norms, one of the losses times their clip factors; dense layers by ghost
        norms (opacus/utils/fast_gradient_clipping_utils.py)."""
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        program = self.program("loop.eager")
        module = GradSampleModuleFastGradientClipping(
            copy.deepcopy(program.problem.model), loss_reduction="sum", max_grad_norm=CLIP_NORM
        )
        inputs, targets = program.batch

        def compute() -> Any:
            module.zero_grad(set_to_none=True)
            losses = program.problem.task.losses(module(inputs), targets)
            losses.sum().backward(retain_graph=self.output != "norms")
            if self.output == "norms":
                return {"norms": module.get_norm_sample()}
            module.zero_grad(set_to_none=True)
            factors = module.get_clipping_coef()
            module.disable_hooks()
            (factors * losses).sum().backward()
            module.enable_hooks()
            return {name.removeprefix("_module."): p.grad for name, p in module.named_parameters()}

        return compute

    def jax_privacy(self) -> Step:
        """Google's library for private training: vmap, clip, add up; norms are what it returns besides."""
        compute, arguments = self.jax_privacy_program()
        return lambda: compute(*arguments)

    def jax_privacy_program(self) -> tuple[Any, tuple[Any, ...]]:
        import jax
        from jax_privacy import clipping

        program = self.program("vmap.jit")
        clipped = clipping.clipped_grad(
            program.problem.batch_loss,
            l2_clip_norm=CLIP_NORM,
            batch_argnums=(1, 2),
            return_grad_norms=self.output == "norms",
        )

        def compute(params: Any, inputs: Any, targets: Any) -> Any:
            found = clipped(params, inputs, targets)
            return {"norms": found[1].grad_norms} if self.output == "norms" else found

        return jax.jit(compute), (program.problem.params, *program.batch)

    def numbers(self, outputs: Any) -> np.ndarray:
        """All in one, in an order that all contenders share."""
        if self.framework == "torch":
            return np.concatenate([outputs[name].detach().numpy().ravel() for name in sorted(outputs)])
        import jax

        outputs = outputs[1] if isinstance(outputs, tuple) else outputs  # ours come with a counter
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(outputs)])

    def memory(self, name: str) -> float:
        """MB that one call takes."""
        if self.framework == "jax":
            if name == "jax_privacy":
                compute, arguments = self.jax_privacy_program()
            else:
                program = self.program(name)
                compute, arguments = program.compute, (program.count, program.params, *program.batch)
            account = compute.lower(*arguments).compile().memory_analysis()
            return (account.temp_size_in_bytes + account.output_size_in_bytes) / 1e6
        step = self.step(name)
        if name.endswith("compiled"):
            step()  # compiles; then give back what that took
            step()
            gc.collect()
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        before = of_this_process("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here: man 5 proc
        for _ in range(3):
            step()
        return (of_this_process("VmHWM") - before) / 1e6


def of_this_process(name: str) -> int:
    """Bytes, as Linux counts them: VmRSS, or its peak, VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def contenders_of(framework: Framework) -> tuple[str, ...]:
    names = OURS[framework] + MATERIALISING[framework] + PEERS[framework]
    missing = importlib.util.find_spec("jax_privacy") is None
    return tuple(name for name in names if not (missing and name == "jax_privacy"))


def seconds_in_turn(steps: Mapping[str, Step], wait: Callable[[Any], None]) -> dict[str, list[float]]:
    """Of each round; every second one runs backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    start = perf_counter()
    for number in count():
        if number >= MIN_ROUNDS and perf_counter() - start > MIN_TIME_S:
            return seconds
        for name in list(steps)[:: -1 if number % 2 else 1]:
            seconds[name].append(time_call(steps[name], wait))
    raise AssertionError("there is always a last round")


def memory_of(cell: list[str], name: str) -> float:
    """In a process of its own."""
    command = [sys.executable, "-m", "bench.ghost", *cell, "--memory", name]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(answer.splitlines()[-1])


def main(framework: Framework, benchmark: str, batch_size: str, output: str, *chosen: str) -> int:
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # the images need no gradient
    bench = Bench(framework, benchmark, int(batch_size), output)
    if chosen and chosen[0] == "--memory":
        print(bench.memory(chosen[1]))
        return 0
    cell = [framework, benchmark, batch_size, output]
    names = chosen or contenders_of(framework)
    steps = {name: bench.step(name) for name in names}
    expected = bench.numbers(steps[names[-1]]())
    for name, step in steps.items():
        step()  # compiled and warm
        difference = np.linalg.norm(bench.numbers(step()) - expected) / np.linalg.norm(expected)
        if difference > AGREEMENT:
            print(f"{' '.join(cell)}: {name} differs from {names[-1]} by {difference:.1e}", file=sys.stderr)
            return 1
    seconds = seconds_in_turn(steps, bench.device.wait)
    del steps
    of_each = {name: median(seconds[name]) for name in names}
    best = {
        kind: min((name for name in names if name in kinds[framework]), key=of_each.__getitem__, default=None)
        for kind, kinds in (("ours", OURS), ("materialising", MATERIALISING), ("peer", PEERS))
    }
    ours = best["ours"]
    assert ours is not None
    megabytes = {name: memory_of(cell, name) for name in names}
    print(f"{output}, {framework}, {benchmark}, batch {batch_size}: {ours}, {of_each[ours] * 1e3:.1f} ms", flush=True)
    for kind, name in best.items():
        if name is not None and kind != "ours":
            ratios = [other / own for other, own in zip(seconds[name], seconds[ours], strict=True)]
            goal = f"; goal {GOAL}" if kind == "peer" else ""
            print(f"    is {with_interval(ratios)} times as fast as the best {kind}, {name}{goal}", flush=True)
    for name in names:
        print(f"    {name:24}{of_each[name] * 1e3:9.1f} ms{megabytes[name]:9.0f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
