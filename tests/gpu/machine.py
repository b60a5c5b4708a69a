"""What a framework's process finds on this machine's GPU, for test_machine.py: one question, one process, one line.

python -m tests.gpu.machine torch energy
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.measure.gpu import Gpu, held_back_s, open_gpu
from tests.made.stdout import reserved_stdout

MIB = 2**20
ALLOCATED_BYTES = 256 * MIB
LOAD_S = 2.0
SIDE = 4096
"""Of the square matrices whose product is the load."""
NO_GPU_HAS_BYTES = 1 << 46


def opened() -> Gpu:
    gpu = open_gpu()
    assert isinstance(gpu, Gpu), gpu.absent
    return gpu


def make_device(framework: str) -> Any:
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.set_up("fp32")
    return device


def bytes_on_device(framework: str, count: int) -> Any:
    if framework == "jax":
        from jax import numpy as jnp

        return jnp.ones(count, jnp.uint8).block_until_ready()
    import torch

    return torch.ones(count, dtype=torch.uint8, device="cuda")


def load_for(framework: str, seconds: float) -> None:
    """Matrix products, one after another."""
    square, wait = bytes_on_device(framework, SIDE * SIDE).reshape(SIDE, SIDE), make_device(framework).wait
    matrix = square.astype("float32") if framework == "jax" else square.float()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            product = matrix @ matrix
        wait(product)


def identity(framework: str) -> dict[str, Any]:
    """Which GPU each of the two means."""
    gpu, device = opened(), make_device(framework)
    return {"nvml": gpu.describe(), "framework": device.describe()}


def memory(framework: str) -> dict[str, Any]:
    gpu = opened()
    device = make_device(framework)
    kept = bytes_on_device(framework, ALLOCATED_BYTES)
    found = {
        "process_bytes": gpu.process_bytes(),
        "device_used_bytes": gpu.device_used_bytes(),
        "allocator_peak_bytes": device.memory().allocator_peak_bytes,
        "absent": gpu.describe()["absent"],
    }
    del kept
    return found


def energy(framework: str) -> dict[str, Any]:
    """Of a load, with what the driver says of its clocks; and what a question to NVML costs."""
    gpu = opened()
    load_for(framework, 0.5)
    start, counters, joules = time.monotonic(), gpu.held_back_counters(), gpu.energy_joules()
    load_for(framework, LOAD_S)
    window_s, after = time.monotonic() - start, gpu.energy_joules()
    held_back = held_back_s(counters, gpu.held_back_counters(), window_s)
    begun = time.monotonic()
    for _ in range(10):
        state = gpu.state()
    state_ms = (time.monotonic() - begun) * 100
    described = gpu.describe()
    return {
        "watts": None if joules is None or after is None else (after - joules) / window_s,
        "limit_watts": described["power_limit_watts"],
        "held_back": held_back,
        "state": state,
        "state_ms": state_ms,
        "absent": described["absent"],
    }


def out_of_memory(framework: str) -> dict[str, Any]:
    return _failure(framework, lambda: bytes_on_device(framework, NO_GPU_HAS_BYTES))


def out_of_memory_in_a_capture(framework: str) -> dict[str, Any]:
    """PyTorch only: JAX makes its graphs itself."""
    import torch

    def capture() -> None:
        torch.ones(1, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.empty(NO_GPU_HAS_BYTES, dtype=torch.uint8, device="cuda")

    return _failure(framework, capture)


def _failure(framework: str, attempt: Callable[[], object]) -> dict[str, Any]:
    device = make_device(framework)
    try:
        attempt()
    except Exception as error:
        return {"is_out_of_memory": device.is_out_of_memory(error), "error": f"{type(error).__name__}: {error}"[:500]}
    return {"is_out_of_memory": False, "error": "there was none"}


QUESTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    function.__name__: function for function in (identity, memory, energy, out_of_memory, out_of_memory_in_a_capture)
}


if __name__ == "__main__":
    with reserved_stdout() as tell:
        tell(json.dumps(QUESTIONS[sys.argv[2]](sys.argv[1])))
