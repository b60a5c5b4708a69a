"""`main.py gpu-check`: what nobody can try without a GPU, in ten minutes at most, and what to send of it.

The doctor, the tests that need a GPU, a short pair of each kind of work by the ordinary way, and the report. Each step
is a process with a log. What has passed is remembered beside the results and not done again, so the same command goes
on where it was: after a failure, after Ctrl-C, and after the ten minutes.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from harness.errors import RecordError
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.files import way_out, write_atomically
from harness.job.launch import command_of
from harness.measure.gpu import Gpu, NoGpu, open_gpu
from harness.packs import record_paths
from harness.paths import REPOSITORY, Results
from harness.plan import FRAMEWORKS, Framework
from harness.results.environment import CACHE_FOLDERS, code_digests, describe_environment
from harness.results.record import read_record
from harness.work.applies import why_not_precision
from harness.work.declared import use_case, use_case_names

LIMIT_S = 600.0
"""Of all, on one H200: that much a waiting person has."""
REPORT_S = 30.0
PAIRS_S = 240.0
"""What the steps before them leave to the report and to the pairs."""
SHORTEST_S = 20.0
"""With less left, no further step is begun."""
END_S = 10.0
"""From SIGTERM to SIGKILL."""
TESTS_AT_A_TIME = 4
"""They compile most of the time, each on one core or a few, and time nothing."""
PRECISIONS = ("fp32", "bf16", "fp16", "tf32")
"""The last takes longest: its autotuned modes are tried, too."""
TESTS = "tests/gpu"
PAIRS = (("mnist", 1), ("mnist", 3), ("cifar10", 1), ("synthetic", 6))
EXCLUDED: dict[int, dict[str, Any]] = {
    1: {"benchmark": "cifar10", "model": ["resnet18"]},
    6: {"benchmark": "synthetic", "model": ["linear", "conv2d", "mlp"]},
}
FORMULATIONS: dict[int, dict[str, list[dict[str, list[str]]]]] = {
    1: {"jax": [{"step": ["jit_graph"]}], "torch": [{"step": ["eager", "compiled_graph"]}]},
    3: {
        "jax": [{"vmap": ["jit"], "outer_product": ["jit"]}],
        "torch": [{"vmap": ["compiled"], "outer_product": ["compiled_graph"]}],
    },
    6: {"jax": [{"vmap": ["jit"]}], "torch": [{"batched": ["compiled_graph"]}]},
}
OPTIONS: dict[int, dict[str, list[Any]]] = {3: {"output": ["full"]}, 6: {"models": [8]}}
"""What experiments.yaml has, cut down to what can be measured in a few minutes: both frameworks, and of PyTorch the
modes that no machine without a GPU can run."""

NAMES_A_FAILURE = re.compile(r"(FAILED|ERROR) |[\w. ]{1,30}  problem  |Traceback|\w*Error: ")
"""pytest's lines, the doctor's, and Python's."""

Outcome = Literal["passed", "failed", "not finished", "not run"]


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    what: str
    command: tuple[str, ...]
    limit_s: float
    leaves_s: float = REPORT_S
    """Of the whole time, to what comes after it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its environment, besides this process's."""
    is_test: bool = False
    """Its last line has the counts."""
    in_company: bool = False
    """Beside others of its kind; anything else has the GPU for itself."""
    is_kept: bool = True
    """Once passed, it is not done again."""
    clean_up: tuple[str, ...] = ()
    """A command that ends the work which the step has left to others, where it was cut off."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a step was over."""

    outcome: Outcome
    seconds: float = 0.0
    words: str = ""
    """The last line that it said."""
    details: tuple[str, ...] = ()
    """Lines that name what failed."""


class Run(Protocol):
    def __call__(self, step: Step, log: Path, limit_s: float) -> Ended: ...


def gpu_check(
    results: Results,
    *,
    config_path: Path,
    profile: Path | None = None,
    dry_run: bool = False,
    gpu: Gpu | NoGpu | None = None,
    run: Run | None = None,
    say: Callable[[str], None] = print,
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Returns the exit status: 0 if all steps have passed by now, or with `dry_run`; 1 if not, or if there is no GPU.

    Args:
        gpu, run, say, now: for tests.
    """
    deadline = now() + LIMIT_S
    gpu = gpu or open_gpu()
    folder = results.gpu_check
    steps = make_steps(results, load_config(config_path, profile), config_path)
    if dry_run or isinstance(gpu, NoGpu):
        _tell_steps(steps, results, say, commands=dry_run)
        if isinstance(gpu, NoGpu):
            say(f"\nNothing was tried: there is no NVIDIA GPU here. {gpu.absent}.")
            say("On a cluster, ask for one: srun --gres=gpu:1 --cpus-per-task=8 --time=20 make gpu-check")
        return 0 if dry_run else 1
    with way_out(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_config(config_path, folder / CONFIG)
    environment = describe_environment() | {"gpu": gpu.describe()}
    write_atomically(folder / "environment.json", json.dumps(environment, indent=1), replace=True)
    progress = Progress(folder / "progress.json", identity_of(environment))
    say(f"{environment['gpu']['name']}, driver {environment['gpu']['driver_version']}; logs in {folder}")
    if progress.why_anew:
        say(f"From the beginning: {progress.why_anew}")
    processes = None
    if run is None:
        processes = Processes()
        run = processes.run
    try:
        for batch in _batches(steps):
            _do(batch, progress, folder, run, say, deadline, now)
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from here.")
    finally:
        if processes:
            processes.end_all()
    return _conclude(steps, progress, results, say)


# ---- what is to be done

CONFIG = "experiments.yaml"


def make_steps(results: Results, config: Config, config_path: Path) -> list[Step]:
    """In their order."""

    def of_main(*words: str) -> tuple[str, ...]:
        return (sys.executable, str(REPOSITORY / "main.py"), *words, "--results", str(results.root))

    cluster = ("--cluster", config.profile) if config.profile else ()
    short = str(results.gpu_check / CONFIG)
    pairs = [
        Step(
            name=f"{benchmark}-{number}",
            what=f"a short pair of {benchmark}, use case {number}: both frameworks, checks, parity gate, NVML",
            command=of_main(
                *("--benchmark", benchmark, "--use_case", str(number), "--quick", "--data", "sample"),
                *("--executor", "local", "--wait", "--config", short, *cluster),
            ),
            limit_s=180,
            clean_up=of_main("cancel"),
        )
        for benchmark, number in PAIRS
    ]
    return [
        Step(
            name="doctor",
            what="environment, versions, a C compiler, torch.compile and CUDA graphs",
            command=of_main("doctor", "--executor", "local", "--config", str(config_path.absolute()), *cluster),
            limit_s=240,
            leaves_s=PAIRS_S,
        ),
        *_tests(results, config),
        *pairs,
        Step(
            name="report",
            what="the report of these pairs",
            command=of_main("report"),
            limit_s=120,
            leaves_s=0,
            is_kept=False,
        ),
    ]


def _tests(results: Results, config: Config) -> Iterator[Step]:
    for framework in FRAMEWORKS:
        words = "NVML against the framework, out of memory, CUDA_VISIBLE_DEVICES by UUID, MIG"
        step = _test(results, config, framework, f"{TESTS}/test_machine.py", framework)
        yield replace(step, name=f"machine-{framework}", what=words)
    for framework in FRAMEWORKS:
        step = _test(results, config, framework, f"{TESTS}/test_clocks.py", framework)
        yield replace(step, name=f"clocks-{framework}", what="its steps by another clock: within 2 % of ours")
    for precision, name, framework in itertools.product(PRECISIONS, use_case_names(), FRAMEWORKS):
        if why_not_precision(use_case(name), precision):
            continue
        group = f"{framework}-{name}-{precision}"
        words = f"every mode of {name} in {framework}, {precision}: built, checked, finite, as its name says"
        step = _test(results, config, framework, f"{TESTS}/test_modes.py", f"{group}-")
        yield replace(step, name=group, what=words, in_company=True)


def _test(results: Results, config: Config, framework: Framework, path: str, chosen: str) -> Step:
    """pytest by the framework's own interpreter, as jobs start it."""
    own = config.launch(framework)
    pytest = ("-m", "pytest", "-m", "gpu", path, "-k", chosen, "-rfE", "--tb=short", "-p", "no:cacheprovider")
    # What was compiled in one go need not be in the next. Measurements have their own, which are empty.
    caches = {variable: str(results.root / "caches" / folder) for variable, folder in CACHE_FOLDERS.items()}
    return Step(
        name="",
        what="",
        command=tuple(command_of(own, pytest, [REPOSITORY, results.root.absolute()])),
        limit_s=240,
        leaves_s=REPORT_S + PAIRS_S,
        variables={"REQUIRE_GPU": "1", "COLUMNS": "300", **caches},  # pytest cuts the lines that name what failed
        is_test=True,
    )


def write_config(source: Path, path: Path) -> None:
    """experiments.yaml with few models and modes in its part for --quick, and without W&B."""
    import yaml

    content: dict[str, Any] = yaml.safe_load(source.read_text())
    for number, excluded in EXCLUDED.items():
        content["use_cases"][number].setdefault("exclude", []).append(excluded)
    content["wandb"] = {"mode": "disabled"}
    others = sorted(content["benchmarks"].keys() - {benchmark for benchmark, _ in PAIRS})
    content["matrix"].setdefault("exclude", []).append({"benchmark": others, "use_case": sorted(FORMULATIONS)})
    content.pop("presets", None)  # they may name modes that are left out here
    quick = content.setdefault("quick", {})
    quick.pop("benchmarks", None)  # it may exclude these modes
    quick = quick.setdefault("use_cases", {})
    for number, formulations in FORMULATIONS.items():
        quick[number] = quick.get(number, {}) | {"formulations": formulations}
        if number in OPTIONS:
            quick[number]["options"] = OPTIONS[number]
    write_atomically(path, yaml.safe_dump(content, sort_keys=False), replace=True)


# ---- what has passed


def identity_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a step that has passed to count: the kind of GPU, and all that was tried on it."""
    return {
        "GPU": environment["gpu"]["name"],
        "driver": environment["gpu"]["driver_version"],
        "packages": environment["packages"],
        "code": {framework: code_digests(framework) for framework in FRAMEWORKS},
    }


class Progress:
    """A JSON file; every step that ends is written at once."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._identity = dict(identity)
        self.why_anew: str | None = None
        self.ended: dict[str, Ended] = {}
        try:
            content = json.loads(path.read_text())
            before = content["identity"]
            steps = {name: _ended_of(step) for name, step in content["steps"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.why_anew = f"{path} cannot be read ({type(error).__name__}: {error})"
            return
        changed = [name for name, value in self._identity.items() if before.get(name) != value]
        if changed:
            self.why_anew = f"not the same as the last time: {', '.join(changed)}"
        else:
            self.ended = steps

    def has_passed(self, step: Step) -> bool:
        return step.is_kept and step.name in self.ended and self.ended[step.name].outcome == "passed"

    def keep(self, step: Step, ended: Ended) -> None:
        self.ended[step.name] = ended
        steps = {name: vars(one) for name, one in self.ended.items()}
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"identity": self._identity, "written_at": stamp, "steps": steps}
        write_atomically(self._path, json.dumps(content, indent=1), replace=True)


def _ended_of(content: Mapping[str, Any]) -> Ended:
    if content["outcome"] not in get_args(Outcome):
        raise ValueError(f"{content['outcome']} is no outcome")
    return Ended(**{**content, "details": tuple(content["details"])})


# ---- doing it


def _batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Those that stand together and run in company; each other one alone, as measurements must."""
    for in_company, found in itertools.groupby(steps, key=lambda step: step.in_company):
        if in_company:
            yield list(found)
        else:
            yield from ([step] for step in found)


def _do(
    batch: Sequence[Step],
    progress: Progress,
    folder: Path,
    run: Run,
    say: Callable[[str], None],
    deadline: float,
    now: Callable[[], float],
) -> None:
    def do(step: Step) -> Ended:
        left_s = deadline - now() - step.leaves_s
        if left_s < SHORTEST_S and step.leaves_s:
            return Ended(outcome="not run", words=f"no time was left of the {LIMIT_S / 60:.0f} minutes")
        try:
            return run(step, folder / f"{step.name}.log", min(step.limit_s, max(left_s, SHORTEST_S)))
        except OSError as error:
            return Ended(outcome="failed", words=f"{step.command[0]} cannot be started: {error}")

    to_do = []
    for step in batch:
        if progress.has_passed(step):
            say(_line(step, progress.ended[step.name], "before"))
        else:
            to_do.append(step)
    pool = ThreadPoolExecutor(TESTS_AT_A_TIME)
    try:
        started = {pool.submit(do, step): step for step in to_do}
        for future in as_completed(started):
            ended = future.result()
            progress.keep(started[future], ended)
            say(_line(started[future], ended))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _line(step: Step, ended: Ended, when: str = "") -> str:
    took = when or (f"{ended.seconds:.0f} s" if ended.seconds else "")
    return f"  {ended.outcome:<13}{took:>7}  {step.name:<32}{ended.words}".rstrip()


class Processes:
    """Runs steps for real; several threads may, at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._clean_up: dict[int, tuple[str, ...]] = {}

    def run(self, step: Step, log: Path, limit_s: float) -> Ended:
        start = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                step.command,
                cwd=REPOSITORY,
                env=os.environ | step.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with self._lock:
                self._running[process.pid], self._clean_up[process.pid] = process, step.clean_up
            try:
                status: int | None = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                status = None
            self._end(process.pid, clean_up=status is None)
        seconds = time.monotonic() - start
        if status is None:
            return Ended(outcome="not finished", seconds=seconds, words=f"after {limit_s:.0f} s; log: {log}")
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if status == 0:
            return Ended(outcome="passed", seconds=seconds, words=_last_words(lines) if step.is_test else "")
        details = tuple(line[:300] for line in lines if NAMES_A_FAILURE.match(line))
        words = f"{(step.is_test and _last_words(lines)) or f'exit status {status}'}; log: {log}"
        return Ended(outcome="failed", seconds=seconds, words=words, details=details)

    def end_all(self) -> None:
        for pid in list(self._running):
            self._end(pid, clean_up=True)

    def _end(self, pid: int, *, clean_up: bool) -> None:
        """With all that it has started in its session. What it has given to the local queue is ended by its ids."""
        with self._lock:
            process, command = self._running.pop(pid, None), self._clean_up.pop(pid, ())
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_S)
                break
        if clean_up and command:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=60)


def _last_words(lines: Sequence[str]) -> str:
    return lines[-1].strip("= ")[:200] if lines else ""


# ---- what is said


def _tell_steps(steps: Sequence[Step], results: Results, say: Callable[[str], None], *, commands: bool) -> None:
    say(f"The GPU check, {LIMIT_S / 60:.0f} minutes at most, in {results.root}. Its steps:")
    for step in steps:
        say(f"  {step.name:<32}{step.what}")
        if commands:
            say(f"      {shlex.join(step.command)}")
    if commands:
        variables = next(step.variables for step in steps if step.is_test)
        say("The tests have these variables besides:")
        for name, text in variables.items():
            say(f"  {name}={shlex.quote(text)}")


def _conclude(steps: Sequence[Step], progress: Progress, results: Results, say: Callable[[str], None]) -> int:
    """What passed and what did not, and what to send. Returns the exit status."""
    of_all = {step.name: progress.ended.get(step.name, Ended(outcome="not run")) for step in steps}
    passed = [name for name, ended in of_all.items() if ended.outcome == "passed"]
    say(f"\n{len(passed)} of {len(of_all)} steps have passed: {', '.join(passed) or 'none'}")
    for name, ended in of_all.items():
        if ended.outcome != "passed":
            say(f"  {ended.outcome}: {name}{': ' if ended.words else ''}{ended.words}")
            for line in ended.details:
                say(f"      {line}")
    if len(passed) < len(of_all):
        say("The same command does again what has not passed, and nothing else.")
    for line in record_lines(results):
        say(line)
    say(f"Logs, versions and progress: {results.gpu_check}")
    there = [path.name for path in (results.gpu_check, results.records(), results.report) if path.exists()]
    words = ["tar", "czf", "gpu-check.tar.gz", "-C", str(results.root), *there]
    say(f"To send, as one file: {shlex.join(words)}")
    return 0 if len(passed) == len(of_all) else 1


def record_lines(results: Results) -> Iterator[str]:
    """How many measurements came to which end, and what is not as it should be: a refusal makes no pair fail."""
    records = []
    for path in record_paths(results.records()):
        with suppress(RecordError):
            records.append(read_record(path))
    if not records:
        return
    counts = Counter(record.outcome for record in records)
    yield f"Measured: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}"
    for record in records:
        name = (
            f"{record.measurement.cell.name} {record.measurement.framework} {record.measurement.variant.execution_mode}"
        )
        if record.outcome != "ok":
            yield f"  {name}: {record.outcome}: {(record.reason or '').partition(chr(10))[0][:300]}"
        elif record.flags:
            yield f"  {name}: {', '.join(record.flags)}"
