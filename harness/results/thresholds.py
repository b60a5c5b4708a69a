"""From where on an explanation of a difference is believed, and what it says (pipeline/report/why.py)."""

from typing import NamedTuple


class Thresholds(NamedTuple):
    """What is still believed, as fractions. Those of a CPU are wider: its steps vary more and its tracers cost more,
    and nothing there is said of launches."""

    busy: float
    """Busy time over step time."""
    windows: float
    """Busy time of a step in one window and in the other."""
    processes: float
    """Step time of the explaining process and of the records; and in that process, without its tracer and with it."""


ON_GPU = Thresholds(busy=1.02, windows=0.05, processes=0.05)
ON_CPU = Thresholds(busy=1.5, windows=0.25, processes=0.25)
UNKNOWN_KERNELS = 0.05
"""Of the busy time: with more, there is no explanation."""
DECIDES, MENTIONED = 0.15, 0.03
"""Shares of a step, as xprof has them (op_stats_to_input_pipeline_analysis.cc)."""
LAUNCHES = 0.8
"""Dispatch time over step time, from which on a step that waits is launch-bound."""
TOLD = 0.8
"""Of a difference, until no more is named."""
WORTH_TELLING = 0.1
"""Of the faster step: a smaller difference that no interval confirms is not explained."""
PER_STEP = 0.01
"""By how much counts of a kernel in a step may differ between windows."""
