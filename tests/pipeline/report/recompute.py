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
            | {"in_turns": {record["measurement"]["replicate"]: turns(record) for record in records}}
            | {"gated": {record["measurement"]["replicate"] for record in records if record.get("parity")}}
            | {"many_steps": first["result"]["blocks"]["steps_per_call"] > 1}
            | {"worthless": any(map(is_worthless, records)), "copied": has_copies(records)}
        )
    screening = screened(folder)
    for line in lines:
        beside = [other for other in lines if contest(other) == contest(line)]
        only_screened = screening.get(contest(line), {}).keys() - {other["execution_mode"] for other in beside}
        line["modes_compared"] = sum(not other["worthless"] for other in beside) + len(only_screened)
    for line in lines:
        line |= compared(line, lines, screening) | scaling(line, lines)
    for doubtful in (False, True):
        of_family = [line for line in lines if (line["quick"] or line["data"] == "sample") == doubtful]
        fill_in_q([line for line in of_family if "p" in line and line["is_judged"]])
    for line in lines:
        for name in ("throughputs", "in_turns", "gated", "many_steps", "worthless", "copied", "is_judged"):
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
    protocol = {
        name: value for name, value in measurement["protocol"].items() if name not in ("replicates", "timeout_s")
    }
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
    ours, theirs = jax["throughputs"], torch["throughputs"]
    common = sorted(jax["gated"] & torch["gated"])
    if not common:
        return {"fastest": fastest}
    found = ratio(
        [
            neighbours(jax["in_turns"][number], torch["in_turns"][number]) or math.log(ours[number] / theirs[number])
            for number in common
        ]
    )
    if jax["copied"] or torch["copied"]:
        found |= {"verdict": "undecided", "replicates_needed": None}
    is_judged = len(common) >= 3 and not (jax["copied"] or torch["copied"])
    return {"fastest": fastest, "is_judged": is_judged} | found


def fill_in_q(lines: list[Json]) -> None:
    """Of lines that are judged; each ratio stands in two of them."""
    for line in lines:
        of_each = sorted(other["p"] for other in lines if other["framework"] == line["framework"])
        at_least = [(p, rank) for rank, p in enumerate(of_each, start=1) if p >= line["p"]]
        line["q"] = min(p * len(of_each) / rank for p, rank in at_least)


def turns(record: Json) -> Json:
    """The logarithms of samples per second, block by block, and which turns the process took."""
    blocks = record["result"]["blocks"]
    samples = blocks["calls_per_block"] * blocks["steps_per_call"] * blocks["samples_per_step"]
    logs = [math.log(samples / time_s) for time_s in blocks["block_times_s"]]
    return {"logs": logs, "turns": (record["environment"].get("pairing") or {}).get("turns")}


def neighbours(jax: Json, torch: Json) -> float | None:
    """The median over quads of processes that took turns with each other; None for others."""
    if jax["turns"] is None or jax["turns"] != torch["turns"]:
        return None
    ours, theirs = jax["logs"], torch["logs"]
    return median(
        [
            sum(ours[start : start + 2]) / 2 - sum(theirs[start : start + 2]) / 2
            for start in range(0, min(len(ours), len(theirs)) - 1, 2)
        ]
    )


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


def ratio(log_ratios: list[float]) -> Json:
    """From the logarithms of the paired ratios, one for each replicate."""
    count = len(log_ratios)
    mean = math.fsum(log_ratios) / count
    found: Json = {"ratio_jax_over_torch": math.exp(mean), "ratio_low": None, "ratio_high": None}
    found |= {"ratio_replicates": count, "verdict": "undecided", "replicates_needed": None}
    if count < 2:
        return found | {"replicates_needed": 3}
    spread = deviation(log_ratios)
    reach = t_95(count - 1) * spread / math.sqrt(count)
    low, high = math.exp(mean - reach), math.exp(mean + reach)
    found |= {"ratio_low": low, "ratio_high": high}
    found["p"] = float(mean == 0) if spread == 0 else t_tails(abs(mean) / spread * math.sqrt(count), count - 1)
    if count < 3:
        return found | {"replicates_needed": 3}
    if low >= 1 / 1.01 and high <= 1.01:
        return found | {"verdict": "same"}
    if low > 1 or high < 1:
        return found | {"verdict": "JAX faster" if low > 1 else "PyTorch faster"}
    goal = max(abs(mean), math.log(1.01) - abs(mean))
    needed = count + 1
    while needed < 100 and t_95(needed - 1) * spread / math.sqrt(needed) >= goal:
        needed += 1
    return found | {"replicates_needed": needed}


def deviation(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def geometric_mean_of_ratios(log_ratios: list[list[float]]) -> tuple[float, float | None, float | None]:
    """Value, lower and upper end; of each ratio the logarithms of its replicates."""
    count = len(log_ratios)
    mean = math.fsum(math.fsum(one) / len(one) for one in log_ratios) / count
    if any(len(one) < 2 for one in log_ratios):
        return math.exp(mean), None, None
    squares = [deviation(one) ** 2 / len(one) for one in log_ratios]
    fourths = math.fsum(square**2 / (len(one) - 1) for square, one in zip(squares, log_ratios, strict=True))
    if fourths == 0:
        return math.exp(mean), math.exp(mean), math.exp(mean)
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
    """Throughput on N devices over N times that on one: with the same batch (strong), and with 1/N of it (weak)."""
    found: Json = {"strong_scaling_efficiency": None, "weak_scaling_efficiency": None}
    count = line["devices"]
    if count == 1 or line["worthless"]:
        return found
    same = ("device", "benchmark", "use_case_name", "data", "data_id", "quick", "settings", "model", "precision")
    names = (*same, "options", "framework", "execution_mode")
    for other in lines:
        if other["devices"] == 1 and not other["worthless"] and all(other[name] == line[name] for name in names):
            efficiency = line["throughput_samples_per_s"] / (count * other["throughput_samples_per_s"])
            if other["batch_size"] == line["batch_size"]:
                found["strong_scaling_efficiency"] = efficiency
            if other["batch_size"] == line["batch_size"] // count:
                found["weak_scaling_efficiency"] = efficiency
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
