"""What PyTorch finds on the fake: its devices, and how much memory the first of them has.

python -m tests.fake_cuda.devices
"""

import json
from contextlib import nullcontext
from typing import Any

import torch

MIB = 1 << 20


def device(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    tensor = torch.ones(4, device=f"cuda:{index}")
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "shared_bytes": properties.shared_memory_per_block_optin,
        "uuid": str(properties.uuid),
        "bus": properties.pci_bus_id,
        "total_bytes": properties.total_memory,
        "is_there": tensor.get_device() == index and torch.cuda.memory_allocated(index) > 0,
    }


def fits(bytes_: int, capture: bool = False) -> bool:
    """Raises whatever is no lack of memory."""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()) if capture else nullcontext():
            torch.empty(bytes_, dtype=torch.uint8, device="cuda").fill_(1)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


if __name__ == "__main__":
    devices = [device(index) for index in range(torch.cuda.device_count())]
    total = devices[0]["total_bytes"]
    memory = {
        "all but 64 MiB": fits(total - 64 * MIB),
        "64 MiB too much": fits(total + 64 * MIB),
        "64 MiB too much in a capture": fits(total + 64 * MIB, capture=True),
        "a little in a capture": fits(MIB, capture=True),
        "free at the end": torch.cuda.mem_get_info()[0] > total - 128 * MIB,
    }
    print(json.dumps({"devices": devices, "memory": memory}))
