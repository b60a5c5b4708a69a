"""Every number of the report, from the records alone: `recompute.py RESULTS` prints them as JSON.

Written from docs/measurement.md, and from nothing else: plain Python, without this project's code and without numpy.
tests/pipeline/report/test_recompute.py compares it with what `main.py report --csv` writes.
"""

import hashlib
import itertools
import json
import math
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

Json = dict[str, Any]
SETTLED = ("ok", "out_of_memory", "refused")


def main(folder: Path) -> None:
    json.dump({"comparison": recompute(folder), "phases": phases(folder)}, sys.stdout, indent=1)


def records_of_modes(folder: Path, stage: str = "replicate") -> list[list[Json]]:
    """The replicates of each framework and execution mode that have a number; or the one record of its screening."""
    modes: dict[str, list[Json]] = {}
    for record in newest(read(folder)):
        result = record["result"] or {}
        is_of_stage = record["measurement"].get("stage", "replicate") == stage
        if is_of_stage and record["outcome"] == "ok" and result.get("blocks"):
            modes.setdefault(json.dumps([identity(record), side(record)], sort_keys=True), []).append(record)
    return list(modes.values())


def recompute(folder: Path) -> list[Json]:
    """One line for each framework and execution mode, as in the CSV; None where there is no number."""
    lines = []
    for records in records_of_modes(folder):
        first = records[0]
        by_replicate = {record["measurement"]["replicate"]: numbers(record) for record in records}
        names = {name for of_record in by_replicate.values() for name in of_record}
        lines.append(
            identity(first)
            | side(first)
            | {"replicates": len(by_replicate)}
            | {name: median([n[name] for n in by_replicate.values() if name in n]) for name in sorted(names)}
            | {"throughputs": {replicate: n["throughput_samples_per_s"] for replicate, n in by_replicate.items()}}
            | {"records": {record["measurement"]["replicate"]: record for record in records}}
            | {"of_replicates": by_replicate}
            | {"gated": {record["measurement"]["replicate"] for record in records if record.get("parity")}}
            | {"many_steps": first["result"]["blocks"]["steps_per_call"] > 1}
            | {"worthless": any(map(is_worthless, records))}
        )
    screening = screened(folder)
    for line in lines:
        beside = [other for other in lines if contest(other) == contest(line)]
        only_screened = screening.get(contest(line), {}).keys() - {other["execution_mode"] for other in beside}
        line["modes_compared"] = sum(not other["worthless"] for other in beside) + len(only_screened)
    for line in lines:
        line |= compared(line, lines, screening) | scaling(line, lines)
    for family in {(line["device"], line["quick"], line["data"]) for line in lines}:
        of_family = [line for line in lines if (line["device"], line["quick"], line["data"]) == family]
        fill_in_q([line for line in of_family if line.get("is_judged")])
    for line in lines:
        for name in ("throughputs", "records", "of_replicates", "gated", "many_steps", "worthless", "is_judged"):
            line.pop(name, None)
    return lines


def phases(folder: Path) -> list[Json]:
    """One line for each phase of each framework and execution mode, and for the whole step, as in phases.csv."""
    lines = []
    for records in records_of_modes(folder):
        summaries: dict[str, list[Json]] = {}
        for record in records:
            for phase, times_s in (record["result"].get("details") or {}).get("phases", {}).items():
                if times_s:
                    summaries.setdefault(phase, []).append(summary(times_s))
        for record in records:
            if latency := record["result"].get("latency"):
                steps = latency["steps_per_call"]
                found = summary([time_s / steps for time_s in latency["call_times_s"]])
                if steps > 1:  # calls of several steps: their mean and median only
                    found = {"mean_s": found["mean_s"], "p50_s": found["p50_s"]}
                summaries.setdefault("whole_step", []).append(found)
        for phase, of_replicates in summaries.items():
            medians = {name: median([one[name] for one in of_replicates]) for name in of_replicates[0]}
            lines.append(identity(records[0]) | side(records[0]) | {"phase": phase} | medians)
    return lines


def summary(values: list[float]) -> Json:
    return {
        "mean_s": math.fsum(values) / len(values),
        "std_s": deviation(values) if len(values) > 1 else 0.0,
        "min_s": min(values),
        "max_s": max(values),
        "p50_s": median(values),
        "p95_s": percentile(values, 0.95),
    }


# What belongs together.


def read(folder: Path) -> list[Json]:
    return [json.loads(path.read_text()) for path in sorted((folder / "records").rglob("*.json"))]


def newest(records: Iterable[Json]) -> list[Json]:
    """Of several records of one measurement on one device the newest that is settled, or else the newest."""
    chosen: dict[tuple[str, str], Json] = {}
    for record in sorted(records, key=lambda record: (record["outcome"] in SETTLED, record["ended_at"])):
        chosen[device(record), record["measurement_id"]] = record
    return list(chosen.values())


def device(record: Json) -> str:
    environment = record["environment"]
    gpu, framework = environment.get("gpu") or {}, environment.get("framework") or {}
    platform = framework.get("platform")
    if platform in ("gpu", "cuda") or (gpu.get("name") and platform != "cpu"):
        own = framework.get("device") or gpu.get("name") or "GPU of unknown model"
        if not gpu.get("mig"):
            return str(gpu.get("name") or own)
        return str(own) if "MIG" in own else f"{own} MIG {(gpu.get('memory_total_bytes') or 0) / 2**30:.1f} GiB"
    return f"CPU: {(environment.get('cpu') or {}).get('model') or 'of unknown model'}"


def is_worthless(record: Json) -> bool:
    """Recompiled, or on GPUs of different kinds, or by a jaxlib that is slow on GPUs."""
    gpu = record["environment"].get("gpu") or {}
    names = {name for rank in record.get("ranks") or [] for name in rank.get("gpu_names") or []}
    recompiled = record["result"].get("recompiles") or "recompiled" in (record.get("flags") or {})
    environment = record["environment"]
    framework, version = environment.get("framework") or {}, (environment.get("packages") or {}).get("jaxlib")
    on_gpu = framework.get("name") == "jax" and framework.get("platform") == "gpu"
    is_slow = (on_gpu and version in ("0.10.2", "0.11.0")) or "known_slow_jaxlib" in (record.get("flags") or {})
    return bool(recompiled) or is_slow or len(names | set(gpu.get("names") or [])) > 1


def has_copies(records: list[Json]) -> bool:
    times_s = [record["result"]["blocks"]["block_times_s"] for record in records]
    return any(one == other for one, other in itertools.combinations(times_s, 2))


def identity(record: Json) -> Json:
    """All that two records must share to meet in one number."""
    measurement = record["measurement"]
    cell, variant = measurement["cell"], measurement["variant"]
    return {
        "device": device(record),
        "gpu": cell["gpu"],
        "benchmark": cell["benchmark"],
        "use_case": cell["use_case"],
        "use_case_name": cell["use_case_name"],
        "devices": cell["devices"],
        "data": measurement["data"],
        "quick": measurement["quick"],
        "model": variant["model"],
        "batch_size": variant["batch_size"],
        "precision": variant["precision"],
        "options": " ".join(f"{name}={value}" for name, value in sorted(variant["options"].items())),
        "settings": settings_digest(measurement),
        "data_id": data_id(record),
    }


def data_id(record: Json) -> str:
    """Which data it was: the beginning of their checksum, or how they are drawn."""
    data = record.get("data") or {"sha256": None, "source": ""}
    return str((data["sha256"] or "")[:8] or data["source"])


def side(record: Json) -> Json:
    measurement = record["measurement"]
    return {"framework": measurement["framework"], "execution_mode": measurement["variant"]["execution_mode"]}


def settings_digest(measurement: Json) -> str:
    protocol = {"min_time_s": 0.0} | measurement["protocol"]  # which older records do not have
    protocol = {name: value for name, value in protocol.items() if name not in ("replicates", "timeout_s")}
    sizes = [measurement["sizes"]] if measurement.get("sizes") else []
    text = json.dumps([measurement["settings"], protocol, *sizes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:4]


# The numbers of one record.

HELD_BACK = {
    "power": ["sw_power_cap"],
    "heat": ["thermal", "sw_thermal_slowdown", "hw_thermal_slowdown"],
    "brake": ["hw_power_brake_slowdown"],
}


def numbers(record: Json) -> Json:
    result = record["result"]
    blocks, latency, energy = result["blocks"], result.get("latency"), result.get("energy") or {}
    steps = blocks["calls_per_block"] * blocks["steps_per_call"]
    found: Json = {
        "throughput_samples_per_s": median(
            [steps * blocks["samples_per_step"] / time_s for time_s in blocks["block_times_s"]]
        ),
        "step_time_s": median([time_s / steps for time_s in blocks["block_times_s"]]),
        "block_spread": spread_of(blocks["block_times_s"]),
        "block_drift": drift_of(blocks["block_times_s"]),
        "time_to_target_s": result.get("time_to_target_s"),
    }
    if result.get("blocks_alone"):
        alone = result["blocks_alone"]
        steps_alone = alone["calls_per_block"] * alone["steps_per_call"]
        found["step_time_alone_s"] = median([time_s / steps_alone for time_s in alone["block_times_s"]])
    for reading in ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_watts"):
        if values := [state[reading] for state in result.get("gpu_states") or [] if reading in state]:
            found[f"gpu_{reading}"] = median(values)
    held_back = result.get("held_back") or {"seconds": {}}
    for cause, reasons in HELD_BACK.items():
        if seconds := [held_back["seconds"][reason] for reason in reasons if reason in held_back["seconds"]]:
            found[f"gpu_held_back_by_{cause}_share"] = max(seconds) / held_back["window_s"]
    for name, value in (result.get("memory") or {}).items():
        if name not in ("absent", "devices"):
            found[f"memory_{name}"] = value
    if latency:
        times_s = [time_s / latency["steps_per_call"] for time_s in latency["call_times_s"]]
        found["step_time_p50_s"] = median(times_s)
        if latency["steps_per_call"] == 1:
            found["step_time_p95_s"] = percentile(times_s, 0.95)
        found["step_time_mean_s"] = math.fsum(times_s) / len(times_s)
        if warm_s := result.get("warm_start_call_times_s"):
            found["compile_time_warm_s"] = more_than_later_calls(warm_s, record)
    if result.get("cold_call_times_s"):
        found["compile_time_s"] = compile_time_s(record)
    if energy.get("gross_joules") is not None and energy.get("samples"):
        found["energy_gross_joules_per_sample"] = energy["gross_joules"] / energy["samples"]
        if energy.get("idle_watts") is not None and energy.get("window_s") is not None:
            net_joules = energy["gross_joules"] - energy["idle_watts"] * energy["window_s"]
            found["energy_net_joules_per_sample"] = net_joules / energy["samples"]
    if result.get("epochs"):
        found["test_metric"] = result["epochs"][-1]["test_metric"]
        found["test_loss"] = result["epochs"][-1]["test_loss"]
    return {name: value for name, value in found.items() if value is not None}


def spread_of(times_s: list[float]) -> float:
    return (percentile(times_s, 0.75) - percentile(times_s, 0.25)) / median(times_s)


def drift_of(times_s: list[float]) -> float | None:
    third = len(times_s) // 3
    return None if third < 2 else median(times_s[len(times_s) - third :]) / median(times_s[:third]) - 1


def compile_time_s(record: Json) -> float:
    """Of several devices it is the largest of the ranks' own, which the record holds ready."""
    result = record["result"]
    if record["measurement"]["cell"]["devices"] > 1:
        return float(result["compile_time_s"])
    return more_than_later_calls(result["cold_call_times_s"], record)


def more_than_later_calls(first_s: list[float], record: Json) -> float:
    """Those of phase 7, or of the warm-up in a short replicate."""
    latency, blocks = record["result"].get("latency"), record["result"]["blocks"]
    later_s = latency["call_times_s"] if latency else blocks["warmup_times_s"]
    return max(0.0, math.fsum(first_s) - len(first_s) * median(later_s))


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def percentile(values: Iterable[float], share: float) -> float:
    """Linear between two samples."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    if below == len(ordered) - 1:
        return ordered[below]
    return ordered[below] + (position - below) * (ordered[below + 1] - ordered[below])


# Comparisons.


def compared(line: Json, lines: list[Json], screening: dict[str, dict[str, float]]) -> Json:
    """The ratio stands in the lines of the chosen mode of each framework, over the replicates that both can show to do
    the same work. Whether the two parity files agree is not judged here."""
    beside = [other for other in lines if work(other) == work(line) and not other["worthless"]]
    best: dict[str, Json] = {}
    for framework in ("jax", "torch"):
        if candidates := [other for other in beside if other["framework"] == framework]:
            best[framework] = choose(candidates, screening.get(contest(candidates[0]), {}))
    fastest = best.get(line["framework"]) is line
    if not fastest or len(best) < 2:
        return {"fastest": fastest}
    jax, torch = best["jax"], best["torch"]
    common = sorted(jax["gated"] & torch["gated"])
    if not common:
        return {"fastest": fastest}
    found = ratio([(jax["records"][number], torch["records"][number]) for number in common])
    for name in OTHER_QUANTITIES:
        sides = [(jax["of_replicates"][one].get(name), torch["of_replicates"][one].get(name)) for one in common]
        logs = [math.log(ours / theirs) for ours, theirs in sides if ours and theirs]
        if logs:
            found |= zip((f"{name}_ratio{end}" for end in ("", "_low", "_high")), by_t(logs), strict=True)
    return {"fastest": fastest} | found


OTHER_QUANTITIES = (
    *("compile_time_s", "step_time_p50_s", "step_time_p95_s", "time_to_target_s", "energy_gross_joules_per_sample"),
)


def fill_in_q(lines: list[Json]) -> None:
    """Of lines that are judged; each ratio stands in two of them."""
    for line in lines:
        of_each = sorted(other["p"] for other in lines if other["framework"] == line["framework"])
        at_least = [(p, rank) for rank, p in enumerate(of_each, start=1) if p >= line["p"]]
        line["q"] = min(p * len(of_each) / rank for p, rank in at_least)


Pair = tuple[Json, Json]
"""Records of JAX and of PyTorch."""


def log_rates(record: Json) -> list[float]:
    """The logarithms of samples per second, block by block."""
    blocks = record["result"]["blocks"]
    samples = blocks["calls_per_block"] * blocks["steps_per_call"] * blocks["samples_per_step"]
    return [math.log(samples / time_s) for time_s in blocks["block_times_s"]]


def took_turns(pair: Pair) -> bool:
    """With each other, for a quad of blocks at the least."""
    ours, theirs = ((record["environment"].get("pairing") or {}).get("turns") for record in pair)
    return ours is not None and ours == theirs and min(len(log_rates(record)) for record in pair) >= 2


def log_ratio(pair: Pair) -> float:
    """The median over quads of processes that took turns; of others that of the medians."""
    if not took_turns(pair):
        ours, theirs = (numbers(record)["throughput_samples_per_s"] for record in pair)
        return math.log(ours / theirs)
    jax, torch = map(log_rates, pair)
    return median(
        [
            sum(jax[start : start + 2]) / 2 - sum(torch[start : start + 2]) / 2
            for start in range(0, min(len(jax), len(torch)) - 1, 2)
        ]
    )


def is_jax_first(pair: Pair) -> bool:
    of_turns = pair[0]["result"].get("in_turns")
    if of_turns and took_turns(pair):
        return bool(of_turns["is_first"])
    return bool(pair[0]["started_at"] < pair[1]["started_at"])


def screened(folder: Path) -> dict[str, dict[str, float]]:
    """Samples per second of each mode that was screened, by its contest."""
    found: dict[str, dict[str, float]] = {}
    for (record,) in records_of_modes(folder, "screening"):
        many_steps = record["result"]["blocks"]["steps_per_call"] > 1
        line = identity(record) | side(record) | {"many_steps": many_steps}
        found.setdefault(contest(line), {})[line["execution_mode"]] = numbers(record)["throughput_samples_per_s"]
    return found


def contest(line: Json) -> str:
    return json.dumps([work(line), line["framework"]])


def choose(candidates: list[Json], screening: dict[str, float]) -> Json:
    """The first of the screening, unless another leads by three standard errors. Without a screening, the fastest."""
    if any(one["execution_mode"] not in screening for one in candidates):
        return max(candidates, key=lambda one: one["throughput_samples_per_s"])
    first = max(candidates, key=lambda one: screening[one["execution_mode"]])
    common = set(first["throughputs"]).intersection(*(one["throughputs"] for one in candidates))
    modes, count = len(candidates), len(common)
    if modes == 1 or count < 3:
        return first
    rows = [[math.log(one["throughputs"][number]) for number in sorted(common)] for one in candidates]
    of_modes = [sum(row) / count for row in rows]
    of_replicates = [sum(row[number] for row in rows) / modes for number in range(count)]
    mean = sum(of_modes) / modes
    left = sum(
        (rows[mode][number] - of_modes[mode] - of_replicates[number] + mean) ** 2
        for mode in range(modes)
        for number in range(count)
    )
    error = math.sqrt(left / (modes - 1) / (count - 1) * 2 / count)
    lead = max(of_modes) - of_modes[candidates.index(first)]
    return candidates[of_modes.index(max(of_modes))] if lead > 3 * error else first


def work(line: Json) -> list[Any]:
    return [line[name] for name in ("device", "gpu", "benchmark", "use_case", "devices", "data", "quick")] + [
        line[name] for name in ("model", "batch_size", "precision", "options", "settings", "data_id", "many_steps")
    ]


def ratio(pairs: list[Pair]) -> Json:
    """By the rules that all records were registered under, and by the newest beside them; the newest where they
    differ. What lost its turns is left out where others had theirs."""
    if any(map(took_turns, pairs)):
        pairs = [pair for pair in pairs if took_turns(pair)]
    newest = sequential([(log_ratio(pair), is_jax_first(pair)) for pair in pairs], *design(pairs))
    registrations = [record.get("registration") for pair in pairs for record in pair]
    versions = {one.get("rules_version", 1) if one else 3 for one in registrations}
    rules = versions.pop() if len(versions) == 1 else 3
    found = {"rules": rules, "pairs_at_most": newest.pop("pairs_at_most")}
    is_doubted = any(has_copies([pair[side] for pair in pairs]) for side in (0, 1)) or any(
        record["measurement"]["variant"]["precision"] == "default" for record in pairs[0]
    )
    if rules < 3:
        spreads = [spread_of(record["result"]["blocks"]["block_times_s"]) for pair in pairs for record in pair]
        of_then = by_student([log_ratio(pair) for pair in pairs])
        if rules == 1 and max(spreads) > 0.25:
            of_then |= {"verdict": "undecided", "is_judged": False}
        found |= of_then | {"pairs_at_most": None}
    judged = [newest, found] if rules < 3 else [newest]
    if is_doubted:
        for one in judged:
            one |= {"verdict": "undecided", "is_judged": False}
    if rules == 3:
        return newest | found
    names = ("ratio_jax_over_torch", "ratio_low", "ratio_high", "ratio_replicates", "verdict")
    return found | {f"newest_{name}": newest[name] for name in names}


def design(pairs: list[Pair]) -> tuple[int, bool]:
    """The most pairs, and whether that was changed where there could have been a look."""
    asked = {record["measurement"]["protocol"]["replicates"] for pair in pairs for record in pair}
    return max(asked), sum(one >= 4 for one in asked) > 1


REACHES = {
    4: {4: 4.303},
    6: {4: 5.339, 6: 3.55},
    8: {4: 6.205, 6: 3.92, 8: 3.14},
    12: {4: 7.649, 6: 4.5, 8: 3.52, 12: 2.69},
    20: {4: 9.925, 6: 5.26, 8: 4.01, 12: 3.03, 16: 2.73, 20: 2.56},
}
"""The table of docs/measurement.md: by the most pairs, standard errors at each look."""


def sequential(found: list[tuple[float, bool]], at_most: int, is_extended: bool = False) -> Json:
    """From each pair's logarithm and whether JAX was first, in the order of replicates."""
    at_most = max((one for one in REACHES if one <= at_most), default=0)
    first, second = ([value for value, jax_first in found if jax_first == of_jax] for of_jax in (True, False))
    p, line = 1.0, None
    for pairs, reach in REACHES.get(at_most, {}).items():
        if min(len(first), len(second)) < pairs // 2:
            break
        orders = first[: pairs // 2], second[: pairs // 2]
        centre = math.fsum(math.fsum(order) / len(order) for order in orders) / 2
        squares = math.fsum((value - math.fsum(order) / len(order)) ** 2 for order in orders for value in order)
        error = math.sqrt(squares / (pairs - 2)) / math.sqrt(pairs)
        reach = reach_at_any_time(pairs) if is_extended else reach
        half = reach * error
        line = of_interval(centre, centre - half, centre + half, pairs) | {"pairs_at_most": at_most, "is_judged": True}
        if error == 0:
            return line | {"verdict": "undecided", "is_judged": False}
        p = min(p, t_tails(abs(centre) / error, pairs - 2) * 0.05 / t_tails(reach, pairs - 2))
        line["p"] = p
        if line["verdict"] != "undecided":
            break
    if line:
        return line
    value, low, high = by_t([value for value, _ in found])
    of_all = {"ratio_jax_over_torch": value, "ratio_low": low, "ratio_high": high, "ratio_replicates": len(found)}
    return of_all | {"verdict": "undecided", "is_judged": False, "pairs_at_most": at_most or None}


def reach_at_any_time(pairs: int) -> float:
    """The t mixture with a variance of 10: where the mixture of likelihood ratios is 20 or less. Its logarithm at t,
    with f degrees of freedom and A = 1 + 10 n, is ((f + 1) log((1 + t**2 / f) / (1 + t**2 / (f A))) - log A) / 2."""
    freedom, scale = pairs - 2, 1 + 10 * pairs

    def evidence(t: float) -> float:
        shares = (1 + t * t / freedom) / (1 + t * t / freedom / scale)
        return ((freedom + 1) * math.log(shares) - math.log(scale)) / 2

    low, high = 0.0, 1e6
    if evidence(high) < math.log(20):
        return math.inf
    while high - low > 1e-9 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if evidence(middle) < math.log(20) else (low, middle)
    return low


def by_student(logs: list[float]) -> Json:
    """The rules of versions 1 and 2."""
    _, low, high = by_t(logs)
    count, mean = len(logs), math.fsum(logs) / len(logs)
    if low is None or high is None:
        return of_interval(mean, -math.inf, math.inf, count) | {
            "ratio_low": None,
            "ratio_high": None,
            "is_judged": False,
        }
    found = of_interval(mean, math.log(low), math.log(high), count)
    if count < 3:
        return found | {"verdict": "undecided", "is_judged": False}
    spread = deviation(logs)
    p = float(mean == 0) if spread == 0 else t_tails(abs(mean) / spread * math.sqrt(count), count - 1)
    return found | {"p": p, "is_judged": True}


def by_t(logs: list[float]) -> tuple[float, float | None, float | None]:
    """The geometric mean, and its interval by Student's t over the replicates; none of a single one."""
    count, mean = len(logs), math.fsum(logs) / len(logs)
    if count < 2:
        return math.exp(mean), None, None
    reach = t_95(count - 1) * deviation(logs) / math.sqrt(count)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def of_interval(centre: float, low: float, high: float, pairs: int) -> Json:
    """Of logarithms."""
    edge = math.log(1.01)
    if low >= -edge * (1 + 1e-12) and high <= edge * (1 + 1e-12):
        verdict = "same"
    else:
        verdict = "JAX faster" if low > 0 else "PyTorch faster" if high < 0 else "undecided"
    return {
        "ratio_jax_over_torch": math.exp(centre),
        "ratio_low": math.exp(low),
        "ratio_high": math.exp(high),
        "ratio_replicates": pairs,
        "verdict": verdict,
    }


def deviation(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def geometric_mean_of_ratios(log_ratios: list[list[tuple[float, bool]]]) -> tuple[float, float | None, float | None]:
    """Value, lower and upper end; of each ratio what `sequential` takes, all of it of its last look."""
    centres, squares, degrees = [], [], []
    for found in log_ratios:
        orders = [[value for value, first in found if first == of_jax] for of_jax in (True, False)]
        of_looks = [sum(order) / len(order) for order in orders] if len(found) >= 4 else [value for value, _ in found]
        centres.append(math.fsum(of_looks) / len(of_looks))
        degrees.append(len(found) - 2)
        if len(found) >= 4:
            of_orders = (deviation(order) ** 2 * (len(order) - 1) for order in orders)
            wider = REACHES[len(found)][len(found)] / t_95(degrees[-1])  # than Student's t would be, for more looks
            squares.append(math.fsum(of_orders) / degrees[-1] / len(found) * wider**2)
    mean, count = math.fsum(centres) / len(centres), len(centres)
    if len(squares) < count:
        return math.exp(mean), None, None
    fourths = math.fsum(square**2 / freedom for square, freedom in zip(squares, degrees, strict=True))
    freedom = math.floor(math.fsum(squares) ** 2 / fourths + 1e-6)
    reach = t_95(freedom) * math.sqrt(math.fsum(squares)) / count
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


@cache
def t_95(freedom: int) -> float:
    """To three decimals, by integrating Student's density and halving intervals; over 30 that of 30."""
    freedom = min(freedom, 30)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def share(end: float, pieces: int = 2000) -> float:
        """Between 0 and `end`, by Simpson's rule."""
        width = end / pieces
        weights = (1 if i in (0, pieces) else 4 if i % 2 else 2 for i in range(pieces + 1))
        density = ((1 + (i * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(pieces + 1))
        return scale * width / 3 * math.fsum(w * d for w, d in zip(weights, density, strict=True))

    low, high = 0.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < 0.475 else (low, middle)
    return round(low, 3)


def t_tails(t: float, freedom: int) -> float:
    """P(|T| >= t): twice Student's density from t on, in the angle atan(sqrt(freedom) / x), by Simpson's rule."""
    scale = 2 * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    pieces = 2000
    width = (math.atan2(math.sqrt(freedom), t)) / pieces
    weights = (1 if i in (0, pieces) else 4 if i % 2 else 2 for i in range(pieces + 1))
    powers = (math.sin(i * width) ** (freedom - 1) for i in range(pieces + 1))
    return scale * width / 3 * math.fsum(w * power for w, power in zip(weights, powers, strict=True))


def scaling(line: Json, lines: list[Json]) -> Json:
    """Throughput on N devices over N times that on one, geometric mean over the replicates that both have: with the
    same batch (strong), and with 1/N of it (weak)."""
    found: Json = {"strong_scaling_efficiency": None, "weak_scaling_efficiency": None}
    count = line["devices"]
    if count == 1 or line["worthless"]:
        return found
    same = ("device", "benchmark", "use_case_name", "data", "data_id", "quick", "settings", "model", "precision")
    names = (*same, "options", "framework", "execution_mode")
    for other in lines:
        if other["devices"] == 1 and not other["worthless"] and all(other[name] == line[name] for name in names):
            ours, theirs = line["throughputs"], other["throughputs"]
            logs = [math.log(ours[number] / count / theirs[number]) for number in ours.keys() & theirs.keys()]
            if not logs:
                continue
            efficiency = math.exp(math.fsum(logs) / len(logs))
            if other["batch_size"] == line["batch_size"]:
                found["strong_scaling_efficiency"] = efficiency
            if other["batch_size"] == line["batch_size"] // count:
                found["weak_scaling_efficiency"] = efficiency
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
