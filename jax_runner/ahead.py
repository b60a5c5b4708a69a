"""JAX's steps, compiled for a GPU that is not there: `python -m jax_runner.ahead`.

It needs JAX's plugin for CUDA, and no GPU. harness/measure/ahead.py has what comes in and goes out.

The programs are those that are timed, built in the same way by the same functions. Their arrays stay on the CPU; the
step is lowered for arrays of the same shapes on the absent device. XLA is told what the device can do
(harness/work/cards.py), and has none on which it could try anything: kernels that a GPU would choose by trying them are
XLA's first choice here, and autotuned modes are their plain ones.
"""

import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from harness.errors import ConfigError
from harness.measure.ahead import Request, Tell, facts_or_reason, serve, session_of
from harness.measure.process import builder
from harness.plan import Measurement
from harness.results.program_facts import ProgramFacts, digest_of
from harness.work.cards import Card, card
from jax_runner.compiler import dump_options, dumped_metadata, dumped_thunks, step_peak_bytes
from jax_runner.device import Device, has_cuda_plugin
from jax_runner.executable import Executable, module_of, thunks_of

NO_PLUGIN = (
    "JAX has no plugin for CUDA here, which alone compiles for NVIDIA GPUs. `make gpu-compile` makes an environment "
    "that has it, .venv-gpu-compile, and needs no GPU"
)


# The absent device


class AbsentGpu(Device):
    """A card that programs are compiled for. Their arrays are on the CPU, where nothing is run but what makes them."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    @property
    def on_gpu(self) -> bool:
        return True

    @cached_property
    def device(self) -> jax.Device:
        return jax.local_devices(backend="cpu")[0]

    @property
    def capability(self) -> float:
        return self.card.sm / 10

    @property
    def kind(self) -> str:
        return self.card.device_name

    def set_up(self, precision: str) -> None:
        self._choose(precision)

    def for_target(self, step: Any) -> "ForTarget":
        return ForTarget(step, self.target)

    @cached_property
    def target(self) -> jax.Device:
        topology = topologies.get_topology_desc(
            platform="cuda", topology="1x1x1", target_config=target_config(self.card)
        )
        return topology.devices[0]


class ForTarget:
    """A jitted step that lowers for another device than its arguments are on."""

    def __init__(self, step: Any, target: jax.Device) -> None:
        self.step = step
        self.sharding = jax.sharding.SingleDeviceSharding(target)

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        return self.step.lower(*jax.tree.map(self._there, arguments))

    def _there(self, leaf: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=self.sharding, weak_type=jax.typeof(leaf).weak_type
        )


def target_config(card: Card) -> str:
    """A GpuTargetConfigProto (xla/stream_executor/device_description.proto) in protobuf's text format. What all GPUs
    here have in common is from the CUDA C++ Programming Guide; the versions are of CUDA 13's libraries. XLA captures a
    fused slice only from CUDA 12.9 on, and reads that from these (command_buffer_conversion_pass.cc)."""
    generation, (major, minor) = card.generation, card.capability
    return f"""\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {generation.shared_bytes_per_multiprocessor}
  threads_per_core_limit: {generation.threads_per_multiprocessor}
  core_count: {card.multiprocessors}
  fpus_per_core: {generation.float32_lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {card.memory_bytes_per_s:.0f}
  l2_cache_size: {card.l2_bytes}
  clock_rate_ghz: {card.clock_hz / 1e9:g}
  device_memory_size: {card.memory_bytes}
  shared_memory_per_block_optin: {generation.shared_bytes_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{card.device_name}"
"""


# A program


@dataclass(frozen=True, kw_only=True)
class Compiled:
    executable: Executable
    peak_bytes: int | None
    donated_bytes: int
    """Of arguments that the step may overwrite."""
    aliased_bytes: int
    """Of these, what XLA writes results into."""
    compile_s: float


def compiled(step: jax.stages.Lowered) -> Compiled:
    """By XLA, for the device that it was lowered for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.monotonic()
        executable = step.compile(compiler_options=dump_options(folder))
        compile_s = time.monotonic() - start
        thunks = thunks_of(dumped_thunks(folder) or "", dumped_metadata(folder))
    analysis = executable.memory_analysis()
    donated = (one for one in jax.tree.leaves(step.args_info) if one.donated)
    return Compiled(
        executable=Executable(module=module_of(executable.as_text() or ""), thunks=thunks),
        peak_bytes=step_peak_bytes(executable),
        donated_bytes=sum(prod(one.shape) * one.dtype.itemsize for one in donated),
        aliased_bytes=analysis.alias_size_in_bytes if analysis else 0,
        compile_s=compile_s,
    )


def lowered(measurement: Measurement, device: AbsentGpu) -> jax.stages.Lowered:
    """The step that is timed, as the job would build it. Raises what keeps it from being built."""
    program: Any = builder(measurement)(session_of(measurement, device))
    program.settle()
    step: jax.stages.Lowered = program.lowered()
    return step


def facts_of(measurement: Measurement, device: AbsentGpu, *, lower_only: bool = False) -> ProgramFacts:
    """Raises nothing: what goes wrong is a fact."""

    def find() -> dict[str, Any]:
        step = lowered(measurement, device)
        return {"notes": (LOWERED_ONLY,)} if lower_only else described(compiled(step))

    found = facts_or_reason(measurement, device.card, device, find)
    device.forget_programs()
    return found


def described(made: Compiled) -> dict[str, Any]:
    """Fields of ProgramFacts."""
    executable = made.executable
    notes = [f"the kernel {name} is of no known class" for name in executable.unknown_kernels]
    if executable.unknown_loops:
        notes.append("a loop of unknown length counts as one round")
    if any(thunk.kind == "kConditional" for thunk in executable.all_thunks()):
        notes.append("of a conditional all branches are counted")
    return {
        "kernels": sum(one.times for one in executable.kernels),
        "classes": executable.classes,
        "library_calls": executable.library_calls,
        "layout_bytes": executable.layout_bytes,
        "graphs": executable.graphs,
        "outside_of_graphs": executable.outside_of_graphs,
        "products": executable.products,
        "peak_bytes": made.peak_bytes,
        "compile_s": round(made.compile_s, 2),
        "program": digest_of(executable.operations()),
        "notes": tuple(notes),
    }


LOWERED_ONLY = "built and lowered, not compiled"


# The process


def answer(asked: Request, tell: Tell) -> int:
    """Raises ConfigError where nothing can be compiled here."""
    if not has_cuda_plugin():
        raise ConfigError(NO_PLUGIN)
    device = AbsentGpu(card(asked.card))
    for measurement in asked.measurements:
        tell(facts_of(measurement, device, lower_only=asked.lower_only).model_dump_json())
    return 0


def main() -> int:
    jax.config.update("jax_platforms", "cpu")  # where arrays are; the plugin only compiles
    return serve(answer)


if __name__ == "__main__":
    sys.exit(main())
