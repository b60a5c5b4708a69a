"""The clock, with a clock of our own: every second in here is made by the step, so every number is known."""

import gc
import io
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from harness.measure import clock as timing
from harness.measure.gpu import Gpu, NoGpu, SeveralGpus
from harness.measure.turns import Turns
from harness.plan import MeasurementSettings
from harness.results.record import Blocks, GpuState
from tests.made.heard import Heard

TICK_S = 2.0**-10
"""Times in here are whole numbers of this, so that sums of floats are exact."""


@dataclass
class Clock:
    """What perf_counter and sleep are in a test."""

    now_s: float = 0.0

    def read(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Work:
    """A device that runs calls one after another: a call only enqueues, a wait lets the time pass."""

    clock: Clock
    call_s: float = 4 * TICK_S
    wait_s: float = 0.0
    """What every wait costs on top."""
    queued_s: float = 0.0
    done_s: float = 0.0
    calls: int = 0
    waits: int = 0
    cost_of: Callable[[int], float] | None = None
    """By number of the call, from 1; `call_s` without it."""
    collecting: list[bool] = field(default_factory=list)
    """Whether the garbage collector was on, at each call."""

    def step(self) -> str:
        self.calls += 1
        self.queued_s += self.cost_of(self.calls) if self.cost_of else self.call_s
        self.collecting.append(gc.isenabled())
        return f"output {self.calls}"

    def wait(self, output: object) -> None:
        assert output == f"output {self.calls}"
        self.waits += 1
        self.done_s += self.queued_s
        self.clock.advance(self.queued_s + self.wait_s)
        self.queued_s = 0.0


@dataclass
class FakeGpu(Gpu):
    """Draws `watts` all the time, by the test's clock, and `busy_watts` more while `work` runs."""

    clock: Clock
    watts: float = 100.0
    has_counter: bool = True
    work: Work | None = None
    busy_watts: float = 0.0
    state_s: float = 0.0
    """What reading the state takes, in which nothing runs."""
    states_at_s: list[float] = field(default_factory=list)
    read_at_call: list[int] = field(default_factory=list)
    """How many calls had been made at each reading of the energy counter."""
    counters: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._refused = {} if self.has_counter else {"energy_joules": "Not Supported"}

    def energy_joules(self) -> float | None:
        busy_s = self.work.done_s if self.work else 0.0
        if self.work:
            self.read_at_call.append(self.work.calls)
        return 1e6 + self.clock.now_s * self.watts + busy_s * self.busy_watts if self.has_counter else None

    def state(self) -> GpuState:
        self.states_at_s.append(self.clock.now_s)
        self.clock.advance(self.state_s)
        return {"sm_clock_mhz": 1980, "temperature_c": 40, "power_watts": self.watts, "throttle_reasons": ()}

    def held_back_counters(self) -> list[dict[int, float]]:
        return [dict(self.counters)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock.read)
    monkeypatch.setattr(timing, "sleep", clock.advance)
    # To collect all that pytest holds takes a second.
    monkeypatch.setattr(timing, "gc", SimpleNamespace(**(vars(gc) | {"collect": lambda: None})))
    return clock


def protocol(**changes: Any) -> MeasurementSettings:
    """Blocks of at least 32 ticks, 8 to 40 of them."""
    defaults: dict[str, Any] = {
        "warmup_s": 10 * TICK_S,
        "warmup_min_calls": 2,
        "block_min_s": 32 * TICK_S,
        "min_blocks": 8,
        "max_blocks": 40,
        "max_time_s": 1e6,
        "latency_calls": 5,
        "latency_max_time_s": 1e6,
        "energy_window_s": TICK_S,
        "idle_s": 0.0,
    }
    return MeasurementSettings(**(defaults | changes))


def steady(work: Work, settings: MeasurementSettings, **changes: Any) -> timing.Steady:
    arguments: dict[str, Any] = {
        "protocol": settings,
        "steps_per_call": 1,
        "samples_per_step": 16,
        "gpu": NoGpu("none in this test"),
        "channel": Heard(),
        "compilations": lambda: 0,
    }
    return timing.measure_steady(work.step, work.wait, **(arguments | changes))


def test_call_is_timed_until_its_outputs_are_ready_and_a_block_waits_once(clock: Clock) -> None:
    work = Work(clock, call_s=4 * TICK_S, wait_s=TICK_S)
    assert timing.time_call(work.step, work.wait) == 5 * TICK_S
    assert timing.time_block(work.step, work.wait, calls=10) == 41 * TICK_S  # 10 * 4 + 1
    assert (work.calls, work.waits) == (1 + 10, 1 + 1)


def test_block_keeps_the_outputs_of_one_call_at_most() -> None:
    class Output: ...

    alive: list[weakref.ref[Output]] = []
    most_alive = 0

    def step() -> Output:
        nonlocal most_alive
        most_alive = max(most_alive, sum(reference() is not None for reference in alive))
        output = Output()
        alive.append(weakref.ref(output))
        return output

    waited_for: list[bool] = []
    timing.time_block(step, lambda output: waited_for.append(output is alive[-1]()), calls=6)
    assert waited_for == [True]  # once, for the last call's outputs
    assert most_alive == 0  # when a call began, the outputs of all calls before it were gone
    assert [reference() for reference in alive] == [None] * 6


def test_an_epoch_ends_when_all_of_its_work_is_done(clock: Clock) -> None:
    """Back-to-back calls and one wait, for what they kept and for the state."""
    work = Work(clock, call_s=4 * TICK_S)
    waited_for: list[Any] = []

    class Training:
        step = work.step

        def kept(self, output: str) -> str:
            return f"kept of {output}"

        def state(self) -> str:
            return "weights"

    def wait(outputs: Any) -> None:
        waited_for.append(outputs)
        work.wait("output 3")

    kept = [f"kept of output {call}" for call in (1, 2, 3)]
    assert timing.time_calls(Training(), wait, 3) == (12 * TICK_S, kept)
    assert waited_for == [(kept, "weights")]


def test_compile_time_by_hand(clock: Clock) -> None:
    work = Work(clock, cost_of=lambda call: {1: 1000, 2: 30}.get(call, 10) * TICK_S)
    cold_s = timing.measure_cold(work.step, work.wait)
    assert cold_s == [1000 * TICK_S, 30 * TICK_S, 10 * TICK_S]
    assert timing.COLD_CALLS == 3
    assert timing.compile_time_s(cold_s, warm_call_s=10 * TICK_S) == 1010 * TICK_S  # 1040 - 3 * 10
    assert timing.compile_time_s([0.9, 1.0, 1.0], warm_call_s=1.0) == 0.0  # never negative


def test_blocks_of_a_control_are_like_those_of_the_measurement(clock: Clock) -> None:
    """3 cold calls and 3 of warm-up, then blocks of 10 calls of 4 ticks, with a wait of 1; the first cold call takes
    more, which no block has."""
    work = Work(clock, wait_s=TICK_S, cost_of=lambda call: (1000 if call == 1 else 4) * TICK_S)
    like = Blocks(calls_per_block=10, steps_per_call=2, samples_per_step=16, block_times_s=[1.0], warmup_times_s=[1.0])
    agreed: list[float] = []
    control = timing.measure_blocks(
        work.step, work.wait, like=like, count=4, agree=lambda value: agreed.append(value) or value
    )
    assert control.block_times_s == [41 * TICK_S] * 4
    assert control.warmup_times_s == [5 * TICK_S] * 3
    assert (control.calls_per_block, control.steps_per_call, control.samples_per_step) == (10, 2, 16)
    assert work.calls == 3 + 3 + 40
    assert len(agreed) == 1  # the ranks start together
    assert not any(work.collecting[6:])
    assert gc.isenabled()


def test_warm_up_lasts_for_its_time_and_its_least_number_of_calls(clock: Clock) -> None:
    # A call takes 4 ticks: after two calls 8 of 10 ticks are over, after three 12.
    assert steady(Work(clock), protocol()).blocks.warmup_times_s == [4 * TICK_S] * 3
    long = steady(Work(clock, call_s=100 * TICK_S), protocol(warmup_min_calls=5))
    assert long.blocks.warmup_times_s == [100 * TICK_S] * 5


def test_calls_per_block_fill_the_block_and_round_up(clock: Clock) -> None:
    result = steady(Work(clock), protocol())
    assert result.blocks.calls_per_block == 8  # 8 * 4 ticks = 32 ticks
    assert result.blocks.block_times_s == [32 * TICK_S] * 8  # quiet blocks stop at the least number
    assert steady(Work(clock, call_s=5 * TICK_S), protocol()).blocks.calls_per_block == 7  # 6.4
    assert steady(Work(clock, call_s=500 * TICK_S), protocol()).blocks.calls_per_block == 2  # never fewer


def test_calls_per_block_are_corrected_where_waiting_makes_a_single_call_slow(clock: Clock) -> None:
    # One waited call takes 8 ticks: first guess 32 / 8 = 4 calls, but these take 4 * 2 + 6 = 14 ticks only.
    # Then ceil(1.1 * 4 * 32 / 14) = 11 calls: 28 ticks; then ceil(1.1 * 11 * 32 / 28) = 14 calls: 34 ticks.
    result = steady(Work(clock, call_s=2 * TICK_S, wait_s=6 * TICK_S), protocol())
    assert result.blocks.calls_per_block == 14
    assert set(result.blocks.block_times_s) == {34 * TICK_S}


def alternating(call: int) -> float:
    """3 or 5 ticks, changing with every call after the first three (the warm-up): blocks of 9 calls differ in turn."""
    return (3 if call % 2 else 5) * TICK_S


def test_noisy_blocks_stop_at_the_greatest_number_and_after_their_time(clock: Clock) -> None:
    # An odd number of calls per block, so that blocks take 35 and 37 ticks in turn: the interval never gets narrow.
    settings = protocol(block_min_s=33 * TICK_S, max_blocks=41, target_noise=0.001)
    found = steady(Work(clock, cost_of=alternating), settings).blocks
    assert found.calls_per_block % 2 == 1
    assert (len(found.block_times_s), len({*found.block_times_s})) == (41, 2)
    settings = settings.model_copy(update={"max_time_s": 400 * TICK_S})
    times_s = steady(Work(clock, cost_of=alternating), settings).blocks.block_times_s
    assert sum(times_s) >= 400 * TICK_S > sum(times_s[:-1])


def test_blocks_stop_when_they_have_become_quiet(clock: Clock) -> None:
    # Warm-up 3 calls and calibration 8: blocks begin at call 12. The first 3 blocks take 64 ticks, all later ones 32.
    # Coverage of 95 % leaves the k smallest and largest out: k = 1 for 8 values, 2 for 9 to 11, 3 for 12 to 14 and 4
    # for 15 (David and Nagaraja): the interval runs from the k-th to the k-th last value, and 3 outliers are out of it
    # with k = 4, so with 15 blocks.
    work = Work(clock, cost_of=lambda call: (8 if 12 <= call < 36 else 4) * TICK_S)
    times_s = steady(work, protocol()).blocks.block_times_s
    assert times_s == [64 * TICK_S] * 3 + [32 * TICK_S] * 12


def test_slow_steps_get_three_blocks_at_least(clock: Clock) -> None:
    slow = Work(clock, call_s=500 * TICK_S)
    assert len(steady(slow, protocol(max_time_s=TICK_S)).blocks.block_times_s) == 3


@pytest.mark.parametrize(("min_ticks", "count"), [(0, 8), (256, 8), (257, 9), (400, 13)])
def test_quiet_blocks_go_on_for_their_least_time(clock: Clock, min_ticks: int, count: int) -> None:
    """Blocks of 32 ticks without any noise: eight are the fewest, and 13 the first that last 400 ticks."""
    settings = protocol(min_time_s=min_ticks * TICK_S)
    assert steady(Work(clock), settings).blocks.block_times_s == [32 * TICK_S] * count


def test_least_time_is_that_of_blocks_and_of_no_lead_in(clock: Clock) -> None:
    """Each block has a lead-in of 13 calls of 4 ticks, and waits 100 ticks for its turn."""
    turns = Handed(clock, "block_after_other\n" * 13 + "end\n")
    steady(Work(clock), protocol(min_time_s=400 * TICK_S), turns=turns)
    assert turns.diary == ["wants: block"] * 13 + ["has enough: end"]


@pytest.mark.parametrize("queue_ticks", [0, 1, 4000])
def test_dispatch_time_is_that_of_the_host_alone(clock: Clock, queue_ticks: int) -> None:
    """The host takes a tick to hand out a call, whose work takes the device any time. The device is idle at each start:
    it is waited for once before, and after each call."""
    work = Work(clock, call_s=queue_ticks * TICK_S)

    def step() -> str:
        assert work.queued_s == 0
        clock.advance(TICK_S)
        return work.step()

    assert timing.measure_dispatch(step, work.wait, count=5, max_time_s=1e6) == [TICK_S] * 5
    assert (work.calls, work.waits) == (6, 6)
    assert not any(work.collecting)


def test_dispatch_stops_after_its_time_but_not_before_three_calls(clock: Clock) -> None:
    """The wait counts here, of 4 ticks for each call: 16 ticks are over after four."""
    for ticks, calls in ((16, 4), (1, 3)):
        work = Work(clock)
        assert len(timing.measure_dispatch(work.step, work.wait, count=50, max_time_s=ticks * TICK_S)) == calls


def test_latency_is_timed_call_by_call(clock: Clock) -> None:
    result = steady(Work(clock, call_s=4 * TICK_S, wait_s=TICK_S), protocol(), steps_per_call=2)
    assert (result.latency.call_times_s, result.latency.steps_per_call) == ([5 * TICK_S] * 5, 2)
    assert result.warm_call_s == 5 * TICK_S


def test_latency_stops_after_its_time_but_not_before_three_calls(clock: Clock) -> None:
    for ticks, calls in ((18, 5), (1, 3)):  # 16 ticks are over after four
        settings = protocol(latency_calls=100, latency_max_time_s=ticks * TICK_S)
        assert len(steady(Work(clock), settings).latency.call_times_s) == calls


def test_recompilations_within_the_clock_are_counted_and_others_are_not(clock: Clock) -> None:
    work = Work(clock)
    # Compilations at calls 1 and 5 (warm-up and calibration), then at 20 and 77. Calls: 3 + 8 + 8 * 8 + 5 = 80.
    result = steady(work, protocol(), compilations=lambda: sum(call <= work.calls for call in (1, 5, 20, 77, 81)))
    assert work.calls == 80
    assert result.recompiles == 2


def test_energy_by_hand(clock: Clock) -> None:
    """330 ticks are 10.3 blocks of 32 ticks: 11 of them, after the 8 of the throughput and one that does not count."""
    work = Work(clock)
    gpu = FakeGpu(clock, watts=100.0, work=work, busy_watts=600.0)
    settings = protocol(idle_s=64 * TICK_S, energy_window_s=330 * TICK_S)
    result = steady(work, settings, gpu=gpu, steps_per_call=3)
    window_s = 11 * 32 * TICK_S
    energy = result.energy
    assert (energy.window_s, energy.busy_s) == (window_s, window_s)
    assert energy.gross_joules == pytest.approx(700 * window_s)
    assert energy.idle_watts == pytest.approx(100)
    assert energy.samples == 11 * 8 * 3 * 16  # blocks, calls, steps, samples of a step
    assert energy.absent is None
    assert result.blocks.block_times_s == [32 * TICK_S] * 8
    # Idle before and after; whether there is a counter; and around the window, with nothing between. Warm-up takes 3
    # calls, calibration 8.
    before = 3 + 8 + 8 * 8
    assert gpu.read_at_call == [0, 0, before, before + 8, before + 8 + 11 * 8]
    assert work.calls == before + 8 + 11 * 8 + 5


def test_the_lower_idle_power_counts(clock: Clock) -> None:
    for before, expected in ((60.0, 60.0), (140.0, 100.0), (None, 100.0)):
        gpu = FakeGpu(clock, watts=100.0)
        energy = steady(Work(clock), protocol(idle_s=1.0), gpu=gpu, idle_watts_before=before).energy
        assert energy.idle_watts == pytest.approx(expected)


@pytest.mark.parametrize("block_ticks", [32, 2048])
def test_joules_per_sample_do_not_depend_on_the_length_of_a_block(clock: Clock, block_ticks: int) -> None:
    """The GPU takes 700 W at work and 100 W else; a reading of its state takes 10 ticks, which is a third of the short
    block. A call takes 4 ticks for 16 samples, so a sample takes 700 * 4 / 16 ticks."""
    work = Work(clock)
    gpu = FakeGpu(clock, watts=100.0, work=work, busy_watts=600.0, state_s=10 * TICK_S)
    settings = protocol(block_min_s=block_ticks * TICK_S, energy_window_s=5.0)
    energy = steady(work, settings, gpu=gpu).energy
    assert energy.gross_joules / energy.samples == pytest.approx(700 * 4 * TICK_S / 16)
    assert energy.busy_s == energy.window_s


def test_what_idles_in_the_energy_window_is_known(clock: Clock) -> None:
    """Reading the counter takes a tick here, before and after 8 blocks of 32 ticks."""

    class Slow(FakeGpu):
        def energy_joules(self) -> float | None:
            joules = super().energy_joules()
            self.clock.advance(TICK_S)
            return joules

    energy = steady(Work(clock), protocol(energy_window_s=256 * TICK_S), gpu=Slow(clock)).energy
    assert (energy.busy_s, energy.window_s) == (256 * TICK_S, 258 * TICK_S)


def test_states_are_read_every_half_second_at_most(clock: Clock) -> None:
    """After the first block, and then after the first that ends half a second or more later: of blocks of a sixteenth
    of a second, every eighth; of longer ones, every one."""
    gpu = FakeGpu(clock)
    settings = protocol(min_blocks=20, max_blocks=20)
    result = steady(Work(clock, call_s=32 * TICK_S), settings, gpu=gpu)
    assert result.blocks.block_times_s == [64 * TICK_S] * 20
    first_s = gpu.states_at_s[0]
    assert [seen_s - first_s for seen_s in gpu.states_at_s] == [0, 8 * 64 * TICK_S, 16 * 64 * TICK_S]
    assert len(result.gpu_states) == 3
    assert len(steady(Work(clock, call_s=1.0), settings, gpu=FakeGpu(clock)).gpu_states) == 20


def test_garbage_is_collected_between_blocks_every_second_and_never_within_the_energy_window(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a quarter of a second: after every fourth. Collecting takes a tick, and no block has it."""
    collected_at_call: list[int] = []
    work = Work(clock, call_s=128 * TICK_S)

    def collect() -> None:
        collected_at_call.append(work.calls)
        clock.advance(TICK_S)

    monkeypatch.setattr(timing.gc, "collect", collect)
    settings = protocol(min_blocks=10, max_blocks=10, energy_window_s=4.0, warmup_s=TICK_S)
    result = steady(work, settings, gpu=FakeGpu(clock))
    blocks_begin = 2 + 2  # warm-up, calibration
    energy_begins = blocks_begin + 10 * 2
    assert collected_at_call == [0, blocks_begin, blocks_begin + 4 * 2, blocks_begin + 8 * 2, energy_begins]
    assert result.blocks.block_times_s == [256 * TICK_S] * 10
    assert result.energy.busy_s == result.energy.window_s == 4.0


@pytest.mark.usefixtures("measurements_freeze")
def test_cyclic_objects_of_calls_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real collector and clock: what calls leave is gone at the end of the blocks, and frozen is nothing."""

    class Node:
        def __init__(self) -> None:
            self.itself = self

    alive: weakref.WeakSet[Node] = weakref.WeakSet()
    monkeypatch.setattr(timing, "COLLECT_EVERY_S", 0.0)

    def step() -> None:
        alive.add(Node())

    work = SimpleNamespace(step=step, wait=lambda _: None)
    steady(work, protocol(block_min_s=0.002, warmup_s=0.001), after_warmup=alive.clear)
    assert len(alive) <= 5  # those of the latency calls
    assert gc.get_freeze_count() == 0


def test_clocks_held_back_are_counted_over_the_blocks(clock: Clock) -> None:
    """By power for 3 of 4 ticks of each call, and all the time before and after, which does not count."""
    gpu = FakeGpu(clock)
    gpu.counters = {74: 5e9}
    work = Work(clock)

    def step() -> str:
        in_blocks = 11 <= work.calls < 11 + 8 * 8
        gpu.counters[74] += (3 if in_blocks else 4) * TICK_S * 1e9
        return work.step()

    held_back = steady(SimpleNamespace(step=step, wait=work.wait), protocol(), gpu=gpu).held_back
    assert held_back.window_s == 8 * 32 * TICK_S
    assert held_back.seconds == {"sw_power_cap": pytest.approx(0.75 * held_back.window_s)}
    assert steady(Work(clock), protocol()).held_back is None


def test_energy_that_nobody_measures_says_why(clock: Clock) -> None:
    two_gpus = SeveralGpus([FakeGpu(clock, watts=100.0), FakeGpu(clock, watts=300.0)])
    both = steady(Work(clock), protocol(), gpu=two_gpus).energy
    assert both.devices_gross_joules == pytest.approx([both.gross_joules / 4, both.gross_joules * 3 / 4])
    assert both.gross_joules == pytest.approx(400 * both.window_s)
    without_gpu = steady(Work(clock), protocol(idle_s=1.0))
    assert (without_gpu.energy.gross_joules, without_gpu.energy.absent) == (None, "none in this test")
    without_counter = steady(Work(clock), protocol(idle_s=1.0), gpu=FakeGpu(clock, has_counter=False))
    assert without_counter.energy.absent == "the GPU gives no energy: Not Supported"


@pytest.mark.parametrize("is_on", [True, False])
def test_no_garbage_collection_while_measuring_and_then_as_before(clock: Clock, is_on: bool) -> None:
    """Also after an error."""

    def fail(call: int) -> float:
        raise ZeroDivisionError

    work = Work(clock)
    try:
        (gc.enable if is_on else gc.disable)()
        steady(work, protocol())
        assert not any(work.collecting) and gc.isenabled() == is_on
        with pytest.raises(ZeroDivisionError):
            steady(Work(clock, cost_of=fail), protocol())
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


@pytest.mark.parametrize(("call_s", "block_s"), [(1.0, 2.0), (0.125, 0.25)])
def test_throughput_streams_between_blocks(clock: Clock, call_s: float, block_s: float) -> None:
    """REPORT_EVERY_S is 2: blocks of 2 s are reported after each but the last, which ends it. Eight of 0.25 s are over
    before, and the first is reported at once."""
    heard = Heard()
    steady(Work(clock, call_s=call_s), protocol(min_blocks=8), steps_per_call=5, channel=heard)
    points = [{"throughput_samples_per_s": 2 * 5 * 16 / block_s}] * (7 if block_s == 2 else 1)
    assert heard.of_kind("metrics") == points


# Several ranks.


def test_all_ranks_call_as_often_as_the_slowest_wants(clock: Clock) -> None:
    """The other rank asks for three more warm-up calls, its calls take twice as long, and it wants one more block;
    then it wants what we want."""
    warmup = [1.0, 1.0, 1.0, 1.0, 0.0]
    times_s = [8 * TICK_S, 64 * TICK_S]  # of its warm call and of its first block, both longer than ours
    blocks = [1.0] * 8 + [0.0]
    theirs = iter([*warmup, *times_s, *blocks])
    agree = lambda value: max(value, next(theirs, value))  # noqa: E731
    found = steady(Work(clock), protocol(warmup_s=TICK_S, warmup_min_calls=2), agree=agree)
    assert len(found.blocks.warmup_times_s) == 4
    assert found.blocks.calls_per_block == 4  # 32 ticks at 8 each; we alone would take 8 calls of 4
    assert found.blocks.block_times_s == [4 * 4 * TICK_S] * 9  # our own times, not those of the slowest


def test_a_rank_without_a_counter_does_the_energy_window_with_the_others(clock: Clock) -> None:
    """Else they would wait for it. What is agreed on after the last block: that it was the last, how long a block
    takes, whether anybody counts (the other rank does), and the start."""
    work = Work(clock)
    blocks_end = 3 + 8 + 8 * 8
    after_blocks: list[float] = []

    def agree(value: float) -> float:
        if work.calls < blocks_end:
            return value
        after_blocks.append(value)
        return 1.0 if len(after_blocks) == 3 else value

    found = steady(work, protocol(energy_window_s=64 * TICK_S), agree=agree)
    assert after_blocks[:4] == [0.0, 32 * TICK_S, 0.0, 0.0]
    assert work.calls == blocks_end + (1 + 2) * 8 + 5
    assert found.energy.absent == "none in this test"


def test_nothing_is_agreed_on_within_a_timed_window(clock: Clock) -> None:
    """Each `agree` costs a second here, and none of it is in the times."""

    def agree(value: float) -> float:
        clock.advance(1.0)
        return value

    found = steady(Work(clock), protocol(), agree=agree)
    assert set(found.blocks.warmup_times_s) == {4 * TICK_S}
    assert set(found.blocks.block_times_s) == {found.blocks.calls_per_block * 4 * TICK_S}
    assert set(found.latency.call_times_s) == {4 * TICK_S}


def test_each_phase_is_waited_for_and_only_the_cold_rounds_are_left_out(clock: Clock) -> None:
    """The waits of one phase never fall into the next, and compiling ones are not kept."""
    order: list[str] = []
    queued_s = 0.0

    def phase(name: str, cold_s: float, warm_s: float) -> tuple[str, Callable[[], str]]:
        def run() -> str:
            nonlocal queued_s
            queued_s += cold_s if order.count(name) < timing.COLD_CALLS else warm_s
            order.append(name)
            return name

        return name, run

    def wait(output: object) -> None:
        nonlocal queued_s
        assert output == order[-1]
        clock.advance(queued_s)
        queued_s = 0.0

    phases = [phase("forward", 512 * TICK_S, 2 * TICK_S), phase("backward", 256 * TICK_S, 5 * TICK_S)]
    times_s = timing.measure_phases(phases, wait, protocol=protocol(latency_calls=4), channel=Heard())
    assert times_s == {"forward": [2 * TICK_S] * 4, "backward": [5 * TICK_S] * 4}
    assert order == ["forward", "backward"] * (timing.COLD_CALLS + 4)


def test_phases_stop_at_the_time_limit_with_three_rounds_at_least(clock: Clock) -> None:
    assert [phase_of_a_second(clock, limit_s) for limit_s in (0.5, 4.5)] == [{"only": [1.0] * n} for n in (3, 5)]


def phase_of_a_second(clock: Clock, limit_s: float, **keywords: Any) -> dict[str, list[float]]:
    settings = protocol(latency_calls=100, latency_max_time_s=limit_s)
    phases = [("only", lambda: clock.advance(1.0))]
    return timing.measure_phases(phases, lambda _: None, protocol=settings, channel=Heard(), **keywords)


def test_ranks_agree_on_the_rounds_of_phases(clock: Clock) -> None:
    """Another rank has had enough after none, but goes on as long as this one does; and the other way round."""
    asked: list[float] = []

    def agree(value: float) -> float:
        asked.append(value)
        return 1.0 if len(asked) <= 6 else value

    assert len(phase_of_a_second(clock, 0.5, agree=agree)["only"]) == 6
    assert asked == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


# Turns


class Handed(Turns):
    """Turns that a test hands out: the other one's blocks take 100 ticks each, in which nothing of this one runs."""

    def __init__(self, clock: Clock, words: str, place: str = "second") -> None:
        super().__init__(Heard(), io.BytesIO(words.encode()), place)
        self.clock, self.diary = clock, list[str]()

    def next_block(self, wants: bool) -> bool:
        goes_on = super().next_block(wants)
        self.clock.advance(100 * TICK_S)
        self.diary.append(f"{'wants' if wants else 'has enough'}: {'block' if goes_on else 'end'}")
        self.waited_s = len(self.diary) * 100 * TICK_S
        return goes_on


def test_blocks_come_by_turns_and_the_waits_are_in_none(clock: Clock) -> None:
    """Eight blocks are enough, and two more are asked for by the job, as the other one wants them."""
    turns = Handed(clock, "block\n" * 10 + "end\n")
    result = steady(Work(clock), protocol(), turns=turns, gpu=FakeGpu(clock))
    assert result.blocks.block_times_s == [32 * TICK_S] * 10
    assert turns.diary == ["wants: block"] * 8 + ["has enough: block"] * 2 + ["has enough: end"]
    # It was there from the beginning.
    assert (result.energy.gross_joules, result.energy.absent) == (None, timing.SHARED_DEVICE)


def test_the_first_of_two_measures_its_energy_before_the_other_is_there(clock: Clock) -> None:
    """Energy over 4 blocks of 32 ticks at 100 W, before the first turn."""
    work = Work(clock)
    gpu = FakeGpu(clock, work=work)
    turns = Handed(clock, "block\n" * 8 + "end\n", "first")
    result = steady(work, protocol(energy_window_s=4 * 32 * TICK_S), turns=turns, gpu=gpu)
    assert result.energy.gross_joules == 4 * 32 * TICK_S * 100
    assert result.energy.samples == 4 * 8 * 16
    # 3 of warm-up, 8 to find the size, one block that does not count, 4 that do; all turns come later.
    assert gpu.read_at_call[-1] == 3 + 8 + 8 + 4 * 8
    assert len(result.blocks.block_times_s) == 8


def test_the_last_of_two_measures_energy_and_idle_power_when_the_other_one_is_gone(clock: Clock) -> None:
    """700 W at work, 100 W else. It has idled for two seconds by then, twice one, and not before."""
    work = Work(clock)
    gpu = FakeGpu(clock, work=work, busy_watts=600.0)
    turns = Handed(clock, "block\n" * 8 + "last\n")
    energy = steady(work, protocol(energy_window_s=4 * 32 * TICK_S, idle_s=1.0), turns=turns, gpu=gpu).energy
    assert (energy.gross_joules, energy.idle_watts) == (pytest.approx(4 * 32 * TICK_S * 700), pytest.approx(100))
    assert gpu.read_at_call[:4] == [3 + 8 + 8 * (13 + 8)] * 4


def test_a_lead_in_comes_before_each_block_in_turns_and_is_in_no_time(clock: Clock) -> None:
    """50 ms are 51.2 ticks: 13 calls of 4 ticks, or one call of 60. The first call after a rest takes 100 ticks: the
    calls 12, 33 and 54, as 11 come before the blocks."""
    words = "block_after_other\nblock\nblock_after_other\nend\n"
    work = Work(clock, cost_of=lambda call: (100 if call in (12, 33, 54) else 4) * TICK_S)
    result = steady(work, protocol(), turns=Handed(clock, words))
    assert result.blocks.block_times_s == [32 * TICK_S] * 3
    assert work.calls == 11 + 3 * (13 + 8) + 5
    slow = Work(clock, call_s=60 * TICK_S)
    assert steady(slow, protocol(), turns=Handed(clock, words)).blocks.calls_per_block == 2
    assert slow.calls == 2 + 2 + 3 * (1 + 2) + 5


def test_who_is_left_alone_stops_by_its_own_rule_and_measures_its_energy(clock: Clock) -> None:
    turns = Handed(clock, "block\nblock\nalone\n")
    result = steady(Work(clock), protocol(), turns=turns, gpu=FakeGpu(clock))
    assert len(result.blocks.block_times_s) == 8
    assert result.energy.absent is None and result.energy.gross_joules is not None


def test_waits_are_not_of_the_time_that_blocks_may_take(clock: Clock) -> None:
    """Noisy blocks stop when they took 350 ticks themselves, and not when that has passed with the waiting."""
    turns = Handed(clock, "block\n" * 11 + "end\n")
    work = Work(clock, cost_of=alternating)
    settings = protocol(block_min_s=33 * TICK_S, target_noise=0.001, max_time_s=350 * TICK_S)
    times_s = steady(work, settings, turns=turns).blocks.block_times_s
    enough = turns.diary.index("has enough: block")
    assert sum(times_s[: enough - 1]) < 350 * TICK_S <= sum(times_s[:enough])
