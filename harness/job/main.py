"""The command line of a job, and of both runners' run.py: a job by hand or from main.py, or one rank of a measurement.

    python -m harness.job --benchmark cifar10 --use_case 3             both frameworks, in turn
    python jax_runner/run.py --benchmark cifar10 --use_case 3          one of them
    python -m harness.job --job-folder DIR                             from main.py: DIR/plan.json is what runs

It imports no framework, except where it is a rank.
"""

import argparse
import ctypes
import os
import re
import shutil
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from pydantic import ValidationError

from harness.errors import ConfigError, ProjectError
from harness.experiments.flags import add_narrowing_flags
from harness.job.caches import in_use
from harness.job.children import JOB_SIGNALS, cannot_start
from harness.job.job import EXIT_STOPPED, Job, Stopped
from harness.job.slurm_step import may_be_requeued, note_gpu_slot, take_gpu_slot
from harness.job.turn import keep_busy
from harness.measure.channel import Channel, ChildTask
from harness.measure.clock import NO_TURNS
from harness.measure.other_cpu_load import busy_machine
from harness.measure.process import run_child
from harness.measure.turns import Turns
from harness.measure.world import World
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import FRAMEWORKS, Framework, Pair
from harness.plan_file import read_plan, write_plan
from harness.printable import printable, shortened
from harness.removed import answers_to_flags
from harness.results.cpus import thread_variables, usable_cpus
from harness.results.environment import CACHE_FOLDERS
from harness.results.environment_variables import require_nothing_refused, unset_steering
from harness.results.record import WeightsIdentity
from harness.work import datasets
from harness.work.declared import benchmark
from harness.work.pretrained import verify_weights

PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXIT_USAGE = 2


def main(framework: Framework | None = None, arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 a measurement failed, 2 usage, 75 stopped early. `framework`: the only one."""
    parsed = _parse_arguments(framework, arguments)
    if parsed.rank is not None and framework is not None:
        return _run_rank(framework, parsed.rank)
    note_gpu_slot()
    try:
        return _run_job(framework, parsed)
    except Stopped as stopped:
        pass_on(stopped)
        return EXIT_STOPPED


def pass_on(stopped: Stopped) -> None:
    """To submitit, in whose worker a submitted job runs: by this signal it puts the job back into the queue, unless
    Slurm may not (`cluster.requeue: false`). The job had to end in order first."""
    if stopped.number == signal.SIGUSR2 and callable(signal.getsignal(signal.SIGUSR2)) and may_be_requeued():
        signal.raise_signal(signal.SIGUSR2)


def _run_job(framework: Framework | None, parsed: argparse.Namespace) -> int:
    try:
        require_nothing_refused(os.environ)
        if not parsed.job_folder and (warning := busy_machine()):
            print(warning, flush=True)
        pair, folder, results = _plan_of(framework, parsed)
        source = benchmark(pair.cell.benchmark).data
        first = pair.jobs[0]
        identity = datasets.verify(source, first.data, Path(first.data_dir))  # once, not in every process
        return Job(pair, folder, results, data=identity, weights=verified_weights(pair)).run()
    except ProjectError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return EXIT_USAGE


def verified_weights(pair: Pair) -> dict[str, WeightsIdentity]:
    """By model; none where they are drawn. Raises DataError."""
    plans = [plan for plan in pair.jobs if plan.settings.get("weights") == "pretrained"]
    models = dict.fromkeys((variant.model, plan.data_dir) for plan in plans for variant in plan.variants)
    return {model: verify_weights(pair.cell.benchmark, model, Path(data_dir)) for model, data_dir in models}


def _run_rank(framework: Framework, place: str) -> int:
    """One rank of one measurement. `place`: its number on this machine, or `slurm` for a task of a step."""
    signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    die_with_parent()
    if place == "slurm":
        take_gpu_slot()
    keep_busy()
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is for the log
    try:
        task = ChildTask.model_validate_json(sys.stdin.buffer.readline())
    except ValidationError:
        print("error: --rank is how a job starts its own processes: the task comes in on stdin", file=sys.stderr)
        return EXIT_USAGE
    if place == "slurm":
        end_with_stdin()
    try:
        world = task.world.of_slurm_task(os.environ) if place == "slurm" else task.world.of_local_rank(int(place))
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    channel = Channel(events, world.rank)
    unset = unset_steering(os.environ)  # `setup` may have loaded a module that exports them
    os.environ.update(threads_of_rank(world, of_slurm=place == "slurm"))
    caches = Path(task.caches) / str(world.rank)
    with ExitStack() as stack:
        try:
            if not task.caches_kept:
                shutil.rmtree(caches, ignore_errors=True)  # of a rank that was killed
            caches.mkdir(parents=True, exist_ok=True)
            stack.enter_context(in_use(caches.parent))
        except OSError as error:
            channel.error("failed", cannot_start(error))
            return 0
        if not task.caches_kept:
            stack.callback(shutil.rmtree, caches, ignore_errors=True)
        try:
            require_nothing_refused(os.environ)
        except ConfigError as error:
            channel.error("failed", str(error))
            return 0
        os.environ.update(cache_variables(caches, kept=task.caches_kept))
        turns = NO_TURNS if task.in_turns is None else Turns(channel, sys.stdin.buffer, task.in_turns)
        return run_child(framework, task.model_copy(update={"world": world}), channel, turns, unset=unset)


def end_with_stdin() -> None:
    """From now on this process is killed when nobody can write to its stdin any more: its job has gone, or has given it
    up. What it starts has an empty stdin."""
    stdin = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(stdin, 4096):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def die_with_parent() -> None:
    """Never outlive it and hold the GPU."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def threads_of_rank(world: World, *, of_slurm: bool) -> dict[str, str]:
    """Return the variables with the number of a rank's threads. A task of a step has the CPUs that Slurm gives it."""
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if not of_slurm:
        return thread_variables(world.size)
    return thread_variables(1, min(usable_cpus(), int(cpus)) if cpus.isdecimal() and int(cpus) else None)


def cache_variables(folder: Path, *, kept: bool) -> dict[str, str]:
    """All compilers' caches in one folder: an empty one makes compile times cold in both frameworks.

    Args:
        kept: another rank will use the caches. JAX is then told to keep every program, as Inductor always does. Else
            JAX's cache is off, which is its default.
    """
    return {name: str(folder / cache) for name, cache in CACHE_FOLDERS.items()} | {
        "JAX_ENABLE_COMPILATION_CACHE": "true" if kept else "false",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def count(text: str) -> int:
    """Plain digits; Python's own int() takes `1_0` and the digits of other scripts."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{shortened(text) or repr(text)}: must be a whole number of at least 0")
    return int(text)


def rank_place(text: str) -> str:
    return text if text == "slurm" else str(count(text))


def _parse_arguments(framework: Framework | None, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{framework}_runner/run.py" if framework else "python -m harness.job",
        description=f"Measure one cell of experiments.yaml with {framework or 'both frameworks, in turn'}, here and "
        f"now.",
        epilog="Example: %(prog)s --benchmark cifar10 --use_case 3 --data sample --quick",
        allow_abbrev=False,
    )
    parser.add_argument("--benchmark", help="a name under `benchmarks` in experiments.yaml")
    parser.add_argument("--use_case", "--use-case", type=count, help="a number under `use_cases`")
    parser.add_argument(
        "--gpu", default="any", help="a name under `gpus` (default: any); by hand a label, but `cpu` hides GPUs"
    )
    add_narrowing_flags(
        lambda flag, **options: parser.add_argument(*dict.fromkeys((flag, flag.replace("_", "-"))), **options)
    )
    parser.add_argument("--data", choices=("real", "sample"), default="real", help="sample needs no download")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few steps, one replicate")
    parser.add_argument("--force", action="store_true", help="measure again what has a good record")
    parser.add_argument("--full", action="store_true", help="every mode in all replicates, without a screening")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "experiments.yaml", metavar="FILE")
    parser.add_argument("--cluster", metavar="NAME", help="lay clusters/NAME.yaml over that file")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", metavar="DIR")
    parser.add_argument("--job-folder", type=Path, metavar="DIR", help="run DIR/plan.json (main.py uses this)")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="run this plan")
    parser.set_defaults(interleaved=False)
    if framework is None:
        parser.add_argument("--interleaved", action="store_true", help="their processes take turns, block by block")
    parser.add_argument("--rank", type=rank_place, metavar="N", help=argparse.SUPPRESS)
    words = sys.argv[1:] if arguments is None else arguments
    if removed := answers_to_flags(words, parser._option_string_actions):
        parser.error(removed)
    parsed = parser.parse_args(words)
    is_cell = parsed.benchmark is not None and parsed.use_case is not None
    if not (is_cell or parsed.job_folder or parsed.plan or parsed.rank is not None):
        parser.error("--benchmark and --use_case are needed, such as --benchmark cifar10 --use_case 3")
    return parsed


def _plan_of(framework: Framework | None, parsed: argparse.Namespace) -> tuple[Pair, JobFolder, Results]:
    """The frozen plan of a submitted job; or in a job folder of its own that of --plan, or one made now from
    experiments.yaml."""
    results = Results(root=parsed.results.resolve())
    job_folder = JobFolder(root=parsed.job_folder.resolve()) if parsed.job_folder else None
    frozen = job_folder.plan if job_folder else parsed.plan
    pair = read_plan(frozen) if frozen else _plan_by_flags(framework, parsed)
    if framework is not None and pair.frameworks != (framework,):
        found = " and ".join(pair.frameworks)
        program = f"{found}_runner/run.py" if len(pair.jobs) == 1 else "python -m harness.job"
        raise ConfigError(f"{frozen}: is a plan for {found}. Run it with {program}.")
    if job_folder is None:
        job_folder = results.new_job_folder(pair)
        write_plan(pair, job_folder)
    return pair, job_folder, results


def _plan_by_flags(framework: Framework | None, parsed: argparse.Namespace) -> Pair:
    from harness.experiments.expand import Selection, expand
    from harness.experiments.load import load_config
    from harness.experiments.narrow import narrowing_of
    from harness.experiments.profile import profile_of

    selection = Selection(
        gpus=(parsed.gpu,),
        benchmarks=(parsed.benchmark,),
        use_cases=(parsed.use_case,),
        frameworks=FRAMEWORKS if framework is None else (framework,),
        data=parsed.data,
        quick=parsed.quick,
        force=parsed.force,
        narrowing=narrowing_of(parsed),
        full=parsed.full,
    )
    config = load_config(parsed.config, profile_of(parsed.cluster) if parsed.cluster else None)
    if len(selection.narrowing.devices) > 1:
        raise ConfigError("--devices: one job is on one number of devices; main.py submits a job for each")
    [pair] = expand(config, selection)
    if parsed.interleaved and (reason := pair.why_not_interleaved):
        raise ConfigError(f"--interleaved: {pair.cell.name}: {reason}. Leave the flag out.")
    return pair.model_copy(update={"is_interleaved": parsed.interleaved})
