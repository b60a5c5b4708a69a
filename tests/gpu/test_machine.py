"""NVML against the frameworks, on this machine's GPU: the same device, its memory, its energy, and its limits."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.measure.gpu import open_gpu
from harness.plan import FRAMEWORKS
from tests.gpu.machine import ALLOCATED_BYTES
from tests.made.processes import output_of

Ask = Callable[..., dict[str, Any]]

CONTEXT_MAX_BYTES = 4 * 2**30
"""A context, its kernels and libraries take some hundred MiB."""
LOAD_MIN_WATTS = 20

both = pytest.mark.parametrize("framework", FRAMEWORKS)


@pytest.fixture
def ask(environment: dict[str, str]) -> Ask:
    def in_a_process(framework: str, question: str, **variables: str) -> dict[str, Any]:
        module = ("-m", "tests.gpu.machine")
        answer: dict[str, Any] = json.loads(output_of(*module, framework, question, env=environment | variables))
        print(f"{framework} {question}: {answer}")
        return answer

    return in_a_process


@both
@pytest.mark.parametrize("by", ["index", "uuid"])
def test_nvml_and_the_framework_mean_the_same_gpu(framework: str, by: str, ask: Ask) -> None:
    """By its index, as most schedulers tell it, and by its UUID. A MIG slice has no index, and no energy of its own."""
    found = open_gpu().describe()
    answer = ask(framework, "identity", CUDA_VISIBLE_DEVICES=str(found["uuid" if found["mig"] else by]))
    nvml, of_framework = answer["nvml"], answer["framework"]
    assert of_framework["platform"] in ("gpu", "cuda")
    assert of_framework["device_count"] == 1
    assert by == "index" or nvml["uuid"] == found["uuid"]
    if nvml["mig"]:
        assert nvml["uuid"].startswith("MIG-") and "whole board" in nvml["absent"]["energy_joules"]
        return
    assert nvml["name"] == of_framework["device"]
    # JAX tells no UUID.
    assert of_framework.get("device_uuid", nvml["uuid"]).lower() == nvml["uuid"].lower()


@both
def test_memory_is_that_of_what_was_allocated(framework: str, ask: Ask) -> None:
    """By NVML's list of processes, or outside of it by what the device has more in use; a context comes on top."""
    answer = ask(framework, "memory")
    assert ALLOCATED_BYTES <= answer["allocator_peak_bytes"] < ALLOCATED_BYTES + 2**28
    by_nvml = [answer[name] for name in ("process_bytes", "device_used_bytes") if answer[name] is not None]
    if not by_nvml and "processes" in answer["absent"].get("device_used_bytes", ""):
        pytest.skip(f"in a container, and not alone: {answer['absent']['device_used_bytes']}")
    assert by_nvml, answer["absent"]
    assert all(ALLOCATED_BYTES < value < ALLOCATED_BYTES + CONTEXT_MAX_BYTES for value in by_nvml)
    if len(by_nvml) == 2:
        assert by_nvml[0] == pytest.approx(by_nvml[1], rel=0.5)  # the driver sets some aside for a context


@both
def test_energy_and_clocks_under_load(framework: str, ask: Ask) -> None:
    answer = ask(framework, "energy")
    assert answer["state"]["sm_clock_mhz"] > 0 and answer["state"]["temperature_c"] > 0
    assert all(seconds >= 0 for seconds in answer["held_back"].values())
    assert answer["held_back"] or any(name.startswith("held_back") for name in answer["absent"])
    assert answer["state_ms"] < 100  # it comes between two blocks, twice a second
    if answer["watts"] is None:
        pytest.skip(f"no energy counter: {answer['absent']['energy_joules']}")
    assert LOAD_MIN_WATTS < answer["watts"] < 1.2 * (answer["limit_watts"] or 2000)


@pytest.mark.parametrize(
    ("framework", "question"),
    [("jax", "out_of_memory"), ("torch", "out_of_memory"), ("torch", "out_of_memory_in_a_capture")],
)
def test_out_of_memory_is_recognised(framework: str, question: str, ask: Ask) -> None:
    """The error that ends a broken capture hides the one that broke it."""
    answer = ask(framework, question)
    assert answer["is_out_of_memory"], answer["error"]
