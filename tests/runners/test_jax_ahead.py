"""jax_runner/ahead.py without JAX's CUDA plugin: the absent card, requests and answers. tests/gpu_compile/ compiles."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from harness.errors import ConfigError, Refused
from harness.measure.ahead import Request
from harness.results.program_facts import ProgramFacts
from harness.work.cards import CARDS, card
from jax_runner import ahead
from jax_runner.ahead import AbsentGpu, answer, facts_of, target_config
from jax_runner.device import Device
from tests.made.sessions import make_session


class OnThisCpu(AbsentGpu):
    """A card whose programs are lowered for the CPU: without the plugin JAX knows no other device."""

    @cached_property
    def target(self) -> jax.Device:
        return self.device


@pytest.fixture(autouse=True)
def single_precision_afterwards() -> Iterator[None]:
    yield
    Device().set_up("fp32")


def measurement(**given: Any) -> Any:
    device = OnThisCpu(card("h100"))
    return make_session("jax", "train", device=device, **given).measurement


def test_every_card_is_told() -> None:
    """Each with its own capability. That XLA takes all of it: tests/gpu_compile."""
    told = {name: target_config(one) for name, one in CARDS.items()}
    assert "cuda_compute_capability { major: 7 minor: 5 }" in told["rtx2080ti"]
    assert "cuda_compute_capability { major: 10 minor: 0 }" in told["b200"]
    assert "clock_rate_ghz: 1.545\n" in told["rtx2080ti"] and "core_count: 68\n" in told["rtx2080ti"]
    assert len(set(told.values())) == len(CARDS)
    for line in (
        *("core_count: 132", "fpus_per_core: 128", "memory_bandwidth: 3352000000000", "l2_cache_size: 52428800"),
        *("device_memory_size: 84942979072", "shared_memory_per_block_optin: 232448", "clock_rate_ghz: 1.98"),
        *("threads_per_core_limit: 2048", 'device_description_str: "NVIDIA H100 80GB HBM3"'),
    ):
        assert f"{line}\n" in told["h100"], line


@pytest.mark.parametrize(
    ("name", "precision", "refused"),
    [
        ("rtx2080ti", "bf16", True),
        ("rtx2080ti", "tf32", True),
        ("rtx2080ti", "fp16", False),
        ("rtx3080", "bf16", False),
        ("b200", "tf32", False),
    ],
)
def test_precisions_go_by_the_card(name: str, precision: str, refused: bool) -> None:
    device = AbsentGpu(card(name))
    if refused:
        with pytest.raises(Refused, match=f"{precision} needs compute capability 8.0, which .* RTX 2080 Ti lacks"):
            device.set_up(precision)
    else:
        device.set_up(precision)


def test_an_absent_gpu_is_one_whose_arrays_are_on_the_cpu() -> None:
    device = AbsentGpu(card("h100"))
    assert device.on_gpu and device.device.platform == "cpu"
    assert jax.device_put(np.ones(2), device.device).devices() == {jax.local_devices(backend="cpu")[0]}


def test_a_step_is_lowered_for_the_shapes_of_its_arguments() -> None:
    """Types stay weak, or another program would be lowered. What is donated stays so."""
    device = OnThisCpu(card("h100"))
    seen = []

    def step(state: dict[str, jax.Array], rate: jax.Array) -> dict[str, jax.Array]:
        seen.append((state["weight"].shape, state["weight"].dtype, rate.weak_type))  # type: ignore[attr-defined]
        return {"weight": state["weight"] * rate}

    lowered = device.for_target(jax.jit(step, donate_argnums=0)).lower(
        {"weight": np.ones((2, 3), jnp.bfloat16)}, jnp.asarray(2.0)
    )
    assert seen == [((2, 3), jnp.bfloat16, True)]
    assert [one.donated for one in jax.tree.leaves(lowered.args_info)] == [True, False]


def test_modes_of_a_gpu_are_built_and_lowered() -> None:
    """By the functions that a job uses; nothing is compiled or run."""
    facts = facts_of(measurement(execution_mode="step.jit_graph"), OnThisCpu(card("h100")), lower_only=True)
    assert (facts.outcome, facts.reason, facts.program) == ("ok", None, None)
    assert (facts.card, facts.benchmark, facts.use_case, facts.notes) == (
        "h100",
        "mnist",
        1,
        ("built and lowered, not compiled",),
    )


@pytest.mark.parametrize(
    ("given", "outcome", "reason"),
    [
        ({"execution_mode": "step.overlap"}, "refused", "is for several devices"),
        ({"batch_size": 100_000}, "failed", "batch size 100000 is larger than the training set"),
        ({"model": "other"}, "failed", "other"),
    ],
)
def test_what_cannot_be_built_is_told_as_a_record_would(given: dict[str, Any], outcome: str, reason: str) -> None:
    one = measurement()
    variant = one.variant.model_copy(update=given)
    facts = facts_of(one.model_copy(update={"variant": variant}), OnThisCpu(card("h100")))
    assert facts.outcome == outcome and reason in str(facts.reason)


def test_several_gpus_are_refused() -> None:
    one = measurement()
    two = one.model_copy(update={"cell": one.cell.model_copy(update={"devices": 2})})
    facts = facts_of(two, OnThisCpu(card("h100")))
    assert (facts.outcome, facts.reason) == (
        "refused",
        "mnist_1 takes several GPUs, and programs are compiled ahead for one",
    )


def test_a_request_has_a_line_for_each_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "AbsentGpu", OnThisCpu)
    asked = [measurement(), measurement(execution_mode="step.jit_graph")]
    told: list[str] = []
    monkeypatch.setattr(ahead, "has_cuda_plugin", lambda: True)
    assert answer(Request(card="a100", measurements=asked, lower_only=True), told.append) == 0
    found = [ProgramFacts.model_validate_json(line) for line in told]
    assert [(one.card, one.variant) for one in found] == [("a100", one.variant) for one in asked]


def test_without_the_plugin_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "has_cuda_plugin", lambda: False)
    with pytest.raises(ConfigError, match="make gpu-compile"):
        answer(Request(card="a100", measurements=[]), lambda _: None)
