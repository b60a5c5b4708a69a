"""How long tests wait. A limit is there so that a hung test ends; no test asserts the machine's speed with it."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def slowdown() -> float:
    """Return how many times longer than alone something takes on this machine now; rather too much than too little.

    The processes that wait for a core are counted over the last minute and at this moment, and are at least as many as
    pytest's workers, which have perhaps only begun. The cores are those that this process may use.
    """
    minute, _, _, entities, _ = Path("/proc/loadavg").read_text().split()
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    busy = max(float(minute), float(entities.partition("/")[0]), float(workers))
    return 1.5 * max(1.0, busy / len(os.sched_getaffinity(0)))


def patience(quiet_s: float = 10.0) -> float:
    """The limit in seconds for what a quiet machine does within `quiet_s`."""
    return quiet_s * max(6.0, 2 * slowdown())


def wait_until(
    condition: Callable[[], bool], what: str, told: Callable[[], str] = str, *, quiet_s: float = 10.0
) -> None:
    """`told` adds to the message of a wait in vain, for example the end of a log."""
    limit_s = patience(quiet_s)
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}\n{told()}"
        time.sleep(0.02)
