"""A use case that behaves as its variant's execution mode says: well, or with one of the faults a job must survive."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from harness.errors import CheckFailed
from harness.measure import Step
from harness.record import Result
from harness.session import Session
from harness.training import require_finite

PROCESS_PER_NODE = ("stands_for_its_node",)
LONG_S = 120.0


def run(session: Session) -> Result:
    session.channel.progress("begun", 1, 2)
    return globals()[session.measurement.variant.execution_mode](session)


def well(session: Session) -> Result:
    def step() -> None:
        time.sleep(1e-4)

    wait = session.device.wait
    cold = session.measure_cold(step, wait)
    return session.result(session.measure_steady(step, wait, steps_per_call=1, samples_per_step=8), cold)


def gated(session: Session) -> Result:
    """Waits for the file that settings.gate names; meanwhile settings.pid has this process's id."""
    settings = session.measurement.settings
    pid_file = Path(str(settings["pid"]))
    pid_file.with_suffix(".part").write_text(str(os.getpid()))
    pid_file.with_suffix(".part").rename(pid_file)
    end = time.monotonic() + LONG_S
    while not Path(str(settings["gate"])).exists() and time.monotonic() < end:
        time.sleep(0.02)
    return well(session)


def compiles(session: Session) -> Result:
    """For 0.4 s where the caches are empty, for 0.1 s else; fills them."""
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])

    def step() -> None:
        time.sleep(1e-3)

    def first() -> None:
        time.sleep(0.1 if cache.exists() else 0.4)
        cache.mkdir(parents=True, exist_ok=True)

    calls = iter([first])
    wait = session.device.wait
    cold = session.measure_cold(lambda: next(calls, step)(), wait)
    return session.result(session.measure_steady(step, wait, steps_per_call=1, samples_per_step=8), cold)


def cannot_use_its_caches(session: Session) -> Result:
    if Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).exists():
        raise ValueError("bad cache entry")
    return compiles(session)


def hangs_with_its_caches(session: Session) -> Result:
    if Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).exists():
        return gated(session)
    return compiles(session)


def sleeps(session: Session) -> Result:
    time.sleep(LONG_S)
    return well(session)


def is_killed(session: Session) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    return well(session)


def is_killed_and_leaves_a_worker(session: Session) -> Result:
    """The worker holds the pipe's end that the parent reads, as a forked compiler worker does."""
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    subprocess.Popen(["sleep", str(LONG_S)], close_fds=False, pass_fds=[fd for fd in descriptors if fd > 2])
    return is_killed(session)


def tells_nonsense(session: Session) -> Result:
    return Result(details={"phases": {"forward": [0.1, float("nan")]}})


def segfaults(session: Session) -> Result:
    os.kill(os.getpid(), signal.SIGSEGV)
    return well(session)


def exits(session: Session) -> Result:
    print("the framework's last words")
    os._exit(3)


def is_stuck_at_exit(session: Session) -> Result:
    """A thread that never ends keeps the interpreter from ending after the result was sent."""
    threading.Thread(target=time.sleep, args=(LONG_S,)).start()
    return well(session)


def fills_the_host(session: Session) -> Result:
    """The kernel refuses an allocation, really."""
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    bytearray(4 << 30)
    return well(session)


def fills_the_device(session: Session) -> Result:
    raise RuntimeError("device is full: 4 GiB asked for\nand a stack trace of C++")


def diverges(session: Session) -> Result:
    require_finite(np.array([2.3, 7.1, np.nan, np.nan]), epoch=2)
    return well(session)


def is_wrong(session: Session) -> Result:
    raise CheckFailed("full against the float64 loop: relative error 1.00e+00")


def raises(session: Session) -> Result:
    raise KeyError("conv9")


def writes_nonsense(session: Session) -> Result:
    session.channel._pipe.write("not JSON\n")
    session.channel._pipe.flush()
    return well(session)


def prints_much(session: Session) -> Result:
    """More than a pipe holds, on both outputs."""
    print("x" * 200_000)
    print("y" * 200_000, file=sys.stderr)
    return well(session)


def is_slower_on_rank_1(session: Session) -> Result:
    def step() -> None:
        time.sleep(3e-3 if session.world.rank == 1 else 1e-3)

    wait = session.device.wait
    cold = session.measure_cold(step, wait)
    return session.result(session.measure_steady(step, wait, steps_per_call=1, samples_per_step=8), cold)


def is_signalled(session: Session) -> Result:
    """As Slurm signals every process of a job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    return well(session)


def removes_the_temporary_folder(session: Session) -> Result:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # every rank does
    return well(session)


def tells_its_world(session: Session) -> Result:
    print(f"this is rank {session.world.rank}")
    return well(session).model_copy(update={"details": session.world.model_dump()})


def stands_for_its_node(session: Session) -> Result:
    return tells_its_world(session)


def kills_rank_1(session: Session) -> Result:
    """The other ranks wait for it, until the connection breaks."""
    if session.world.rank == 1:
        print("last words of rank 1")
        os.kill(os.getpid(), signal.SIGKILL)
    return well(session)


def hangs_when_rank_1_is_killed(session: Session) -> Result:
    """As a collective on a GPU may, which has no connection to break."""
    if session.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return sleeps(session)


def raises_on_rank_1(session: Session) -> Result:
    if session.world.rank == 1:
        raise KeyError("conv9")
    return well(session)


def fills_rank_1(session: Session) -> Result:
    if session.world.rank == 1:
        raise RuntimeError("device is full: 4 GiB asked for")
    return well(session)


def is_controlled(session: Session) -> Result:
    return session.add_control(well(session), lambda: lambda: time.sleep(1e-4))


def control_fills_rank_1(session: Session) -> Result:
    def make_step() -> Step:
        if session.world.rank == 1:
            raise RuntimeError("device is full: 4 GiB asked for")
        return lambda: time.sleep(1e-4)

    return session.add_control(well(session), make_step)


def control_is_killed_on_rank_1(session: Session) -> Result:
    def step() -> None:
        if session.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return session.add_control(well(session), lambda: step)


def control_hangs(session: Session) -> Result:
    return session.add_control(well(session), lambda: lambda: time.sleep(LONG_S))


def all_gated(session: Session) -> Result:
    """Every rank leaves its process's id beside settings.pid."""
    pid_file = Path(str(session.measurement.settings["pid"])).with_name(f"pid-{session.world.rank}")
    pid_file.with_suffix(".part").write_text(f"{os.getpid()} {os.getppid()}")
    pid_file.with_suffix(".part").rename(pid_file)
    end = time.monotonic() + LONG_S
    while not Path(str(session.measurement.settings["gate"])).exists() and time.monotonic() < end:
        time.sleep(0.02)
    return well(session)


parity_is_killed = parity_raises = parity_is_refused = parity_sleeps = well
"""Only their parity numbers are missing (parity_of_behave.py)."""
