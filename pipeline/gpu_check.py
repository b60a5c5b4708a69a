"""`main.py gpu-check`: what nobody can try without a GPU, in ten minutes at most, and what to send of it.

The doctor, the tests that need a GPU, a short pair of each kind of work by the ordinary way, and the report. Each step
is a process with a log. The names of the steps that passed are kept beside the results, so the same command goes on
where it was: after a failure, after Ctrl-C, and after the ten minutes.
"""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from harness.errors import RecordError
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.files import way_out, write_atomically
from harness.job.launch import command_of
from harness.measure.gpu import Gpu, NoGpu, open_gpu
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
TESTS_AT_A_TIME = 4
"""They compile most of the time, each on one core or a few, and time nothing."""
PRECISIONS = ("fp32", "bf16", "fp16", "tf32")
"""The last takes longest: its autotuned modes are tried, too."""
PAIRS = {
    ("mnist", 1): ("step.jit_graph", "step.eager", "step.compiled_graph"),
    ("mnist", 3): ("vmap.jit", "outer_product.jit", "vmap.compiled", "outer_product.compiled_graph"),
    ("cifar10", 1): ("step.jit_graph", "step.eager", "step.compiled_graph"),
    ("synthetic", 6): ("vmap.jit", "batched.compiled_graph"),
}
"""What can be measured in a few minutes: both frameworks, and of PyTorch the modes that need a GPU."""
OF_PAIRS: dict[int, tuple[str, ...]] = {
    1: ("--model", "cnn"),
    3: ("--model", "cnn", "--option", "output=full"),
    6: ("--model", "convnet", "--option", "models=8"),
}
"""By use case."""
NAMES_A_FAILURE = re.compile(r"(FAILED|ERROR) |[\w. ]{1,30}  problem  |Traceback|\w*Error: ")
"""pytest's lines, the doctor's, and Python's."""


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
    clean_up: tuple[str, ...] = ()
    """Ends the work that the step has left to others, where it did not pass."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    outcome: Literal["passed", "failed", "not finished", "not run"]
    seconds: float = 0.0
    words: str = ""
    """The last line of a test, or what else is to be said."""
    details: tuple[str, ...] = ()
    """Lines that name what failed."""


def gpu_check(
    results: Results,
    *,
    config_path: Path,
    profile: Path | None = None,
    dry_run: bool = False,
    gpu: Gpu | NoGpu | None = None,
    steps: Sequence[Step] | None = None,
    limit_s: float = LIMIT_S,
) -> int:
    """Returns the exit status: 0 if all steps have passed by now, or with `dry_run`; 1 if not, or if there is no GPU.

    Args:
        gpu, steps, limit_s: for tests.
    """
    deadline_s = monotonic() + limit_s
    gpu = gpu or open_gpu()
    folder = results.gpu_check
    if steps is None:
        steps = make_steps(results, load_config(config_path, profile), config_path)
    if dry_run or isinstance(gpu, NoGpu):
        print(f"The GPU check, {limit_s / 60:.0f} minutes at most, in {results.root}. Steps and their longest times:")
        for step in steps:
            print(f"  {step.name:<32}{step.limit_s:>4.0f} s  {step.what}")
        if isinstance(gpu, NoGpu):
            print(f"\nNothing was tried: there is no NVIDIA GPU here. {gpu.absent}.")
            print("On a cluster, ask for one: srun --gres=gpu:1 --cpus-per-task=8 --time=20 make gpu-check")
        return 0 if dry_run else 1
    with way_out(folder):
        folder.mkdir(parents=True, exist_ok=True)
    environment = describe_environment() | {"gpu": gpu.describe()}
    write_atomically(folder / "environment.json", json.dumps(environment, indent=1), replace=True)
    print(f"{environment['gpu']['name']}, driver {environment['gpu']['driver_version']}; logs in {folder}")
    runner = Runner(folder, deadline_s, identity_of(environment))
    try:
        for in_company, batch in itertools.groupby(steps, key=lambda step: step.in_company):
            runner.run(list(batch), at_a_time=TESTS_AT_A_TIME if in_company else 1)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from here.")
    return _conclude(steps, runner.ended, results)


def make_steps(results: Results, config: Config, config_path: Path) -> list[Step]:
    """In their order."""
    caches = {variable: str(results.root / "caches" / folder) for variable, folder in CACHE_FOLDERS.items()}

    def of_main(*words: str) -> tuple[str, ...]:
        return (sys.executable, str(REPOSITORY / "main.py"), *words, "--results", str(results.root))

    def test(name: str, what: str, framework: Framework, file: str, chosen: str, *, in_company: bool = False) -> Step:
        """pytest by the framework's own interpreter, as jobs start it."""
        words = ("-m", "pytest", "-m", "gpu", f"tests/gpu/{file}", "-k", chosen, "-rfE", "--tb=short")
        return Step(
            name=name,
            what=what,
            command=tuple(
                command_of(
                    config.launch(framework),
                    (*words, "-p", "no:cacheprovider"),
                    [REPOSITORY, results.root.absolute()],
                )
            ),
            limit_s=240,
            leaves_s=REPORT_S + PAIRS_S,
            # What was compiled in one go need not be in the next. pytest cuts the lines that name what failed.
            variables={"REQUIRE_GPU": "1", "COLUMNS": "300", **caches},
            is_test=True,
            in_company=in_company,
        )

    cluster = ("--cluster", config.profile) if config.profile else ()
    of_file = ("--executor", "local", "--config", str(config_path.absolute()), *cluster)
    what = {
        "doctor": "environment, versions, a C compiler, torch.compile and CUDA graphs",
        "machine": "NVML against the framework, out of memory, CUDA_VISIBLE_DEVICES by UUID, MIG",
        "clocks": "its steps by another clock: within 2 % of ours",
    }
    return [
        Step(name="doctor", what=what["doctor"], command=of_main("doctor", *of_file), limit_s=240, leaves_s=PAIRS_S),
        *(test(f"machine-{one}", what["machine"], one, "test_machine.py", one) for one in FRAMEWORKS),
        *(test(f"clocks-{one}", what["clocks"], one, "test_clocks.py", one) for one in FRAMEWORKS),
        *(
            test(
                f"{framework}-{name}-{precision}",
                f"every mode of {name} in {framework}, {precision}: built, checked, finite, as its name says",
                framework,
                "test_modes.py",
                f"{framework}-{name}-{precision}-",
                in_company=True,
            )
            for precision, name, framework in itertools.product(PRECISIONS, use_case_names(), FRAMEWORKS)
            if not why_not_precision(use_case(name), precision)
        ),
        *(
            Step(
                name=f"{benchmark}-{number}",
                what=f"a short pair of {benchmark}, use case {number}: both frameworks, checks, parity gate, NVML",
                command=of_main(
                    *("--benchmark", benchmark, "--use_case", str(number), *OF_PAIRS[number]),
                    *itertools.chain.from_iterable(("--execution_mode", mode) for mode in modes),
                    *("--quick", "--data", "sample", "--wait", *of_file),
                ),
                limit_s=180,
                variables={"WANDB_MODE": "disabled"},
                clean_up=of_main("cancel"),
            )
            for (benchmark, number), modes in PAIRS.items()
        ),
        Step(name="report", what="the report of these pairs", command=of_main("report"), limit_s=120, leaves_s=0),
    ]


def identity_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a step that has passed to count: the kind of GPU, and all that was tried on it."""
    return {
        "GPU": environment["gpu"]["name"],
        "driver": environment["gpu"]["driver_version"],
        "packages": environment["packages"],
        "code": {framework: code_digests(framework) for framework in FRAMEWORKS},
    }


class Runner:
    """Runs steps, prints a line for each, and keeps the names of those that passed in progress.json."""

    def __init__(self, folder: Path, deadline_s: float, identity: Mapping[str, Any]) -> None:
        self.ended: dict[str, Ended] = {}
        self._folder, self._deadline_s, self._identity = folder, deadline_s, identity
        self._progress = folder / "progress.json"
        self._running: list[subprocess.Popen[bytes]] = []
        before: Any = {}
        if self._progress.exists():
            with suppress(ValueError):
                before = json.loads(self._progress.read_text())
            before = before if isinstance(before, dict) else {}
            if changed := [name for name, value in identity.items() if before.get(name) != value]:
                print(f"From the beginning: not the same as the last time: {', '.join(changed)}")
                before = {}
        self._passed: list[str] = before.get("passed", [])

    def run(self, steps: Sequence[Step], at_a_time: int) -> None:
        """Those that did not pass before; the report always."""
        with ThreadPoolExecutor(at_a_time) as pool:
            started = {}
            try:
                for step in steps:
                    if step.name in self._passed and step.leaves_s:
                        self._note(step, Ended(outcome="passed", words="before"))
                    else:
                        started[pool.submit(self._run, step)] = step
                for future in as_completed(started):
                    self._note(started[future], future.result())
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in self._running:
                    process.terminate()
                raise

    def _note(self, step: Step, ended: Ended) -> None:
        self.ended[step.name] = ended
        if ended.outcome == "passed" and step.name not in self._passed:
            self._passed.append(step.name)
            content = {**self._identity, "passed": self._passed}
            write_atomically(self._progress, json.dumps(content, indent=1), replace=True)
        took = f"{ended.seconds:.0f} s" if ended.seconds else ""
        print(f"  {ended.outcome:<13}{took:>7}  {step.name:<32}{ended.words}".rstrip(), flush=True)

    def _run(self, step: Step) -> Ended:
        """By coreutils' timeout, which ends all that the step has started in its process group."""
        start_s = monotonic()
        left_s = self._deadline_s - start_s - step.leaves_s
        if left_s < SHORTEST_S and step.leaves_s:
            return Ended(outcome="not run", words="no time was left")
        limit_s, log = min(step.limit_s, max(left_s, SHORTEST_S)), self._folder / f"{step.name}.log"
        command = ("timeout", "--kill-after=10", f"{limit_s:.1f}", *step.command)
        with log.open("wb") as output:
            output.write(f"$ {shlex.join(step.command)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | step.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.append(process)
            status = process.wait()
            self._running.remove(process)
        seconds = monotonic() - start_s
        if status and step.clean_up:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(step.clean_up, cwd=REPOSITORY, capture_output=True, timeout=60)
        if status in TIMED_OUT:
            return Ended(outcome="not finished", seconds=seconds, words=f"after {limit_s:.0f} s; log: {log}")
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        counts = lines[-1].strip("= ")[:200] if step.is_test and len(lines) > 1 else ""
        if status == 0:
            return Ended(outcome="passed", seconds=seconds, words=counts)
        details = tuple(line[:300] for line in lines if NAMES_A_FAILURE.match(line))
        words = f"{counts or f'exit status {status}'}; log: {log}"
        return Ended(outcome="failed", seconds=seconds, words=words, details=details)


TIMED_OUT = (124, -9)
"""timeout's own exit status, and that of a timeout that had to kill."""


def _conclude(steps: Sequence[Step], ended: Mapping[str, Ended], results: Results) -> int:
    """What passed and what did not, and what to send. Returns the exit status."""
    of_all = {step.name: ended.get(step.name, Ended(outcome="not run")) for step in steps}
    passed = [name for name, one in of_all.items() if one.outcome == "passed"]
    print(f"\n{len(passed)} of {len(of_all)} steps have passed: {', '.join(passed) or 'none'}")
    for name, one in of_all.items():
        if one.outcome != "passed":
            print(f"  {one.outcome}: {name}{': ' if one.words else ''}{one.words}")
            for line in one.details:
                print(f"      {line}")
    if len(passed) < len(of_all):
        print("The same command does again what has not passed, and nothing else.")
    for line in record_lines(results):
        print(line)
    print(f"Logs, versions and progress: {results.gpu_check}")
    there = [path.name for path in (results.gpu_check, results.records(), results.report) if path.exists()]
    words = ["tar", "czf", "gpu-check.tar.gz", "-C", str(results.root), *there]
    print(f"To send, as one file: {shlex.join(words)}")
    return 0 if len(passed) == len(of_all) else 1


def record_lines(results: Results) -> Iterator[str]:
    """How many measurements came to which end, and what is not as it should be: a refusal makes no pair fail."""
    records = []
    for path in sorted(results.records().rglob("*.json")):
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
