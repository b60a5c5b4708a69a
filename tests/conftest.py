"""The order of the tests."""

from pathlib import Path

import pytest

FRAMEWORKS_IN_THIS_PROCESS = Path(__file__).parent / "runners"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a framework in pytest's own process come last: JAX's threads do not survive a fork, and the
    others fork."""
    items.sort(key=lambda item: FRAMEWORKS_IN_THIS_PROCESS in item.path.parents)
