"""GPUs by the names of experiments.yaml: what a compiler, or the fake CUDA, must know of an absent one.

Sizes are those that CUDA gives; rates and clocks are the makers' and only steer cost models. Nothing here is measured.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What all GPUs of one compute capability share. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""

    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    """At most, for a kernel that asks for it (cudaDevAttrMaxSharedMemoryPerBlockOptin)."""
    threads_per_multiprocessor: int
    float32_lanes: int
    """Of one multiprocessor."""


GENERATIONS = {
    (7, 5): Generation(
        shared_bytes_per_multiprocessor=65_536,
        shared_bytes_per_block=65_536,
        threads_per_multiprocessor=1_024,
        float32_lanes=64,
    ),
    (8, 0): Generation(
        shared_bytes_per_multiprocessor=167_936,
        shared_bytes_per_block=166_912,
        threads_per_multiprocessor=2_048,
        float32_lanes=64,
    ),
    (8, 6): Generation(
        shared_bytes_per_multiprocessor=102_400,
        shared_bytes_per_block=101_376,
        threads_per_multiprocessor=1_536,
        float32_lanes=128,
    ),
    (9, 0): Generation(
        shared_bytes_per_multiprocessor=233_472,
        shared_bytes_per_block=232_448,
        threads_per_multiprocessor=2_048,
        float32_lanes=128,
    ),
}
GENERATIONS[10, 0] = GENERATIONS[9, 0]


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One kind of GPU."""

    name: str
    """As experiments.yaml calls it."""
    device_name: str
    """As CUDA and NVML call it."""
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    """As CUDA gives it (cudaDeviceProp::totalGlobalMem)."""
    memory_bytes_per_s: float
    l2_bytes: int
    clock_hz: float
    power_limit_watts: float

    @property
    def generation(self) -> Generation:
        return GENERATIONS[self.capability]

    @property
    def sm(self) -> int:
        """75, 80, ...: as compilers call the capability."""
        return 10 * self.capability[0] + self.capability[1]


MIB = 1 << 20
GPU_SPECS = {
    spec.name: spec
    for spec in (
        GpuSpec(
            name="rtx2080ti",
            device_name="NVIDIA GeForce RTX 2080 Ti",
            capability=(7, 5),
            multiprocessors=68,
            memory_bytes=11_538_923_520,
            memory_bytes_per_s=616e9,
            l2_bytes=11 * MIB // 2,
            clock_hz=1.545e9,
            power_limit_watts=250,
        ),
        GpuSpec(
            name="rtx3080",
            device_name="NVIDIA GeForce RTX 3080",
            capability=(8, 6),
            multiprocessors=68,
            memory_bytes=10_502_340_608,
            memory_bytes_per_s=760.3e9,
            l2_bytes=5 * MIB,
            clock_hz=1.71e9,
            power_limit_watts=320,
        ),
        GpuSpec(
            name="a5000",
            device_name="NVIDIA RTX A5000",
            capability=(8, 6),
            multiprocessors=64,
            memory_bytes=25_425_608_704,
            memory_bytes_per_s=768e9,
            l2_bytes=6 * MIB,
            clock_hz=1.695e9,
            power_limit_watts=230,
        ),
        GpuSpec(
            name="a100",
            device_name="NVIDIA A100-SXM4-80GB",
            capability=(8, 0),
            multiprocessors=108,
            memory_bytes=85_100_068_864,
            memory_bytes_per_s=2_039e9,
            l2_bytes=40 * MIB,
            clock_hz=1.41e9,
            power_limit_watts=400,
        ),
        GpuSpec(
            name="h100",
            device_name="NVIDIA H100 80GB HBM3",
            capability=(9, 0),
            multiprocessors=132,
            memory_bytes=84_942_979_072,
            memory_bytes_per_s=3_352e9,
            l2_bytes=50 * MIB,
            clock_hz=1.98e9,
            power_limit_watts=700,
        ),
        GpuSpec(
            name="h200",
            device_name="NVIDIA H200",
            capability=(9, 0),
            multiprocessors=132,
            memory_bytes=150_110_011_392,
            memory_bytes_per_s=4_800e9,
            l2_bytes=50 * MIB,
            clock_hz=1.98e9,
            power_limit_watts=700,
        ),
        GpuSpec(
            name="b200",
            device_name="NVIDIA B200",
            capability=(10, 0),
            multiprocessors=148,
            memory_bytes=191_500_000_000,
            memory_bytes_per_s=7_672e9,
            l2_bytes=126 * MIB,
            clock_hz=1.965e9,
            power_limit_watts=1_000,
        ),
    )
}
