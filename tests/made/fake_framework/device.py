"""Stands in for a runner's device.py where a test is about processes and faults, not about frameworks."""

import time
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from harness.errors import Refused
from harness.measure.world import World
from harness.results.record import Memory

from . import simulated_clock


class Device:
    """Implements harness.measure.program.Device. The ranks agree over plain sockets: rank 0 serves, the others ask."""

    def __init__(self) -> None:
        simulated_clock.install()
        self.others: list[Connection] = []

    def join(self, world: World) -> None:
        if world.size == 1:  # one process for several devices
            return
        assert world.coordinator is not None
        host, port = world.coordinator.split(":")
        self.rank = world.rank
        if world.rank == 0:
            with Listener(("", int(port)), backlog=world.size) as listener:
                self.others = [listener.accept() for _ in range(world.size - 1)]
        end = time.monotonic() + 300
        while not self.others:
            try:
                self.others = [Client((host, int(port)))]
            except ConnectionRefusedError:
                assert time.monotonic() < end
                time.sleep(0.01)

    def agree(self, value: float) -> float:
        if self.rank > 0:
            self.others[0].send(value)
            return self.others[0].recv()
        largest = max([value, *(one.recv() for one in self.others)])
        for one in self.others:
            one.send(largest)
        return largest

    def mean_over_ranks(self, values: Any) -> Any:
        return values

    def leave(self) -> None:
        self.agree(0.0)

    def set_up(self, precision: str) -> None:
        if precision != "fp32":
            raise Refused(f"precision {precision} needs an NVIDIA GPU")

    def describe(self) -> dict[str, Any]:
        return {"name": "fake", "version": "1.2.3", "platform": "cpu"}

    def wait(self, outputs: Any) -> None: ...

    def try_no_algorithms(self) -> None: ...

    def is_finite(self, outputs: Any) -> bool:
        return True

    def compilations(self) -> int:
        return 0

    def forget_programs(self) -> None: ...
    def begin_timing(self) -> None: ...
    def end_timing(self) -> None: ...

    def memory(self) -> Memory:
        return Memory(absent="fake")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "device is full" in str(error)
