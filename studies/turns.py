"""What taking turns leaves in a measurement: the change-over, and the order of start.

`python -m studies.turns FOLDER ...`, with folders of the records of calibrations with `--pairing interleaved`.

Change-over: a process computes blocks A A B B A A ... in turn with another one, so every second block of its own
follows one of the other's. For each process: median logarithm of the times of those blocks, less that of the blocks
that follow one of its own; the first block of all is left out. Positive: slower after the other one.

Order: for each pair of equal programs, the median over quads of the logarithm of the throughput of the process that was
started first over that of the one started second. For each condition: half of the mean ratio base / other in pairs
whose base was first, less that in pairs whose base was second; what was planted cancels.

Prints mean and standard error over processes or pairs, for each framework, day and whether the records have lead-ins.
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.plan import PAIRS_IN_TURNS, SLOWDOWNS

Record = dict[str, Any]


def main(folders: Sequence[str]) -> None:
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            turns = (record.get("result") or {}).get("in_turns")
            if record.get("outcome") == "ok" and turns is not None:
                lead_in = "with lead-ins" if turns.get("after_other") is not None else "without lead-ins"
                groups[record["measurement"]["framework"], record["started_at"][:10], lead_in].append(record)
    for (framework, day, lead_in), records in sorted(groups.items()):
        print(f"{framework}, {day}, {lead_in}: {len(records)} processes")
        print(f"  change-over: {_percent(list(map(_change_over, records)))}")
        alike, crossed = _order(records)
        print(f"  order, of {len(alike)} pairs of equal programs: {_percent(alike)}")
        for condition, value in crossed.items():
            print(f"  order, {condition}: {value}")


def _change_over(record: Record) -> float:
    times_s, turns = record["result"]["blocks"]["block_times_s"], record["result"]["in_turns"]
    after = turns.get("after_other")
    if after is None:  # the first process computes A, then B B A A; the second one is B
        after = range(1 if turns["is_first"] else 0, len(times_s), 2)
    chosen = set(after)
    logs = {is_after: [] for is_after in (True, False)}
    for number, time_s in enumerate(times_s):
        if number:
            logs[number in chosen].append(math.log(time_s))
    return statistics.median(logs[True]) - statistics.median(logs[False])


def _rates(record: Record) -> list[float]:
    blocks = record["result"]["blocks"]
    samples = blocks["calls_per_block"] * blocks["steps_per_call"] * blocks["samples_per_step"]
    return [math.log(samples / time_s) for time_s in blocks["block_times_s"]]


def _log_ratio(one: Record, other: Record) -> float:
    ours, theirs = _rates(one), _rates(other)
    quads = range(min(len(ours), len(theirs)) // 2)
    return statistics.median((ours[2 * k] + ours[2 * k + 1] - theirs[2 * k] - theirs[2 * k + 1]) / 2 for k in quads)


def _order(records: Iterable[Record]) -> tuple[list[float], dict[str, str]]:
    by_name = defaultdict(dict)
    for record in records:
        measurement = record["measurement"]
        by_name[measurement["replicate"]][measurement["variant"]["planted"]] = record
    alike: list[float] = []
    found: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for of_round in by_name.values():
        for condition, (base, other) in PAIRS_IN_TURNS.items():
            if not {base, other} <= of_round.keys():
                continue
            one, two = of_round[base], of_round[other]
            if one["environment"]["pairing"].get("turns") != two["environment"]["pairing"].get("turns"):
                continue
            base_first = one["result"]["in_turns"]["is_first"]
            ratio = _log_ratio(one, two)
            found[condition][base_first].append(ratio)
            if condition not in SLOWDOWNS:
                alike.append(ratio if base_first else -ratio)
    crossed = {}
    for condition, orders in found.items():
        first, second = orders[True], orders[False]
        if min(len(first), len(second)) > 1:
            half = (statistics.mean(first) - statistics.mean(second)) / 2
            error = math.hypot(*(statistics.stdev(one) / math.sqrt(len(one)) for one in (first, second))) / 2
            crossed[condition] = f"{100 * half:+.2f} +- {100 * error:.2f} % ({len(first)} and {len(second)} pairs)"
    return alike, crossed


def _percent(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{100 * mean:+.2f} +- {100 * error:.2f} %"


if __name__ == "__main__":
    main(sys.argv[1:])
