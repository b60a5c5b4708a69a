"""Configure pytest: which tests are collected, in which order they run, and the processes that run them."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from harness import locks
from harness.measure.gpu import Gpu, open_gpu
from harness.results.cpus import THREAD_VARIABLES, THREADS
from tests.made.guardian import guarded_folder

HERE = Path(__file__).parent
GPU = HERE / "gpu"
FRAMEWORKS_IN_THIS_PROCESS = HERE / "runners"
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


def is_gpu_needed(config: pytest.Config) -> bool:
    """Return whether tests/gpu is collected even without a GPU: where it is named, or must not be skipped."""
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return os.environ.get("REQUIRE_GPU") == "1" or any(path.is_relative_to(GPU) for path in named)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out tests/gpu on a machine without a GPU: hundreds of skipped cases would hide the other skipped ones."""
    if collection_path != GPU or is_gpu_needed(config) or isinstance(open_gpu(), Gpu):
        return None
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Add a line for the cases of tests/gpu, and one for each reason why tests were skipped."""
    everything = any(GPU.is_relative_to(Path(argument).resolve()) for argument in config.args)
    if everything and not is_gpu_needed(config) and not isinstance(open_gpu(), Gpu):
        from tests.gpu.cases import all_cases

        terminalreporter.write_line(f"tests/gpu: {len(all_cases())} cases need an NVIDIA GPU: not collected")
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the items by their folders, and sort them.

    Tests of Slurm come first, as they wait most of their time. Tests that start a framework in pytest's own process
    come last: JAX's threads do not survive a fork, and other tests fork. Within each of these groups the longest files
    come first, so that no process is left with one at the end.
    """
    seconds = {item.path: takes(item) for item in items}
    items.sort(
        key=lambda item: (
            SLURM not in item.path.parents,
            FRAMEWORKS_IN_THIS_PROCESS in item.path.parents,
            -seconds[item.path],
        )
    )
    for item in items:
        if any(item.path.is_relative_to(HERE / name) for name in SLOW):
            item.add_marker("slow")
        if FAULTS in item.path.parents and item.path != QUICK_FAULTS:
            item.add_marker("faults")
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker("slurm")


def takes(item: pytest.Item) -> float:
    """Return the seconds of processor time that an item's file is marked with, or 0 for a file of a few seconds."""
    marker = item.get_closest_marker("takes")
    return marker.args[0] if marker else 0.0


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


SLURM_FILES = sorted(path.name for path in SLURM.glob("test_*.py"))


class Scheduling(LoadFileScheduling):
    """Give each file to one worker, and each half of the files with Slurm to one worker.

    So two clusters are started. One worker would still wait for its jobs when the other workers have no work left, and
    on more workers nothing else would use the cores meanwhile.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        name = file.removeprefix("tests/slurm/")
        return f"tests/slurm/{SLURM_FILES.index(name) % 2}" if name in SLURM_FILES else file


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
