"""What children.py does that needs no child: test_job.py and test_several_ranks.py have the process itself."""

import os
from pathlib import Path

import pytest

from harness.job.children import child_environment, memory_fraction
from harness.job.main import cache_variables

OLD, NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OLD, NEW, "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(name, raising=False)


def test_jax_may_use_almost_all_memory_and_takes_it_as_needed() -> None:
    environment = child_environment()
    assert environment[NEW] == "0.95"
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert OLD not in environment


@pytest.mark.parametrize(
    ("total_gib", "fraction"), [(None, "0.95"), (80, "0.95"), (11, "0.86"), (10, "0.85"), (24, "0.94")]
)
def test_libraries_have_room_beside_the_pool(total_gib: int | None, fraction: str) -> None:
    """1 - 1.5 / 11 is 0.864."""
    assert memory_fraction(None if total_gib is None else total_gib * 2**30) == fraction


def test_the_users_fraction_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX refuses the two names together."""
    monkeypatch.setenv(NEW, "0.5")
    assert child_environment()[NEW] == "0.5"
    monkeypatch.delenv(NEW)
    monkeypatch.setenv(OLD, "0.4")
    environment = child_environment()
    assert (environment[OLD], NEW in environment) == ("0.4", False)


def test_no_proxy_is_asked_for_the_way_to_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://nowhere:3128")
    environment = child_environment()
    assert not [name for name in environment if "proxy" in name.lower()]
    assert environment["PATH"] == os.environ["PATH"]


def test_a_cell_for_the_cpu_hides_gpus_whatever_the_caller_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert child_environment()["CUDA_VISIBLE_DEVICES"] == "0,1"
    hidden = child_environment(for_cpu=True)
    assert (hidden["CUDA_VISIBLE_DEVICES"], hidden["JAX_PLATFORMS"]) == ("", "cpu")


def test_jax_keeps_its_programs_only_for_another_process() -> None:
    """Off is its own default; where it is on, every program is kept, and not only those that took a second."""
    variables = cache_variables(Path("/c/3"), kept=False)
    assert variables["TRITON_CACHE_DIR"] == "/c/3/triton"
    assert variables["JAX_COMPILATION_CACHE_DIR"] == "/c/3/jax"
    assert variables["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    variables = cache_variables(Path("/c/3"), kept=True)
    assert variables["JAX_ENABLE_COMPILATION_CACHE"] == "true"
    assert variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
