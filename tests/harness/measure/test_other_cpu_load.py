"""What other processes take of a measurement's CPUs, from /proc/stat as the kernel writes it."""

import os
from pathlib import Path

import pytest

from harness.measure import other_cpu_load
from harness.measure.other_cpu_load import OtherCpuLoad, busy_machine


def write_stat(path: Path, *, user: int, idle: int = 500, steal: int = 777) -> None:
    """Of CPUs 0, 1 and 2, in ticks of 0.01 s, in the order of proc(5): user, nice, system, idle, iowait, irq, softirq,
    steal, guest and guest_nice."""
    of_cpu = f"{user} 10 20 {idle} 999 1 2 {steal} 0 0"
    path.write_text("".join(f"cpu{name} {of_cpu}\n" for name in ("", 0, 1, 2)) + "intr 5\n")


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process may use CPUs 0 and 1, and takes 3 s of them in 10 s."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda _name: 100)
    clocks_are(monkeypatch, [100.0, 110.0], [50.0, 53.0])
    return tmp_path / "stat"


def clocks_are(monkeypatch: pytest.MonkeyPatch, times_s: list[float], own_s: list[float]) -> None:
    monkeypatch.setattr(other_cpu_load.time, "monotonic", iter(times_s).__next__)
    monkeypatch.setattr(other_cpu_load.time, "process_time", iter(own_s).__next__)


@pytest.mark.parametrize(
    ("busy", "idle", "steal", "cpus"),
    [
        (600, 400, 0, 0.9),  # each CPU was busy for 6 s: 12 s on the two, of which 3 s were ours, so 9 s in 10 s
        (150, 800, 50, 0.1),  # each was ours for 1.5 s and another virtual machine's for 0.5 s
        (150, 850, 0, 0.0),  # alone
    ],
)
def test_the_others_have_what_is_busy_and_not_ours(stat: Path, busy: int, idle: int, steal: int, cpus: float) -> None:
    write_stat(stat, user=1000, idle=500, steal=700)
    watched = OtherCpuLoad(stat)
    write_stat(stat, user=1000 + busy, idle=500 + idle, steal=700 + steal)
    assert watched.cpus() == pytest.approx(cpus)


def test_a_kernel_that_does_not_tell_and_a_short_window_are_no_measure(
    stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OtherCpuLoad(stat).cpus() is None
    for window_s, counted in ((10.0, 0), (0.9, 1)):
        clocks_are(monkeypatch, [100.0, 100.0 + window_s], [50.0, 50.0])
        stat.write_text(f"cpu {counted} 0 0 0\ncpu0 {counted} 0 0 0 0 0 0\n")
        assert OtherCpuLoad(stat).cpus() is None


def test_what_happens_while_nobody_looks_is_no_other_load(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s, then 30 s of which nothing counts, then 6 s: in these 10 s the two CPUs were busy for 2 and 4 s each, of
    which 1 and 2 s were ours: 12 - 3 s in 10 s."""
    clocks_are(monkeypatch, [100.0, 104.0, 134.0, 140.0], [50.0, 51.0, 80.0, 82.0])
    write_stat(stat, user=1000)
    watched = OtherCpuLoad(stat)
    write_stat(stat, user=1200)
    watched.pause()
    write_stat(stat, user=9000)
    watched.resume()
    write_stat(stat, user=9400)
    assert watched.cpus() == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("load", "others", "is_busy"),
    # Of two CPUs a quarter is 0.5. What has just ended is in the load average, and takes nothing any more.
    [(0.5, 2.0, False), (6.31, 0.5, False), (6.31, 0.6, True), (6.31, None, True)],
)
def test_a_busy_machine_is_told_before_anything_starts(
    load: float, others: float | None, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(OtherCpuLoad, "cpus", lambda _self, _shortest_s: others)
    words = "This machine is busy (load 6.3 on 2 CPUs): measurements will take longer and rows may stay inconclusive. "
    assert busy_machine() == (words + "Wait until it is quiet, or continue." if is_busy else None)
