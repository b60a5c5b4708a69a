"""The fake's devices are those of gpu_specs.py, shown as CUDA shows them; PyTorch reports what does not fit."""

from tests.fake_cuda.conftest import Started
from tests.made.gpu_specs import GPU_SPECS


def test_devices_and_their_memory_are_those_of_the_table(ask: Started) -> None:
    """In the order that is asked for, and what stands behind an unknown index is not shown."""
    one = GPU_SPECS["rtx3080"]
    found = ask("-m", "tests.fake_cuda.devices", name="rtx3080", devices=3, CUDA_VISIBLE_DEVICES="2,0,7,1")
    assert found["devices"] == [
        {
            "name": one.device_name,
            "capability": list(one.capability),
            "multiprocessors": one.multiprocessors,
            "shared_bytes": one.generation.shared_bytes_per_block,
            "uuid": f"face0000-0000-0000-0000-00000000000{place}",
            "bus": place,
            "total_bytes": one.memory_bytes,
            "is_there": True,
        }
        for place in (3, 1)
    ]
    assert found["memory"] == {
        "all but 64 MiB": True,
        "64 MiB too much": False,
        "64 MiB too much in a capture": False,
        "a little in a capture": True,
        "free at the end": True,
    }
