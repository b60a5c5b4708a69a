"""Quality flags: what a reader must know before the numbers of a record, each with its sentence. Pure.

`meanings` has them all, with those that only the report can see (ratios.py, pipeline/report/compare.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.results import ratios
from harness.results.busy import is_busy
from harness.results.cpus import quota_in_words
from harness.results.environment_variables import caveats
from harness.results.record import Blocks, GpuState, Latency, Record, Result
from harness.results.statistics import (
    calls_needed,
    held_back_shares,
    median,
    numbers_read,
    throughput_samples_per_s,
    words_read,
)

WORTHLESS = ("recompiled", "mixed_gpus", "known_slow_jaxlib")
"""Flags of a mode whose throughput is compared with nothing."""
SHORT_BLOCK_S = 0.08
"""Blocks aim at 0.1 s; their calls may miss that by a fifth before the record says so."""
LOW_CLOCK_SHARE = 0.75
"""Of the card's highest SM clock. nvbench throws a sample away below 75 % of the default clock."""
ENERGY_COUNTER_TICK_S = 0.1
ENERGY_WINDOW_MIN_S = 40 * ENERGY_COUNTER_TICK_S
"""The counter can be one tick late at either end; over 40 ticks that is at most 5 % of the energy."""
HELD_BACK_SHARE = 0.02
"""Of the throughput window. The hardware's slowdown halves the clocks at the least (nvml.h), so in 2 % of the window it
costs 1 %, which is the width of the verdict `same`. The driver's own is milder, and gets the same threshold."""
COUNTED_REASONS = {
    "sw_power_cap": {"sw_power_cap"},
    "sw_thermal_slowdown": {"sw_thermal_slowdown"},
    "hw_thermal_slowdown": {"hw_thermal_slowdown"},
    "hw_power_brake_slowdown": {"hw_power_brake_slowdown"},
    "hw_slowdown": {"hw_thermal_slowdown", "hw_power_brake_slowdown"},
}
"""What an instant reading may say, and the counters that know it better: it is read between two blocks, when the GPU
idles."""
OTHER_CPUS = 0.25
"""Of one CPU, on average. What an idle machine does beside a measurement is a few hundredths."""
WAITING_CPUS_SHARE = 0.01
"""Of the process's CPUs, on average. What it takes there, the other one's blocks do not have."""
KNOWN_SLOW_JAXLIB = ("0.10.2", "0.11.0")
"""On NVIDIA GPUs they compile a float32 scatter-add to a loop of compare-and-swap, 450 to 2000 times slower where
threads meet (openxla/xla#46225, jax-ml/jax#38806). It is in the gradient of every max-pooling and embedding."""
KNOWN_SLOW_WORDS = "a scatter-add that is known to be slow, 450 to 2000 times; use 0.11.1 or later (Python 3.12)"
HARMLESS_CLOCK_REASONS = frozenset({"gpu_idle", "applications_clocks_setting"})
"""Waiting between two blocks, or clocks that an administrator has set: neither slows a block by surprise."""


def quality_flags(result: Result, environment: Mapping[str, Any], latency_calls: int = 0) -> dict[str, str]:
    """Name to sentence; empty if the record is clean.

    Args:
        latency_calls: the protocol's, of which there may be fewer where time ran out.
    """
    flags = _restart_flags(environment)
    if result.recompiles:
        flags["recompiled"] = f"{result.recompiles} compilation(s) inside the timed windows: the times are worthless"
    if result.blocks is not None:
        flags |= _block_flags(result.blocks)
    if result.latency is not None:
        flags |= _latency_flags(result.latency, latency_calls)
    flags |= _throttle_flags(result)
    flags |= _gpu_flags(result.gpu_states, environment)
    flags |= _version_flags(environment)
    flags |= _limit_flags(environment)
    if result.other_cpus is not None and result.other_cpus > OTHER_CPUS:
        flags["other_processes"] = (
            f"other processes kept {result.other_cpus:.1f} of this one's CPUs busy while it was timed"
        )
    turns, affinity = result.in_turns, (environment.get("cpu") or {}).get("affinity")
    cpus = len(affinity or [0])
    if turns is not None and turns.busy_s > WAITING_CPUS_SHARE * cpus * turns.waited_s:
        flags["busy_while_waiting"] = (
            f"while it waited for its turns, this process kept {turns.busy_s / turns.waited_s / cpus:.1%} of its CPUs "
            f"busy beside the other one's blocks"
        )
    window_s = result.energy.window_s
    if result.energy.gross_joules is not None and window_s is not None and window_s < ENERGY_WINDOW_MIN_S:
        flags["energy_window_short"] = (
            f"energy was counted over {window_s:.2f} s; under {ENERGY_WINDOW_MIN_S:.0f} s "
            f"the counter's {ENERGY_COUNTER_TICK_S} s tick shows"
        )
    return flags


def meanings() -> dict[str, str]:
    """Every flag by name: when it is set, by today's thresholds. docs/reference.md is made of them."""
    jaxlib = " or ".join(KNOWN_SLOW_JAXLIB)
    return {
        "recompiled": "something was compiled inside the timed windows",
        "mixed_gpus": "in the report: the devices of one measurement are of different kinds",
        "known_slow_jaxlib": f"jaxlib {jaxlib} on a GPU: their float32 scatter-add, which is in the gradient of every "
        f"max-pooling and embedding, is 450 to 2000 times slower than that of other versions (openxla/xla#46225)",
        "imprecise": f"of a row: the median, over pairs, of a log ratio's standard error from inside its pair is above "
        f"{ratios.IMPRECISE:.0%}; longer windows (`max_time_s`) or turns would help",
        "processes_differ": f"of a row with 4 pairs or more: the pairs' log ratios vary by more than what is inside "
        f"them explains (chi square, above its {ratios.DIFFER_LEVEL:.0%} quantile); more replicates would help, "
        f"longer ones would not",
        "drift": f"of a row: within a pair the ratio changes by more than {ratios.RATIO_DRIFT:.0%}, and by more than "
        f"{ratios.RATIO_DRIFT_ERRORS:.0f} standard errors of that change, from its first third of blocks to the last",
        "not_paired": "of a row: both modes took turns with other modes, and not with each other",
        "overruled": "of a row: the replicates contradicted the screening clearly, so that they chose the mode",
        "short_blocks": f"the median block took under {SHORT_BLOCK_S} s: the wait at its end weighs on the throughput",
        "too_few_latency_calls": f"under {calls_needed(0.95)} waited calls, where there is a p95: fewer cannot bound "
        "it with 95 % confidence",
        "too_few_calls_for_p99": f"under {calls_needed(0.99)} waited calls, where as many were asked for and time ran "
        f"out: there is no p99",
        "throttled": f"by the driver's counters the clocks were held back for at least {HELD_BACK_SHARE:.0%} of the "
        f"throughput window; where a card does not count a reason, the GPU reported the reason between "
        "two blocks, other than idling or clocks that an administrator has set",
        "low_clocks": f"the SM clock was seen below {LOW_CLOCK_SHARE:.0%} of the card's highest (nvbench's threshold)",
        "busy_while_waiting": f"while the process waited for its turns, its own threads kept more than "
        f"{WAITING_CPUS_SHARE:.0%} of its CPUs busy beside the other one's blocks",
        "other_processes": f"other processes had a context on the same GPU; on a CPU, they kept more than {OTHER_CPUS} "
        f"of one CPU busy",
        "steered": "an environment variable was set that changes what a framework compiles or how it computes "
        "(harness/results/environment_variables.py)",
        "cpu_quota": "the CPU quota of the container or job is no whole number of CPUs, so the kernel stops threads",
        "energy_window_short": f"energy was counted over under {ENERGY_WINDOW_MIN_S:.0f} s: the counter's tick of "
        f"{ENERGY_COUNTER_TICK_S} s shows",
        "restarted": "the job was requeued before this measurement",
        "other_gpu_read": "the framework computed on another GPU than the one that NVML read, by their UUIDs (PyTorch "
        "only, and not for a MIG slice)",
        "mixed_environment": "in the report: replicates of one mode had different CPU models, drivers, library "
        "versions, variables or code",
    }


def comparable_throughput(record: Record) -> float | None:
    """Samples per second; None where there is no number that may be compared."""
    result = record.result
    if record.outcome != "ok" or result is None or result.blocks is None or record.flags.keys() & set(WORTHLESS):
        return None
    if is_busy(record):
        return None
    return throughput_samples_per_s(result.blocks)


def _block_flags(blocks: Blocks) -> dict[str, str]:
    """What blocks vary by flags a ratio, where it matters there (harness/results/ratios.py)."""
    typical_s = median(blocks.block_times_s)
    if typical_s >= SHORT_BLOCK_S:
        return {}
    return {"short_blocks": f"blocks of {typical_s * 1e3:.3g} ms: the wait at a block's end weighs on the throughput"}


def _latency_flags(latency: Latency, wanted: int) -> dict[str, str]:
    """Only of what has a 95th percentile, see latency_p95_s; of the 99th only where as many calls were wanted as it
    needs."""
    if latency.steps_per_call > 1:
        return {}
    calls, flags = len(latency.call_times_s), {}
    if calls < (needed := calls_needed(0.95)):
        flags["too_few_latency_calls"] = f"{calls} latency calls: the 95th percentile needs at least {needed}"
    if calls < (needed := calls_needed(0.99)) <= wanted:
        flags["too_few_calls_for_p99"] = (
            f"{calls} latency calls of {wanted}, then time ran out: the 99th percentile needs at least {needed}"
        )
    return flags


def _throttle_flags(result: Result) -> dict[str, str]:
    """By the driver's counters; by what was read between two blocks where a card does not count it."""
    shares = held_back_shares(result)
    counted = {f"{reason} for {share:.0%} of the time" for reason, share in shares.items() if share >= HELD_BACK_SHARE}
    seen = {
        reason
        for reason in words_read(result.gpu_states, "throttle_reasons") - HARMLESS_CLOCK_REASONS
        if not COUNTED_REASONS.get(reason, {reason}) <= shares.keys()
    }
    reasons = sorted(counted | seen)
    if not reasons:
        return {}
    return {"throttled": f"the GPU held its clock back: {', '.join(reasons)}"}


def _version_flags(environment: Mapping[str, Any]) -> dict[str, str]:
    framework = environment.get("framework") or {}
    version = (environment.get("packages") or {}).get("jaxlib")
    if framework.get("name") != "jax" or framework.get("platform") != "gpu" or version not in KNOWN_SLOW_JAXLIB:
        return {}
    return {"known_slow_jaxlib": f"jaxlib {version} has {KNOWN_SLOW_WORDS}"}


def _limit_flags(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags of what steers or limits the process from outside."""
    flags = {}
    if found := caveats(environment.get("variables") or {}):
        flags["steered"] = "; ".join(found)
    cpu = environment.get("cpu") or {}
    quota = (environment.get("process") or {}).get("quota") or cpu.get("quota")
    if warning := quota_in_words(quota, len(cpu.get("affinity") or [])):
        flags["cpu_quota"] = warning
    return flags


def _gpu_flags(states: Sequence[GpuState], environment: Mapping[str, Any]) -> dict[str, str]:
    """Each looks at its own reading only: what a card refuses costs no other flag."""
    flags = {}
    gpu = environment.get("gpu") or {}
    used = (environment.get("framework") or {}).get("device_uuid")
    if used and gpu.get("uuid") and not gpu.get("mig") and used.lower() != gpu["uuid"].lower():
        flags["other_gpu_read"] = (
            f"the framework computed on {used}, and NVML told of {gpu['uuid']}: energy, clocks and the process's "
            f"memory are another card's"
        )
    highest_mhz = gpu.get("max_sm_clock_mhz")
    lowest_mhz = min(numbers_read(states, "sm_clock_mhz"), default=None)
    if highest_mhz and lowest_mhz is not None and lowest_mhz < LOW_CLOCK_SHARE * highest_mhz:
        flags["low_clocks"] = f"the SM clock fell to {lowest_mhz:.0f} MHz; the card reaches {highest_mhz} MHz"
    others = max(numbers_read(states, "other_processes"), default=0)
    if others:
        flags["other_processes"] = f"up to {others:.0f} other process(es) used the same GPU"
    return flags


def _restart_flags(environment: Mapping[str, Any]) -> dict[str, str]:
    count = int((environment.get("slurm") or {}).get("restart_count") or 0)
    if count == 0:
        return {}
    return {"restarted": f"the job was requeued {count} time(s) before this measurement"}
