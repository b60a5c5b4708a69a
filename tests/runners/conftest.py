"""These tests compare the frameworks, so they need both. Equal programs are compiled once for all of them."""

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")


@pytest.fixture(scope="package", autouse=True)
def shared_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of what both compilers make, also in the processes that these tests start."""
    import jax

    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "torch"))
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        yield
    jax.config.update("jax_compilation_cache_dir", None)
