"""harness/results/flags.py: each flag at its threshold, and its sentence."""

from typing import Any

import pytest

from harness.results.flags import quality_flags
from harness.results.record import Energy, GpuState, HeldBack, InTurns, Latency, Result
from tests.made.records import blocks


def gpu_state(sm_clock_mhz: int = 1980, reasons: tuple[str, ...] = (), others: int = 0) -> GpuState:
    return {"sm_clock_mhz": sm_clock_mhz, "throttle_reasons": reasons, "other_processes": others}


def waited(count: int, steps_per_call: int = 1) -> Latency:
    return Latency(steps_per_call=steps_per_call, call_times_s=[0.1] * count)


@pytest.mark.parametrize(
    ("result", "flag", "sentence"),
    [
        (Result(blocks=blocks([0.02] * 20)), "short_blocks", "blocks of 20 ms: the wait at a block's end weighs on"),
        # What blocks vary by warns of a ratio, where it matters there: tests/harness/results/test_ratios.py.
        (Result(blocks=blocks([0.1, 0.16, 0.1, 0.13, 0.16, 0.1, 0.16])), None, ""),
        (
            Result(latency=waited(71)),
            "too_few_latency_calls",
            "71 latency calls: the 95th percentile needs at least 72",
        ),
        (Result(energy=Energy(gross_joules=900.0, window_s=3.0)), "energy_window_short", "energy was counted over 3.0"),
        (Result(recompiles=2), "recompiled", "2 compilation(s) inside the timed windows: the times are worthless"),
        (Result(other_cpus=1.26), "other_processes", "other processes kept 1.3 of this one's CPUs busy while it was"),
    ],
)
def test_a_flag_of_the_numbers_themselves(result: Result, flag: str | None, sentence: str) -> None:
    flags = quality_flags(result, {})
    assert list(flags) == [flag] * (flag is not None)
    assert flags.get(flag, "").startswith(sentence)


def test_a_clean_result_has_no_flags() -> None:
    result = Result(
        blocks=blocks([0.1] * 20),
        latency=waited(72),
        energy=Energy(gross_joules=1500.0, window_s=4.0, samples=1000),
        other_cpus=0.25,  # of one CPU
        gpu_states=[gpu_state(reasons=("gpu_idle",)), gpu_state()],
    )
    environment = {"gpu": {"name": "NVIDIA A100", "max_sm_clock_mhz": 1980}, "slurm": {"restart_count": 0}}
    assert quality_flags(result, environment) == {}
    assert list(quality_flags(result, environment | {"slurm": {"restart_count": 2}})) == ["restarted"]


@pytest.mark.parametrize(
    ("calls", "steps_per_call", "wanted", "flags"),
    [
        (367, 1, 368, ["too_few_calls_for_p99"]),
        (368, 1, 1000, []),
        (200, 1, 200, []),  # nobody wanted a p99
        (3, 4, 1000, []),  # nor is there one of several steps
        (3, 1, 1000, ["too_few_latency_calls", "too_few_calls_for_p99"]),
    ],
)
def test_few_calls_where_many_were_wanted(calls: int, steps_per_call: int, wanted: int, flags: list[str]) -> None:
    found = quality_flags(Result(latency=waited(calls, steps_per_call)), {}, latency_calls=wanted)
    assert list(found) == flags
    sentence = f"{calls} latency calls of {wanted}, then time ran out: the 99th percentile needs at least 368"
    assert found.get("too_few_calls_for_p99", sentence) == sentence


@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        (None, None),
        ("throttle_reasons", "throttled"),
        ("sm_clock_mhz", "low_clocks"),
        ("other_processes", "other_processes"),
    ],
)
def test_gpu_flags_of_which_a_refused_reading_costs_its_own(refused: str | None, lost: str | None) -> None:
    """1400 < 0.75 * 1980 = 1485."""
    states = [gpu_state(), gpu_state(1400, ("sw_thermal_slowdown", "gpu_idle"), others=2)]
    expected = {
        "throttled": "the GPU held its clock back: sw_thermal_slowdown",
        "low_clocks": "the SM clock fell to 1400 MHz; the card reaches 1980 MHz",
        "other_processes": "up to 2 other process(es) used the same GPU",
    }
    for state in states:
        state.pop(refused or "", None)
    flags = quality_flags(Result(gpu_states=states), {"gpu": {"max_sm_clock_mhz": 1980}})
    assert flags == {name: sentence for name, sentence in expected.items() if name != lost}
    assert quality_flags(Result(gpu_states=[gpu_state(1485)]), {"gpu": {"max_sm_clock_mhz": 1980}}) == {}


@pytest.mark.parametrize(
    ("seconds", "reasons", "sentence"),
    [
        # The counters: 0.1 s of 5 s are 2 %, and less is nothing, whatever an instant reading said.
        ({"sw_power_cap": 0.1, "thermal": 0.0}, (), "sw_power_cap for 2% of the time"),
        ({"sw_power_cap": 0.099}, ("sw_power_cap",), None),
        # What is not counted is believed as it was read.
        ({"sw_power_cap": 0.5}, ("reliability",), "reliability, sw_power_cap for 10% of the time"),
        ({"hw_thermal_slowdown": 0.0}, ("hw_slowdown",), "hw_slowdown"),
        ({"hw_thermal_slowdown": 0.0, "hw_power_brake_slowdown": 0.0}, ("hw_slowdown",), None),
    ],
)
def test_throttling_is_what_the_driver_counted(
    seconds: dict[str, float], reasons: tuple[str, ...], sentence: str | None
) -> None:
    result = Result(held_back=HeldBack(window_s=5.0, seconds=seconds), gpu_states=[gpu_state(reasons=reasons)])
    flags = quality_flags(result, {})
    assert flags == ({"throttled": f"the GPU held its clock back: {sentence}"} if sentence else {})


@pytest.mark.parametrize(
    ("framework", "platform", "jaxlib", "flagged"),
    [
        *(("jax", "gpu", version, version in ("0.10.2", "0.11.0")) for version in ("0.10.2", "0.11.0", "0.11.1", None)),
        ("jax", "cpu", "0.11.0", False),
        ("torch", "gpu", "0.11.0", False),  # in one environment, and not in use
    ],
)
def test_a_jaxlib_that_is_known_to_be_slow(framework: str, platform: str, jaxlib: str | None, flagged: bool) -> None:
    environment = {"framework": {"name": framework, "platform": platform}, "packages": {"jaxlib": jaxlib}}
    assert list(quality_flags(Result(), environment)) == ["known_slow_jaxlib"] * flagged


@pytest.mark.parametrize(
    ("used", "read", "flagged"),
    [
        ("GPU-AB12", {"uuid": "GPU-ab12"}, False),
        ("GPU-cd34", {"uuid": "GPU-ab12"}, True),
        ("GPU-cd34", {"uuid": "MIG-ab12", "mig": True}, False),  # a slice has a UUID of its own
        ("GPU-cd34", {"absent": "no NVML"}, False),
        (None, {"uuid": "GPU-ab12"}, False),
    ],
)
def test_energy_of_another_gpu_is_flagged(used: str | None, read: dict[str, Any], flagged: bool) -> None:
    flags = quality_flags(Result(), {"framework": {"device_uuid": used}, "gpu": read})
    assert list(flags) == ["other_gpu_read"] * flagged
    assert not flagged or "computed on GPU-cd34, and NVML told of GPU-ab12:" in flags["other_gpu_read"]


def test_a_process_that_computes_while_it_waits_is_flagged_above_a_hundredth_of_its_cpus() -> None:
    def flags(busy_s: float, **environment: Any) -> dict[str, str]:
        return quality_flags(Result(in_turns=InTurns(is_first=True, waited_s=4.0, busy_s=busy_s)), environment)

    four = {"affinity": [0, 1, 4, 5]}
    assert flags(0.04) == flags(0.16, cpu=four) == {}
    assert flags(0.05).keys() == {"busy_while_waiting"}  # of one, where it is not known how many there are
    assert "this process kept 1.5% of its CPUs busy" in flags(0.24, cpu=four)["busy_while_waiting"]
