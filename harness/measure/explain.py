"""Where a step's time goes: drives a program under its framework's own profiler, when nothing is timed any more.

First without a tracer: some blocks, and how long the host takes to hand out a call. Then two traced windows, the second
twice as long, so that the report can see whether they agree. Kineto leaves a process slower than it was, so nothing is
timed after this.
"""

import importlib
from math import ceil
from typing import Any

from harness.errors import ProjectError
from harness.measure import clock
from harness.measure.other_cpu_load import OtherCpuLoad
from harness.measure.program import Program, Session
from harness.results.kernel_names import class_of
from harness.results.record import Blocks, Explanation, KernelClass, KernelTime, TracedWindow, Work
from harness.results.statistics import median
from harness.results.timeline import Timeline, window_of
from harness.work.products import work_of

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
NOT_KNOWN = "the use case does not tell what its model takes"


def explain(program: Program, session: Session[Any], blocks: Blocks | None = None) -> Explanation:
    """
    Args:
        blocks: of this very process, where there are any; else some are timed first.

    Raises:
        ProjectError: the tracer has seen nothing.
    """
    step, wait, protocol = program.step, session.device.wait, session.measurement.protocol
    trace: Any = importlib.import_module(f"{session.measurement.framework}_runner.trace")
    work, work_absent = _work(program, session)
    other_load = OtherCpuLoad()
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
    traced = [trace.traced(lambda count=count: clock.time_block(step, wait, count)) for count in (calls, 2 * calls)]
    windows = [
        _window(*one, steps=count * program.steps_per_call)
        for one, count in zip(traced, (calls, 2 * calls), strict=True)
    ]
    if not any(window.kernels for window in windows):
        raise ProjectError(f"{trace.tracer()} saw nothing run: on a GPU another client of CUPTI, as nsys, shuts it out")
    others = other_load.cpus()
    on_device = session.device.describe().get("platform") in ("gpu", "cuda")
    return Explanation(
        tracer=trace.tracer(),
        on_device=on_device,
        blocks=blocks,
        dispatch_times_s=dispatch_times_s,
        windows=windows,
        work=work,
        work_absent=work_absent,
        other_cpus=None if on_device else others,
    )


def work_of_step(program: Program, session: Session[Any]) -> Work | None:
    """The work of a program's step, as its runner counts it from the shapes of the forward pass; nothing is computed.
    None where the program does not report its inputs."""
    inputs = program.model_inputs()
    if inputs is None:
        return None
    measurement, use_case = session.measurement, session.use_case
    products: Any = importlib.import_module(f"{measurement.framework}_runner.products")
    return work_of(
        products.forward_products(session, inputs),
        precision=measurement.variant.precision,
        with_gradients=use_case.has_gradients,
        models=program.model_count,
        parameter_count=program.parameter_count,
        parameter_passes=use_case.parameter_passes(measurement.settings),
    )


def _work(program: Program, session: Session[Any]) -> tuple[Any, str | None]:
    """A model of one's own may have something that cannot be counted: then there are no numbers; the rest stands."""
    try:
        work = work_of_step(program, session)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return work, None if work is not None else NOT_KNOWN


def _window(timeline: Timeline, contents: dict[str, KernelClass], *, steps: int) -> TracedWindow:
    window = window_of(timeline, steps=steps, contents=contents)
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
