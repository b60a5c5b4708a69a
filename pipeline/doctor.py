"""`main.py doctor`: what works here, and the fix of what does not.

Each framework is asked in a process of its own, by the interpreter that jobs use; this one imports neither. What probes
and Slurm answer, and what the machine shows, is judged by pure functions, each into lines of one table.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import DataError
from harness.experiments.model import Config
from harness.job.launch import command_of
from harness.measure.gpu import Gpu, open_gpu
from harness.paths import REPOSITORY, Results
from harness.plan import FRAMEWORKS, Framework
from harness.results.environment import describe_cpu, load_average
from harness.results.flags import KNOWN_SLOW_JAXLIB
from harness.results.installed import lock_words
from pipeline.builds import INSTALL_FOR_CUDA
from pipeline.compute_checks import examine_compute
from pipeline.doctor_slurm import examine_slurm
from pipeline.finding import Finding, Verdict

if TYPE_CHECKING:
    from rich.console import Console

Answer = Mapping[str, Any]
"""What a probe found, or {"error": why it found nothing}."""
PROBE_TIMEOUT_S = 120.0
"""The first import of a framework from a cold network file system takes a minute or more."""
DRIVER_OF_CUDA_12, DRIVER_OF_CUDA_13 = 525, 580
LITTLE_ROOM_GB, FEW_FILES, MANY_FILES = 2.0, 10_000, 10**9
"""An environment is 6 GB in 44,000 files, a measurement a few files, and a compiler's cache some hundred."""

JOB_PACKAGES = ("numpy", "pydantic", "pynvml", "submitit", "wandb", "yaml")
"""What the harness imports in a job, so what each framework's interpreter needs besides the framework."""

COMMON_PROBE = f"""
import importlib.metadata, importlib.util, json, os, platform, shlex, shutil, sysconfig
from contextlib import suppress
from pathlib import Path
from harness.results.installed import describe_installed
def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
missing = [name for name in {JOB_PACKAGES!r} if importlib.util.find_spec(name) is None]
def answer(**found):
    found |= {{"python": platform.python_version(), "missing": missing, "lock": describe_installed()["lock"]}}
    print(json.dumps(found))
"""
PROBES = {
    "jax": COMMON_PROBE
    + """
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX for CUDA 13 crashes without a driver (jax-ml/jax issue 39101)
import jax, flax, optax
devices = jax.devices()
is_gpu = devices[0].platform == "gpu"
plugins = [n for n in (12, 13, 14) if importlib.util.find_spec(f"jax_cuda{n}_plugin")]
cudnn = None
if is_gpu:
    try:
        from jax._src.lib import cuda_versions
        cudnn = cuda_versions.cudnn_get_version()
    except Exception:
        pass
answer(
    cuda=plugins[-1] if plugins else None,
    version=jax.__version__, gpus=[d.device_kind for d in devices if is_gpu], built_for_gpu=bool(is_gpu or plugins),
    jaxlib=version_of("jaxlib"), cudnn=cudnn,
    cudnn_package=version_of(f"nvidia-cudnn-cu{plugins[-1]}") if plugins else None,
)
""",
    "torch": COMMON_PROBE
    + """
import torch
count = 0
if torch.cuda.is_available():
    torch.cuda.init()  # before it PyTorch counts the boards that NVML has, and of several with slices CUDA shows one
    count = torch.cuda.device_count()
gpus = [torch.cuda.get_device_name(i) for i in range(count)]
cuda = torch.version.cuda
compilers = [shlex.split(os.environ["CC"])[0]] if os.environ.get("CC") else ["gcc", "clang"]
headers = Path(sysconfig.get_path("include"))
answer(
    cuda=cuda, version=torch.__version__, gpus=gpus, built_for_gpu=cuda is not None,
    cudnn=torch.backends.cudnn.version() if gpus else None,
    cudnn_package=version_of("nvidia-cudnn-cu" + cuda.split(".")[0]) if cuda else None,
    compilers=compilers, compiler=next(filter(None, map(shutil.which, compilers)), None),
    headers=str(headers), has_headers=(headers / "Python.h").exists(),
)
""",
}
"""A compiler is looked for as Triton does (triton/runtime/build.py): CC, else gcc or clang; `cc` it does not know."""
COMPILER_FIX = (
    "Every compiled mode of PyTorch needs a C compiler and Python.h. `module load gcc` under "
    "cluster.frameworks.torch.setup, or CC=/path/to/gcc; and python3-dev, or a Python that brings its headers."
)
INSTALL = f"{INSTALL_FOR_CUDA} (LOCK=cuda12 for drivers before {DRIVER_OF_CUDA_13}; without a GPU LOCK=cpu)"
WANDB_PROBE = """
import json, wandb
from wandb.sdk.lib import wbauth
url = wandb.setup().settings.base_url
found = wbauth.authenticate_session(host=url, source="doctor", prompt=False, update_session=False)
print(json.dumps({"version": wandb.__version__, "url": url, "key": found is not None}))
"""
"""Reads the key where the client would (variable, netrc, settings); asks no server."""

STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    config: Config,
    results: Results | None = None,
    *,
    slurm: bool = True,
    compute: bool = False,
    console: "Console | None" = None,
) -> int:
    """Prints the table and a last line. 1 if a job could not run as experiments.yaml stands, else 0.

    Args:
        slurm: whether jobs are to go there, if it is there.
        compute: whether each framework is to compile and compute something, which takes a minute or more.
    """
    from rich.console import Console

    console = console or Console()
    with console.status("looking"):
        findings = examine(config, results or Results(root=REPOSITORY / "results"), slurm=slurm, compute=compute)
    _print_table(findings, console)
    console.print(last_line(findings, computed=compute), soft_wrap=True, highlight=False, markup=False)
    return exit_status(findings)


def examine(config: Config, results: Results, *, slurm: bool = True, compute: bool = False) -> list[Finding]:
    """`compute`: also what each framework compiles and computes, one after the other, as they share a GPU's memory."""
    answers: dict[Framework, Answer] = {name: _ask_framework(config, name, PROBES[name]) for name in FRAMEWORKS}
    gpu = open_gpu()
    device = gpu.describe()
    sees = device["name"] if isinstance(gpu, Gpu) else None
    return [
        Finding("python", "ok", f"{platform.python_version()}, {sys.executable}"),
        *(judge_framework(name, answers[name], sees) for name in FRAMEWORKS),
        *(finding for name in FRAMEWORKS for finding in judge_versions(name, answers[name])),
        *judge_locks(answers),
        *judge_compiler(answers["torch"]),
        *(examine_compute(config, name) for name in FRAMEWORKS if compute and "error" not in answers[name]),
        judge_nvml(device),
        *judge_driver(device, answers),
        judge_machine(describe_cpu(), load_average()),
        *(examine_slurm(config) if slurm else ()),
        examine_wandb(config),
        *examine_data(config.benchmarks, Path(config.data_dir)),
        examine_results(results),
        examine_room(results),
    ]


def last_line(findings: Iterable[Finding], *, computed: bool) -> str:
    """What all of them come to, and how to look closer."""
    wrong = {verdict: [one.name for one in findings if one.verdict == verdict] for verdict in ("problem", "warning")}
    if wrong["problem"]:
        return f"To be corrected: {', '.join(wrong['problem'])}. The table has the fix of each."
    closer = "" if computed else " `python main.py doctor --compute` also compiles and computes in each framework."
    if wrong["warning"]:
        return f"No check failed. Warnings: {', '.join(wrong['warning'])}.{closer}"
    return f"All checks passed.{closer}"


def exit_status(findings: Iterable[Finding]) -> int:
    """One framework alone can still be measured, so a missing one is no failure; both missing are."""
    problems = {finding.name for finding in findings if finding.verdict == "problem"}
    return int(bool(problems - set(FRAMEWORKS)) or problems >= set(FRAMEWORKS))


# ---- the frameworks


def judge_framework(name: str, answer: Answer, nvml_sees: str | None) -> Finding:
    if "error" in answer:
        fix = f"{INSTALL}, or name its interpreter, or its container, under cluster.frameworks.{name}."
        return Finding(name, "problem", answer["error"], fix)
    gpus = answer["gpus"]
    devices = ", ".join(f"{gpus.count(kind)} x {kind}" for kind in dict.fromkeys(gpus)) or "CPU only"
    found = f"{answer['version']} on Python {answer['python']}: {devices}"
    if answer["missing"]:
        fix = f"Install this project in the same environment: {INSTALL}."
        return Finding(name, "problem", f"{found}; without {', '.join(answer['missing'])}", fix)
    if gpus:
        return Finding(name, "ok", found)
    if not answer["built_for_gpu"]:
        return Finding(name, "warning", f"{found}; this build cannot use a GPU", f"For GPUs: {INSTALL}.")
    if nvml_sees:
        fix = "Its CUDA libraries want a newer driver, or CUDA_VISIBLE_DEVICES or JAX_PLATFORMS hides the GPU."
        return Finding(name, "warning", f"{found}, though NVML sees {nvml_sees}", fix)
    return Finding(name, "ok", f"{found} here; this build can use a GPU")


def judge_versions(name: str, answer: Answer) -> list[Finding]:
    """What the versions of a framework's libraries say; nothing where all is well."""
    findings = []
    if (jaxlib := answer.get("jaxlib")) in KNOWN_SLOW_JAXLIB and answer["built_for_gpu"]:
        found = f"jaxlib {jaxlib} has a scatter-add on GPUs that is 450 to 2000 times too slow (openxla/xla#46225)"
        fix = f"Use 0.11.1 or later, which needs Python 3.12: {INSTALL_FOR_CUDA}. "
        fix += "Until then, records of JAX are flagged and compared with nothing."
        findings.append(Finding("jaxlib", "warning", found, fix))
    loaded, package = answer.get("cudnn"), answer.get("cudnn_package")
    if loaded and package and cudnn_words(loaded) != ".".join(package.split(".")[:3]):
        found = f"{name} has loaded {cudnn_words(loaded)}, and the installed package is {package}"
        fix = "Another CUDA comes first in LD_LIBRARY_PATH. Unset it, or `module unload cuda` in the framework's setup."
        findings.append(Finding(f"cudnn of {name}", "warning", found, fix))
    return findings


def judge_locks(answers: Mapping[Framework, Answer]) -> list[Finding]:
    """Of each framework's environment; one finding where both say the same."""
    locks = {f"lock of {name}": answer["lock"] for name, answer in answers.items() if "lock" in answer}
    if len(locks) > 1 and len({json.dumps(lock) for lock in locks.values()}) == 1:
        locks = {"lock": next(iter(locks.values()))}
    return [judge_lock(name, lock) for name, lock in locks.items()]


def judge_lock(name: str, lock: Mapping[str, Any] | None) -> Finding:
    """`lock` is that of `describe_installed`."""
    if lock is None:
        found = f"none: other places and days have other versions. `{INSTALL_FOR_CUDA}` (cuda12, cpu) installs one"
        return Finding(name, "ok", found)
    if lock["matching"] == lock["packages"]:
        return Finding(name, "ok", lock_words(lock))
    more = lock["packages"] - lock["matching"] - len(lock["others"])
    others = ", ".join([*lock["others"], *([f"and {more} more"] if more else [])])
    fix = "`make -B env` installs the lock's versions again; what the lock does not have goes by a new environment "
    fix += "(remove this one first). Without a lock: make env LOCK=none."
    return Finding(name, "warning", f"{lock_words(lock)}; not {others}", fix)


def cudnn_words(version: int) -> str:
    """`92600` is 9.26.0, and `8902`, as it was until 8, is 8.9.2."""
    major, rest = divmod(version, 10_000 if version >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def judge_compiler(answer: Answer) -> list[Finding]:
    """Return whether torch.compile finds what it needs, by the answer of PyTorch's probe."""
    if "error" in answer:
        return []
    missing = [] if answer["compiler"] else [f"no C compiler ({' or '.join(answer['compilers'])})"]
    missing += [] if answer["has_headers"] else [f"no Python.h in {answer['headers']}"]
    if missing:
        fix = f"{COMPILER_FIX} (Compute nodes may have what this machine lacks.)"
        return [Finding("torch.compile", "warning", "; ".join(missing), fix)]
    return [Finding("torch.compile", "ok", "a C compiler and Python.h are there")]


def _ask_framework(config: Config, name: Framework, probe: str) -> Answer:
    return ask(command_of(config.launch(name), ["-c", probe]))


def ask(command: Sequence[str], *, timeout_s: float = PROBE_TIMEOUT_S) -> Answer:
    """The JSON object that this `PYTHON -c CODE` prints as its last line, or {"error": why there is none}."""
    variables = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # leaves the GPU's memory to those who work there
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    run: dict[str, Any] = {"cwd": REPOSITORY, "env": os.environ | variables, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, **run, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer from {command[-3]} in {timeout_s:g} s"}
    except OSError as error:
        return {"error": f"{command[0]}: {error.strerror}"}
    if done.returncode == 0 and done.stdout.strip():
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer
    last_line = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return {"error": f"{command[-3]}: {last_line}"}


# ---- the machine


def judge_nvml(description: Mapping[str, Any]) -> Finding:
    """`description` is Gpu.describe() or NoGpu.describe()."""
    if "name" not in description:
        fix = "Normal on a login node. In a job, energy, clocks and process memory would be missing."
        return Finding("nvml", "warning", description["absent"], fix)
    found = f"{description['name']}, driver {description['driver_version']}"
    if refused := ", ".join(sorted(description["absent"])):
        return Finding("nvml", "warning", f"{found}; refused: {refused}")
    return Finding("nvml", "ok", found)


def judge_driver(description: Mapping[str, Any], answers: Mapping[Framework, Answer]) -> list[Finding]:
    """Return what is wrong about the driver; nothing where there is no GPU, as on a login node."""
    driver = str(description.get("driver_version", ""))
    if not driver.partition(".")[0].isdecimal():
        return []
    major = int(driver.partition(".")[0])
    if major < DRIVER_OF_CUDA_12:
        found = f"{driver} is older than CUDA 12, which needs {DRIVER_OF_CUDA_12}.60.13; no lock works with it"
        fix = f"Have the driver updated: {DRIVER_OF_CUDA_12}.60.13 for CUDA 12, {DRIVER_OF_CUDA_13} for CUDA 13. Until "
        return [Finding("driver", "problem", found, f"{fix}then only the CPU can be measured: make env LOCK=cpu.")]
    wanting = [name for name, answer in answers.items() if str(answer.get("cuda") or "").startswith("13")]
    if not wanting or major >= DRIVER_OF_CUDA_13:
        return []
    found = f"{driver}, and CUDA 13, for which {' and '.join(wanting)} is built here, needs {DRIVER_OF_CUDA_13}"
    fix = f"Install builds for CUDA 12: {INSTALL_FOR_CUDA.replace('cuda13', 'cuda12')}."
    return [Finding("driver", "problem", found, fix)]


def judge_machine(cpu: Mapping[str, Any], load: Sequence[float]) -> Finding:
    """CPU, cores and load. `cpu` is of describe_cpu."""
    cores = f"{len(cpu['affinity'])} of {cpu['count']} cores for this process, load {load[0]:.1f}"
    return Finding("machine", "ok", f"{cpu['model'] or 'CPU of unknown model'} ({platform.machine()}), {cores}")


# ---- W&B, data, results


def examine_wandb(config: Config) -> Finding:
    if config.wandb.mode == "disabled":
        return Finding("wandb", "ok", "disabled in experiments.yaml")
    return judge_wandb(config, ask([sys.executable, "-c", WANDB_PROBE], timeout_s=60))


def judge_wandb(config: Config, answer: Answer) -> Finding:
    if "error" in answer:
        fix = "Jobs run without it. pip install -e . brings it; wandb.mode: disabled silences this."
        return Finding("wandb", "warning", answer["error"], fix)
    found = f"{answer['version']}, mode {config.wandb.mode}, project {config.wandb.project}"
    if config.wandb.mode == "offline":
        return Finding("wandb", "ok", found)
    if answer["key"]:
        return Finding("wandb", "ok", f"{found}, a key for {answer['url']} is configured")
    found += f", no key for {answer['url']}: runs are kept offline"
    fix = "To stream: wandb login. To see them here: wandb leet results/wandb"
    return Finding("wandb", "warning" if config.wandb.mode == "online" else "ok", found, fix)


def examine_data(benchmarks: Iterable[str], data_dir: Path) -> list[Finding]:
    """One finding for all data sets that are as they should be, one for those that are not here, and one for each
    that is damaged or lacks pretrained weights."""
    from harness.work.datasets import DataFiles, load, verify
    from harness.work.declared import benchmark

    there, not_needed, missing, findings = [], [], [], []
    for name in benchmarks:
        declared = benchmark(name)
        if declared.data is None:
            not_needed.append(f"{name} ({declared.drawn.words if declared.drawn else 'no data'})")
            continue
        try:
            verify(declared.data, "real", data_dir)
            dataset = load(declared.data, "real", data_dir)
        except DataError as error:
            if DataFiles(data_dir=data_dir, benchmark=name).manifest.exists():
                findings.append(Finding(f"data {name}", "problem", str(error)))
            else:
                missing.append(name)
            continue
        counts = f"{dataset.train_count:,} + {dataset.test_count:,} {declared.task.samples}"
        models = [model.name for model in declared.models if model.published]
        problems = [problem for model in models if (problem := _problem_of_weights(name, model, data_dir))]
        if problems:
            found = f"{counts}, verified; pretrained weights of {len(models) - len(problems)} of {len(models)} models"
            findings.append(Finding(f"data {name}", "warning", found, "\n".join(problems)))
        else:
            there.append(f"{name} ({counts}{', with pretrained weights' if models else ''})")
    if there or not_needed:
        parts = [f"verified, in {data_dir}: {', '.join(there)}"] if there else []
        parts += [f"none needed: {', '.join(not_needed)}"] if not_needed else []
        findings.insert(0, Finding("data", "ok", "; ".join(parts)))
    if missing:
        flags = " ".join(f"--benchmark {name}" for name in missing)
        fix = f"Fetch them where there is a network: python main.py data {flags}. Or measure samples: --data sample."
        findings.append(Finding("data to fetch", "warning", f"not in {data_dir}: {', '.join(missing)}", fix))
    return findings


def _problem_of_weights(name: str, model: str, data_dir: Path) -> str | None:
    from harness.work.pretrained import verify_weights

    try:
        verify_weights(name, model, data_dir)
    except DataError as error:
        return str(error)
    return None


def examine_results(results: Results) -> Finding:
    try:
        results.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results.root):
            return Finding("results", "ok", f"{results.root} can be written")
    except OSError as error:
        found = f"{results.root} cannot be written: {error.strerror or error}"
        return Finding("results", "problem", found, "Choose another folder with --results DIR.")


def examine_room(results: Results) -> Finding:
    """Space and inodes, and what `quota` complains about where there is one."""
    places = {
        str(results.root): "--results DIR",
        sys.prefix: "`make env VENV=DIR`",
        tempfile.gettempdir(): "`export TMPDIR=DIR` under cluster.setup",
    }
    found, short = [], []
    for folder, fix in places.items():
        with suppress(OSError):
            of_folder = os.statvfs(folder)
            free_gb = of_folder.f_bavail * of_folder.f_frsize / 1e9
            free_files = of_folder.f_favail if of_folder.f_files else MANY_FILES  # no count of inodes
            found.append(f"{folder} has {free_gb:,.0f} GB and room for {free_files:,} files")
            short += [fix] if free_gb < LITTLE_ROOM_GB or free_files < FEW_FILES else []
    with suppress(OSError, subprocess.TimeoutExpired):
        over = subprocess.run(["quota", "-q"], capture_output=True, text=True, timeout=10).stdout.split()
        found += [f"quota: {' '.join(over)}"] if over else []
        short += ["less in your home"] if over else []
    fix = f"Free some, or choose others: {', '.join(short)}." if short else ""
    return Finding("room", "warning" if short else "ok", "; ".join(found), fix)


def _print_table(findings: Iterable[Finding], console: "Console") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title="What works here", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        # Text, not markup: an error message may hold brackets.
        found = Text(finding.found)
        if finding.fix:
            found.append(f"\n{finding.fix}", style="dim")
        table.add_row(finding.name, Text(finding.verdict, style=STYLES[finding.verdict]), found)
    console.print(table)
