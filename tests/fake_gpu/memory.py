"""How much memory the device of this process has, by PyTorch's allocator: `python -m tests.fake_gpu.memory`."""

import json
from typing import Any

import torch

MIB = 1 << 20


def fits(bytes_: int) -> bool:
    """Raises whatever is no lack of memory."""
    try:
        torch.empty(bytes_, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def fits_in_a_capture(bytes_: int) -> bool:
    torch.ones(1, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.empty(bytes_, dtype=torch.uint8, device="cuda").fill_(1)
    except torch.OutOfMemoryError:
        return False
    return True


def answers() -> dict[str, Any]:
    total = torch.cuda.get_device_properties(0).total_memory
    return {
        "total": total,
        "all but 64 MiB": fits(total - 64 * MIB),
        "64 MiB too much": fits(total + 64 * MIB),
        "64 MiB too much in a capture": fits_in_a_capture(total + 64 * MIB),
        "a little in a capture": fits_in_a_capture(MIB),
        "free at the end": torch.cuda.mem_get_info()[0] > total - 128 * MIB,
    }


if __name__ == "__main__":
    print(json.dumps(answers()))
