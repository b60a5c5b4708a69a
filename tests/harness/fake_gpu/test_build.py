"""Who cannot have the fake CUDA is told why and what to do."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from harness.errors import ProjectError
from harness.fake_gpu import build as making
from harness.fake_gpu.environment import environment
from harness.work.cards import CARDS


def packages_at(folder: Path, monkeypatch: pytest.MonkeyPatch, *, without: str = "") -> None:
    """As if PyTorch were installed there."""
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text("__version__ = '9.9.0+cu130'\n")
    if without != "libraries":
        (folder / "torch" / "lib" / making.PYTORCH_LIBRARIES[0]).touch()
    for name in making.HEADERS if without != "headers" else ():
        (folder / name).mkdir(parents=True)
    spec = ModuleSpec("torch", None, origin=str(folder / "torch" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", {"torch": spec, without: None}.get)
    monkeypatch.setattr(making.shutil, "which", lambda tool: None if tool == without else f"/usr/bin/{tool}")


NO_CUDA = "CUDA build, which is not installed here: make env EXTRAS=jax,torch"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("torch", NO_CUDA),
        ("libraries", NO_CUDA),
        ("g++", r"g\+\+ is missing: apt install g\+\+"),
        ("headers", "nvidia/cu13/include is missing"),
    ],
)
def test_what_is_missing_is_named(missing: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages_at(tmp_path / "packages", monkeypatch, without=missing)
    with pytest.raises(ProjectError, match=message):
        making.build(tmp_path)


def test_what_cannot_be_compiled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages_at(tmp_path / "packages", monkeypatch)
    monkeypatch.setattr(making, "FLAGS", ("--no-such-flag",))
    with pytest.raises(ProjectError, match=r"the fake CUDA cannot be made: g\+\+ ended with status 1"):
        making.build(tmp_path / "made")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["build.lock"]


def test_what_a_process_loads_otherwise_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "other.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    variables = environment(tmp_path, CARDS["a5000"])
    assert variables["LD_PRELOAD"] == f"{tmp_path}/libcuda.so.1:other.so"
    assert variables["LD_LIBRARY_PATH"] == f"{tmp_path}:/opt/lib"
