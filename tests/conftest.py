"""The order of the tests, and what they start with."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from harness import locks
from harness.results.cpus import THREAD_VARIABLES, THREADS
from tests.made.guardian import guarded_folder

HERE = Path(__file__).parent
FRAMEWORKS_IN_THIS_PROCESS = HERE / "runners"
LONGEST = (
    "test_eager_cases.py",
    "test_several_devices.py",
    "test_train.py",
    "test_per_sample_gradients.py",
    "test_graphs.py",
)
SLURM = HERE / "slurm"
FAULTS = HERE / "faults"
QUICK_FAULTS = FAULTS / "test_quick.py"
SLOW = (
    "fake_cuda",
    "faults",
    "gpu_compile",
    "harness/job",
    "pipeline/submission/test_local_queue.py",
    "pipeline/test_calibrate.py",
    "pipeline/test_measure.py",
    "runners",
    "slurm",
    "whole/test_adding.py",
    "whole/test_gpu_tests.py",
)
"""They need a framework or Slurm, or run whole jobs. `make test-fast` is the rest."""

# Several files of tests run at a time (make test), and threads that wait for a core cost PyTorch more than they bring.
# A measurement ignores the first two, unless they are equal, and obeys the third.
for name in (*THREAD_VARIABLES, THREADS):
    os.environ.setdefault(name, "1")
# Where its cache is empty, Inductor tries the C++ compiler on each set of vector instructions that the CPU says it has:
# six seconds in every process that has caches of its own.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a framework in pytest's own process come last: JAX's threads do not survive a fork, and the
    others fork. The longest files of them come first, so that no process waits for one at the end. First of all come
    those with Slurm, which wait most of their time."""
    items.sort(
        key=lambda item: (
            SLURM not in item.path.parents,
            FRAMEWORKS_IN_THIS_PROCESS in item.path.parents,
            LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST),
        )
    )
    for item in items:
        if any(item.path.is_relative_to(HERE / name) for name in SLOW):
            item.add_marker("slow")
        if FAULTS in item.path.parents and item.path != QUICK_FAULTS:
            item.add_marker("faults")
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker("slurm")


FREEZE, UNFREEZE = gc.freeze, gc.unfreeze
KEEP_FROZEN = pytest.MonkeyPatch()


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays to the end: Python's garbage collector need not look at it again and
    again. A tracer of JAX or PyTorch makes so many objects that this is an eighth of their tests' time. A measurement
    freezes and thaws, too (harness/measure/clock.py), which in this process would end it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    for name in ("freeze", "unfreeze"):
        KEEP_FROZEN.setattr(gc, name, lambda: None)


@pytest.fixture
def measurements_freeze(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of their own."""
    monkeypatch.setattr(gc, "freeze", FREEZE)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    UNFREEZE()
    yield
    FREEZE()


def pytest_sessionfinish() -> None:
    KEEP_FROZEN.undo()
    gc.unfreeze()


class Scheduling(LoadFileScheduling):
    """A file is one worker's, and all that start a Slurm are one's too: one cluster, and the others have work to do
    while it waits."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/slurm" if file.startswith("tests/slurm/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def pytest_configure() -> None:
    """In pytest's first process and in each worker.

    A shell without job control starts what it runs in the background with SIGINT ignored, and every process would
    inherit that; some tests are about what a SIGINT does."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nor do the jobs of one worker wait for those of another, or for a measurement on this machine.
    os.environ[locks.FOLDER] = str(guarded_folder() / "locks")
