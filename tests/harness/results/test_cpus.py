"""The CPUs that a process may use: its affinity, and the quota of its cgroup, in the layouts of cgroup v1 and v2."""

import os
from pathlib import Path

import pytest

from harness.results import cpus
from harness.results.cpus import cpu_quota, quota_in_words, usable_cpus


def quota(tmp_path: Path, cgroup: str, files: dict[str, str]) -> float | None:
    (tmp_path / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cpu_quota(tmp_path / "cgroup", tmp_path / "fs")


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        # v2: the smallest of the group and its parents; the root group has no file.
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        # In a container: the path is another namespace's, and the mount is the container's own.
        ("0::/../../docker/4f\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("4:memory:/\n3:cpu,cpuacct:/docker/4f\n", {"cpu,cpuacct/cpu.cfs_quota_us": "25000"}, None),
        # v1: -1 is no quota, and both files are needed.
        (
            "3:cpu,cpuacct:/q\n0::/\n",
            {"cpu,cpuacct/q/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/q/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("3:cpu:/q\n", {"cpu/q/cpu.cfs_quota_us": "-1\n", "cpu/q/cpu.cfs_period_us": "100000\n"}, None),
        ("3:cpu:/q/r\n", {"cpu/q/cpu.cfs_quota_us": "300000\n", "cpu/q/cpu.cfs_period_us": "100000\n"}, 3.0),
        ("4:cpuset:/q\n", {"cpu.max": "100000 100000\n"}, None),
        ("", {}, None),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, None),
    ],
)
def test_quota_of_a_cgroup(tmp_path: Path, cgroup: str, files: dict[str, str], expected: float | None) -> None:
    assert quota(tmp_path, cgroup, files) == expected


def test_no_cgroups() -> None:
    assert cpu_quota(Path("/nowhere"), Path("/nowhere")) is None


@pytest.mark.parametrize(
    ("affinity", "quota", "usable", "is_warned"),
    [(8, None, 8, False), (8, 3.0, 3, False), (8, 3.5, 3, True), (8, 0.5, 1, True), (2, 3.5, 2, False)],
)
def test_usable_cpus(
    affinity: int, quota: float | None, usable: int, is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole ones, and at least one; a quota above the affinity has no effect."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(affinity)))
    monkeypatch.setattr(cpus, "cpu_quota", lambda: quota)
    assert usable_cpus() == usable
    warning = quota_in_words(quota, affinity)
    assert (warning is not None) == is_warned
    if warning:
        assert warning.startswith(f"the CPU quota of this container or job is {quota:g} CPUs, of 8 that it sees")
