"""How busy other processes keep the CPUs of a measurement on a CPU. For a GPU, NVML counts them
(harness/measure/gpu.py)."""

import os
import time
from pathlib import Path

from harness.results.busy import BUSY_SHARE

SHORTEST_WINDOW_S = 1.0
"""The kernel counts in ticks of 0.01 s for each CPU; over less than this they are no measure."""


LOOK_S = 0.3
"""Enough to tell a quarter of the CPUs from none, before anything is measured."""


def busy_machine() -> str | None:
    """Return a warning where other processes keep this machine busy now; None where it is quiet. The load average alone
    would also count what has just ended, such as an installation."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load <= BUSY_SHARE * cpus:
        return None
    others = OtherCpuLoad()
    time.sleep(LOOK_S)
    taken = others.cpus(LOOK_S)
    if taken is not None and taken <= BUSY_SHARE * len(os.sched_getaffinity(0)):
        return None
    return (
        f"This machine is busy (load {load:.1f} on {cpus} CPU{'' if cpus == 1 else 's'}): measurements will take "
        f"longer and rows may stay inconclusive. Wait until it is quiet, or continue."
    )


class OtherCpuLoad:
    """What other processes take of the CPUs that this one may use, from the moment it is made."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._window_s = self._others_s = 0.0
        self._is_known = True
        self.resume()

    def resume(self) -> None:
        """After `pause`: what happens from here on counts."""
        self._began_at: float | None = time.monotonic()
        self._busy_s = self._read_busy_s()
        self._own_s = self._read_own_s()

    def pause(self) -> None:
        """What happens from here on does not count. Without effect during a pause."""
        if self._began_at is None:
            return
        busy_s = self._read_busy_s()
        if busy_s is None or self._busy_s is None:
            self._is_known = False
        else:
            self._others_s += (busy_s - self._busy_s) - (self._read_own_s() - self._own_s)
        self._window_s += time.monotonic() - self._began_at
        self._began_at = None

    def cpus(self, shortest_window_s: float = SHORTEST_WINDOW_S) -> float | None:
        """How many CPUs they kept busy on average; None after less than a second, or where the kernel does not count.
        Ends the window."""
        self.pause()
        if self._window_s < shortest_window_s or not self._is_known:
            return None
        return max(0.0, self._others_s) / self._window_s

    def _read_busy_s(self) -> float | None:
        """user, nice, system, irq, softirq and steal, which is other virtual machines' (proc(5)), summed over this
        process's CPUs."""
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        try:
            lines = [line.split() for line in self._stat.read_text().splitlines()]
        except OSError:
            return None
        ticks = [[int(word) for word in words] for name, *words in filter(None, lines) if name in mine]
        if not any(map(any, ticks)):
            return None
        return sum(sum(of_cpu[:3]) + sum(of_cpu[5:8]) for of_cpu in ticks) / os.sysconf("SC_CLK_TCK")

    def _read_own_s(self) -> float:
        """Of all threads, and of the children that have ended."""
        used = os.times()
        return time.process_time() + used.children_user + used.children_system
