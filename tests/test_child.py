"""The environment of a measurement's process; tests/test_job.py and tests/test_agent.py have the process itself."""

import os

import pytest

from harness.child import child_environment

OLD, NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OLD, NEW, "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(name, raising=False)


def test_jax_may_use_almost_all_memory_and_takes_it_as_needed() -> None:
    environment = child_environment("/c", kept=False)
    assert environment[NEW] == "0.95"
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert OLD not in environment


def test_the_users_fraction_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX refuses the two names together."""
    monkeypatch.setenv(NEW, "0.5")
    assert child_environment("/c", kept=False)[NEW] == "0.5"
    monkeypatch.delenv(NEW)
    monkeypatch.setenv(OLD, "0.4")
    environment = child_environment("/c", kept=False)
    assert (environment[OLD], NEW in environment) == ("0.4", False)


def test_no_proxy_is_asked_for_the_way_to_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://nowhere:3128")
    environment = child_environment("/c", kept=False)
    assert not [name for name in environment if "proxy" in name.lower()]
    assert environment["PATH"] == os.environ["PATH"]


def test_caches_lie_in_the_given_folder_whatever_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/home/me/triton")
    environment = child_environment("/c", kept=False)
    assert environment["TRITON_CACHE_DIR"] == "/c/triton"
    assert environment["JAX_COMPILATION_CACHE_DIR"] == "/c/jax"


def test_jax_keeps_its_programs_only_for_another_process() -> None:
    """Off is its own default; where it is on, every program is kept, and not only those that took a second."""
    assert child_environment("/c", kept=False)["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    environment = child_environment("/c", kept=True)
    assert environment["JAX_ENABLE_COMPILATION_CACHE"] == "true"
    assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
