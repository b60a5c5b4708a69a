"""Builds the fake NVML, and tells it which card it is to be."""

import subprocess
from pathlib import Path

from harness.paths import REPOSITORY
from harness.work.cards import Card

SOURCE = REPOSITORY / "harness" / "fake_gpu" / "nvml.cpp"
LIBRARY = "libnvidia-ml.so.1"


def build_nvml(folder: Path) -> None:
    """Into `folder`, from where LD_LIBRARY_PATH brings it to pynvml, PyTorch and NCCL. Needs g++."""
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([*command, "-o", str(folder / LIBRARY), str(SOURCE)], check=True)


def card_variable(card: Card) -> str:
    """The value of FAKE_CUDA_CARD."""
    major, minor = card.capability
    numbers = {
        "device_name": card.device_name,
        "major": major,
        "minor": minor,
        "memory_bytes": card.memory_bytes,
        "clock_hz": card.clock_hz,
        "power_limit_watts": card.power_limit_watts,
    }
    return ";".join(f"{name}={value}" for name, value in numbers.items())
