"""Screening: which execution modes have replicates, by one short measurement of each, and which is in the ratio. Pure
but for `screening_records`, which reads records.

A choice is within one framework and one comparison, so a framework's job makes it alone, from its own records. The same
records give the same choice, also after a requeue. docs/studies.md has the simulation.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from statistics import NormalDist
from typing import NamedTuple

from harness.paths import Results
from harness.plan import JobPlan, Screening, Variant
from harness.results.record import Record, Result, find_settled_record, readable_record
from harness.results.statistics import (
    NORMAL_INTERQUARTILE_RANGE,
    median,
    relative_interquartile_range,
    throughput_samples_per_s,
)

NOISE = 0.02
"""The least standard deviation that is assumed between screenings of one mode, on the logarithm: what processes of one
program differ by on a quiet machine, with room for a drift while all modes are screened."""
MISSED = 0.05
"""How often the truly fastest mode may be left out, at the most, if processes differ no more than blocks (or NOISE)."""
CLEAR_STANDARD_ERRORS = 3.0
"""By which the replicates must contradict a screening. For 2 to 14 modes in 3 replicates, a mode that is no faster does
so by chance in 2 to 5 % of comparisons."""
CLEAR_REPLICATES = 3
NONE_ALWAYS = Screening(always=(), many_steps=())


class Screened(NamedTuple):
    throughput_samples_per_s: float
    noise: float
    """Standard deviation of its logarithm."""


def screened(result: Result | None) -> Screened | None:
    """None where the throughput says nothing: there is none, or something was compiled in the timed windows.

    The noise is that of its blocks, as if all of them shared it, and NOISE at the least: what slows a machine for a
    second slows another process too, and a few seconds of blocks do not average it out.
    """
    if result is None or result.blocks is None or result.recompiles:
        return None
    spread = relative_interquartile_range(result.blocks.block_times_s) / NORMAL_INTERQUARTILE_RANGE
    return Screened(throughput_samples_per_s(result.blocks), max(NOISE, spread))


def still_fastest(found: Mapping[str, Screened]) -> set[str]:
    """The modes that can still be the fastest.

    Of k modes, one stays unless log(leader / mode) > z * sqrt(noise_leader**2 + noise_mode**2), with z the normal
    quantile of 1 - MISSED / (k - 1). The truly fastest is then left out at most in the share MISSED of comparisons, if
    processes differ no more than blocks: it would have to be so far behind one of k - 1 others. Subset selection after
    Gupta (1965), "On some multiple decision (selection and ranking) rules", Technometrics 7(2), with Bonferroni's
    inequality for his table.
    """
    if not found:
        return set()
    leader = max(found.values())
    reach = NormalDist().inv_cdf(1 - MISSED / max(1, len(found) - 1))
    return {
        name
        for name, one in found.items()
        if math.log(leader.throughput_samples_per_s / one.throughput_samples_per_s)
        <= reach * math.hypot(leader.noise, one.noise)
    }


def going_on(plan: JobPlan, records: Mapping[str, Record]) -> tuple[Variant, ...]:
    """The variants that have replicates, in the order of the plan.

    What has no screening is not known to be slower. What failed, or did not fit, would do so again.

    Args:
        records: of the screening, by the key of the variant.
    """
    if plan.screening is None:
        return plan.variants
    kept: set[str] = set()
    for variants in plan.contests():
        ok = {one.key: records[one.key].result for one in variants if _is_ok(records.get(one.key))}
        numbers = {key: number for key, result in ok.items() if (number := screened(result))}
        kept |= still_fastest(numbers)
        kept |= {key for key in ok if key not in numbers}
        kept |= {one.key for one in variants if one.key in ok and one.execution_mode in plan.screening.always}
        kept |= {one.key for one in variants if one.key not in records}
    kept -= doubles(plan, records).keys()
    return tuple(variant for variant in plan.variants if variant.key in kept)


def doubles(plan: JobPlan, records: Mapping[str, Record]) -> dict[str, Variant]:
    """Variants that are the program of another one under a second name, by key, and that other one: a mode that always
    goes on, else the first of the plan. Measured beside each other, the faster of the two would be so by luck.

    Args:
        records: of the screening, by the key of the variant; their details may say which program it was.
    """
    found: dict[str, Variant] = {}
    for variants in plan.contests():
        first: dict[str, Variant] = {}
        for one in sorted(variants, key=lambda one: one.execution_mode not in (plan.screening or NONE_ALWAYS).always):
            program = program_of(records.get(one.key))
            if program is None:
                continue
            if first.setdefault(program, one) != one:
                found[one.key] = first[program]
    return found


def program_of(record: Record | None) -> str | None:
    """A digest of what is executed (jax_runner/executable.py), where the runner says it."""
    if record is None or record.result is None or record.outcome != "ok":
        return None
    program = record.result.details.get("program")
    return program if isinstance(program, str) else None


def describe_choice(plan: JobPlan, records: Mapping[str, Record], kept: Collection[Variant]) -> Iterator[str]:
    """A line for each comparison in which modes were screened."""
    kept_keys = {variant.key for variant in kept}
    for variants in plan.contests():
        if not any(one.key in records for one in variants):
            continue
        names = [one.execution_mode for one in variants if one.key in kept_keys]
        words = ", ".join(names) or "none"
        yield f"{variants[0].comparison_key}: {len(names)} of {len(variants)} modes go on: {words}"
    for key, other in doubles(plan, records).items():
        yield f"{key}: the same program as {other.execution_mode}, which stands for both"


def _is_ok(record: Record | None) -> bool:
    return record is not None and record.outcome == "ok"


def screening_records(
    plan: JobPlan, results: Results, scheduler: str | None, *, job: str | None = None
) -> dict[str, Record]:
    """By the key of the variant: the newest settled record of its screening, or else the newest.

    The other arguments are those of find_settled_record.
    """
    found = {}
    for measurement in plan.screenings():
        settled = find_settled_record(measurement, results, scheduler, job=job)
        for path in [settled] if settled else reversed(results.record_files(measurement)):
            record = readable_record(path)
            if record is not None and job in (None, record.job):
                found[measurement.variant.key] = record
                break
    return found


def chosen_mode(throughputs: Mapping[str, Mapping[int, float]], screening: Mapping[str, float]) -> str:
    """The execution mode that is in the ratio.

    The one that the screening, which is in no ratio, found fastest; unless the replicates contradict it clearly.
    Where a mode was not screened, the one with the largest median over its replicates, whose choice leans.

    Args:
        throughputs: samples per second of each mode, by replicate.
        screening: samples per second that the screening found.
    """
    if not throughputs.keys() <= screening.keys():
        return max(throughputs, key=lambda name: median(list(throughputs[name].values())))
    first = max(throughputs, key=lambda name: screening[name])
    return clearly_faster(throughputs, first) or first


def clearly_faster(throughputs: Mapping[str, Mapping[int, float]], than: str) -> str | None:
    """The fastest mode over the replicates that all have, if it leads by more than CLEAR_STANDARD_ERRORS.

    With x the logarithms, k modes and n replicates: the lead is the difference of two means over replicates, and its
    standard error is s * sqrt(2 / n), where s**2 is the sum of (x - mode's mean - replicate's mean + mean)**2 over
    (k - 1) * (n - 1): what is left when each mode and each replicate has its own speed (two-way layout without
    interaction; NIST/SEMATECH e-Handbook 7.4.3.7).
    """
    common = set.intersection(*(set(one) for one in throughputs.values()))
    modes, count = len(throughputs), len(common)
    if modes < 2 or count < CLEAR_REPLICATES:
        return None
    logs = {name: [math.log(one[replicate]) for replicate in sorted(common)] for name, one in throughputs.items()}
    means = {name: math.fsum(values) / count for name, values in logs.items()}
    mean = math.fsum(means.values()) / modes
    of_replicates = [math.fsum(values) / modes for values in zip(*logs.values(), strict=True)]
    squares = math.fsum(
        (value - means[name] - of_replicate + mean) ** 2
        for name, values in logs.items()
        for value, of_replicate in zip(values, of_replicates, strict=True)
    )
    error = math.sqrt(squares / ((modes - 1) * (count - 1)) * 2 / count)
    leader = max(means, key=lambda name: means[name])
    return leader if means[leader] - means[than] > CLEAR_STANDARD_ERRORS * error else None
