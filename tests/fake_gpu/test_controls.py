"""The fake itself bites: faults that are planted in a capture are refused as CUDA refuses them, what is allowed passes,
and the log finds what a timed step must not do."""

from typing import Any

import pytest

from tests.fake_gpu.conftest import Started

NOT_PERMITTED = "operation not permitted when stream is capturing"  # cudaErrorStreamCaptureUnsupported, 900
INVALIDATED = "operation failed due to a previous error during capture"  # cudaErrorStreamCaptureInvalidated, 901
UNJOINED = "capturing stream has unjoined work"  # cudaErrorStreamCaptureUnjoined, 904
ISOLATED = "dependency created on uncaptured work in another stream"  # cudaErrorStreamCaptureIsolation, 905
NOT_PINNED = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned"
FAULTS = {
    "item": [INVALIDATED, NOT_PERMITTED],
    "nonzero": [INVALIDATED, NOT_PERMITTED],
    "mask": [INVALIDATED, NOT_PERMITTED],
    "cpu": [NOT_PINNED],
    "pageable copy": [NOT_PINNED],
    "new tensor from numbers": [NOT_PINNED],
    "synchronize": [INVALIDATED, NOT_PERMITTED],
    "stream that is not joined": [UNJOINED],
    "waits for what is not captured": [INVALIDATED, ISOLATED],
    "index by a scalar on the device": [INVALIDATED, NOT_PERMITTED],
    "operand on the host": ["Expected all tensors to be on the same device"],
    "index on the host": [NOT_PINNED],
}
"""What PyTorch says, the last error first: that of the capture's end, and the one that broke it."""
ALLOWED = {
    "kernel": 1,
    "pinned copy": 1,
    "random numbers": 1,
    "stream that is joined": 1,
    "empty_cache": 0,
    "new memory": 1,
}
"""With the nodes of the graph that is then launched."""


@pytest.fixture(scope="module")
def controls(ask: Started) -> dict[str, Any]:
    found: dict[str, Any] = ask("tests.fake_gpu.controls")
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_capture_raises(fault: str, controls: dict[str, Any]) -> None:
    said = controls["faults"][fault]["said"]
    assert len(said) == len(FAULTS[fault]), said
    assert all(words in one for words, one in zip(FAULTS[fault], said, strict=True)), said
    assert controls["faults"][fault]["launched"] == []


@pytest.mark.parametrize("work", ALLOWED)
def test_what_is_allowed_is_captured(work: str, controls: dict[str, Any]) -> None:
    assert controls["allowed"][work] == {"said": [], "faults": [], "launched": [str(ALLOWED[work])]}


def test_every_control_is_asked_for(controls: dict[str, Any]) -> None:
    assert (set(controls["faults"]), set(controls["allowed"])) == (set(FAULTS), set(ALLOWED))


@pytest.mark.parametrize(
    ("work", "kinds"),
    [
        ("nothing", []),
        ("pinned copy back", []),
        ("pageable copy", ["copy pageable->device", "sync cudaStreamSynchronize"]),
        ("malloc", ["malloc cudaMalloc"]),
        ("synchronize", ["sync cudaDeviceSynchronize"]),
        ("event", ["sync cudaEventSynchronize"]),
    ],
)
def test_the_log_finds_what_a_step_must_not_do(work: str, kinds: list[str], controls: dict[str, Any]) -> None:
    assert [words.split(" bytes=")[0] for words in controls["uncaptured"][work]] == kinds


def test_a_read_by_the_host_waits(controls: dict[str, Any]) -> None:
    assert "sync cudaStreamSynchronize" in controls["uncaptured"]["item"]


def test_an_operand_on_the_host_is_found(controls: dict[str, Any]) -> None:
    assert controls["host_pointers"] == ["fault host pointer given to cublasSgemm"]
