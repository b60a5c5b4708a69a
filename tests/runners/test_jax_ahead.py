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


def test_precisions_go_by_the_card() -> None:
    """Arrays are on the CPU."""
    old, new = AbsentGpu(card("rtx2080ti")), AbsentGpu(card("rtx3080"))
    assert old.on_gpu and old.device.platform == "cpu"
    old.set_up("fp16")
    new.set_up("bf16")
    with pytest.raises(Refused, match="bf16 needs compute capability 8.0, which .* RTX 2080 Ti lacks"):
        old.set_up("bf16")


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


@pytest.mark.parametrize(
    ("part", "given", "outcome", "reason"),
    [
        ("variant", {"execution_mode": "step.overlap"}, "refused", "is for several devices"),
        ("variant", {"batch_size": 100_000}, "failed", "batch size 100000 is larger than the training set"),
        ("cell", {"devices": 2}, "refused", "mnist_1 takes several GPUs, and programs are compiled ahead for one"),
    ],
)
def test_what_cannot_be_built_is_told_as_a_record_would(
    part: str, given: dict[str, Any], outcome: str, reason: str
) -> None:
    one = measurement()
    changed = one.model_copy(update={part: getattr(one, part).model_copy(update=given)})
    facts = facts_of(changed, OnThisCpu(card("h100")))
    assert facts.outcome == outcome and reason in str(facts.reason)


def test_a_request_has_a_line_for_each_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes of a GPU are built and lowered by the functions that a job uses; nothing is compiled or run."""
    monkeypatch.setattr(ahead, "AbsentGpu", OnThisCpu)
    asked = [measurement(), measurement(execution_mode="step.jit_graph")]
    told: list[str] = []
    monkeypatch.setattr(ahead, "has_cuda_plugin", lambda: True)
    assert answer(Request(card="a100", measurements=asked, lower_only=True), told.append) == 0
    found = [ProgramFacts.model_validate_json(line) for line in told]
    assert [one.variant for one in found] == [one.variant for one in asked]
    for one in found:
        assert (one.outcome, one.reason, one.program) == ("ok", None, None)
        assert (one.card, one.benchmark, one.use_case) == ("a100", "mnist", 1)
        assert one.notes == ("built and lowered, not compiled",)


def test_without_the_plugin_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "has_cuda_plugin", lambda: False)
    with pytest.raises(ConfigError, match="make gpu-compile"):
        answer(Request(card="a100", measurements=[]), lambda _: None)
