"""Programs compiled for cards that are not here: `make gpu-compile`, in an environment that has JAX's CUDA plugin.

REQUIRE_CUDA_PLUGIN=1: without the plugin these tests fail instead of being skipped.
"""

import os
from importlib.metadata import entry_points

import pytest

NO_PLUGIN = "JAX has no CUDA plugin here: make gpu-compile runs these"


@pytest.fixture(autouse=True, scope="session")
def plugin_or_skip() -> None:
    if not any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins")):
        if os.environ.get("REQUIRE_CUDA_PLUGIN") == "1":
            pytest.fail(f"REQUIRE_CUDA_PLUGIN=1, and {NO_PLUGIN}", pytrace=False)
        pytest.skip(NO_PLUGIN)
