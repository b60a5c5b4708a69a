"""The fake itself bites: faults that are planted in a capture are refused as CUDA refuses them, what is allowed passes,
and the log finds what a timed step must not do."""

from typing import Any

import pytest

from tests.fake_cuda.conftest import Started


@pytest.fixture(scope="module")
def controls(ask: Started) -> dict[str, Any]:
    """By kind and name: what was found, and what has to be."""
    found: dict[str, Any] = ask("-m", "tests.fake_cuda.controls")
    return found


@pytest.mark.parametrize("kind", ["a fault in a capture", "what a capture may do", "what a timed step must not do"])
def test_it_is_as_on_a_real_card(kind: str, controls: dict[str, Any]) -> None:
    assert controls[kind]
    assert {name: found for name, (found, _) in controls[kind].items()} == {
        name: expected for name, (_, expected) in controls[kind].items()
    }
