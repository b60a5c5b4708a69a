"""Where a step's time goes: drives a program under its framework's own profiler, when nothing is timed any more.

First without a tracer: some blocks, and how long the host takes to hand out a call. Then two traced windows, the second
twice as long, so that the report can see whether they agree. Kineto leaves a process slower than it was, so nothing is
timed after this.
"""

import importlib
from math import ceil
from typing import Any

from harness.measure import clock
from harness.measure.program import Program, Session
from harness.measure.work import NOT_KNOWN, work_of_step
from harness.results.kernel_names import class_of
from harness.results.record import Blocks, Explanation, KernelClass, KernelTime, TracedWindow
from harness.results.statistics import median
from harness.results.timeline import window_of

BLOCKS_MAX_TIME_S = 3.0
DISPATCHES = 30
DISPATCH_MAX_TIME_S = 1.0
WINDOW_S = 0.05
"""Of the shorter traced window, within these numbers of calls."""
FEWEST_CALLS, MOST_CALLS = 3, 20
LONG_CALL_S = 1.0
"""Of such a call, as one of many steps may be, one is traced and then two."""
MOST_KERNELS = 400
"""Names that a record keeps of a window, the longest ones; the others are added up by class as `OTHERS`."""
OTHERS = "(all others of class {})"


def explain(program: Program, session: Session[Any], blocks: Blocks | None = None) -> Explanation:
    """
    Args:
        blocks: of this very process, where there are any; else some are timed first.
    """
    step, wait, protocol = program.step, session.device.wait, session.measurement.protocol
    trace: Any = importlib.import_module(f"{session.measurement.framework}_runner.trace")
    work, work_absent = _work(program, session)
    if blocks is None:
        blocks = clock.measure_short(
            step,
            wait,
            block_min_s=protocol.block_min_s,
            count=protocol.min_blocks,
            max_time_s=BLOCKS_MAX_TIME_S,
            steps_per_call=program.steps_per_call,
            samples=program.samples_per_step,
        )
    dispatch_times_s = clock.measure_dispatch(step, wait, count=DISPATCHES, max_time_s=DISPATCH_MAX_TIME_S)
    call_s = median(blocks.block_times_s) / blocks.calls_per_block
    calls = 1 if call_s > LONG_CALL_S else min(MOST_CALLS, max(FEWEST_CALLS, ceil(WINDOW_S / call_s)))
    windows = [_window(trace, program, wait, count) for count in (calls, 2 * calls)]
    return Explanation(
        tracer=trace.tracer(),
        on_device=session.device.describe().get("platform") in ("gpu", "cuda"),
        blocks=blocks,
        dispatch_times_s=dispatch_times_s,
        windows=windows,
        work=work,
        work_absent=work_absent,
    )


def _work(program: Program, session: Session[Any]) -> tuple[Any, str | None]:
    """A model of one's own may have something that cannot be counted: then there are no numbers; the rest stands."""
    try:
        work = work_of_step(program, session)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return work, None if work is not None else NOT_KNOWN


def _window(trace: Any, program: Program, wait: clock.Wait, calls: int) -> TracedWindow:
    timeline, contents = trace.traced(lambda: clock.time_block(program.step, wait, calls))
    window = window_of(timeline, steps=calls * program.steps_per_call, contents=contents)
    if len(window.kernels) <= MOST_KERNELS:
        return window
    kept, rest = window.kernels[:MOST_KERNELS], window.kernels[MOST_KERNELS:]
    return window.model_copy(update={"kernels": [*kept, *_added_up(rest)]})


def _added_up(kernels: list[KernelTime]) -> list[KernelTime]:
    """One for each class: what they do is known, though there are too many of them to name."""
    by_class: dict[KernelClass, list[KernelTime]] = {}
    for kernel in kernels:
        by_class.setdefault(class_of(kernel.name, kernel.content), []).append(kernel)
    return [
        KernelTime(
            name=OTHERS.format(name),
            count=sum(kernel.count for kernel in members),
            busy_s=sum(kernel.busy_s for kernel in members),
            content=name,
        )
        for name, members in by_class.items()
    ]
