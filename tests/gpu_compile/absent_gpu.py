"""JAX's steps, compiled by XLA for a GPU that is absent. This needs JAX's CUDA plugin, and no GPU.

The programs are those that are timed, built by the same functions. Their arrays stay on the CPU; the step is lowered
for arrays of the same shapes on the absent device. XLA is told what that device can do (tests/made/gpu_specs.py). It
has none on which it could try kernels, so that it takes its first choice, and autotuned modes are their plain ones.
"""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from harness.errors import Refused
from harness.measure.process import builder, make_session, require_whole_batch
from harness.plan import Measurement
from jax_runner.compiler import dump_options, dumped_metadata, dumped_thunks, step_peak_bytes
from jax_runner.device import Device
from jax_runner.executable import module_of, thunks_of
from tests.gpu_compile.counted_executable import CountedExecutable
from tests.made.gpu_specs import GpuSpec

# The absent device


class AbsentGpu(Device):
    """The GPU for which programs are compiled. Their arrays are on the CPU, which runs only what makes them."""

    def __init__(self, spec: GpuSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def on_gpu(self) -> bool:
        return True

    @cached_property
    def device(self) -> jax.Device:
        return jax.local_devices(backend="cpu")[0]

    @property
    def capability(self) -> float:
        return self.spec.sm / 10

    @property
    def kind(self) -> str:
        return self.spec.device_name

    def set_up(self, precision: str) -> None:
        self._choose(precision)

    def for_target(self, step: Any) -> "ForTarget":
        return ForTarget(step, self.target)

    @cached_property
    def target(self) -> jax.Device:
        topology = topologies.get_topology_desc(
            platform="cuda", topology="1x1x1", target_config=target_config(self.spec)
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


def target_config(spec: GpuSpec) -> str:
    """A GpuTargetConfigProto (xla/stream_executor/device_description.proto) in protobuf's text format. What all GPUs
    here have in common is from the CUDA C++ Programming Guide; the versions are of CUDA 13's libraries. XLA captures a
    fused slice only from CUDA 12.9 on, and reads that from these (command_buffer_conversion_pass.cc)."""
    generation, (major, minor) = spec.generation, spec.capability
    return f"""\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {generation.shared_bytes_per_multiprocessor}
  threads_per_core_limit: {generation.threads_per_multiprocessor}
  core_count: {spec.multiprocessors}
  fpus_per_core: {generation.float32_lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {spec.memory_bytes_per_s:.0f}
  l2_cache_size: {spec.l2_bytes}
  clock_rate_ghz: {spec.clock_hz / 1e9:g}
  device_memory_size: {spec.memory_bytes}
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
device_description_str: "{spec.device_name}"
"""


# A program


@dataclass(frozen=True, kw_only=True)
class Compiled:
    executable: CountedExecutable
    peak_bytes: int | None
    donated_bytes: int
    """Size of the arguments that the step may overwrite."""
    aliased_bytes: int
    """Part of `donated_bytes` into which XLA writes results."""


def compiled(step: jax.stages.Lowered) -> Compiled:
    """Compile a step for the device for which it was lowered."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        executable = step.compile(compiler_options=dump_options(folder))
        thunks = thunks_of(dumped_thunks(folder) or "", dumped_metadata(folder))
    analysis = executable.memory_analysis()
    donated = (argument for argument in jax.tree.leaves(step.args_info) if argument.donated)
    return Compiled(
        executable=CountedExecutable(module=module_of(executable.as_text() or ""), thunks=thunks),
        peak_bytes=step_peak_bytes(executable),
        donated_bytes=sum(prod(argument.shape) * argument.dtype.itemsize for argument in donated),
        aliased_bytes=analysis.alias_size_in_bytes if analysis else 0,
    )


def lowered(measurement: Measurement, device: AbsentGpu) -> jax.stages.Lowered:
    """Return the timed step as the job would build it. Raises whatever keeps it from being built."""
    if measurement.cell.devices > 1:
        raise Refused(f"{measurement.cell.short_name} takes several GPUs, and steps are compiled here for one")
    device.set_up(measurement.variant.precision)
    session = make_session(measurement, device)
    require_whole_batch(session)
    program: Any = builder(measurement)(session)
    program.settle()
    program.compute = device.for_target(program.compute)
    step: jax.stages.Lowered = program.lowered()
    return step
