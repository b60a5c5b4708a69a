"""Where a second is spent best: in more processes, or in more blocks of each? From earlier records of the same kind.

A ratio's replicate is two processes, one of each framework. With a variance between equal processes, one of the blocks
within a process, the time of a process beside its blocks, and that of a block, the blocks of a process that make the
interval narrowest in a given time are sqrt(time beside / time of a block * variance of blocks / variance of processes)
(Kalibera and Jones 2013, "Rigorous Benchmarking in Reasonable Time", https://kar.kent.ac.uk/33611).
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import variance
from typing import NamedTuple

from harness.paths import Results
from harness.plan import Pair, Variant
from harness.results.statistics import ENOUGH_REPLICATES, median, student_t_95
from pipeline.submission.estimate import duration_s, measured_gpus, newest_files

OF_A_MEDIAN = math.pi / 2
"""Times the variance of one value over their number: the variance of their median, where they are normal."""
WORTH_TELLING = 0.8
"""Of the width that the interval has today."""


class Process(NamedTuple):
    block_times_s: Sequence[float]
    calls_per_block: int
    beside_s: float
    """Its time without its blocks."""

    @property
    def log_call_s(self) -> float:
        """Of the median block: processes may have different numbers of calls in one."""
        return math.log(median(self.block_times_s) / self.calls_per_block)


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Of one framework, what its earlier processes say; variances are of logarithms, so they are relative."""

    count: int
    between: float
    """Variance of equal processes, without what their blocks' own variance makes."""
    within: float
    """Variance of the blocks of one process."""
    beside_s: float
    """A process without its blocks: start, compilation, checks, latency, training."""
    block_s: float
    blocks: float
    """Of a process."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The split that makes intervals narrowest in the time that the plan takes anyway."""

    replicates: int
    blocks: int
    width: float
    """Of an interval, over its width today."""


def processes_of(folder: Path) -> Processes | None:
    """Of the newest full records in a folder. None where no variant has enough of them. What cannot be read, or has no
    blocks, tells nothing here; the report complains about it."""
    variants: dict[str, list[Process]] = defaultdict(list)
    for path in newest_files(folder):
        try:
            content = json.loads(path.read_text())
            measurement, blocks = content["measurement"], content["result"]["blocks"]
            times_s = [float(one) for one in blocks["block_times_s"]]
            if measurement["quick"] or measurement.get("stage") == "screening" or len(times_s) < 2:
                continue
            variant = Variant.model_validate(measurement["variant"]).key
            beside_s = duration_s(content) - sum(times_s)
            variants[variant].append(Process(times_s, int(blocks["calls_per_block"]), beside_s))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return described([of_variant for of_variant in variants.values() if len(of_variant) >= ENOUGH_REPLICATES])


def described(variants: Sequence[Sequence[Process]]) -> Processes | None:
    """By variant. None where blocks differ as much as processes do."""
    if not variants:
        return None
    processes = [process for of_variant in variants for process in of_variant]
    within = _mean(variance(map(math.log, process.block_times_s)) for process in processes)
    blocks = _mean(len(process.block_times_s) for process in processes)
    medians = _mean(variance([process.log_call_s for process in of_variant]) for of_variant in variants)
    between = medians - OF_A_MEDIAN * within / blocks
    if between <= 0:
        return None
    return Processes(
        count=len(processes),
        between=between,
        within=within,
        beside_s=median([process.beside_s for process in processes]),
        block_s=_mean(median(process.block_times_s) for process in processes),
        blocks=blocks,
    )


def best_split(sides: Sequence[Processes], replicates: int, fewest_blocks: int) -> Split | None:
    """None where today's is near it.

    Args:
        sides: of the frameworks that a ratio is made of, whose variances and times add up.
        replicates: of today.
    """
    between, within = sum(one.between for one in sides), OF_A_MEDIAN * sum(one.within for one in sides)
    beside_s, block_s = sum(one.beside_s for one in sides), sum(one.block_s for one in sides)
    blocks_today = _mean(one.blocks for one in sides)
    blocks = max(fewest_blocks, math.ceil(math.sqrt(beside_s / block_s * within / between)))
    in_all_s = replicates * (beside_s + blocks_today * block_s)
    possible = int(in_all_s / (beside_s + blocks * block_s))
    if min(replicates, possible) < 2:
        return None

    def width(processes: int, of_each: float) -> float:
        return student_t_95(processes - 1) * math.sqrt((between + within / of_each) / processes)

    narrower = width(possible, blocks) / width(replicates, blocks_today)
    return Split(replicates=possible, blocks=blocks, width=narrower) if narrower < WORTH_TELLING else None


def advice(parts: Iterable[Pair], results: Results) -> dict[str, str]:
    """By the name of a cell, a sentence on how to spend the time of its job better, where earlier records of all its
    frameworks tell."""
    measured = measured_gpus(results)
    found = {}
    for part in parts:
        plan = part.jobs[0]
        if part.cell.gpu not in measured or plan.quick:
            continue
        sides = [processes_of(results.records(one.cell, one.framework)) for one in part.jobs]
        known = [side for side in sides if side is not None]
        split = best_split(known, plan.protocol.replicates, plan.protocol.min_blocks) if known == sides else None
        if split is not None:
            found[part.cell.name] = in_words(known, split)
    return found


def in_words(sides: Sequence[Processes], split: Split) -> str:
    between, within = (math.sqrt(_mean(getattr(one, name) for one in sides)) for name in ("between", "within"))
    count, beside_s = sum(one.count for one in sides), _mean(one.beside_s for one in sides)
    return (
        f"Of {count} earlier processes equal ones differ by {between:.1%} and blocks of one by {within:.1%}, and a "
        f"process takes {beside_s:.0f} s beside its blocks: in the same time `replicates: {split.replicates}` and "
        f"`max_blocks: {split.blocks}` of `protocol` would make intervals {split.width:.0%} as wide."
    )


def _mean(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found)
