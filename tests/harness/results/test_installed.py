"""The lock of an environment, by planted ones; and the locks of constraints/."""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness.paths import REPOSITORY
from harness.results.installed import LOCK_HEADER, describe_installed, read_pins
from harness.results.known_environment import why_odd

LOCKS = sorted((REPOSITORY / "constraints").glob("*.txt"))


def plant(folder: Path, **versions: str) -> list[str]:
    """A site-packages, as it is looked for."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return [str(folder)]


def test_what_is_installed_agrees_with_its_lock_or_is_counted_and_a_few_are_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# lock 2026-11 cpu-py312-x86_64\n# Made by hand\njax==0.12.0\nml-dtypes==0.6\ntorch==2.15.0\n")
    site = plant(tmp_path / "site", ML_dtypes="0.6", torch="2.15.0+cpu", pip="26", setuptools="65")
    found = describe_installed(lock, site)
    text = "ml-dtypes==0.6\npip==26\nsetuptools==65\ntorch==2.15.0+cpu\n"
    sha256 = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    of_lock = {"name": "2026-11", "file": "cpu-py312-x86_64", "sha256": sha256}
    assert found == {
        "packages": {"ml-dtypes": "0.6", "torch": "2.15.0+cpu"},
        "installed_sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "lock": of_lock | {"packages": 2, "matching": 2, "others": []},
    }
    assert why_odd(found) is None
    plant(tmp_path / "site", jax="0.11.1", **{f"stranger{number}": "1" for number in range(9)})
    found = describe_installed(lock, site)["lock"]
    assert (found["packages"], found["matching"], len(found["others"])) == (12, 2, 5)
    assert found["others"][:2] == ["jax 0.11.1 (0.12.0 in the lock)", "stranger0 1 (not in the lock)"]
    assert why_odd({"lock": found}) is None


def test_without_a_lock_there_is_none(tmp_path: Path) -> None:
    """Libraries of CUDA are found by their prefix."""
    site = plant(tmp_path / "site", jax="0.12.0", nvidia_cudnn_cu13="9.26.0.51", jax_cuda13_plugin="0.10.2", other="1")
    (tmp_path / "site" / "~orch-2.15.0.dist-info").mkdir()  # of an uninstall that was cut off
    found = describe_installed(tmp_path / "lock.txt", site)
    cuda = {"nvidia-cudnn-cu13": "9.26.0.51", "jax-cuda13-plugin": "0.10.2"}
    assert found["lock"] is None and found["packages"] == {"jax": "0.12.0"} | cuda
    assert why_odd(found) is None


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_an_exact_version_of_all_that_the_project_needs(path: Path) -> None:
    assert len(LOCKS) >= 7 and len({path.read_text().split()[2] for path in LOCKS}) == 1
    header, *lines = path.read_text().splitlines()
    assert LOCK_HEADER.fullmatch(header) and header.split()[3] == path.stem
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.!]+", line) for line in lines if not line.startswith("#"))
    pins = read_pins(path.read_text())
    kind, python, machine = path.stem.split("-")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {"cpu": ["jax", "torch"], "cuda13": ["cuda13", "torch"], "cuda12": ["cuda12", "torch-cuda12"]}[kind]
    needed = [*project["dependencies"]]
    for extra in [*extras, "dev"]:
        needed += project["optional-dependencies"][extra]
    for requirement in map(Requirement, needed):
        if requirement.marker is None or requirement.marker.evaluate({"python_version": f"3.{python[3:]}"}):
            assert requirement.specifier.contains(pins[requirement.name.lower()], prereleases=True), requirement
    if kind != "cpu":
        major = kind.removeprefix("cuda")
        assert {name[-2:] for name in pins if name.startswith("nvidia-cudnn-cu")} == {major}
        assert f"jax-cuda{major}-plugin" in pins and machine in ("x86_64", "aarch64")
