"""Stands in for a runner's trace.py: what is traced is one kernel in each call, or a fault."""

import importlib
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from harness.results.timeline import Timeline, timeline_of

FAULT = "FAULT_OF_TRACER"
"""The variable that says which."""


def tracer() -> str:
    return "fake tracer 1.2.3"


def traced(run: Callable[[], Any]) -> tuple[Timeline, dict[str, Any]]:
    fault = os.environ.get(FAULT)
    if fault == "raises":
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hangs":
        time.sleep(900)
    if "ORDER_OF_EXECUTION" in os.environ:
        importlib.import_module("order_of_execution").note_step("explain")
    run()
    if fault == "sees nothing":
        return timeline_of([]), {}
    return timeline_of([("ampere_sgemm_128x64_tn", 0.0, 1e-3, math.nan), ("loop_add_fusion", 2e-3, 3e-3, 1.5e-3)]), {}
