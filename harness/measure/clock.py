"""The clock. Both frameworks are timed here and nowhere else.

A runner hands over `step`, which enqueues one call's work and returns its outputs, and `wait`, which returns when
all of the given outputs are ready. Each call of a step must depend on the one before it (through donated state or a
counter), so that waiting for the last call of a block means waiting for the whole block.

Protocol (docs/protocol.md): cold calls, warm-up, calibration, throughput in blocks of back-to-back calls with one
wait at the end, energy over such blocks with nothing between them, latency with a wait per call. Nothing is logged,
printed, copied or collected inside a timed window.

Where two processes take turns (harness/measure/turns.py), each block of the throughput waits for its turn, outside the
timed window, and so does its lead-in: what follows a rest is not the steady state.

Where several ranks do a step together, all make the same number of calls, or one would wait for another for ever. So
whatever decides how many calls are made is agreed on, between two timed windows; each rank times its own.
"""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from harness.measure.channel import Channel
from harness.measure.gpu import Gpus, held_back_s
from harness.measure.program import Phase, Trains
from harness.measure.turns import NoTurns
from harness.plan import MeasurementSettings
from harness.results.record import Blocks, Energy, GpuState, HeldBack, Latency
from harness.results.statistics import median, relative_half_width

Step = Callable[[], Any]
Wait = Callable[[Any], None]
Agree = Callable[[float], float]
"""The largest of all ranks' values."""

COLD_CALLS = 3
"""Compilation is over after these: tracing on the first, CUDA graph capture or a changed layout of donated state on
the next."""
NO_TURNS = NoTurns()
LEAD_IN_S = 0.05
"""Of calls that are not timed before each block in turns, and one at least. A block after one of the other process was
up to 5 % slower than one after a process's own; with a lead-in for the former alone, 2 % faster."""
REPORT_EVERY_S = 2.0
STATE_EVERY_S = 0.5
"""Between two blocks, at most: reading a GPU's state takes milliseconds in which it cools, and blocks are as short as
0.1 s in one program and take seconds in another."""
COLLECT_EVERY_S = 1.0
"""Between two blocks. PyTorch's functorch leaves some hundred cyclic objects per call; left alone they fill the host's
memory, and getting new memory is slow."""


def time_call(step: Step, wait: Wait) -> float:
    """Seconds from the start of one call until its outputs are ready."""
    start = perf_counter()
    wait(step())
    return perf_counter() - start


def time_block(step: Step, wait: Wait, calls: int) -> float:
    """Seconds for `calls` back-to-back calls and one wait at the end.

    Outputs of all calls but the last are dropped at once, so that at most one call's outputs are kept alive.
    """
    start = perf_counter()
    for _ in range(calls - 1):
        step()
    wait(step())
    return perf_counter() - start


def time_calls(program: Trains, wait: Wait, calls: int) -> tuple[float, list[Any]]:
    """Seconds for `calls` back-to-back calls until all of their work is done, and the losses that they kept."""
    step, keep = program.step, program.kept
    start = perf_counter()
    kept = [keep(step()) for _ in range(calls)]
    wait((kept, program.state()))
    return perf_counter() - start, kept


def time_load(program: Trains, wait: Wait, first_step: int) -> tuple[int, float]:
    """How many steps the samples are there for now, and the seconds until they were."""
    start = perf_counter()
    count = program.load(first_step)
    wait(program.state())
    return count, perf_counter() - start


SHARED_DEVICE = "the other one of two processes that take turns was on the device too"


@dataclass(frozen=True, kw_only=True)
class Steady:
    """What `measure_steady` returns."""

    blocks: Blocks
    latency: Latency | None
    energy: Energy
    gpu_states: list[GpuState]
    held_back: HeldBack | None
    recompiles: int
    """Compilations inside the timed windows; more than none makes the times worthless."""

    @property
    def warm_call_s(self) -> float:
        """Of the calls with a wait; of those of the warm-up where there are no others."""
        return median(self.latency.call_times_s if self.latency else self.blocks.warmup_times_s)


def measure_cold(step: Step, wait: Wait) -> list[float]:
    """Times of the very first calls, compilation included."""
    return [time_call(step, wait) for _ in range(COLD_CALLS)]


def compile_time_s(cold_call_times_s: list[float], warm_call_s: float) -> float:
    """What the first calls cost more than the same number of warm calls."""
    return max(0.0, sum(cold_call_times_s) - len(cold_call_times_s) * warm_call_s)


def measure_steady(
    step: Step,
    wait: Wait,
    *,
    protocol: MeasurementSettings,
    steps_per_call: int,
    samples_per_step: int,
    gpu: Gpus,
    channel: Channel,
    compilations: Callable[[], int],
    idle_watts_before: float | None = None,
    agree: Agree = lambda value: value,
    after_warmup: Callable[[], None] = lambda: None,
    turns: NoTurns = NO_TURNS,
    with_latency: bool = True,
) -> Steady:
    """Warm up, then measure throughput, energy and, where it is wanted, latency of a step that is compiled already.

    Args:
        idle_watts_before: before the cold calls. The lower of it and of what is found here counts: after work, clocks
            and with them the power stay up for seconds.
        compilations: how many programs the framework has compiled so far.
        agree: the identity where there is one rank.
        after_warmup: called once between warm-up and the first block (torch resets its memory peak there).
        turns: of the blocks. Energy and idle power are measured where nobody else is on the device: before the first
            turn of the first one of two, and after the blocks of a process that is alone.
    """
    idle = _lowest(idle_watts_before, idle_watts(gpu, protocol.idle_s) if turns.is_alone else None)
    with _no_garbage_collection():
        warmup_times_s = _warm_up(step, wait, protocol, channel, agree)
        calls, block_s = _calibrate(step, wait, protocol.block_min_s, median(warmup_times_s[-3:]), agree)
        after_warmup()
        compiled_before = compilations()
        samples_per_block = calls * steps_per_call * samples_per_step

        def measure_energy(block_s: float) -> Energy:
            blocks = math.ceil(protocol.energy_window_s / block_s)
            return _measure_energy(step, wait, calls, blocks, samples_per_block, gpu, idle, channel, agree)

        energy = measure_energy(block_s) if turns.are_to_come and turns.is_alone else None
        block_times_s, gpu_states, held_back = _measure_blocks(
            step,
            wait,
            calls,
            math.ceil(LEAD_IN_S * calls / block_s),
            protocol,
            samples_per_block,
            gpu,
            channel,
            agree,
            turns,
        )
        if energy is None:
            is_alone = turns.is_alone
            if is_alone and idle is None:  # it was not alone before; the other one's work was over a moment ago
                idle = _lowest(*(idle_watts(gpu, protocol.idle_s) for _ in range(2)))
            energy = measure_energy(agree(median(block_times_s))) if is_alone else Energy(absent=SHARED_DEVICE)
        call_times_s = _measure_latency(step, wait, protocol, channel, agree) if with_latency else []
    return Steady(
        blocks=Blocks(
            calls_per_block=calls,
            steps_per_call=steps_per_call,
            samples_per_step=samples_per_step,
            block_times_s=block_times_s,
            warmup_times_s=warmup_times_s,
        ),
        latency=Latency(steps_per_call=steps_per_call, call_times_s=call_times_s) if call_times_s else None,
        energy=energy,
        gpu_states=gpu_states,
        held_back=held_back,
        recompiles=compilations() - compiled_before,
    )


def measure_blocks(step: Step, wait: Wait, *, like: Blocks, count: int, agree: Agree) -> Blocks:
    """`count` blocks of the size that another measurement had, for a control of it; cold calls and a short warm-up come
    before. Every rank times its own, and all start together."""
    measure_cold(step, wait)
    with _no_garbage_collection():
        warmup_times_s = [time_call(step, wait) for _ in range(COLD_CALLS)]
        agree(0.0)
        block_times_s = [time_block(step, wait, like.calls_per_block) for _ in range(count)]
    return like.model_copy(update={"block_times_s": block_times_s, "warmup_times_s": warmup_times_s})


def measure_short(
    step: Step, wait: Wait, *, block_min_s: float, count: int, max_time_s: float, steps_per_call: int, samples: int
) -> Blocks:
    """A few blocks of a step that is compiled, for an explanation and no result.

    Args:
        count: of blocks, or as many as fit into `max_time_s` and three at least.
        samples: of a step.
    """
    with _no_garbage_collection():
        warmup_times_s = [time_call(step, wait) for _ in range(COLD_CALLS)]
        calls = max(1, math.ceil(block_min_s / min(warmup_times_s)))
        times_s: list[float] = []
        start = perf_counter()
        while len(times_s) < 3 or (len(times_s) < count and perf_counter() - start < max_time_s):
            times_s.append(time_block(step, wait, calls))
    return Blocks(
        calls_per_block=calls,
        steps_per_call=steps_per_call,
        samples_per_step=samples,
        block_times_s=times_s,
        warmup_times_s=warmup_times_s,
    )


def measure_dispatch(step: Step, wait: Wait, *, count: int, max_time_s: float) -> list[float]:
    """Seconds until a call has returned, started when the device was idle: how long the host takes to hand out its
    work. On a CPU a call may return when its work is done."""
    times_s: list[float] = []
    with _no_garbage_collection():
        wait(step())
        start = perf_counter()
        while len(times_s) < 3 or (len(times_s) < count and perf_counter() - start < max_time_s):
            begun = perf_counter()
            outputs = step()
            times_s.append(perf_counter() - begun)
            wait(outputs)
    return times_s


def measure_phases(
    phases: Sequence[Phase],
    wait: Wait,
    *,
    protocol: MeasurementSettings,
    channel: Channel,
    agree: Agree = lambda value: value,
) -> dict[str, list[float]]:
    """Seconds of each phase, by name, one for every round: all phases run in their order, each waited for.

    Without the wait a phase's time would be that of launching it. With it, nothing overlaps and nothing is fused across
    phases, so their sum is more than a step of the same work. The first COLD_CALLS rounds compile and are not kept.
    As many rounds follow as `protocol` wants calls for the latency, within its time.
    """
    channel.progress("phases", 0, protocol.latency_calls)
    times_s: dict[str, list[float]] = {name: [] for name, _ in phases}
    with _no_garbage_collection():
        for _ in range(COLD_CALLS):
            for _, run in phases:
                wait(run())
        start = perf_counter()
        rounds = 0
        while rounds < protocol.latency_calls and _any(
            rounds < 3 or perf_counter() - start < protocol.latency_max_time_s, agree
        ):
            for name, run in phases:
                times_s[name].append(time_call(run, wait))
            rounds += 1
    return times_s


def _any(goes_on: bool, agree: Agree) -> bool:
    """Whether any rank goes on; then all of them do."""
    return agree(float(goes_on)) > 0


def _warm_up(step: Step, wait: Wait, protocol: MeasurementSettings, channel: Channel, agree: Agree) -> list[float]:
    channel.progress("warm-up", 0, protocol.warmup_s)
    times_s: list[float] = []
    start = perf_counter()
    while _any(len(times_s) < protocol.warmup_min_calls or perf_counter() - start < protocol.warmup_s, agree):
        times_s.append(time_call(step, wait))
    return times_s


def _calibrate(step: Step, wait: Wait, block_min_s: float, warm_call_s: float, agree: Agree) -> tuple[int, float]:
    """How many back-to-back calls fill a block of the slowest rank, and the seconds of such a block.

    Back-to-back calls are faster than waited ones, so the first guess is checked with real blocks.
    """
    calls = max(2, math.ceil(block_min_s / agree(warm_call_s)))
    while (block_s := agree(time_block(step, wait, calls))) < block_min_s:
        calls = max(calls + 1, math.ceil(1.1 * calls * block_min_s / block_s))
    return calls, block_s


def _measure_blocks(
    step: Step,
    wait: Wait,
    calls: int,
    lead_in_calls: int,
    protocol: MeasurementSettings,
    samples_per_block: int,
    gpu: Gpus,
    channel: Channel,
    agree: Agree,
    turns: NoTurns,
) -> tuple[list[float], list[GpuState], HeldBack | None]:
    times_s: list[float] = []
    gpu_states: list[GpuState] = []
    _collect_garbage()
    start = collected = perf_counter()
    seen = reported = -math.inf  # so that both have a first value at once
    counters_before = gpu.held_back_counters()
    wants_more, lead_ins_s = True, 0.0
    while turns.next_block(wants_more):
        if turns.comes_from_rest:
            lead_ins_s += time_block(step, wait, lead_in_calls)
        times_s.append(time_block(step, wait, calls))
        now = perf_counter()
        if now - seen >= STATE_EVERY_S:
            seen = now
            if (state := gpu.state()) is not None:
                gpu_states.append(turns.ignoring_partner(state))
        if now - collected >= COLLECT_EVERY_S:
            collected = now
            _collect_garbage()
        # Whatever takes one rank time comes before this: here all meet again.
        wants_more = _any(_goes_on(times_s, now - start - turns.waited_s - lead_ins_s, protocol), agree)
        if wants_more and now - reported >= REPORT_EVERY_S:
            reported = now
            channel.progress("throughput", len(times_s), protocol.min_blocks)
            channel.metrics({"throughput_samples_per_s": samples_per_block / times_s[-1]})
    counters_after = gpu.held_back_counters()
    window_s = perf_counter() - start
    if not counters_before:
        return times_s, gpu_states, None
    held_back = HeldBack(window_s=window_s, seconds=held_back_s(counters_before, counters_after, window_s))
    return times_s, gpu_states, held_back


def _measure_energy(
    step: Step,
    wait: Wait,
    calls: int,
    blocks: int,
    samples_per_block: int,
    gpu: Gpus,
    idle: float | None,
    channel: Channel,
    agree: Agree,
) -> Energy:
    """Over blocks in a row, with nothing between them: not NVML, not the collector, not the other ranks. Such a pause
    takes as long after a block of seconds as after one of 0.1 s, and would make short blocks look wasteful.

    One block that does not count comes first. The counter is up to a tick old whenever it is read, so the window really
    begins before the first block and ends before the last one does: both times at work, and not in a pause.
    """
    counts = bool(found := _joules_of_each(gpu)) and None not in found
    if not _any(counts, agree):
        return Energy(absent=gpu.why_no_energy())
    channel.progress("energy", 0, blocks)
    _collect_garbage()
    agree(0.0)
    time_block(step, wait, calls)
    start = perf_counter()
    joules_before = _joules_of_each(gpu)
    times_s = [time_block(step, wait, calls) for _ in range(blocks)]
    joules_after = _joules_of_each(gpu)
    window_s = perf_counter() - start
    counted = list(zip(joules_before, joules_after, strict=True))
    joules = [after - before for before, after in counted if before is not None and after is not None]
    if not joules or len(joules) < len(counted):
        return Energy(absent=gpu.why_no_energy())
    return Energy(
        gross_joules=math.fsum(joules),
        devices_gross_joules=joules if len(joules) > 1 else [],
        window_s=window_s,
        busy_s=math.fsum(times_s),
        samples=blocks * samples_per_block,
        idle_watts=idle,
    )


def _goes_on(block_times_s: list[float], elapsed_s: float, protocol: MeasurementSettings) -> bool:
    """Whether one more block is wanted: until the fewest and the least time are reached and the noise is low, or a
    limit is."""
    count, over_time = len(block_times_s), elapsed_s >= protocol.max_time_s
    if count >= protocol.min_blocks:
        quiet = elapsed_s >= protocol.min_time_s and relative_half_width(block_times_s) <= protocol.target_noise
        return not (quiet or count >= protocol.max_blocks or over_time)
    return not (over_time and count >= 3)


def _measure_latency(
    step: Step, wait: Wait, protocol: MeasurementSettings, channel: Channel, agree: Agree
) -> list[float]:
    channel.progress("latency", 0, protocol.latency_calls)
    times_s: list[float] = []
    start = perf_counter()
    while len(times_s) < protocol.latency_calls and _any(
        len(times_s) < 3 or perf_counter() - start < protocol.latency_max_time_s, agree
    ):
        times_s.append(time_call(step, wait))
    return times_s


def idle_watts(gpu: Gpus, seconds: float) -> float | None:
    """Mean power while nothing runs, from the energy counter. None where there is none, or no time for it."""
    before = gpu.energy_joules()
    if before is None or seconds == 0:
        return None
    start = perf_counter()
    sleep(seconds)
    after = gpu.energy_joules()
    return None if after is None else (after - before) / (perf_counter() - start)


def _joules_of_each(gpu: Gpus) -> list[float | None]:
    return [one.energy_joules() for one in gpu.each]


def _lowest(*watts: float | None) -> float | None:
    return min((one for one in watts if one is not None), default=None)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """As timeit does: a collection would hit one framework's blocks at random."""
    was_enabled = gc.isenabled()
    _collect_garbage()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _collect_garbage() -> None:
    """What is left is frozen, so that the next time takes milliseconds (5 for 700 calls of PyTorch's functorch), and
    not the tenths of a second that it takes to go through all objects of a framework."""
    gc.collect()
    gc.freeze()
