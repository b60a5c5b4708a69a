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


def held_back(reasons: tuple[str, ...] = (), **seconds: float) -> Result:
    """Of five seconds."""
    return Result(held_back=HeldBack(window_s=5.0, seconds=seconds), gpu_states=[gpu_state(reasons=reasons)])


def in_turns(busy_s: float) -> Result:
    return Result(in_turns=InTurns(is_first=True, waited_s=4.0, busy_s=busy_s))


def on(framework: str, platform: str, jaxlib: str | None) -> dict[str, Any]:
    return {"framework": {"name": framework, "platform": platform}, "packages": {"jaxlib": jaxlib}}


def used(device: str | None, **read: Any) -> dict[str, Any]:
    return {"framework": {"device_uuid": device}, "gpu": read}


def variables(**found: str) -> dict[str, Any]:
    return {"variables": found}


FOUR_CPUS = {"cpu": {"affinity": [0, 1, 4, 5]}}
HELD = "the GPU held its clock back: "
CLEAN = Result(
    blocks=blocks([0.1] * 20),
    latency=waited(72),
    energy=Energy(gross_joules=1500.0, window_s=4.0, samples=1000),
    other_cpus=0.25,  # of one CPU
    gpu_states=[gpu_state(1485, reasons=("gpu_idle",)), gpu_state()],  # 0.75 * 1980
)
JAXLIB_IS_SLOW = {"known_slow_jaxlib": "jaxlib 0.1"}


@pytest.mark.parametrize(
    ("result", "environment", "flags"),
    [
        (CLEAN, {"gpu": {"name": "NVIDIA A100", "max_sm_clock_mhz": 1980}, "slurm": {"restart_count": 0}}, {}),
        (CLEAN, {"slurm": {"restart_count": 2}}, {"restarted": "the job was requeued 2 time(s)"}),
        (Result(blocks=blocks([0.02] * 20)), {}, {"short_blocks": "blocks of 20 ms: the wait at a block's end"}),
        # What blocks vary by warns of a ratio, where it matters there: tests/harness/results/test_ratios.py.
        (Result(blocks=blocks([0.1, 0.16, 0.1, 0.13, 0.16, 0.1, 0.16])), {}, {}),
        (Result(latency=waited(71)), {}, {"too_few_latency_calls": "71 latency calls: the 95th percentile needs at"}),
        (Result(energy=Energy(gross_joules=900.0, window_s=3.9)), {}, {"energy_window_short": "energy was counted ov"}),
        (Result(recompiles=2), {}, {"recompiled": "2 compilation(s) inside the timed windows"}),
        (Result(other_cpus=1.26), {}, {"other_processes": "other processes kept 1.3 of this one's CPUs busy"}),
        # Throttling is what the driver counted: 0.1 s of 5 s are 2 %, and less is nothing, whatever an instant reading
        # said.
        (held_back(sw_power_cap=0.1, thermal=0.0), {}, {"throttled": HELD + "sw_power_cap for 2% of the time"}),
        (held_back(("sw_power_cap",), sw_power_cap=0.099), {}, {}),
        # What is not counted is believed as it was read.
        (held_back(("other",), thermal=0.5), {}, {"throttled": HELD + "other, thermal for 10% of the time"}),
        (held_back(("hw_slowdown",), hw_thermal_slowdown=0.0), {}, {"throttled": HELD + "hw_slowdown"}),
        (held_back(("hw_slowdown",), hw_thermal_slowdown=0.0, hw_power_brake_slowdown=0.0), {}, {}),
        (Result(), on("jax", "gpu", "0.10.2"), JAXLIB_IS_SLOW),
        (Result(), on("jax", "gpu", "0.11.0"), JAXLIB_IS_SLOW),
        (Result(), on("jax", "gpu", "0.11.1"), {}),
        (Result(), on("jax", "gpu", None), {}),
        (Result(), on("jax", "cpu", "0.11.0"), {}),
        (Result(), on("torch", "gpu", "0.11.0"), {}),  # in one environment, and not in use
        (Result(), used("GPU-AB12", uuid="GPU-ab12"), {}),
        (Result(), used("GPU-cd34", uuid="GPU-ab12"), {"other_gpu_read": "the framework computed on GPU-cd34, and NV"}),
        (Result(), used("GPU-cd34", uuid="MIG-ab12", mig=True), {}),  # a slice has a UUID of its own
        (Result(), used("GPU-cd34", absent="no NVML"), {}),
        (Result(), used(None, uuid="GPU-ab12"), {}),
        (
            Result(),
            variables(XLA_FLAGS="--xla_gpu_autotune_level=0"),
            {"steered": "XLA_FLAGS=--xla_gpu_autotune"},
        ),
        (Result(), variables(OMP_NUM_THREADS="1"), {"steered": "OMP_NUM_THREADS=1 was set, which limits or pins PyTo"}),
        (Result(), variables(OMP_NUM_THREADS="2", NPROC="2"), {}),
        (
            Result(),
            {"cpu": {"affinity": [0, 1], "quota": 1.5}},
            {"cpu_quota": "the CPU quota of this container"},
        ),
        (Result(), {"cpu": {"affinity": [0, 1], "quota": 1.0}}, {}),
        # A hundredth of its CPUs; of one, where it is not known how many there are.
        (in_turns(0.04), {}, {}),
        (in_turns(0.05), {}, {"busy_while_waiting": "while it waited for its turns, this process kept 1.2% of its"}),
        (in_turns(0.16), FOUR_CPUS, {}),
        (in_turns(0.24), FOUR_CPUS, {"busy_while_waiting": "while it waited for its turns, this process kept 1.5% of"}),
    ],
)
def test_a_flag_at_its_threshold(result: Result, environment: dict[str, Any], flags: dict[str, str]) -> None:
    """`flags`: how their sentences begin."""
    found = quality_flags(result, environment)
    assert list(found) == list(flags)
    assert all(found[name].startswith(sentence) for name, sentence in flags.items())


def test_few_calls_where_many_were_wanted() -> None:
    """Nobody has a p99 of fewer than 368, and there is none of several steps."""

    def flags(calls: int, wanted: int, steps: int = 1) -> dict[str, str]:
        return quality_flags(Result(latency=waited(calls, steps)), {}, latency_calls=wanted)

    sentence = "367 latency calls of 368, then time ran out: the 99th percentile needs at least 368"
    assert flags(367, 368) == {"too_few_calls_for_p99": sentence}
    assert flags(368, 1000) == flags(200, 200) == flags(3, 1000, steps=4) == {}
    assert list(flags(3, 1000)) == ["too_few_latency_calls", "too_few_calls_for_p99"]


@pytest.mark.parametrize("refused", ["", "throttle_reasons", "sm_clock_mhz", "other_processes"])
def test_gpu_flags_of_which_a_refused_reading_costs_its_own(refused: str) -> None:
    states = [gpu_state(), gpu_state(1400, ("sw_thermal_slowdown", "gpu_idle"), others=2)]
    expected = {
        "throttle_reasons": ("throttled", f"{HELD}sw_thermal_slowdown"),
        "sm_clock_mhz": ("low_clocks", "the SM clock fell to 1400 MHz; the card reaches 1980 MHz"),
        "other_processes": ("other_processes", "up to 2 other process(es) used the same GPU"),
    }
    for state in states:
        state.pop(refused, None)
    expected.pop(refused, None)
    assert quality_flags(Result(gpu_states=states), {"gpu": {"max_sm_clock_mhz": 1980}}) == dict(expected.values())
