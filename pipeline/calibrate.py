"""`main.py calibrate`: measures each framework against itself, alike and with known slowdowns planted in the step.

Everything but the plant is what a real measurement does: a fresh process (harness/child.py), the clock
(harness/measure.py), throughput from blocks. This process imports no framework.
"""

import queue
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getloadavg
from pathlib import Path
from typing import Any

from harness import data
from harness.config import Config
from harness.environment import describe_environment
from harness.errors import ConfigError, ProjectError
from harness.matrix import expand_variants
from harness.paths import REPOSITORY, Results, timestamp
from harness.plan import Measurement, Variant
from harness.ranks import Ranks, RanksReport
from harness.session import ChildTask
from harness.settings import FRAMEWORKS, DataKind, Framework, MeasurementSettings
from harness.statistics import quality_flags, throughput_samples_per_s
from harness.suggest import valid_names
from harness.team import Team
from pipeline.calibration import (
    CONDITIONS,
    Calibration,
    Process,
    describe,
    read_calibration,
    write_calibration,
)

PROTOCOL = MeasurementSettings(
    replicates=1,
    warmup_s=1.0,
    max_blocks=60,
    max_time_s=10.0,
    latency_calls=10,
    latency_max_time_s=2.0,
    energy_window_s=1.0,
    idle_s=0.0,
    timeout_s=900.0,
)
"""Blocks as in real measurements, and fewer of them: a round is six processes."""
QUICK_PROTOCOL = PROTOCOL.model_copy(
    update={"warmup_s": 0.2, "warmup_min_calls": 2, "min_blocks": 6, "max_blocks": 6, "latency_calls": 3}
)
PRIVATE = ("interpreter", "hostname")
"""Of the environment: a calibration is made to be published, and these tell nothing about its numbers."""
FREE_CHOICES = ("model", "batch_size", "execution_mode")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the command line asks for; None takes the first that experiments.yaml has."""

    frameworks: tuple[str, ...] = ()
    benchmark: str
    use_case: int
    model: str | None = None
    batch_size: int | None = None
    execution_mode: str | None = None
    data: DataKind
    quick: bool


def new_calibration(config: Config, choice: Choice, *, rounds: int) -> Calibration:
    """Raises ConfigError where experiments.yaml has no such variant."""
    for flag, name, defined in (
        ("--benchmark", choice.benchmark, config.benchmarks),
        ("--use_case", choice.use_case, config.use_cases),
    ):
        if name not in defined:
            raise ConfigError(f"{flag} {name}: not defined in experiments.yaml; {valid_names(name, defined)}")
    for name in choice.frameworks:
        if name not in FRAMEWORKS:
            raise ConfigError(f"--framework {name}: no such framework; {valid_names(name, FRAMEWORKS)}")
    frameworks = [framework for framework in FRAMEWORKS if not choice.frameworks or framework in choice.frameworks]
    return Calibration(
        measurements={framework: _measurement(config, choice, framework) for framework in frameworks},
        data_dir=_below_repository(config.data_dir),
        rounds=rounds,
        seed=0,
        started_at=_now(),
    )


def _below_repository(data_dir: str) -> str:
    """Relative where that is possible: it says as much, and not where this checkout lies."""
    path = Path(data_dir)
    return str(path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path)


def _measurement(config: Config, choice: Choice, framework: Framework) -> Measurement:
    cell = config.cell("any", choice.benchmark, choice.use_case)
    if cell.devices > 1:
        raise ConfigError(f"--use_case {choice.use_case}: is for {cell.devices} devices; calibrate measures on one")
    settings = config.settings(choice.benchmark, choice.use_case, quick=False)
    return Measurement(
        framework=framework,
        cell=cell,
        variant=_variant(config, choice, framework),
        replicate=0,
        settings=settings | ({"epochs": 1} if "epochs" in settings else {}),
        protocol=QUICK_PROTOCOL if choice.quick else PROTOCOL,
        data=choice.data,
        quick=choice.quick,
    )


def _variant(config: Config, choice: Choice, framework: Framework) -> Variant:
    """The first of the use case's variants that is as asked for."""
    variants = expand_variants(config, framework, choice.benchmark, choice.use_case, quick=False)
    for name in FREE_CHOICES:
        asked = getattr(choice, name)
        if asked is None:
            continue
        left = tuple(variant for variant in variants if getattr(variant, name) == asked)
        if not left:
            valid = valid_names(asked, dict.fromkeys(getattr(variant, name) for variant in variants))
            only = " Calibrate one framework with --framework." if name == "execution_mode" else ""
            raise ConfigError(f"--{name} {asked}: {framework} has no such variant in experiments.yaml; {valid}.{only}")
        variants = left
    if not variants:
        raise ConfigError(f"experiments.yaml leaves no variant of {choice.benchmark}, use case {choice.use_case}")
    return variants[0]


def calibrate(calibration: Calibration, path: Path) -> int:
    """Measure what the file at `path` does not have yet, saving after each process; then print the table."""
    for measurement in calibration.measurements.values():
        data.load(measurement.cell.benchmark, measurement.data, REPOSITORY / calibration.data_dir)
    left = list(what_is_left(calibration))
    print(f"{len(left)} processes; results: {path}", flush=True)
    done_s = []
    for count, (framework, number, condition) in enumerate(left, start=1):
        start = time.monotonic()
        process, environment = _measure(calibration, framework, number, condition, path.with_suffix(".log"))
        calibration = _with(calibration, process, environment)
        write_calibration(calibration, path)
        done_s.append(time.monotonic() - start)
        eta_min = (len(left) - count) * sum(done_s) / len(done_s) / 60
        print(
            f"[{count}/{len(left)}] {framework} round {number} {condition}: "
            f"{throughput_samples_per_s(process.blocks):,.0f} samples/s; about {eta_min:.0f} min left",
            flush=True,
        )
    print(f"\n{describe(calibration)}\n\n{EXPLANATION}")
    return 0


EXPLANATION = """\
Right is `same` for A/A and `faster` for a slowdown; wrong in A/A is any `faster`. 1 % is the very edge of `same`.
Trials share rounds, so their shares are not independent: the number of rounds says how much this rests on."""


def show_calibration(path: Path) -> int:
    print(f"{describe(read_calibration(path))}\n\n{EXPLANATION}")
    return 0


def new_file(results: Results) -> Path:
    return results.calibration / f"{timestamp()}.json"


def resumed(path: Path, *, rounds: int | None) -> Calibration:
    """As it was started, with another number of rounds where that is asked for."""
    calibration = read_calibration(path)
    return calibration if rounds is None else calibration.model_copy(update={"rounds": rounds})


def what_is_left(calibration: Calibration) -> Iterator[tuple[Framework, int, str]]:
    """Round by round and framework by framework, the conditions in an order drawn for each."""
    done = {(process.framework, process.round, process.condition) for process in calibration.processes}
    for number in range(1, calibration.rounds + 1):
        for framework in calibration.measurements:
            for condition in _order(calibration.seed, framework, number):
                if (framework, number, condition) not in done:
                    yield framework, number, condition


def _order(seed: int, framework: Framework, number: int) -> Sequence[str]:
    draw = random.Random(f"{seed} {framework} {number}")
    return sorted(CONDITIONS, key=lambda _: draw.random())


def _measure(
    calibration: Calibration, framework: Framework, number: int, condition: str, log: Path
) -> tuple[Process, dict[str, Any]]:
    """Raises ProjectError where the measurement fails; what was measured before is saved."""
    measurement = calibration.measurements[framework]
    data_dir = str(REPOSITORY / calibration.data_dir)
    task = ChildTask(measurement=measurement, data_dir=data_dir, planted_slowdown=CONDITIONS[condition])
    started_at, start, load_average = _now(), time.monotonic(), getloadavg()[0]
    report = _run_child(task, log)
    result = report.result
    if report.outcome != "ok" or result is None or result.blocks is None:
        raise ProjectError(
            f"{framework} round {number} {condition}: {report.outcome}: {report.reason or 'no throughput'}. "
            f"What was measured before is kept: go on with --resume {log.with_suffix('.json')}"
        )
    environment = {
        name: value for name, value in describe_environment().items() if name not in PRIVATE
    } | report.environment
    process = Process(
        framework=framework,
        round=number,
        condition=condition,
        blocks=result.blocks,
        flags=quality_flags(result, environment, measurement.protocol.target_noise),
        load_average=round(load_average, 2),
        started_at=started_at,
        duration_s=round(time.monotonic() - start, 3),
    )
    return process, environment


def _run_child(task: ChildTask, log: Path) -> RanksReport:
    """As harness/job.py does, without heartbeat and W&B."""
    measurement = task.measurement
    team = Team(measurement.framework, measurement.cell)
    deadline = time.monotonic() + measurement.protocol.timeout_s
    with team.measuring(task, log) as (events, worlds):
        ranks = Ranks([world.node or team.node for world in worlds], log)
        while not ranks.are_over(time.monotonic()):
            if time.monotonic() > deadline:
                return ranks.report(timeout=f"not done after {measurement.protocol.timeout_s:g} s; log: {log}")
            try:
                rank, event = events.get(timeout=0.5)
            except queue.Empty:
                continue
            ranks.take(rank, event, time.monotonic())
        return ranks.report()


def _with(calibration: Calibration, process: Process, environment: dict[str, Any]) -> Calibration:
    """Raises ConfigError where a calibration that is resumed was begun on another device or with other versions."""
    before = calibration.environments.get(process.framework)
    if before is not None:
        was, now = _identity(before), _identity(environment)
        for name in was:
            if was[name] != now[name]:
                raise ConfigError(
                    f"--resume: {name} of {process.framework} is {now[name]} here, and was {was[name]} when this "
                    f"calibration was begun. They cannot be mixed: begin a new one."
                )
    return calibration.model_copy(
        update={
            "processes": [*calibration.processes, process],
            "environments": {process.framework: environment} | calibration.environments,
        }
    )


def _identity(environment: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for all processes of one calibration."""
    of_framework = environment.get("framework") or {}
    return {
        "node": environment.get("node"),
        "python": environment.get("python"),
        "GPU": (environment.get("gpu") or {}).get("uuid"),
        "version": of_framework.get("version"),
        "platform": of_framework.get("platform"),
        "packages": environment.get("packages"),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
