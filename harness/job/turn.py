"""Turns on a machine: nobody measures beside another measurement, whoever started it and from wherever.

Each device has two locks. `turn` is held by a job from its parity gate to its last measurement. `busy` is shared by the
processes that measure, each for as long as it lives: one that has lost its job, or hangs in the driver, is waited for
like any other. The kernel frees both, so a run that was killed blocks nobody.

Outside Slurm the whole machine is one device, and its GPUs are too. In Slurm only the GPUs of the job, or of its step,
are devices, so that two jobs on different GPUs of a node do not meet; a job without one has what Slurm gave it, and
meets only what is left of itself.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from harness.errors import ProjectError
from harness.locks import hold, machine_lock, take_for_life
from harness.measure.gpu import open_gpu, visible_gpu_count

MACHINE = "machine"
PATIENCE_IN_SLURM_S = 600.0
"""What Slurm gave to a job is its own: whoever is there may end within minutes, or hangs for ever and costs the whole
allocation."""


class DeviceTakenError(ProjectError):
    """Another process measures on a device that this job has to itself."""


def devices(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Names for the locks, in an order that all jobs have, so that no two wait for each other."""
    gpus = _gpus(variables)
    if "SLURM_JOB_ID" not in variables:
        return [MACHINE, *gpus]
    return gpus or [f"slurm-{variables['SLURM_JOB_ID']}"]


def _gpus(variables: Mapping[str, str]) -> list[str]:
    """By UUID; where NVML does not answer, by what the scheduler calls them on its node."""
    node = variables.get("SLURMD_NODENAME", socket.gethostname())
    names = [name.strip() for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    found = set()
    for position in range(visible_gpu_count() or 0):
        description = open_gpu(position).describe()
        name = names[position] if position < len(names) else str(position)
        found.add(description.get("uuid") or f"gpu-{node}-{name}")
    return sorted(found)


@contextmanager
def turn(*, tell: Callable[[str], None], warn: Callable[[str], None]) -> Iterator[None]:
    """Wait until nobody measures on this job's devices, and keep it so.

    Args:
        tell: called while it waits, with what for.
        warn: called where there can be no locks on this machine.

    Raises:
        DeviceTakenError: in Slurm, after ten minutes.
    """
    is_slurm = "SLURM_JOB_ID" in os.environ
    give_up_at = time.monotonic() + PATIENCE_IN_SLURM_S
    with ExitStack() as stack:
        for device in devices():
            place = "this machine" if device == MACHINE else f"{device} of this job"

            def wait(who: str, place: str = place) -> None:
                tell(f"waits for {who}, which measures on {place}")
                if is_slurm and time.monotonic() > give_up_at:
                    raise DeviceTakenError(
                        f"{who} on {socket.gethostname()} still measures on {place} after "
                        f"{PATIENCE_IN_SLURM_S / 60:.0f} min. Nothing is measured beside it. It may be left of an "
                        f"earlier job and hang in the GPU's driver; submit the job again, on another node."
                    )

            try:
                stack.enter_context(hold(machine_lock(f"turn-{device}"), while_waiting=wait))
                with hold(machine_lock(f"busy-{device}"), while_waiting=wait):
                    pass
            except OSError as error:
                warn(f"warning: no lock on this machine, so another run would not wait for this one: {error}")
        yield


def keep_busy() -> None:
    """Called by a process that will measure: nobody's turn comes while it lives. Without locks, see `turn`, nothing
    is done."""
    for device in devices():
        try:
            take_for_life(machine_lock(f"busy-{device}"))
        except OSError:
            return
