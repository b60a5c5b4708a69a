"""What jax_runner/device.py makes of errors, precisions and GPUs, without one. test_torch_device.py mirrors it."""

import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from harness.errors import ProjectError, Refused
from harness.measure.world import World
from jax_runner import device as module
from jax_runner.device import Device


def test_out_of_memory_is_known() -> None:
    """A real allocation that no machine can give."""
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as raised:
        jnp.zeros((1 << 20, 1 << 26), jnp.uint8).block_until_ready()
    assert Device().is_out_of_memory(raised.value)


@pytest.mark.parametrize("words", ["shapes do not match", "INTERNAL: an illegal memory access was encountered"])
def test_other_errors_are_not_out_of_memory(words: str) -> None:
    assert not Device().is_out_of_memory(RuntimeError(words))


@pytest.mark.parametrize(
    ("visible", "world", "refused"),
    [
        ("0", World(rank=1, size=2, local_rank=1), "sees 1 GPU(s), and rank 1 of this node needs the one numbered 1."),
        ("0", World(devices_per_rank=2), "sees 1 GPU(s), and rank 0 of this node needs the one numbered 1."),
        ("MIG-a,MIG-b", World(rank=1, size=2, local_rank=1), "sees 1 GPU(s), and rank 1"),
        ("0,1", World(rank=1, size=2, local_rank=1), None),
        ("2", World(rank=1, size=2, local_rank=0), None),
        ("", World(rank=1, size=2, local_rank=1), None),
    ],
)
def test_a_hidden_gpu_is_named_before_ranks_meet(
    visible: str, world: World, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a refusal: that would settle the measurement, and other options of Slurm would not be tried."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(module, "uses_cuda", lambda: True)
    if refused is None:
        module.require_visible_gpus(world)
        return
    with pytest.raises(ProjectError, match=re.escape(refused)) as raised:
        Device().join(world)
    assert not isinstance(raised.value, Refused)
    monkeypatch.setattr(module, "uses_cuda", lambda: False)  # a CPU has as many as are asked for
    module.require_visible_gpus(world)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precisions_of_a_gpu_are_refused_on_a_cpu(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "on_gpu", False)
    with pytest.raises(Refused, match=f"precision {precision} needs an NVIDIA GPU; JAX sees none here"):
        Device().set_up(precision)


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", "float64"), ("fp32", "float32")])
def test_precision_is_that_of_what_is_computed(precision: str, dtype: str) -> None:
    device = Device()
    device.set_up(precision)
    assert jnp.asarray(np.ones(2)).dtype == dtype
    assert device.describe()["matmul_precision"] == "highest"


def test_one_device_agrees_with_itself() -> None:
    """In float64, whatever is computed in."""
    device = Device()
    device.set_up("fp32")
    assert device.agree(2.0**40 + 1 / 3) == 2.0**40 + 1 / 3
    assert device.mean_over_ranks(np.array([1 / 3, 2.0])).tolist() == [1 / 3, 2.0]


def test_every_compilation_counts_once() -> None:
    device = Device()
    double = jax.jit(lambda values: 2 * values)
    one, two = np.ones(3, np.float32), np.ones(4, np.float32)
    double(one)
    before = device.compilations()
    double(one)
    assert device.compilations() == before
    double(two)
    assert device.compilations() == before + 1
    device.forget_programs()
    double(two)
    assert device.compilations() == before + 2


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="a GPU has a count")
def test_memory_of_a_cpu_is_absent() -> None:
    memory = Device().memory()
    assert memory.allocator_peak_bytes is None
    assert memory.absent == module.ON_CPU
    assert memory.devices == []
