"""A use case that behaves as its execution mode says: well, or with one of the faults that a job must survive. How
long its steps take is simulated (simulated_clock.py).

A mode is a function below. It is called when the program is built, and returns the program, or nothing where that is an
ordinary one; for the control without communication of the modes that have one, the function `control_of_<mode>` is
called instead.
"""

import gc
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import Refused
from harness.measure.channel import Channel
from harness.measure.other_cpu_load import OtherCpuLoad
from harness.measure.program import Phase, Program, Session
from harness.results.parity import PARITY_BATCH_SIZE

from ..simulated_clock import advance

LONG_S = 900.0


class Work(Program):
    """A step of 0.1 ms."""

    samples_per_step = 8
    parameter_count = 1

    def __init__(
        self,
        session: Session[Any],
        step: Callable[[], Any] = lambda: advance(1e-4),
        *,
        communicates: bool = False,
        details: dict[str, Any] | None = None,
    ) -> None:
        self.session = session
        self.step = step  # type: ignore[method-assign]
        self.communicates = communicates
        self.details = details or {}

    def state(self) -> None: ...

    def parity(self) -> dict[str, NDArray[np.float64]]:
        world = self.session.world
        print(f"rank {world.rank} computes {self.session.measurement.variant.key}")
        self.session.agree(0.0)  # hangs or fails unless all ranks take part
        if world.rank == world.size - 1:
            fail_parity_as(self.session.mode.formulation)
        if "ORDER_OF_EXECUTION" in os.environ:
            order().note(
                f"compute parity numbers of {self.session.measurement.framework}", self.session.mode.formulation
            )
        outputs = np.arange(4.0)
        if (self.session.measurement.framework, self.session.mode.formulation) == ("torch", "parity_differs"):
            outputs[3] = 4.0
        return {"outputs": outputs, "loss": np.array(world.size)}


def build(session: Session[Any], *, joined: bool = True) -> Work:
    """The gate's program behaves well: only its parity numbers may be missing."""
    name = session.mode.formulation
    assert session.mode.run.process_per_node == (name == "stands_for_its_node")  # the job acts on it
    make = globals()[name if joined else f"control_of_{name}"]
    made = None if session.measurement.variant.batch_size == PARITY_BATCH_SIZE else make(session)
    return made or Work(session)


def fail_parity_as(mode: str) -> None:
    if mode == "parity_is_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "parity_raises":
        raise KeyError("conv9")
    if mode == "parity_is_refused":
        raise Refused("this mode needs an NVIDIA GPU")
    if mode == "parity_sleeps":
        time.sleep(LONG_S)


well = Work
parity_differs = parity_is_killed = parity_raises = parity_is_refused = parity_sleeps = Work


def of_steps(step_s: float) -> Callable[[Session[Any]], Work]:
    return lambda session: Work(session, lambda: advance(step_s))


slow, slower = of_steps(10e-3), of_steps(20e-3)


def gated(session: Session[Any]) -> Work:
    """Waits for the file that settings.gate names; meanwhile settings.pid has this process's id."""
    return _wait_for_gate(session, Path(str(session.measurement.settings["pid"])), f"{os.getpid()}")


def all_gated(session: Session[Any]) -> Work:
    """Every rank leaves its process's id, and its parent's, beside settings.pid."""
    pid_file = Path(str(session.measurement.settings["pid"])).with_name(f"pid-{session.world.rank}")
    return _wait_for_gate(session, pid_file, f"{os.getpid()} {os.getppid()}")


def _wait_for_gate(session: Session[Any], pid_file: Path, content: str) -> Work:
    pid_file.with_suffix(".part").write_text(content)
    pid_file.with_suffix(".part").rename(pid_file)
    end = time.monotonic() + LONG_S
    while not Path(str(session.measurement.settings["gate"])).exists() and time.monotonic() < end:
        time.sleep(0.02)
    return Work(session)


def _later(session: Session[Any], fault: Callable[[], Any]) -> Work:
    """In the third block or so; what comes before the first is not counted."""
    calls: list[int] | None = None

    def begin_timing() -> None:
        nonlocal calls
        calls = []

    def step() -> None:
        advance(1e-3)
        if calls is not None:
            calls.append(1)
            if len(calls) > 5:
                fault()

    session.device.begin_timing = begin_timing
    return Work(session, step)


def dies_later(session: Session[Any]) -> Work:
    return _later(session, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hangs_later(session: Session[Any]) -> Work:
    return _later(session, lambda: time.sleep(LONG_S))


def waits_later(session: Session[Any]) -> Work:
    """For the gate, as `gated` does before all else."""
    pid = Path(str(session.measurement.settings["pid"]))
    return _later(session, lambda: None if pid.exists() else _wait_for_gate(session, pid, f"{os.getpid()}"))


def fills_the_device_at_first(session: Session[Any]) -> Work:
    """As beside another process: it fits when it is tried again."""
    tried = Path(str(session.measurement.settings["pid"])).with_name("tried")
    if tried.exists():
        return Work(session)
    tried.touch()
    return fills_the_device(session)


def beside_others(session: Session[Any]) -> Work:
    """As if other processes took 38 % of the CPUs."""
    OtherCpuLoad.cpus = lambda _self: 0.38 * len(os.sched_getaffinity(0))  # type: ignore[method-assign]
    return Work(session)


def beside_others_at_first(session: Session[Any]) -> Work:
    """The same, but quiet when it is tried again."""
    tried = Path(str(session.measurement.settings["pid"])).with_name(f"busy-{session.measurement.replicate}")
    if tried.exists():
        return Work(session)
    tried.touch()
    return beside_others(session)


def compiles(session: Session[Any]) -> Work:
    """For 0.4 s where the caches are empty, for 0.1 s else; fills them."""
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])

    def step() -> None:
        advance(1e-3)

    def first() -> None:
        advance(0.1 if cache.exists() else 0.4)
        cache.mkdir(parents=True, exist_ok=True)

    calls = iter([first])
    return Work(session, lambda: next(calls, step)())


def cannot_use_its_caches(session: Session[Any]) -> Work:
    if Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).exists():
        raise ValueError("bad cache entry")
    return compiles(session)


def hangs_with_its_caches(session: Session[Any]) -> Work:
    if Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).exists():
        return gated(session)
    return compiles(session)


def sleeps(session: Session[Any]) -> None:
    time.sleep(LONG_S)


def is_killed(session: Session[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_and_leaves_a_worker(session: Session[Any]) -> Work:
    """The worker holds the pipe's end that the parent reads, as a forked compiler worker does. Its process id is in the
    file `worker`, beside settings.pid."""
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    command = ["sleep", str(LONG_S)]
    worker = subprocess.Popen(command, close_fds=False, pass_fds=[fd for fd in descriptors if fd > 2])
    Path(str(session.measurement.settings["pid"])).with_name("worker").write_text(str(worker.pid))
    return is_killed(session)


def sends_no_number(session: Session[Any]) -> Work:
    return Work(session, details={"phases": {"forward": [0.1, float("nan")]}})


def segfaults(session: Session[Any]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exits(session: Session[Any]) -> Work:
    print("the framework's last words")
    sys.stdout.flush()
    os._exit(3)


def fills_the_host(session: Session[Any]) -> None:
    """The kernel refuses an allocation, really."""
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    bytearray(4 << 30)


def fills_the_device(session: Session[Any]) -> Work:
    raise RuntimeError("device is full: 4 GiB asked for\nand a stack trace of C++")


def raises(session: Session[Any]) -> Work:
    raise KeyError("conv9")


def sends_nonsense(session: Session[Any]) -> None:
    """Over the channel, in the place of events."""
    (channel,) = [each for each in gc.get_objects() if isinstance(each, Channel)]
    os.write(channel._file_descriptor, b"not JSON\n@event 0 1/1 {half\n")


def prints_much(session: Session[Any]) -> None:
    """More than a pipe holds, on both outputs."""
    print("x" * 200_000)
    print("y" * 200_000, file=sys.stderr)


def is_slower_on_rank_1(session: Session[Any]) -> Work:
    return of_steps(3e-3 if session.world.rank == 1 else 1e-3)(session)


def is_signalled(session: Session[Any]) -> None:
    """As Slurm signals every process of a job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)


def removes_the_temporary_folder(session: Session[Any]) -> None:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # every rank does


def shows_its_world(session: Session[Any]) -> Work:
    print(f"this is rank {session.world.rank}")
    return Work(session, details=session.world.model_dump())


stands_for_its_node = shows_its_world


def kills_rank_1(session: Session[Any]) -> None:
    """The other ranks wait for ever, as in a collective on a GPU, which has no connection to break."""
    if session.world.rank == 1:
        print("last words of rank 1")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    sleeps(session)


def is_controlled(session: Session[Any]) -> Work:
    return Work(session, communicates=True)


control_is_killed_on_rank_1 = is_controlled
control_of_is_controlled = Work


def control_of_control_is_killed_on_rank_1(session: Session[Any]) -> Work:
    def step() -> None:
        if session.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return Work(session, step)


# What tests/harness/job/test_order_of_execution.py watches.


def order() -> Any:
    """Return tests/made/watched/order_of_execution.py, which is on the path of a watched job."""
    return importlib.import_module("order_of_execution")


class Watched(Work):
    """Notes what is done with it."""

    def __init__(self, session: Session[Any], step_s: float) -> None:
        measurement = session.measurement
        order().begin(
            order().name_of(measurement.framework, session.mode.name, measurement.stage, measurement.replicate)
        )
        cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])

        def first(_step_s: float) -> None:
            order().note_step("recompile" if cache.exists() else "compile")
            cache.mkdir(parents=True, exist_ok=True)

        calls = iter([first])
        super().__init__(session, lambda: next(calls, advance)(step_s))
        session.device.begin_timing = lambda: order().note_step("time")

    def check(self) -> list[Any]:
        order().note_step("check")
        return []

    def answers(self) -> None:
        order().note_step("predict")

    def phases(self) -> list[Phase]:
        return [("forward", lambda: order().note_step("phases"))]


def standard(session: Session[Any]) -> Work:
    return Watched(session, 2e-3)


def fast(session: Session[Any]) -> Work:
    return Watched(session, 1e-3)


def slowest(session: Session[Any]) -> Work:
    return Watched(session, 10e-3)
