"""What jax_runner/device.py makes of errors, precisions and GPUs, without one."""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from harness.errors import ProjectError, Refused
from harness.measure.world import World
from jax_runner import device as module
from jax_runner.device import Device


def test_out_of_memory_is_known() -> None:
    """Of a real allocation that no machine can give, and of those who ask the driver themselves, also where it is the
    cause of another error."""
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as raised:
        jnp.zeros((1 << 20, 1 << 26), jnp.uint8).block_until_ready()
    assert Device().is_out_of_memory(raised.value)
    error = RuntimeError("INTERNAL: could not load a module")
    error.__cause__ = RuntimeError("INTERNAL: CUDNN_STATUS_ALLOC_FAILED: 2.00GiB")
    assert Device().is_out_of_memory(error)
    assert not Device().is_out_of_memory(RuntimeError("INTERNAL: an illegal memory access was encountered"))


@pytest.mark.parametrize(
    ("visible", "world", "refused"),
    [
        ("0", World(rank=1, size=2, local_rank=1), "sees 1 GPU(s), and rank 1 of this node needs the one numbered 1."),
        ("0", World(devices_per_rank=2), "sees 1 GPU(s), and rank 0 of this node needs the one numbered 1."),
        ("0,1", World(rank=1, size=2, local_rank=1), None),
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


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine with two GPUs and JAX's plugin for them; what JAX is told is not carried out, but kept here."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(module, "visible_gpu_count", lambda: 2)
    monkeypatch.setattr(module, "usable_gpu_count", lambda: 2)
    monkeypatch.setattr(module, "entry_points", lambda **_: [EntryPoint("cuda13", "", "")])
    monkeypatch.setattr(type(jax.config), "update", lambda _, name, value: told.__setitem__(name, value))
    monkeypatch.setattr(Device, "on_gpu", True)
    return told


@pytest.mark.parametrize("named", [None, "cpu", "cuda", "cuda,cpu"])
def test_cuda_is_insisted_on(named: str | None, gpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody has said which platforms to use; those JAX insists on itself."""
    monkeypatch.setattr(type(jax.config), "jax_platforms", named, raising=False)
    Device().set_up("fp32")
    assert gpus.get("jax_platforms") == ("cuda,cpu" if named is None else None)
    assert gpus.get("jax_cuda_visible_devices") == (None if named == "cpu" else "0")


def test_several_devices_of_one_process_stay_visible(gpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(jax.config), "jax_platforms", None, raising=False)
    device = Device()
    device.join(World(devices_per_rank=2))
    assert gpus["jax_platforms"] == "cuda,cpu"
    device.set_up("fp32")
    assert gpus["jax_cuda_visible_devices"] == "0,1"


def test_a_gpu_that_jax_does_not_see_fails(gpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No refusal, which would stand for ever: a repaired installation can do it."""
    monkeypatch.setattr(Device, "on_gpu", False)
    monkeypatch.setattr(type(jax.config), "jax_platforms", None, raising=False)
    for precision in ("fp32", "tf32"):
        with pytest.raises(ProjectError, match=r"2 GPU\(s\) are visible, and JAX sees none") as raised:
            Device().set_up(precision)
        assert not isinstance(raised.value, Refused)
    monkeypatch.setattr(type(jax.config), "jax_platforms", "cpu", raising=False)
    Device().set_up("fp32")  # on purpose


def test_a_backend_that_does_not_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Device) -> bool:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(Device, "on_gpu", property(broken))
    with pytest.raises(ProjectError, match="JAX cannot start its backend.*: Unable to initialize backend 'cuda'"):
        Device().set_up("fp32")


def test_libraries_are_started_by_what_any_precision_computes() -> None:
    """Here on a CPU, so nothing but that it runs."""
    for precision in ("fp32", "bf16", "fp16", "default"):
        module.start_libraries(precision)


@pytest.mark.parametrize(
    ("precision", "dtype", "of_products"),
    [("fp64", "float64", "highest"), ("fp32", "float32", "highest"), ("default", "float32", None)],
)
def test_precision_is_that_of_what_is_computed(precision: str, dtype: str, of_products: str | None) -> None:
    """`default` sets nothing, which is on the record too."""
    device = Device()
    device.set_up(precision)
    assert jnp.asarray(np.ones(2)).dtype == dtype
    assert device.describe()["matmul_precision"] == of_products
    assert jnp.dtype(module.model_dtypes(precision)["dtype"]) == dtype


def test_compilations_and_retraces_count() -> None:
    """Each as one or more; a call that is known already as none."""
    device = Device()
    double = jax.jit(lambda values: 2 * values)
    one, two = np.ones(3, np.float32), np.ones(4, np.float32)

    def counted(call: Callable[[], Any]) -> int:
        before = device.compilations()
        call()
        return device.compilations() - before

    assert counted(lambda: double(one)) > 0
    assert counted(lambda: [double(one) for _ in range(3)]) == 0
    assert counted(lambda: double(two)) > 0
    assert counted(lambda: jax.eval_shape(double, np.ones(5, np.float32))) > 0  # traced, not compiled
    device.forget_programs()
    assert counted(lambda: double(two)) > 0
