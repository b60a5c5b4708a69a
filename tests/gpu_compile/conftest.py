"""Programs compiled for cards that are not here: `make gpu-compile`, in an environment that has JAX's CUDA plugin.

REQUIRE_CUDA_PLUGIN=1: without the plugin these tests fail instead of being skipped.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import entry_points

import pytest

from harness.work.cards import CARDS as ALL_CARDS
from tests.gpu_compile.programs import BY_DAY, CARDS, Examined, examine

NO_PLUGIN = "JAX has no CUDA plugin here: make gpu-compile runs these"


@pytest.fixture(autouse=True, scope="session")
def plugin_or_skip() -> None:
    if not any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins")):
        if os.environ.get("REQUIRE_CUDA_PLUGIN") == "1":
            pytest.fail(f"REQUIRE_CUDA_PLUGIN=1, and {NO_PLUGIN}", pytrace=False)
        pytest.skip(NO_PLUGIN)


@pytest.fixture(scope="session")
def by_day(request: pytest.FixtureRequest, plugin_or_skip: None) -> Iterator[Callable[[str], dict[str, Examined]]]:
    """Of a card, by name: the scatter-add, and all of BY_DAY that run on it. A process for each card that is asked for,
    two at a time."""
    asking = [item for item in request.session.items if "by_day" in getattr(item, "fixturenames", ())]
    asked = {item.callspec.params["name"] for item in asking}  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        started: dict[str, Future[list[Examined]]] = {
            name: pool.submit(examine, name, [one.measurement() for one in BY_DAY if one.can_run_on(ALL_CARDS[name])])
            for name in CARDS
            if name in asked
        }
        yield lambda card: {one.name: one for one in started[card].result()}
