"""These tests compare the frameworks, so they need both. Equal programs are compiled once for all of them, and XLA has
one thread, as PyTorch has (tests/conftest.py)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")


@pytest.fixture(scope="package", autouse=True)
def shared_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of what both compilers make: of pytest's workers together, also in the processes that these tests start."""
    import jax

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "torch"))
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("NPROC", "1")  # read when the first array is made
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        yield
    jax.config.update("jax_compilation_cache_dir", None)


OPTIMIZED = {
    "test_augment",
    "test_device_peaks",
    "test_jax_compiler",
    "test_jax_executable",
    "test_trace",
    "test_train",
}
"""Files about what XLA makes of a program. Those of others compute for less time than XLA takes to optimize them."""


@pytest.fixture(autouse=True)
def optimized_only_where_it_pays(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a CPU, and by day; a GPU's programs are those that are timed."""
    import jax

    if (
        Path(request.node.path).stem in OPTIMIZED
        or request.node.get_closest_marker("nightly")
        or jax.default_backend() != "cpu"
    ):
        yield
        return
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
