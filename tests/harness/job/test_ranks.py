"""From the events and results of several ranks to one outcome and one result; every number worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from harness.job.ranks import EXIT_GRACE_S, SETTLE_S, Ranks, combine
from harness.results.record import Check, Energy, HeldBack, Latency, Memory, Result
from tests.made.records import blocks, epoch

LOG = Path("/results/x.log")
EXIT_0 = {"kind": "exit", "content": {"code": 0, "tail": ""}}
KILLED = {"kind": "exit", "content": {"code": -9, "tail": "last line"}}
ABORTED = {"kind": "exit", "content": {"code": -6, "tail": ""}}


def error(reason: str, outcome: str = "failed") -> dict[str, Any]:
    return {"kind": "error", "content": {"outcome": outcome, "reason": reason}}


def ranks_of(*nodes: str) -> Ranks:
    return Ranks(nodes, LOG, timeout_s=1800.0, now=0.0)


def two() -> Ranks:
    return ranks_of("n1", "n2")


def result(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "compile_time_s": 1.0,
        "cold_call_times_s": [3.0, 1.0],
        "blocks": blocks([1.0, 4.0], calls=2, samples=8, warmup=[1.0]),
        "latency": Latency(steps_per_call=1, call_times_s=[0.5, 0.75]),
        "memory": Memory(allocator_peak_bytes=100, host_peak_bytes=10),
        "energy": Energy(gross_joules=50.0, window_s=5.0, busy_s=4.5, samples=32, idle_watts=2.0),
        "held_back": HeldBack(window_s=3.0, seconds={"sw_power_cap": 1.0, "thermal": 0.25}),
    }
    return Result(**(fields | changes))


def told(kind: str = "result", **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "content": result(**changes).model_dump(mode="json")}


def test_times_are_the_slowest_ranks_memory_the_largest_energy_the_sum() -> None:
    other = result(
        compile_time_s=2.0,
        cold_call_times_s=[2.0, 2.0],
        blocks=blocks([2.0, 3.0], calls=2, samples=8, warmup=[2.0]),
        latency=Latency(steps_per_call=1, call_times_s=[0.25, 1.0]),
        memory=Memory(allocator_peak_bytes=300, host_peak_bytes=5),
        energy=Energy(gross_joules=70.0, window_s=6.0, busy_s=4.25, samples=32, idle_watts=3.0),
        held_back=HeldBack(window_s=3.5, seconds={"sw_power_cap": 0.5, "hw_thermal_slowdown": 0.25}),
        details={"batch_norm": "of rank 1"},
    )
    combined = combine([result(details={"batch_norm": "local"}), other])
    assert combined.compile_time_s == 2.0
    assert combined.cold_call_times_s == [3.0, 2.0]
    assert combined.blocks.block_times_s == [2.0, 4.0]
    assert combined.blocks.warmup_times_s == [2.0]
    assert combined.latency.call_times_s == [0.5, 1.0]
    assert (combined.memory.allocator_peak_bytes, combined.memory.host_peak_bytes) == (300, 10)
    assert combined.memory.pool_peak_bytes is None
    sums = combined.details["memory_all_devices"]
    assert (sums["allocator_peak_bytes"], sums["host_peak_bytes"], sums["pool_peak_bytes"]) == (400, 15, None)
    assert combined.details["batch_norm"] == "local"
    assert combined.energy == Energy(
        gross_joules=120.0, window_s=6.0, busy_s=4.25, samples=32, idle_watts=5.0, devices_gross_joules=[50.0, 70.0]
    )
    assert combined.held_back == HeldBack(window_s=3.5, seconds={"sw_power_cap": 1.0})
    assert [device.allocator_peak_bytes for device in combined.memory.devices] == [100, 300]
    assert {device.host_peak_bytes for device in combined.memory.devices} == {None}  # of the process


def of_one_process(*allocator_peak_bytes: int, host_peak_bytes: int, joules: tuple[float, float]) -> Result:
    """For two devices."""
    memory = Memory(
        allocator_peak_bytes=max(allocator_peak_bytes),
        process_bytes=9,
        host_peak_bytes=host_peak_bytes,
        devices=[Memory(allocator_peak_bytes=peak, process_bytes=4) for peak in allocator_peak_bytes],
    )
    energy = Energy(
        gross_joules=sum(joules), window_s=5.0, samples=32, idle_watts=2.0, devices_gross_joules=list(joules)
    )
    return result(memory=memory, energy=energy)


def test_a_process_for_two_devices_counts_each_and_those_of_two_processes_add_up() -> None:
    first = of_one_process(100, 70, host_peak_bytes=10, joules=(20.0, 25.0))
    alone = combine([first])
    assert alone == first.model_copy(update={"details": alone.details})
    assert combine([result()]) == result(), "one device is left as it is"
    combined = combine([first, of_one_process(80, 90, host_peak_bytes=30, joules=(21.0, 26.0))])
    for found, expected in ((alone, (170, 8, 10)), (combined, (340, 16, 40))):
        sums = found.details["memory_all_devices"]
        assert (sums["allocator_peak_bytes"], sums["process_bytes"], sums["host_peak_bytes"]) == expected
    assert [device.allocator_peak_bytes for device in combined.memory.devices] == [100, 70, 80, 90]
    assert (combined.memory.allocator_peak_bytes, combined.memory.host_peak_bytes) == (100, 30)
    assert (combined.energy.gross_joules, combined.energy.devices_gross_joules) == (92.0, [20.0, 25.0, 21.0, 26.0])


def test_epochs_are_rank_0s_with_the_slowest_time_and_checks_are_those_of_all() -> None:
    check = Check(name="full", error=0.1, tolerance=1.0, passed=True)
    first, second = (epoch(train_time_s=time_s, train_loss=loss) for time_s, loss in ((1.0, 2.0), (3.0, 7.0)))
    combined = combine(
        [
            result(epochs=[first], time_to_target_s=1.0, checks=[check]),
            result(epochs=[second], time_to_target_s=3.0, checks=[check], energy=Energy(absent="no counter")),
        ]
    )
    assert combined.epochs == [epoch(train_time_s=3.0, train_loss=2.0)]
    assert combined.time_to_target_s == 3.0
    assert [check.name for check in combined.checks] == ["full", "rank 1: full"]
    assert combined.energy == Energy(absent="no counter"), "energy of some devices is no energy"


def test_ranks_that_did_not_do_the_same_have_no_number() -> None:
    shorter = result(latency=Latency(steps_per_call=1, call_times_s=[0.5]))
    with pytest.raises(ValueError, match="different numbers of latency calls: 2, 1"):
        combine([result(), shorter])


def test_over_when_every_rank_has_told_and_ended_or_is_stuck_at_its_end() -> None:
    ranks = two()
    for rank in (0, 1):
        ranks.take(rank, told(), 1.0)
    assert not ranks.are_over(1.0 + EXIT_GRACE_S)
    ranks.take(0, EXIT_0, 2.0)
    assert not ranks.are_over(1.0 + EXIT_GRACE_S)
    assert ranks.are_over(1.1 + EXIT_GRACE_S)  # the result of the other stands
    ranks.take(1, EXIT_0, 2.0)
    assert ranks.are_over(2.0)
    report = ranks.report()
    assert report.outcome == "ok"
    assert [rank.node for rank in report.ranks] == ["n1", "n2"]


def test_only_the_time_in_which_ranks_have_the_device_counts() -> None:
    """1,800 s of it: 1,000 before a pause of 500, and 800 after."""
    ranks = ranks_of("n1")
    ranks.pause(1000.0)
    assert not ranks.are_over(1400.0)
    ranks.go_on(1500.0)
    assert (ranks.active_s(2300.0), ranks.are_over(2300.0), ranks.are_over(2300.1)) == (1800.0, False, True)
    assert (ranks.report().outcome, ranks.report().reason) == ("timeout", f"not done after 1800 s; log: {LOG}")


@pytest.mark.parametrize(
    ("event", "over_s"),
    [
        ({"kind": "parity", "content": {}}, 1000 + 1800),
        (told("result_so_far", explanation_absent="not yet"), 1000 + 180),
        (told("result_so_far"), 1800),
    ],
)
def test_each_key_has_as_long_as_a_measurement_and_an_explanation_has_less(event: dict[str, Any], over_s: int) -> None:
    """Told by rank 0 after 1,000 s; what another rank tells changes nothing."""
    ranks = two()
    ranks.take(0, event, 1000.0)
    ranks.take(1, event, 1100.0)
    assert (ranks.are_over(over_s), ranks.are_over(over_s + 0.1)) == (False, True)
    if not event["content"]:
        assert str(ranks.report().reason).endswith("(no result from rank 0 on n1, 1 on n2)")


def test_kill_is_the_cause_though_its_effect_was_told_first() -> None:
    """And what some of the ranks have told so far is no result."""
    ranks = two()
    ranks.take(0, told("result_so_far"), 1.0)
    ranks.take(0, error("RuntimeError: connection closed by peer"), 5.0)
    assert not ranks.are_over(5.0 + SETTLE_S)
    ranks.take(1, KILLED, 5.5)
    assert ranks.are_over(5.5)
    assert (ranks.report().outcome, ranks.report().result) == ("failed", None)
    assert ranks.report().reason == (
        "rank 1 on n2: the measurement's process was killed by SIGKILL (often the host's or Slurm's out-of-memory "
        "killer); log: /results/x-rank1.log\nlast line"
        "\nand then rank 0 on n1: RuntimeError: connection closed by peer"
    )


def test_an_error_is_enough_when_the_others_stay_silent_and_an_abort_in_its_wake_is_not_its_cause() -> None:
    ranks = two()
    ranks.take(1, error("KeyError: 'conv9'"), 5.0)
    assert (ranks.are_over(5.0 + SETTLE_S), ranks.are_over(5.1 + SETTLE_S)) == (False, True)
    ranks.take(0, ABORTED, 5.5)
    assert ranks.are_over(5.5)
    assert str(ranks.report().reason).startswith("rank 1 on n2: KeyError: 'conv9'\nand then rank 0 on n1: the")


def test_full_memory_is_the_answer_whoever_told_first() -> None:
    ranks = two()
    ranks.take(0, error("RuntimeError: connection closed by peer"), 5.0)
    ranks.take(1, error("device is full", "out_of_memory"), 5.1)
    assert ranks.are_over(5.1)
    report = ranks.report()
    assert report.outcome == "out_of_memory"
    assert str(report.reason).startswith("rank 1 on n2: device is full")


def test_result_so_far_stands_when_the_rest_breaks_off() -> None:
    ranks = two()
    slower = blocks([2.0, 3.0], calls=2, samples=8, warmup=[1.0])
    ranks.take(0, told("result_so_far"), 1.0)
    ranks.take(1, told("result_so_far", blocks=slower), 1.0)
    assert not ranks.are_over(2.0 + EXIT_GRACE_S)  # the control may take its time
    ranks.take(0, error("no room for the control\nat line 3", "out_of_memory"), 100.0)
    assert ranks.are_over(100.1 + SETTLE_S)
    report = ranks.report()
    assert (report.outcome, report.reason) == ("ok", None)
    assert report.result.blocks.block_times_s == [2.0, 4.0]
    assert report.result.blocks_alone is None
    assert report.result.blocks_alone_absent == "out_of_memory: rank 0 on n1: no room for the control"
    assert [rank.block_times_s for rank in report.ranks] == [[1.0, 4.0], [2.0, 3.0]]

    late = ranks_of("n1")
    late.take(0, told("result_so_far"), 1.0)
    assert late.are_over(1800.1)
    assert late.report().result.blocks_alone_absent == f"timeout: not done after 1800 s; log: {LOG}"


def test_every_rank_keeps_the_gpus_that_it_used() -> None:
    ranks = two()
    one = {"gpu": {"uuid": "GPU-1", "name": "H200"}}
    both = {"gpu": {"uuid": "GPU-2", "uuids": ["GPU-2", "GPU-3"], "name": "H200", "names": ["H200", "A100"]}}
    for rank, environment in enumerate((one, both)):
        ranks.take(rank, {"kind": "environment", "content": environment}, 1.0)
        ranks.take(rank, told(), 1.0)
    report = ranks.report()
    first, second = report.ranks
    assert report.environment == one
    assert (first.gpu_uuids, first.gpu_names) == (["GPU-1"], ["H200"])
    assert (second.gpu_uuids, second.gpu_names) == (["GPU-2", "GPU-3"], ["H200", "A100"])
