"""Which devices PyTorch sees, and that each has memory and streams of its own: `python -m tests.fake_gpu.devices`."""

import json
from typing import Any

import torch


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
        "is_there": tensor.get_device() == index and torch.cuda.memory_allocated(index) > 0,
    }


if __name__ == "__main__":
    print(json.dumps([device(index) for index in range(torch.cuda.device_count())]))
