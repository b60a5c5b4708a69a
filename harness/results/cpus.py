"""The CPUs that a process may use, by its affinity and by the quota of its cgroup, and the threads that both frameworks
get for them."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

THREADS = "MEASUREMENT_THREADS"
"""Environment variable: how many threads both frameworks compute with, instead of one for each usable CPU."""


THREAD_VARIABLES = ("OMP_NUM_THREADS", "NPROC")
"""Of OpenMP, which is PyTorch's, and of XLA."""


def cpu_quota(cgroups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the CPU time per second that the cgroup of this process and all its parents allow, in CPUs: 1.5 for
    `docker run --cpus 1.5`. None without a quota. Reads cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us)."""
    try:
        lines = cgroups.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            quotas += [quota for folder in _folders(path, root, root / "unified") for quota in _quota_of_v2(folder)]
        elif "cpu" in controllers.split(","):
            bases = root / controllers, root / "cpu", root / "cpu,cpuacct"
            quotas += [quota for folder in _folders(path, *bases) for quota in _quota_of_v1(folder)]
    return min(quotas, default=None)


def _folders(path: str, *bases: Path) -> Iterator[Path]:
    """Yield the cgroup's folder and its parents in each mount. In a container the path may be that of the host, and the
    mount itself the container's."""
    parts = [part for part in path.split("/") if part]
    for base in bases:
        for count in range(len(parts), -1, -1):
            if ".." not in parts[:count]:
                yield base.joinpath(*parts[:count])


def _quota_of_v2(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)  # `max` is no number


def _quota_of_v1(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:
            yield quota / period


def usable_cpus(quota: float | None = None) -> int:
    """Return min(affinity, quota), rounded down, at least 1.

    Args:
        quota: that of `cpu_quota`; asked for where it is None.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota() if quota is None else quota
    return affinity if quota is None else max(1, math.floor(min(affinity, quota)))


def quota_in_words(quota: float | None, affinity: int) -> str | None:
    """Return a warning where the quota allows a fraction of a CPU beside whole ones; None else."""
    if quota is None or quota >= affinity or quota == int(quota):
        return None
    return (
        f"the CPU quota of this container or job is {quota:.3g} CPUs, of {affinity} that it sees: the kernel stops all "
        f"threads when it is used up, so times vary. Ask for whole CPUs."
    )


def thread_variables(ranks: int = 1, cpus: int | None = None) -> dict[str, str]:
    """Return the variables that give each of several ranks of one machine an equal share of its CPUs as threads.

    With a thread for every CPU each, PyTorch's ranks would take the CPUs from each other by waiting actively. Ranks are
    not bound to CPUs: the threads that only communicate, which both frameworks have, would have to wait for the one
    that computes.

    Args:
        cpus: of this machine; by default, MEASUREMENT_THREADS or the usable ones.
    """
    if cpus is None:
        wanted = os.environ.get(THREADS, "")
        cpus = int(wanted) if wanted.isdecimal() and int(wanted) else usable_cpus()
    return dict.fromkeys(THREAD_VARIABLES, str(max(1, cpus // ranks)))
