"""What W&B shows of a run besides its own numbers: the ratio to the other framework's record, while the job goes on.

`ratio_so_far` is of one replicate, between this mode and the process that it took turns with; else the other
framework's fastest mode that is recorded by now. With the last replicate of a look comes the ratio over all of them,
with its interval and verdict, as the report has it.
"""

import math
from collections.abc import Iterator
from glob import escape

from harness.paths import Results
from harness.plan import FRAMEWORKS
from harness.results.flags import comparable_throughput
from harness.results.parity_gate import ParityGate
from harness.results.ratios import estimate_of, replicate_of, took_turns
from harness.results.record import Record, find_settled, readable_record
from harness.results.sequential import looks_of

RATIO = "ratio_so_far"
"""Throughput of JAX over that of PyTorch."""
LOOK = ("ratio", "ratio_low", "ratio_high", "ratio_pairs", "ratio_verdict", "ratio_partner")
"""What a look brings: the ratio over all pairs, its interval (absent where there is none), how many pairs, the verdict
in words, and the other framework's mode."""


def ratio_so_far(record: Record, results: Results, gate: ParityGate) -> dict[str, float | str]:
    """By the summary's key. Empty where the other framework has no record of the same work on the same node yet, and
    where the parity gate has not passed the pair."""
    own = comparable_throughput(record)
    if own is None or record.measurement.cell.is_calibration:
        return {}
    is_jax = record.measurement.framework == "jax"
    newest: dict[str, Record] = {}
    for other in sorted(_partners(record, results), key=lambda one: one.ended_at):
        newest[other.measurement.variant.execution_mode] = other
    fastest: tuple[float, Record] | None = None
    for other in newest.values():
        speed = comparable_throughput(other)
        pair = (record, other) if is_jax else (other, record)
        if speed is not None and gate.judge(*pair).state == "passed":
            if took_turns(*pair):
                ratio = math.exp(replicate_of(*pair).log_ratio.value)
                return {RATIO: ratio, **_at_look(record, other, results, gate)}
            if fastest is None or speed > fastest[0]:
                fastest = speed, other
    if fastest is None:
        return {}
    speed, other = fastest
    return {RATIO: own / speed if is_jax else speed / own, **_at_look(record, other, results, gate)}


def _at_look(record: Record, other: Record, results: Results, gate: ParityGate) -> dict[str, float | str]:
    """Empty between two looks."""
    measurement = record.measurement
    if measurement.replicate + 1 not in looks_of(measurement.protocol.replicates):
        return {}
    pairs = []
    for replicate in range(measurement.replicate + 1):
        both = [_replicate(one, replicate, results) for one in (record, other)]
        jax, torch = both if measurement.framework == "jax" else both[::-1]
        if jax and torch and gate.judge(jax, torch).state == "passed":
            pairs.append((jax, torch))
    if not pairs:
        return {}
    found = estimate_of(pairs).ratio
    interval = {} if found.interval is None else {"ratio_low": found.interval.low, "ratio_high": found.interval.high}
    mode = other.measurement.variant.execution_mode
    of_look = {"ratio_pairs": found.replicates, "ratio_verdict": found.verdict, "ratio_partner": mode}
    return {"ratio": found.value, **interval, **of_look}


def _replicate(one: Record, replicate: int, results: Results) -> Record | None:
    if replicate == one.measurement.replicate:
        return one
    found = find_settled(one.measurement.model_copy(update={"replicate": replicate}), results, None)
    return found[1] if found and comparable_throughput(found[1]) is not None else None


def _partners(record: Record, results: Results) -> Iterator[Record]:
    own = record.measurement
    [framework] = (name for name in FRAMEWORKS if name != own.framework)
    folder = results.records(own.cell, framework)
    for path in sorted(folder.glob(f"{escape(own.variant.comparison_key)}-*-r{own.replicate}-*.json")):
        other = readable_record(path)
        if other is not None and _is_same_work(record, other):
            yield other


def _is_same_work(record: Record, other: Record) -> bool:
    """In everything but the framework and how it is run; and on the same node, with calls of one step or of many on
    both sides."""
    own, theirs = record.measurement, other.measurement
    blocks, their_blocks = (one.result.blocks if one.result else None for one in (record, other))
    return (
        theirs.model_copy(update={"framework": own.framework, "variant": own.variant}) == own
        and theirs.variant.comparison_key == own.variant.comparison_key
        and other.data == record.data
        and other.environment.get("node") == record.environment.get("node")
        and blocks is not None
        and their_blocks is not None
        and (blocks.steps_per_call > 1) == (their_blocks.steps_per_call > 1)
    )
