"""Stands in for a runner's device.py where a test is about processes and faults, not about frameworks."""

from typing import Any

from harness.errors import Refused
from harness.record import Memory


class Device:
    """Implements harness.session.DeviceProtocol."""

    def set_up(self, precision: str) -> None:
        if precision != "fp32":
            raise Refused(f"precision {precision} needs an NVIDIA GPU")

    def describe(self) -> dict[str, Any]:
        return {"name": "fake", "version": "1.2.3", "platform": "cpu"}

    def wait(self, outputs: Any) -> None: ...

    def compilations(self) -> int:
        return 0

    def begin_timing(self) -> None: ...
    def end_timing(self) -> None: ...

    def memory(self) -> Memory:
        return Memory(absent="fake")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "device is full" in str(error)
