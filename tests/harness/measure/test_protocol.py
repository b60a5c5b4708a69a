"""The protocol, with programs and a clock of our own: what is called when, and every number by hand."""

import gc
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import CheckFailed, Refused
from harness.measure import clock as clock_module
from harness.measure import process, slowdown
from harness.measure import protocol as protocol_module
from harness.measure.channel import ChildTask
from harness.measure.gpu import NoGpu
from harness.measure.program import Answers, Means, Phase, Program, Session
from harness.measure.protocol import Measuring
from harness.measure.world import ALONE, World
from harness.plan import CONDITIONS, MeasurementSettings
from harness.results.predictions import predictions_of
from harness.results.record import Check, HeldBack, Memory, Result
from harness.work.datasets import Dataset
from harness.work.declared import Benchmark, use_case
from harness.work.tasks import ACCURACY, PERPLEXITY, TOP_5, Metric, Task
from tests.made.heard import Heard
from tests.made.report_records import plan

TICK_S = 2.0**-10
"""Times in here are whole numbers of this, so that sums of floats are exact."""
TWO_RANKS = World(rank=0, size=2, coordinator="node1:1234")
CALL_TICKS = 4
CALLS = {"cold": 3, "warm-up": 2, "calibration": 2, "blocks": 3 * 2, "latency": 4}
"""By PROTOCOL: two calls of 4 ticks are the least for a block of 4 ticks; three blocks are quiet."""
PROTOCOL = MeasurementSettings(
    warmup_s=TICK_S, warmup_min_calls=2, block_min_s=4 * TICK_S, min_blocks=3, max_blocks=3, latency_calls=4, idle_s=0
)


class Lab:
    """A clock, a device, and a diary: what was called, and how many calls of a step had been made by then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.queued_s = 0.0
        self.calls = 0
        self.diary: list[tuple[str, int]] = []
        self.slower_rank_s = 0.0
        self.finite = True
        self.own_memory = Memory(allocator_peak_bytes=5)

    def note(self, what: str) -> None:
        self.diary.append((what, self.calls))

    def let_pass(self, ticks: float) -> None:
        self.now_s += ticks * TICK_S

    # harness.measure.program.Device

    def wait(self, outputs: Any) -> None:
        self.now_s += self.queued_s
        self.queued_s = 0.0

    def agree(self, value: float) -> float:
        return value + self.slower_rank_s

    def mean_over_ranks(self, values: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(values, np.float64)

    def begin_timing(self) -> None:
        self.note("begin timing")

    def end_timing(self) -> None:
        self.note("end timing")

    def is_finite(self, outputs: Any) -> bool:
        self.note("is finite")
        return self.finite

    def compilations(self) -> int:
        return 0

    def memory(self) -> Memory:
        return self.own_memory

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "device is full" in str(error)


class Work:
    """Implements Program. The first call takes 100 ticks, as if it compiled."""

    samples_per_step = 16
    steps_per_call = 1
    parameter_count = 7
    model_count = 1
    call_ticks = CALL_TICKS
    communicates = False
    details: Mapping[str, Any] = {"layout": "rows"}
    units: Mapping[str, float] = {"edges": 56.5}
    seen: Mapping[str, Any] = {}
    peak_bytes: int | None = None
    parts: Sequence[Phase] = ()
    before: Sequence[Phase] = ()

    def __init__(self, lab: Lab, **own: Any) -> None:
        self.lab, self.made = lab, 0
        self.itself = self  # as modules and compiled programs hold each other
        vars(self).update(own)

    def compile(self) -> None:
        self.lab.note("compile")

    def place(self) -> None:
        self.lab.note("place")

    def step(self) -> float:
        self.made += 1
        self.lab.calls += 1
        self.lab.queued_s += (100 if self.made == 1 else self.call_ticks) * TICK_S
        return 1 / self.made

    def state(self) -> str:
        self.lab.note("state")
        return "state"

    def check(self) -> list[Check]:
        self.lab.note("check")
        return [Check(name="near", error=0.25, tolerance=0.5, passed=True)]

    def witness(self) -> Mapping[str, Any]:
        self.lab.note("witness")
        return self.seen

    def settle(self) -> None:
        self.lab.note("settle")

    def construction(self) -> Sequence[Phase]:
        return self.before

    def model_inputs(self) -> None:
        self.lab.note("model inputs")

    def phases(self) -> Sequence[Phase]:
        self.lab.note("phases")
        return self.parts

    def step_peak_bytes(self) -> int | None:
        self.lab.note("step peak")
        return self.peak_bytes

    def parity(self) -> dict[str, NDArray[np.float64]]:
        raise AssertionError("the gate has a process of its own")


Evaluations = Sequence[tuple[float, float]]
"""Mean loss and mean score after each epoch."""


class Training(Work):
    """Implements Trains. The loss of the n-th call after `reset` is 1 / n."""

    def __init__(self, lab: Lab, evaluations: Evaluations = ((1.5, 0.25), (1.25, 0.5)), **keywords: Any) -> None:
        super().__init__(lab, **keywords)
        self.evaluations = iter(evaluations)

    def reset(self) -> None:
        self.lab.note("reset")
        self.made = 0

    def kept(self, outputs: float) -> float:
        return outputs

    def losses(self, kept: list[float]) -> NDArray[np.float64]:
        return np.array(kept)

    is_resident = True

    def load(self, first_step: int) -> int:
        return 1000 - first_step

    def evaluate(self) -> Means:
        self.lab.note("evaluate")
        self.lab.let_pass(1000)  # outside the clock
        return Means(*next(self.evaluations))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab()
    monkeypatch.setattr(clock_module, "perf_counter", lambda: lab.now_s)
    # To collect all that pytest holds takes a second.
    monkeypatch.setattr(clock_module, "gc", SimpleNamespace(**(vars(gc) | {"collect": lambda: None})))
    return lab


class Answering(Work):
    """Implements Infers."""

    def __init__(self, lab: Lab, found: Answers | None) -> None:
        super().__init__(lab)
        self.found = found

    def answers(self) -> Answers | None:
        self.lab.note("answers")
        return self.found


def session_of(
    lab: Lab,
    *,
    metric: Metric = ACCURACY,
    further: tuple[Metric, ...] = (),
    target: float = 0.5,
    world: World = ALONE,
    planted: str | None = None,
    **of_measurement: Any,
) -> Session[Any]:
    """Two epochs of 37 // 16 = 2 steps."""
    settings = {"epochs": 2, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0, "target_metric": target}
    made = plan("jax", "step.jit", batch_sizes=(16,), settings=settings, protocol=PROTOCOL, data="sample", quick=True)
    measurement = next(made.measurements())
    variant = measurement.variant.model_copy(update={"planted": planted})
    tokens = ("tokens",)
    task = Task(
        name="text", arrays=tokens, model_inputs=tokens, samples="lines", metric=metric, further_metrics=further
    )
    return Session(
        measurement=measurement.model_copy(update={"variant": variant} | of_measurement),
        benchmark=Benchmark(name="text", task=task, models=(), data=None),
        use_case=use_case("train"),
        dataset=Dataset(train={"tokens": np.zeros((37, 4))}, test={"tokens": np.zeros((5, 4))}, constants={}),
        device=lab,
        world=world,
    )


def measuring(lab: Lab, channel: Heard | None = None, gpu: NoGpu | None = None, **of_session: Any) -> Measuring:
    gpu = gpu or NoGpu("none in this test")
    return Measuring(session_of(lab, **of_session), gpu=gpu, channel=channel or Heard())


def everything(lab: Lab, program: Program, channel: Heard | None = None, **of_session: Any) -> Result:
    return measuring(lab, channel, **of_session).everything(lambda _session, *, joined=True: program)


def test_predictions_are_made_after_the_clock_and_have_the_metric_of_the_task(lab: Lab) -> None:
    program = Answering(lab, Answers(np.array([3, 1, 2]), mean_score=math.log(2), no_score=None))
    evaluation = everything(lab, program, metric=PERPLEXITY).evaluation
    assert evaluation and evaluation.test_metric == pytest.approx(2.0) and evaluation.test_metric_absent is None
    np.testing.assert_array_equal(predictions_of(evaluation), [3, 1, 2])
    diary = [what for what, _ in lab.diary]
    assert diary.index("end timing") < diary.index("is finite") < diary.index("answers")
    drawn = everything(lab, Answering(lab, Answers(np.array([3]), None, "the weights are drawn"))).evaluation
    assert drawn and (drawn.test_metric, drawn.test_metric_absent) == (None, "the weights are drawn")
    assert everything(lab, Answering(lab, None)).evaluation is None


def test_the_order_of_a_measurement(lab: Lab) -> None:
    everything(lab, Work(lab))
    before_blocks = CALLS["cold"] + CALLS["warm-up"] + CALLS["calibration"]
    timed = before_blocks + CALLS["blocks"] + CALLS["latency"]
    assert lab.diary == [
        ("state", 0),  # waited for before the first call
        ("compile", 0),
        ("place", 0),
        ("state", 0),
        ("check", 3),
        ("witness", 3),
        ("settle", 3),
        ("begin timing", before_blocks),
        ("end timing", timed),
        ("is finite", timed + 1),
        ("witness", timed + 1),
        ("step peak", timed + 1),
        ("phases", timed + 1),
    ]


def test_the_numbers_of_a_measurement(lab: Lab) -> None:
    result = everything(lab, Work(lab, seen={"replays": 1}))
    assert result.cold_call_times_s == [100 * TICK_S, 4 * TICK_S, 4 * TICK_S]
    assert result.compile_time_s == 96 * TICK_S  # 108 - 3 * 4
    assert result.blocks.block_times_s == [8 * TICK_S] * 3
    assert (result.blocks.calls_per_block, result.blocks.samples_per_step) == (2, 16)
    assert result.latency.call_times_s == [4 * TICK_S] * 4
    assert result.checks == [Check(name="near", error=0.25, tolerance=0.5, passed=True)]
    assert (result.parameter_count, result.units, result.recompiles) == (7, {"edges": 56.5}, 0)
    assert result.details == {"layout": "rows", "witness": {"replays": 1}}
    assert (result.epochs, result.time_to_target_s, result.blocks_alone) == ([], None, None)


def test_a_short_replicate_ends_with_its_blocks(lab: Lab) -> None:
    """What each program has to offer beyond them is not asked for; the compile time is by the calls of the warm-up."""
    phases = [("forward", lambda: None)]
    for program in (Training(lab, communicates=True), Answering(lab, None), Work(lab, parts=phases, before=phases)):
        lab.diary, lab.calls = [], 0
        result = everything(lab, program, replicate=3)
        timed = sum(CALLS.values()) - CALLS["latency"]
        assert lab.diary[5:] == [
            ("witness", 3),
            ("settle", 3),
            ("begin timing", timed - CALLS["blocks"]),
            ("end timing", timed),
            ("is finite", timed + 1),
            ("witness", timed + 1),
            ("step peak", timed + 1),
        ]
        assert len(result.blocks.block_times_s) == 3
        assert result.compile_time_s == 96 * TICK_S
        assert (result.latency, result.epochs, result.evaluation, result.blocks_alone) == (None, [], None, None)


def test_what_is_compiled_before_the_first_call_counts_and_what_is_placed_does_not(lab: Lab) -> None:
    """Nor what is still copied to the device before either."""

    class Placing(Work):
        def compile(self) -> None:
            self.lab.let_pass(30)

        def place(self) -> None:
            self.lab.let_pass(500)
            self.lab.queued_s = 5000 * TICK_S

    lab.queued_s = 5000 * TICK_S
    result = everything(lab, Placing(lab))
    assert result.cold_call_times_s == [(30 + 100) * TICK_S, 4 * TICK_S, 4 * TICK_S]
    assert result.compile_time_s == (30 + 96) * TICK_S


def test_a_warm_start_is_the_cold_calls_and_nothing_else(lab: Lab) -> None:
    result = measuring(lab).cold_calls(lambda _session, *, joined=True: Work(lab, communicates=True))
    assert result == Result(cold_call_times_s=[100 * TICK_S, 4 * TICK_S, 4 * TICK_S])
    assert (lab.diary, lab.calls) == ([(what, 0) for what in ("state", "compile", "place", "state")], 3)


@pytest.mark.parametrize("method", ["check", "witness"])
def test_a_wrong_program_is_never_timed(method: str, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one whose outputs are wrong nor one that is not what its mode says."""

    def fails(_program: Work) -> None:
        raise CheckFailed("off by 2")

    monkeypatch.setattr(Work, method, fails)
    with pytest.raises(CheckFailed, match="off by 2"):
        everything(lab, Work(lab))
    assert lab.calls == CALLS["cold"]


def test_timed_calls_that_led_to_no_numbers_are_told(lab: Lab) -> None:
    lab.finite = False
    with pytest.raises(CheckFailed, match="after the timed calls the step's outputs are not finite"):
        everything(lab, Work(lab))


# Training


def test_training_by_hand(lab: Lab) -> None:
    """The first call after `reset` takes 100 ticks, each later one 4; evaluation is outside the clock."""
    channel = Heard()
    result = everything(lab, Training(lab), channel)
    first, second = result.epochs
    assert (first.epoch, first.train_time_s, first.train_loss) == (1, 104 * TICK_S, (1 + 1 / 2) / 2)
    assert (first.test_loss, first.test_metric) == (1.5, 0.25)
    assert (second.epoch, second.train_time_s, second.train_loss) == (2, 8 * TICK_S, (1 / 3 + 1 / 4) / 2)
    assert result.time_to_target_s == 112 * TICK_S
    timed = sum(CALLS.values())
    assert lab.diary[8:11] == [("end timing", timed), ("is finite", timed + 1), ("witness", timed + 1)]
    timed += 1
    assert lab.diary[11:] == [
        ("reset", timed),
        ("state", timed),  # waited for, so that every epoch starts with an idle device
        ("state", timed + 2),  # the epoch ends when all of its work is done
        ("evaluate", timed + 2),
        ("state", timed + 2),
        ("state", timed + 4),
        ("evaluate", timed + 4),
        ("step peak", timed + 4),
        ("phases", timed + 4),
    ]
    assert channel.of_kind("metrics")[-1] == {
        "epoch": 2,
        "train/loss": second.train_loss,
        "train/time_s": 8 * TICK_S,
        "test/loss": 1.25,
        "test/accuracy": 0.5,
    }
    assert {"phase": "train", "done": 1, "total": 2} in channel.of_kind("progress")


def test_a_metric_of_which_less_is_better(lab: Lab) -> None:
    """The perplexity is exp of the mean loss: 30, then 20; a target of 25 is reached in the second epoch."""

    def trained(target: float) -> Result:
        program = Training(lab, [(2.0, math.log(30)), (1.0, math.log(20))])
        return everything(lab, program, metric=PERPLEXITY, target=target)

    result = trained(25.0)
    assert [point.test_metric for point in result.epochs] == [pytest.approx(30), pytest.approx(20)]
    assert result.time_to_target_s == 112 * TICK_S
    assert trained(31.0).time_to_target_s == 104 * TICK_S
    assert trained(19.0).time_to_target_s is None


def test_a_call_of_two_steps_is_one_call_for_each_epoch(lab: Lab) -> None:
    result = everything(lab, Training(lab, steps_per_call=2))
    assert [point.train_time_s for point in result.epochs] == [100 * TICK_S, 4 * TICK_S]
    assert lab.calls == sum(CALLS.values()) + 1 + 2


def test_a_training_set_in_chunks_has_a_window_for_each(lab: Lab) -> None:
    """Two epochs of 2 steps, chunks of 3: the second epoch begins in the first chunk and ends in the second. A copy
    takes 50 ticks, and nothing of it is in a window."""

    class InChunks(Training):
        is_resident = False

        def load(self, first_step: int) -> int:
            self.lab.note(f"load {first_step}")
            if first_step % 3 == 0:
                self.lab.let_pass(50)
            return 3 - first_step % 3

    result = everything(lab, InChunks(lab))
    assert [point.train_time_s for point in result.epochs] == [104 * TICK_S, 8 * TICK_S]
    assert [point.input_time_s for point in result.epochs] == [50 * TICK_S, 50 * TICK_S]
    assert [point.train_loss for point in result.epochs] == [(1 + 1 / 2) / 2, (1 / 3 + 1 / 4) / 2]
    timed = sum(CALLS.values()) + 1
    loads = [entry for entry in lab.diary if entry[0].startswith("load")]
    assert loads == [("load 0", timed), ("load 2", timed + 2), ("load 3", timed + 3)]


def test_further_metrics_stand_beside_the_metric(lab: Lab) -> None:
    class Scored(Training):
        def evaluate(self) -> Means:
            return super().evaluate()._replace(further_scores={"top_5_accuracy": 0.75, "unasked": 1.0})

    channel = Heard()
    result = everything(lab, Scored(lab), channel, further=(TOP_5,))
    assert [point.further_metrics for point in result.epochs] == [{"top_5_accuracy": 0.75}] * 2
    assert [point.input_time_s for point in result.epochs] == [None, None]
    assert channel.of_kind("metrics")[-1]["test/top_5_accuracy"] == 0.75


def test_an_epoch_takes_as_long_as_on_the_slowest_rank(lab: Lab) -> None:
    class OneOfTwo(Training):
        def reset(self) -> None:
            super().reset()
            self.lab.slower_rank_s = 3 * TICK_S

        def phases(self) -> list[Phase]:
            self.lab.slower_rank_s = 0.0
            return []

    result = everything(lab, OneOfTwo(lab), world=TWO_RANKS)
    assert [point.train_time_s for point in result.epochs] == [107 * TICK_S, 11 * TICK_S]
    assert result.blocks_alone is None  # what does not communicate has no control


@pytest.mark.parametrize(
    ("evaluations", "losses", "message"),
    [
        ([], [1.0, math.nan], "the loss of epoch 1, step 2 of 2, is nan"),
        ([(math.inf, 0.5)], [1.0, 0.5], "the test loss after epoch 1, step 2 of 2, is inf"),
    ],
)
def test_training_that_diverges_fails(
    lab: Lab, evaluations: list[tuple[float, float]], losses: list[float], message: str
) -> None:
    class Diverging(Training):
        def losses(self, kept: list[float]) -> NDArray[np.float64]:
            return np.array(losses)

    with pytest.raises(CheckFailed, match=message):
        everything(lab, Diverging(lab, evaluations))


@pytest.mark.parametrize(("of_compiler", "of_device", "expected"), [(123, None, (123, 123, 123)), (None, 9, (9, 9, 8))])
def test_the_compilers_account_of_a_step_holds_for_every_device_and_else_its_own(
    lab: Lab, of_compiler: int | None, of_device: int | None, expected: tuple[int, ...]
) -> None:
    devices = [Memory(allocator_peak_bytes=5, step_peak_bytes=peak) for peak in (of_device, of_device and 8)]
    lab.own_memory = Memory(allocator_peak_bytes=5, step_peak_bytes=of_device, devices=devices)
    memory = everything(lab, Work(lab, peak_bytes=of_compiler)).memory
    assert (memory.step_peak_bytes, *(device.step_peak_bytes for device in memory.devices)) == expected
    assert memory.allocator_peak_bytes == memory.devices[1].allocator_peak_bytes == 5
    assert memory.host_peak_bytes is not None and memory.host_peak_bytes > 1e6


# Phases


def phase(lab: Lab, ticks: int) -> Callable[[], str]:
    def run() -> str:
        lab.queued_s += ticks * TICK_S
        return "outputs"

    return run


def test_phases_stand_beside_the_programs_own_details(lab: Lab) -> None:
    channel = Heard()
    program = Work(lab, parts=[("forward", phase(lab, 2)), ("backward", phase(lab, 6))])
    result = everything(lab, program, channel)
    assert result.details == {"layout": "rows", "phases": {"forward": [2 * TICK_S] * 4, "backward": [6 * TICK_S] * 4}}
    streamed = {key: value for event in channel.of_kind("metrics") for key, value in event.items()}
    assert streamed["phase/backward/p50_s"] == 6 * TICK_S


def test_construction_is_timed_apart_and_seldom(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_module, "CONSTRUCTION_CALLS", 3)
    program = Work(lab, before=[("build", phase(lab, 50))])
    assert everything(lab, program).details["phases"] == {"build": [50 * TICK_S] * 3}
    program.parts = [("forward", phase(lab, 2))]
    assert everything(lab, program).details["phases"] == {"build": [50 * TICK_S] * 3, "forward": [2 * TICK_S] * 4}


def fills_the_device() -> None:
    raise RuntimeError("device is full: 4 GiB asked for\nand a stack trace of C++")


def test_phases_that_do_not_fit_cost_themselves_only(lab: Lab) -> None:
    result = everything(lab, Work(lab, parts=[("forward", phase(lab, 2)), ("backward", fills_the_device)]))
    assert result.blocks.block_times_s == [8 * TICK_S] * 3
    assert result.details["phases_absent"] == "out of memory: device is full: 4 GiB asked for"
    assert result.details["phases"] == {}


def test_any_other_error_in_a_phase_and_one_of_several_ranks_is_an_error(lab: Lab) -> None:
    with pytest.raises(IndexError):
        everything(lab, Work(lab, parts=[("forward", lambda: [][0])]))
    with pytest.raises(RuntimeError, match="device is full"):  # the other ranks would wait for ever
        everything(lab, Work(lab, parts=[("forward", fills_the_device)]), world=TWO_RANKS)


def test_the_control_is_built_when_the_first_program_is_gone(lab: Lab) -> None:
    """Two of them would need twice the memory. What is found so far is told before, whatever becomes of the control."""
    first: list[weakref.ref[Work]] = []
    channel = Heard()

    def build(_session: Session[Any], *, joined: bool = True) -> Program:
        if joined:
            program = Work(lab, communicates=True)
            first.append(weakref.ref(program))
            return program
        assert [reference() for reference in first] == [None]
        assert len(channel.of_kind("result_so_far")) == 1
        lab.note("control")
        return Work(lab, call_ticks=3)

    result = measuring(lab, channel, world=TWO_RANKS).everything(build)
    (so_far,) = channel.of_kind("result_so_far")
    assert Result.model_validate(so_far) == result.model_copy(update={"blocks_alone": None})
    assert result.blocks.block_times_s == [8 * TICK_S] * 3
    assert result.blocks_alone.block_times_s == [6 * TICK_S] * 3
    assert result.blocks_alone.calls_per_block == 2
    # The control is neither checked nor trained: cold calls, a short warm-up, and its blocks.
    assert lab.diary[-1] == ("control", sum(CALLS.values()) + 1)
    assert lab.calls == sum(CALLS.values()) + 1 + 3 + 3 + 3 * 2


@pytest.mark.parametrize("fraction", [0.01, 0.5])
def test_a_planted_slowdown_is_in_blocks_and_latency_and_nowhere_else(
    fraction: float, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block takes exactly so much longer, whatever lies between two of them: here the other rank's."""
    instant_s = 2.0**-22

    def looked_at() -> float:
        lab.now_s += instant_s
        return lab.now_s

    monkeypatch.setattr(slowdown, "perf_counter", looked_at)
    monkeypatch.setattr(lab, "agree", lambda value: lab.let_pass(1000) or value)
    monkeypatch.setitem(CONDITIONS, "slower", fraction)
    result = everything(lab, Training(lab), planted="slower", world=TWO_RANKS)
    near = {"rel": 0, "abs": 10 * instant_s}
    assert result.blocks.block_times_s == pytest.approx([8 * (1 + fraction) * TICK_S] * 3, **near)
    assert result.latency.call_times_s == pytest.approx([4 * (1 + fraction) * TICK_S] * 4, **near)
    assert result.cold_call_times_s == [100 * TICK_S, 4 * TICK_S, 4 * TICK_S]
    assert [point.train_time_s for point in result.epochs] == pytest.approx([104 * TICK_S, 8 * TICK_S])


# On a GPU.


class Gpu(NoGpu):
    """100 W before the cold calls, and 140 W from then on; 2 devices of one process."""

    def __init__(self, lab: Lab) -> None:
        super().__init__("not of this one")
        self.lab = lab
        self.asked_at_call: list[int] = []
        self.each = [
            SimpleNamespace(
                energy_joules=lambda: lab.now_s * 150.0,
                process_bytes=lambda: None,
                device_used_bytes=lambda used=used: used,
            )
            for used in (70, 90)
        ]

    def energy_joules(self) -> float:
        self.asked_at_call.append(self.lab.calls)
        return self.lab.now_s * (140.0 if self.lab.calls else 100.0)

    def held_back_counters(self) -> list[dict[int, float]]:
        return [{74: self.lab.now_s * 0.25e9}]

    def device_used_bytes(self) -> int:
        return 90


def test_what_a_gpu_adds_to_a_measurement(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "sleep", lambda seconds: lab.let_pass(seconds / TICK_S))
    lab.own_memory = Memory(allocator_peak_bytes=5, devices=[Memory(allocator_peak_bytes=n) for n in (4, 5)])
    protocol = PROTOCOL.model_copy(update={"idle_s": 1.0, "energy_window_s": 16 * TICK_S})
    gpu = Gpu(lab)
    result = everything(lab, Work(lab), gpu=gpu, protocol=protocol)
    assert gpu.asked_at_call == [0, 0, CALLS["cold"], CALLS["cold"]]
    assert result.energy.idle_watts == 100.0
    # Blocks of 2 calls of 4 ticks: 2 of them fill 16 ticks.
    assert (result.energy.gross_joules, result.energy.samples) == (300 * 16 * TICK_S, 2 * 2 * 16)
    assert result.held_back == HeldBack(window_s=3 * 8 * TICK_S, seconds={"sw_power_cap": 3 * 2 * TICK_S})
    assert result.memory.device_used_bytes == 90
    assert [device.device_used_bytes for device in result.memory.devices] == [70, 90]
    assert len(result.blocks.block_times_s) == 3


def test_nvml_is_asked_before_the_framework_touches_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a context is the measurement's."""
    order: list[str] = []

    class Device:
        def __init__(self) -> None:
            order.append("device")

        def set_up(self, precision: str) -> None:
            raise Refused("far enough")

    def opened(first: int, count: int) -> NoGpu:
        order.append(f"NVML {first} {count}")
        return NoGpu("none in this test")

    task = ChildTask(measurement=session_of(Lab()).measurement, data_dir="nowhere", world=ALONE)
    monkeypatch.setattr(process, "open_gpus", opened)
    monkeypatch.setattr(process.importlib, "import_module", lambda name: SimpleNamespace(Device=Device))
    heard = Heard()
    assert process.run_child("jax", task, heard) == 0
    assert order == ["NVML 0 1", "device"]
    assert heard.of_kind("error") == [{"outcome": "refused", "reason": "far enough"}]
