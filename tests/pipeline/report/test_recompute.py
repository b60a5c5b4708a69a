"""The report's numbers against recompute.py, which was written from the docs and shares no code with them."""

import ast
import csv
import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.paths import REPOSITORY
from harness.plan import Measurement, MeasurementSettings
from harness.results.parity import ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import write_parity
from harness.results.sequential import CRITICAL_VALUES, LogRatio, estimate_sequentially, geometric_mean_of_ratios
from harness.results.statistics import STUDENT_T_95, paired_ratio
from tests.pipeline.report import recompute

CLOSE = 1e-9
"""Relative: only rounding may differ."""
KEY = (
    *("device", "gpu", "benchmark", "use_case", "use_case_name", "devices", "data", "quick", "model", "batch_size"),
    *("precision", "options", "settings", "data_id", "framework", "execution_mode"),
)
NUMBERS = (
    *(
        "replicates",
        "modes_compared",
        "throughput_samples_per_s",
        "step_time_s",
        "block_spread",
        "block_drift",
        "step_time_alone_s",
        "step_time_p50_s",
        "step_time_p95_s",
    ),
    *(
        "step_time_mean_s",
        "compile_time_s",
        "compile_time_warm_s",
        "memory_allocator_peak_bytes",
        "memory_step_peak_bytes",
    ),
    *("memory_pool_peak_bytes", "memory_process_bytes", "memory_host_peak_bytes", "energy_gross_joules_per_sample"),
    *("test_metric", "test_loss", "time_to_target_s", "strong_scaling_efficiency", "weak_scaling_efficiency"),
)
"""Columns that the CSV must have, in every line or empty."""
OF_THE_RATIO = (
    *("ratio_jax_over_torch", "ratio_low", "ratio_high", "ratio_replicates", "verdict", "rules", "pairs_at_most"),
    *(f"newest_{name}" for name in ("ratio_jax_over_torch", "ratio_low", "ratio_high", "ratio_replicates", "verdict")),
    *(f"{name}_ratio{end}" for name in recompute.OTHER_QUANTITIES for end in ("", "_low", "_high")),
    *("p", "q"),
)
IF_THERE = ("energy_net_joules_per_sample", "fastest")
PUBLISHED = sorted((REPOSITORY / "results" / "published").rglob("records"))


class Maker:
    """Writes records as JSON by hand, with numbers from a seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.draw = random.Random(20261121)
        self.draw_phases = random.Random(5)
        self.count = 0

    def record(
        self,
        framework: str,
        mode: str,
        replicate: int,
        step_s: float,
        *,
        use_case: int = 1,
        devices: int = 1,
        batch_size: int = 256,
        steps_per_call: int = 1,
        quick: bool = False,
        epochs: int = 0,
        gpu: str | None = None,
        momentum: float = 0.9,
        outcome: str = "ok",
        measurement_id: str | None = None,
        ended_at: str | None = None,
        recompiles: int = 0,
        spread: float = 0.01,
        gated: bool = True,
        stage: str = "replicate",
        environment: dict[str, Any] | None = None,
        rules: int | None = None,
        at_most: int = 12,
    ) -> str:
        """Returns the measurement's id."""
        self.count += 1
        measurement_id = measurement_id or f"{self.count:012x}"
        names = {1: "train", 2: "train", 3: "per_sample_gradients"}
        record = {
            "schema_version": 2,
            "measurement_id": measurement_id,
            "measurement": {
                "framework": framework,
                "cell": {
                    "gpu": "any",
                    "benchmark": "mnist",
                    "use_case": use_case,
                    "use_case_name": names[use_case],
                    "devices": devices,
                    "nodes": 1,
                },
                "variant": {
                    "model": "cnn",
                    "batch_size": batch_size,
                    "precision": "fp32",
                    "execution_mode": mode,
                    "options": {"output": "full"} if use_case == 3 else {},
                },
                "stage": stage,
                "replicate": replicate,
                "settings": {"momentum": momentum, "learning_rate": 0.02},
                "protocol": MeasurementSettings(replicates=at_most).model_dump(mode="json"),
                "data": "real",
                "quick": quick,
            },
            "outcome": outcome,
            "reason": None if outcome == "ok" else "it broke",
            "started_at": f"2026-11-21T09:00:0{(replicate + (framework == 'torch')) % 2}+00:00",
            "ended_at": ended_at or f"2026-11-21T10:{self.count // 60:02}:{self.count % 60:02}+00:00",
            "environment": {
                "scheduler": "slurm",
                "cpu": {"model": "A CPU"},
                "gpu": {"name": gpu} if gpu else {"absent": "no NVIDIA driver"},
                "framework": {"platform": "gpu" if gpu else "cpu"},
            }
            | (environment or {}),
            "result": self.result(step_s, steps_per_call, batch_size, epochs, gpu, spread) if outcome == "ok" else None,
            "parity": "parity.npz" if gated else None,
            "registration": rules and {"checksum": "0" * 16, "exclusions": "0" * 16, "rules_version": rules},
        }
        if record["result"]:
            record["result"]["recompiles"] = recompiles
            if replicate >= 3:  # short: the calls that do not compile are those of the warm-up
                compile_time_s = sum(record["result"]["cold_call_times_s"]) - 3 * step_s
                record["result"] |= {"latency": None, "epochs": [], "compile_time_s": compile_time_s}
                record["result"].pop("time_to_target_s", None)
        if replicate == 0 and devices == 1 and record["result"]:
            record["result"] |= self.warm_start(record["result"])
        path = self.folder / "records" / "any" / f"mnist_{use_case}" / framework / f"{self.count}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
        if gated and not (path.parent / "parity.npz").exists():
            self.parity(Measurement.model_validate(record["measurement"]), path.parent / "parity.npz")
        return measurement_id

    def parity(self, measurement: Measurement, path: Path) -> None:
        """Numbers on which both frameworks agree. One file serves all: its key is not compared with a record's."""
        key = key_of(measurement)
        metadata = ParityMetadata(key=key, outcome="ok", shapes={"loss": ()}, created_at="2026-11-21T08:00:00+00:00")
        write_parity(ParityNumbers(metadata=metadata, kept={"loss": np.array(2.0)}), path)

    def warm_start(self, result: dict[str, Any]) -> dict[str, Any]:
        first_s = [0.4 + self.draw.random(), 0.1, 0.01]
        call_times_s = sorted(result["latency"]["call_times_s"])
        middle = (call_times_s[(len(call_times_s) - 1) // 2] + call_times_s[len(call_times_s) // 2]) / 2
        return {"warm_start_call_times_s": first_s, "compile_time_warm_s": sum(first_s) - 3 * middle}

    def result(
        self, step_s: float, steps_per_call: int, batch_size: int, epochs: int, gpu: str | None, spread: float
    ) -> dict[str, Any]:
        noise = self.draw.lognormvariate
        call_times_s = [1.1 * step_s * steps_per_call * noise(0, 0.05) for _ in range(self.draw.choice((80, 81)))]
        cold_s = [1.7 + self.draw.random(), 0.2, 1.2 * step_s]
        ordered = sorted(call_times_s)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        calls = max(1, round(0.1 / (step_s * steps_per_call)))
        times_s = [calls * steps_per_call * step_s * noise(0, spread) for _ in range(self.draw.choice((20, 21)))]
        result: dict[str, Any] = {
            "compile_time_s": sum(cold_s) - 3 * middle,
            "cold_call_times_s": cold_s,
            "blocks": {
                "calls_per_block": calls,
                "steps_per_call": steps_per_call,
                "samples_per_step": batch_size,
                "block_times_s": times_s,
                "warmup_times_s": [step_s] * 5,
            },
            "latency": {"steps_per_call": steps_per_call, "call_times_s": call_times_s},
            "details": {
                "phases": {
                    phase: [step_s * self.draw_phases.lognormvariate(0, 0.1) for _ in range(runs)]
                    for phase, runs in (("forward", self.draw_phases.choice((1, 2, 40))), ("backward", 40))
                }
            }
            if batch_size == 64
            else {},
            "memory": {"host_peak_bytes": self.draw.randrange(10**9), "absent": "a CPU"},
        }
        if gpu:
            result["memory"] = {
                name: self.draw.randrange(10**9)
                for name in ("allocator_peak_bytes", "step_peak_bytes", "pool_peak_bytes", "process_bytes")
            }
            result["energy"] = {
                "gross_joules": 300 * sum(times_s),
                "window_s": 1.01 * sum(times_s),
                "samples": len(times_s) * calls * steps_per_call * batch_size,
                "idle_watts": 71.5,
            }
        if epochs:
            result["epochs"] = [
                {
                    "epoch": epoch,
                    "train_time_s": 2.0,
                    "train_loss": 1 / epoch,
                    "test_loss": self.draw.random(),
                    "test_metric": self.draw.random(),
                }
                for epoch in range(1, epochs + 1)
            ]
            result["time_to_target_s"] = self.draw.choice((None, 12.5 + self.draw.random()))
        return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every rule of the docs at least one case."""
    folder = tmp_path_factory.mktemp("results")
    maker = Maker(folder)
    noise = maker.draw.lognormvariate
    for replicate in range(6):
        maker.record("jax", "step.jit", replicate, 2.0e-3 * noise(0, 0.002), epochs=3)
        maker.record("jax", "scan.jit", replicate, 1.9e-3 * noise(0, 0.002), epochs=3, steps_per_call=23)
        maker.record("torch", "step.eager", replicate, 2.8e-3 * noise(0, 0.002), epochs=3)
        if replicate != 1:  # pairs are by number: the ratio has four of five, two of each order
            maker.record("torch", "step.compiled", replicate, 2.3e-3 * noise(0, 0.002), epochs=3)
    for replicate in range(4):
        for framework, mode, step_s in (("jax", "step.jit", 4e-3), ("torch", "step.eager", 4.001e-3)):
            maker.record(framework, mode, replicate, step_s, use_case=3, batch_size=64, spread=0.001)  # the same
        for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
            maker.record(framework, mode, replicate, 4e-3 * noise(0, 0.05), use_case=3)  # undecided
            maker.record(framework, mode, replicate, 1e-3 * noise(0, 0.01), gpu="NVIDIA A100")
            other_s = 1.1e-3 if framework == "jax" else 0.9e-3
            maker.record(framework, mode, replicate, other_s, gpu="NVIDIA A100", momentum=0.5)  # other settings
        for devices, batch_size, step_s in ((1, 512, 1.8e-3), (2, 512, 1.1e-3), (2, 256, 0.7e-3)):
            for framework, mode in (("jax", "step.jit"), ("torch", "step.eager")):
                maker.record(
                    framework,
                    mode,
                    replicate,
                    step_s * noise(0, 0.01),
                    use_case=devices,
                    devices=devices,
                    batch_size=batch_size,
                    gpu="NVIDIA A100",
                )
    maker.record("jax", "step.jit", 0, 2e-3, quick=True)
    maker.record("torch", "step.eager", 0, 1e-3, quick=True)  # one replicate: a ratio, no interval
    # The newest that is settled counts: not the slower one before it, and not the failure after it.
    again = maker.record("torch", "step.eager", 0, 9e-3, batch_size=32)
    maker.record("torch", "step.eager", 0, 1e-3, batch_size=32, measurement_id=again)
    maker.record("torch", "step.eager", 0, 9e-3, batch_size=32, measurement_id=again, outcome="failed")
    maker.record("jax", "step.jit", 0, 9e-3, batch_size=32, outcome="out_of_memory")
    for replicate in range(4):
        # The fastest mode was recompiled in one replicate: the other is compared.
        maker.record("jax", "scan.jit", replicate, 1e-3, batch_size=128, recompiles=2 if replicate == 1 else 0)
        maker.record("jax", "step.jit", replicate, 2e-3 * noise(0, 0.01), batch_size=128, gated=replicate < 2)
        maker.record("torch", "step.eager", replicate, 3e-3 * noise(0, 0.01), batch_size=128)
        # A clear ratio, also where blocks spread by much more than a quarter.
        maker.record("jax", "step.jit", replicate, 1e-3, batch_size=1024, spread=1.0 if replicate == 0 else 0.01)
        maker.record("torch", "step.eager", replicate, 4e-3, batch_size=1024)
        # Processes that took turns; in the last replicate each with another one, and of different numbers of blocks.
        for framework, mode, step_s in (("jax", "step.jit", 2e-3), ("torch", "step.eager", 3e-3)):
            turns = f"{replicate} {framework if replicate == 3 else ''}"
            pairing = {"kind": "interleaved", "position": replicate, "pair": "12.0", "turns": turns}
            maker.record(
                framework, mode, replicate, step_s, batch_size=4096, spread=0.1, environment={"pairing": pairing}
            )
        # Without NVML; and a slice of the card, which is another device.
        maker.record("jax", "step.jit", replicate, 2e-3, environment={"framework": {"platform": "gpu", "device": "L4"}})
        maker.record(
            "torch", "step.eager", replicate, 3e-3, environment={"framework": {"platform": "cuda", "device": "L4"}}
        )
        part = {"name": "L4", "mig": True, "memory_total_bytes": 10 * 2**30}
        maker.record("jax", "step.jit", replicate, 5e-3, gpu="L4", environment={"gpu": part})
        # A screening found `compiled` first, where the replicates have `eager` first by less than their noise; and
        # `jit`, where `taps` is clearly faster.
        lucky = (2.95e-3, 3.0e-3, 3.1e-3, 3.0e-3)[replicate]
        for framework, mode, step_s in (
            *(("jax", "step.jit", 3.0e-3), ("jax", "taps.jit", 2.5e-3)),
            *(("torch", "step.compiled", 3.02e-3), ("torch", "step.eager", lucky)),
        ):
            maker.record(framework, mode, replicate, step_s * noise(0, 0.001), batch_size=2048, spread=0.001)
    for framework, mode, step_s in (("jax", "step.jit", 2e-3), ("torch", "step.eager", 2.1e-3)):
        for replicate in range(8):
            # Open after four pairs of twelve, and decided after six; of four and then of twelve; and by older rules.
            apart_s = {0: 0.03, 2: -0.03}.get(replicate, 0) * step_s * (framework == "jax")
            maker.record(framework, mode, replicate, step_s + apart_s, batch_size=192, spread=0.001)
            of_more = {"at_most": 12 if replicate > 3 else 4, "batch_size": 96}
            maker.record(framework, mode, replicate, step_s * noise(0, 0.001), spread=0.001, **of_more)
        for replicate in range(4):
            maker.record(framework, mode, replicate, step_s, batch_size=24, spread=0.5, rules=1, at_most=3)
            maker.record(framework, mode, replicate, step_s * noise(0, 0.003), batch_size=48, rules=2, at_most=4)
    for framework, modes in {
        "jax": ("step.jit", "taps.jit"),
        "torch": ("step.compiled", "step.eager", "loop.eager"),
    }.items():
        for step_s, mode in enumerate(modes, start=3):
            maker.record(framework, mode, 0, step_s * 1e-3, batch_size=2048, stage="screening")
    return folder


def lines_of_the_report(folder: Path, file: Path) -> dict[tuple[str, ...], dict[str, str]]:
    command = [sys.executable, "main.py", "report", "--csv", str(file), "--results", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return lines_by_key(file, KEY)


def lines_by_key(file: Path, key: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, str]]:
    with file.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    by_key = {tuple(line[name] for name in key): line for line in found}
    assert len(by_key) == len(found)
    return by_key


def close(name: str, value: float) -> Any:
    """1 less what is nearly 1 has fewer digits."""
    return pytest.approx(value, rel=CLOSE, abs=1e-12 if name in ("p", "q") else None)


def require_equal(line: dict[str, str], expected: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        value = expected.get(name)
        if value is None:
            assert line[name] == "", (name, line)
        elif isinstance(value, str | bool):
            assert line[name] == str(value), (name, line)
        else:
            assert line[name] != "", (name, line)
            assert float(line[name]) == close(name, value), (name, line)


def require_phases(folder: Path) -> None:
    """Every number of the phases.csv that the report has just left."""
    key = (*KEY, "phase")
    expected = {tuple(str(line[name]) for name in key): line for line in recompute.phases(folder)}
    found = lines_by_key(folder / "report" / "phases.csv", key)
    assert found.keys() == expected.keys()
    for place, line in found.items():
        require_equal(line, expected[place], ("mean_s", "std_s", "min_s", "max_s", "p50_s", "p95_s"))


def require_close(found: Sequence[float | None], expected: Sequence[float | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == (None if other is None else pytest.approx(other, rel=CLOSE))


@pytest.mark.parametrize("published", [None, *PUBLISHED], ids=str)
def test_every_number_of_the_csv_is_recomputed(published: Path | None, made: Path, tmp_path: Path) -> None:
    folder = made
    if published is not None:  # a report leaves its files beside the records
        folder = shutil.copytree(published.parent, tmp_path / "published")
    expected = {tuple(str(line[name]) for name in KEY): line for line in recompute.recompute(folder)}
    found = lines_of_the_report(folder, tmp_path / "report.csv")
    assert found.keys() == expected.keys()
    require_phases(folder)
    ratios = 0
    for key, line in found.items():
        require_equal(line, expected[key], (*NUMBERS, *(name for name in IF_THERE if name in line)))
        if line.get("parity", "passed") == "passed":
            require_equal(line, expected[key], OF_THE_RATIO)
            ratios += line["ratio_jax_over_torch"] != ""
        else:  # a pair that did not pass the parity gate has no ratio
            require_equal(line, {}, OF_THE_RATIO)
    if published is None:
        # Two lines each for training, two batches of per-sample gradients, two settings on the A100, three in scaling,
        # one quick run, and one each beside a recompiled mode, of unstable blocks, and without NVML.
        # And one after a screening, one of processes that took turns, two of eight pairs, and two by older rules.
        assert ratios == sum("verdict" in line for line in expected.values())
        assert ratios == 2 * (1 + 2 + 2 + 3 + 1 + 3 + 1 + 1 + 2 + 2)
        after_screening = [line for line in found.values() if line["batch_size"] == "2048"]
        assert {line["execution_mode"] for line in after_screening if line["fastest"] == "True"} == {
            "taps.jit",
            "step.compiled",
        }
        assert {line["execution_mode"]: line["modes_compared"] for line in after_screening} == {
            **{"step.jit": "2", "taps.jit": "2", "step.compiled": "3", "step.eager": "3"}
        }
        assert {line["ratio_replicates"] for line in found.values() if line["batch_size"] == "128"} == {"", "2"}
        assert {line["verdict"] for line in found.values() if line["batch_size"] == "1024"} == {"JAX faster"}
        of_rows = {
            line["batch_size"]: tuple(line[name] for name in ("rules", "pairs_at_most", "ratio_replicates", "verdict"))
            for line in found.values()
        }
        assert of_rows["192"] == ("3", "12", "6", "JAX faster") and of_rows["96"][:2] == ("3", "12")
        assert of_rows["24"] == ("1", "", "4", "undecided") and of_rows["48"] == ("2", "", "4", "JAX faster")
        assert of_rows["4096"][2] == "3"
        assert {line["device"] for line in found.values()} == {
            "CPU: A CPU",
            "NVIDIA A100",
            "L4",
            "L4 MIG 10.0 GiB",
        }


def test_records_made_here_have_phases_and_calls_of_several_steps(made: Path) -> None:
    lines = recompute.phases(made)
    assert {line["phase"] for line in lines} == {"forward", "backward", "whole_step"}
    assert {line["execution_mode"]: len(line) for line in lines if "p95_s" not in line}.keys() == {"scan.jit"}


def test_records_made_here_have_every_verdict(made: Path) -> None:
    verdicts = {line.get("verdict") for line in recompute.recompute(made)}
    assert verdicts == {"JAX faster", "PyTorch faster", "same", "undecided", None}


def test_ratio_interval_and_verdict_of_every_design() -> None:
    draw = random.Random(4)
    verdicts, looks = set(), set()
    for _ in range(800):
        at_most, extended = draw.choice((3, 4, 6, 8, 12, 20)), draw.random() < 0.2
        centre, spread = draw.choice((0.0, 0.004, 0.02, -0.02, 0.3)), draw.choice((0.0005, 0.01, 0.05))
        skew = draw.choice((0.0, 0.02))  # what the process that starts first loses
        firsts = [number % 2 == 0 for number in range(draw.choice((1, 3, 4, 5, 8, 12, 16, 20)))]
        found = [(draw.gauss(centre, spread) - (skew if first else -skew), first) for first in firsts]
        ours = recompute.sequential(found, at_most, extended)
        logs = [LogRatio(number, value, first) for number, (value, first) in enumerate(found)]
        theirs = estimate_sequentially(logs, at_most, is_extended=extended)
        require_close([ours["ratio_low"], ours["ratio_high"]], theirs.interval or (None, None))
        assert ours["ratio_jax_over_torch"] == pytest.approx(theirs.value, rel=CLOSE)
        assert (ours["verdict"], ours["ratio_replicates"]) == (theirs.verdict, theirs.replicates)
        assert (ours["pairs_at_most"] or 0, ours["is_judged"]) == (theirs.at_most, theirs.is_judged)
        assert ours.get("p") == (None if theirs.p is None else pytest.approx(theirs.p, rel=1e-6, abs=1e-12))
        verdicts.add(theirs.verdict)
        looks.add((theirs.at_most, theirs.replicates))
    assert verdicts == {"JAX faster", "PyTorch faster", "same", "undecided"}
    assert {(at_most, pairs) for at_most, reaches in CRITICAL_VALUES.items() for pairs in reaches} <= looks


def test_ratios_of_other_quantities() -> None:
    draw = random.Random(5)
    for count in (1, 2, 3, 12):
        logs = [draw.gauss(0.1, 0.02) for _ in range(count)]
        theirs = paired_ratio([math.exp(one) for one in logs], [1.0] * count)
        require_close(recompute.by_t(logs), (theirs.value, *(theirs.interval or (None, None))))


def test_geometric_mean_with_its_interval() -> None:
    draw = random.Random(6)
    for counts in ((4, 4), (4, 8, 12), (4,), (4, 2)):
        logs = [[(draw.gauss(0.002, 0.02), number % 2 == 0) for number in range(count)] for count in counts]
        of_each = [[LogRatio(number, *one) for number, one in enumerate(each)] for each in logs]
        found = [estimate_sequentially(each, len(each)) for each in of_each]
        assert [one.replicates for one in found] == list(counts)
        value, interval = geometric_mean_of_ratios(found)
        require_close(recompute.geometric_mean_of_ratios(logs), (value, *(interval or (None, None))))


def test_quantiles_of_students_t() -> None:
    assert [recompute.t_95(freedom) for freedom in range(1, 31)] == list(STUDENT_T_95)


def test_the_script_is_plain_python_and_runs_alone(made: Path) -> None:
    path = Path(recompute.__file__)
    tree = ast.parse(path.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), str(made)], cwd="/", capture_output=True, text=True, check=True
    )
    both = {"comparison": recompute.recompute(made), "phases": recompute.phases(made)}
    assert json.loads(done.stdout) == json.loads(json.dumps(both))
