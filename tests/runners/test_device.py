"""What both runners' device.py make of precisions and of one device, without a GPU. What only one framework has is in
test_jax_device.py and test_torch_device.py."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.errors import Refused
from harness.plan import FRAMEWORKS, Framework, Precision
from jax_runner import device as jax_device
from torch_runner import device as torch_device

MODULES: dict[Framework, Any] = {"jax": jax_device, "torch": torch_device}
pytestmark = pytest.mark.parametrize("framework", FRAMEWORKS)


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_precisions_of_a_gpu_are_refused_on_a_cpu(
    framework: Framework, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, name = MODULES[framework].Device, {"jax": "JAX", "torch": "PyTorch"}[framework]
    monkeypatch.setattr(device, "on_gpu", False)
    with pytest.raises(Refused, match=f"precision {precision} needs an NVIDIA GPU; {name} sees none here"):
        device().set_up(precision)


@pytest.mark.parametrize(("precision", "capability", "least"), [("bf16", (7, 5), "8.0"), ("fp16", (6, 1), "7.0")])
def test_precisions_that_a_gpu_lacks_are_refused(
    framework: Framework,
    precision: Precision,
    capability: tuple[int, int],
    least: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MODULES[framework].Device, "on_gpu", True)
    device = MODULES[framework].Device()
    if framework == "torch":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "old card")
    else:
        card = SimpleNamespace(compute_capability="{}.{}".format(*capability), device_kind="old card")
        monkeypatch.setitem(vars(device), "device", card)
    with pytest.raises(Refused, match=f"precision {precision} needs compute capability {least}, which old card lacks"):
        device.set_up(precision)


def test_one_device_agrees_with_itself(framework: Framework) -> None:
    """In float64, whatever is computed in."""
    device = MODULES[framework].Device()
    device.set_up("fp32")
    assert device.agree(2.0**40 + 1 / 3) == 2.0**40 + 1 / 3
    assert device.mean_over_ranks(np.array([1 / 3, 2.0])).tolist() == [1 / 3, 2.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has a count")
def test_memory_of_a_cpu_is_absent(framework: Framework) -> None:
    memory = MODULES[framework].Device().memory()
    assert memory.allocator_peak_bytes is None
    assert memory.absent == MODULES[framework].ON_CPU
    assert memory.devices == []
