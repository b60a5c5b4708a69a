"""From a job's plan to the text of its Slurm script. Rendering is pure; write_scripts touches the disk."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ProjectError
from harness.experiments.model import NO_GRES, UNTYPED, AskedOfSlurm, Config
from harness.paths import REPOSITORY, script_in_folder, script_path
from harness.plan import Cell, Pair
from pipeline.submission.queue_job import QueueJob, pairs_of

if TYPE_CHECKING:
    import jinja2

PLAIN_IN_A_HEADER = re.compile(r"[\w%+,./:=@|&*\[\]()-]*")
"""What sbatch takes without quotes."""

FILES_AT_ONCE = 16
"""Each costs some round trips to a network file system."""


def render_script(
    pair: Pair,
    config: Config,
    *,
    config_path: Path,
    results: Path,
    repository: Path = REPOSITORY,
    templates: Path = REPOSITORY / "templates",
) -> str:
    """The script of one job, ready for `sbatch`, for `bash` and for submitit.

    Raises:
        ProjectError: a template is missing, is not valid, or uses a variable that it is not given.
    """
    has_both = len(pair.jobs) > 1
    arguments = run_arguments(
        pair, config_path=config_path, results=results, repository=repository, cluster=config.profile
    )
    program = ["-m", "harness.job"] if has_both else [f"{pair.frameworks[0]}_runner/run.py"]
    header = header_variables(pair.name, pair.cell, config, results=results)
    variables = header | _what_runs(program, arguments, repository) | {"is_calibration": pair.cell.is_calibration}
    return _render(templates, f"{'pair' if has_both else pair.frameworks[0]}.sh.j2", variables)


def render_node(
    job: QueueJob, config: Config, *, results: Path, repository: Path, templates: Path = REPOSITORY / "templates"
) -> str:
    """Return the script of a job that has a whole node, and measures a cell on each of its GPUs.

    Raises ProjectError as render_script does.
    """
    one_gpu = job.pairs[0].cell
    whole_node = one_gpu.model_copy(update={"devices": job.gpus, "nodes": 1})
    header = header_variables(job.name, whole_node, config, results=results)
    variables: dict[str, Any] = {
        "memory_gb": 0,
        "sbatch_options": tuple(dict.fromkeys((*header["sbatch_options"], "--exclusive"))),
        "plans": [str(plan_path(pair, repository)) for pair in job.pairs],
        "gres_of_step": header_variables(job.name, one_gpu, config, results=results)["gres"],
    }
    arguments = ["--results", str(results.absolute())]
    runs = _what_runs(["-m", "harness.job"], arguments, repository)
    return _render(templates, "node.sh.j2", header | variables | runs)


def _what_runs(program: Sequence[str], arguments: Sequence[str], repository: Path) -> dict[str, Any]:
    own = {"repository": str(repository), "python": sys.executable or "python3"}
    return own | {"program": program, "arguments": arguments, "is_calibration": False}


ONE_VALUE = tuple(key for key, field in AskedOfSlurm.model_fields.items() if field.default is None)
"""What a kind of GPU has in place of the cluster's; its lists are added."""


def header_variables(name: str, cell: Cell, config: Config, *, results: Path) -> dict[str, Any]:
    """All that a cell asks of Slurm, for one task per device. `name`: of the plan or pair."""
    cluster, gpu = config.cluster, config.gpus[cell.gpu]
    tasks_per_node = cell.devices // cell.nodes
    asked = {key: getattr(cluster if getattr(gpu, key) is None else gpu, key) for key in ONE_VALUE}
    kind = gpu.gres_type(cell.gpu)
    gres = f"gpu:{tasks_per_node}" if kind == UNTYPED else f"gpu:{kind}:{tasks_per_node}"
    return {
        "job_name": job_name(name),
        **asked,
        "cpus_of_job": asked["cpus_per_task"],
        "nodes": cell.nodes,
        "tasks_per_node": tasks_per_node,
        "gres": None if cell.is_for_cpu or kind == NO_GRES else gres,
        "sbatch_options": cluster.sbatch_options + gpu.sbatch_options,
        "cluster_setup": cluster.setup + gpu.setup,
        "requeue": cluster.requeue,
        "site_file": config.site_file if config.profile else None,
        # `%` is Slurm's own; `%x` and `%j` are the name and number of the job.
        "output": str(by_hand_logs(results)).replace("%", "%%") + "/%x-%j.out",
    }


def time_limits(cells: Iterable[Cell], config: Config) -> list[int | None]:
    """In minutes; None is the partition's own."""
    return [header_variables("", cell, config, results=Path())["time_limit_minutes"] for cell in cells]


def run_arguments(
    pair: Pair, *, config_path: Path, results: Path, repository: Path, cluster: str | None = None
) -> list[str]:
    """By hand; a flag that would only say the default is left out. `cluster`: whose profile it is."""
    plan = pair.jobs[0]
    if pair.cell.is_calibration:  # which flags cannot say
        arguments = ["--plan", str(plan_path(pair, repository))]
    else:
        arguments = ["--benchmark", plan.cell.benchmark, "--use_case", str(plan.cell.use_case)]
        if plan.cell.gpu != "any":
            arguments += ["--gpu", plan.cell.gpu]
        if plan.data != "real":
            arguments += ["--data", plan.data]
        if plan.quick:
            arguments += ["--quick"]
        if plan.force:
            arguments += ["--force"]
        arguments += _flags(pair)
        if plan.full:
            arguments += ["--full"]
        if pair.is_interleaved:
            arguments += ["--interleaved"]
        arguments += _unless_default("--config", config_path, repository, "experiments.yaml")
        arguments += ["--cluster", cluster] if cluster else []
    return arguments + _unless_default("--results", results, repository, "results")


def _flags(pair: Pair) -> Iterator[str]:
    """Those of both plans, each with its value: where the frameworks' modes differ, each finds its own among them."""
    flags = (flag for plan in pair.jobs for flag in zip(plan.flags[::2], plan.flags[1::2], strict=True))
    return chain.from_iterable(dict.fromkeys(flags))


@cache  # the same for thousands of scripts, as the two below
def _unless_default(flag: str, path: Path, repository: Path, default: str) -> list[str]:
    return [] if path.absolute() == repository / default else [flag, str(path.absolute())]


@cache
def folder_of_scripts(repository: Path) -> Path:
    return repository / "slurm_scripts"


def plan_path(pair: Pair, repository: Path) -> Path:
    """Return where the plan of a calibration, or of a cell that shares a node, is written: beside its script."""
    return script_path(pair.name, folder_of_scripts(repository)).with_suffix(".json")


def job_name(name: str) -> str:
    """Of `a100/jax_cifar10_3` it is `jax_cifar10_3_a100`, of `any/jax_cifar10_3` no more than `jax_cifar10_3`: what
    squeue shows."""
    gpu, _, short = name.partition("/")
    return short if gpu == "any" else f"{short}_{gpu}"


@cache
def by_hand_logs(results: Path) -> Path:
    """Where the output of a script goes that somebody submits with `sbatch`. Slurm makes no folders."""
    return results.absolute() / "slurm"


def write_scripts(
    jobs: Sequence[QueueJob],
    config: Config,
    *,
    config_path: Path,
    results: Path,
    repository: Path = REPOSITORY,
    templates: Path = REPOSITORY / "templates",
) -> dict[str, Path]:
    """Writes the script of every whole node, of every pair, and of each framework of a pair, and returns them by the
    name of the job, pair or plan.

    Raises:
        ProjectError: as render_script, or a folder that cannot be written.
    """
    texts: dict[str, str] = {}
    plans: dict[str, str] = {}
    for pair in pairs_of(jobs):
        alone = [pair.model_copy(update={"jobs": (plan,), "is_interleaved": False}) for plan in pair.jobs]
        for one in alone if len(pair.jobs) == 1 else [*alone, pair]:
            if one.cell.is_calibration:
                plans[str(plan_path(one, repository))] = one.model_dump_json(indent=1)
            texts[one.name] = render_script(
                one, config, config_path=config_path, results=results, repository=repository, templates=templates
            )
    for job in jobs:
        if job.gpus is not None:
            plans |= {str(plan_path(pair, repository)): pair.model_dump_json(indent=1) for pair in job.pairs}
            texts[job.name] = render_node(job, config, results=results, repository=repository, templates=templates)
    folder = folder_of_scripts(repository)
    scripts = {name: script_path(name, folder) for name in texts}
    try:
        by_hand_logs(results).mkdir(parents=True, exist_ok=True)
        for parent in {script_in_folder(name).rpartition("/")[0] for name in texts}:
            (folder / parent).mkdir(parents=True, exist_ok=True)
        files = {str(scripts[name]): text for name, text in texts.items()} | plans
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(_replace, files, files.values()))
    except OSError as error:
        raise ProjectError(
            f"{error.filename or folder}: cannot be written: {error.strerror}; "
            f"scripts go to {folder}, results to {results} (another with --results DIR)"
        ) from error
    return scripts


def _replace(path: str, text: str) -> None:
    """A new file under the old name: bash reads a script while it runs it, so one in use is never changed. One that is
    the same is left alone."""
    content = text.encode()
    with suppress(FileNotFoundError):
        if Path(path).read_bytes() == content:
            return
    temporary = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.tmp")
    mode = 0o755 if text.startswith("#!") else 0o644
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@cache
def _environment(templates: Path) -> "jinja2.Environment":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        auto_reload=False,  # it would look at every file before every script
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML; values are quoted by the filters below
    )
    environment.filters["shell"] = shlex.quote
    environment.filters["shell_join"] = shlex.join
    environment.filters["sbatch"] = quote_for_sbatch
    return environment


def _render(templates: Path, name: str, variables: dict[str, Any]) -> str:
    import jinja2

    try:
        return _environment(templates).get_template(name).render(variables, template=name)
    except jinja2.UndefinedError as error:
        # Jinja names the variable only; the traceback's last frame in a template has its file and line.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
        where = f"{Path(frames[-1].filename)}:{frames[-1].lineno}" if frames else name
        raise ProjectError(f"{where}: {error.message}; a template may use {', '.join(variables)}") from error
    except jinja2.TemplateSyntaxError as error:
        where = error.filename or error.name or name
        raise ProjectError(f"{where}:{error.lineno}: not a valid template: {error.message}") from error
    except jinja2.TemplateNotFound as error:
        raise ProjectError(f"{templates}: there is no template {error.name}") from error


def quote_for_sbatch(option: str) -> str:
    """A value, or `--name=value`, for an #SBATCH line, which sbatch splits at blanks and cuts at `#`."""
    name, equals, value = option.partition("=") if option.startswith("--") else ("", "", option)
    if not equals and option.startswith("--"):
        return option
    if not PLAIN_IN_A_HEADER.fullmatch(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}{equals}{value}"
