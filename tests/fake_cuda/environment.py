"""The variables by which a process finds the fake CUDA, and on it a GPU of tests/made/gpu_specs.py."""

import os
from dataclasses import fields
from pathlib import Path

from tests.fake_cuda.build import CUDA
from tests.made.gpu_specs import GpuSpec

CARD = "FAKE_CUDA_CARD"
DEVICES = "FAKE_CUDA_DEVICES"


def environment(folder: Path, spec: GpuSpec, devices: int = 1) -> dict[str, str]:
    """To be put over the variables of a process that is started.

    Args:
        folder: what `build` returned.
        devices: number of these GPUs in the machine.
    """
    library, before = str(folder / CUDA), os.environ.get("LD_PRELOAD", "")
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    caches = folder / "caches" / spec.name
    return {
        CARD: words_of(spec),
        DEVICES: str(devices),
        "LD_PRELOAD": f"{library}:{before}" if before and library not in before else library,
        "LD_LIBRARY_PATH": f"{folder}:{libraries}" if libraries else str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        # What is compiled depends on the card, and stays from run to run.
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }


def words_of(spec: GpuSpec) -> str:
    """All its numbers: card.cpp reads them."""
    numbers = {field.name: getattr(spec.generation, field.name) for field in fields(spec.generation)}
    numbers |= {field.name: getattr(spec, field.name) for field in fields(spec)}
    numbers |= {"major": spec.capability[0], "minor": spec.capability[1]}
    return ";".join(f"{name}={value}" for name, value in numbers.items())
