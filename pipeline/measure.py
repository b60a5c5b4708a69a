"""`python main.py`: from what the flags select to submitted jobs; with --wait until they are over."""

import os
import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import ConfigError, DataError, ProjectError
from harness.experiments.expand import Selection, baselines, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.experiments.presets import Part, expand_preset, preset_of
from harness.measure.other_cpu_load import busy_machine
from harness.paths import REPOSITORY, Results
from harness.plan import Pair, Pairing
from harness.printable import wrapped
from harness.results.environment_variables import require_nothing_refused
from harness.work.datasets import DataFiles
from harness.work.declared import benchmark as declared_benchmark
from harness.work.pretrained import WeightsFiles
from pipeline.builds import lacking_builds

DEFAULT_RESULTS = REPOSITORY / "results"


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """How jobs are handed over and followed."""

    config: Path
    profile: Path | None = None
    """Of the cluster, laid over `config`."""
    results: Results
    executor: Literal["auto", "slurm", "local"]
    pairing: Pairing | None
    """None: as in experiments.yaml."""
    dry_run: bool
    wait: bool


def measure(selection: Selection, flags: JobFlags, *, preset: str | None) -> int:
    """Returns the exit status.

    Args:
        preset: of experiments.yaml, by name; None where the command line names none.
    """
    parts, config = chosen_parts(selection, flags, preset)
    pairs = plan(parts, config)
    lacking = lacking_data(pairs)
    if lacking and not flags.dry_run:
        raise DataError("\n".join(lacking))

    def compare(results: Results) -> None:
        from pipeline.report.command import print_summary

        print_summary(results, [job for pair in pairs for job in pair.jobs])

    return hand_over(pairs, config, flags, compare, beside=[*map(wrapped, lacking)])


def chosen_parts(selection: Selection, flags: JobFlags, preset: str | None) -> tuple[list[Part], Config]:
    """What is asked for; prints what a preset is."""
    config = load_config(flags.config, flags.profile)
    chosen = preset_of(config, preset, selection)
    if chosen is None:
        return [Part(selection=selection, pairs=expand(config, selection))], config
    parts = with_data_at_hand(expand_preset(config, chosen, selection), config, selection)
    print(wrapped(f"Preset {chosen}: {config.presets[chosen].about}."))
    return parts, config


def plan(parts: list[Part], config: Config) -> list[Pair]:
    """Return all pairs of `measure`, with those on one device that the scaling efficiency needs; prints remarks."""
    pairs = [pair for part in parts for pair in part.pairs]
    if any(part.selection.narrowing.devices for part in parts):
        several = [pair.cell for pair in pairs if pair.cell.devices > 1 and not pair.cell.is_for_cpu]
        for gpu in {cell.gpu: None for cell in several if config.gpus[cell.gpu].per_node is None}:
            most = max(cell.devices for cell in several if cell.gpu == gpu)
            print(wrapped(f"{gpu}: up to {most} GPUs of one node: set gpus.{gpu}.per_node if a node has fewer"))
    cells = {pair.cell for pair in pairs}
    alone = [pair for part in parts for pair in baselines(config, part.pairs, part.selection, cells)]
    for pair in alone:
        print(f"{pair.cell.name}: measured too, for the scaling efficiency")
    pairs = alone + pairs

    for pair in pairs:
        asked = config.settings(pair.cell.benchmark, pair.cell.use_case, quick=pair.jobs[0].quick)
        if any(job.settings.get("weights") != asked.get("weights") for job in pair.jobs):
            print(f"{pair.cell.name}: weights are drawn, not pretrained: the sample has no classes of ImageNet")
    return pairs


def with_data_at_hand(parts: list[Part], config: Config, selection: Selection) -> list[Part]:
    """Without the benchmarks that nobody has named and whose data only the user can bring and has not; says which.

    Raises:
        ConfigError: nothing is left.
    """
    missing = {
        pair.cell.benchmark
        for part in parts
        for pair in part.pairs
        if part.selection.data == "real"
        and pair.cell.benchmark not in selection.benchmarks
        and must_be_brought(pair.cell.benchmark, Path(config.data_dir))
    }
    for name in sorted(missing):
        print(
            f"{name}: left out, as its data are not in {config.data_dir} and nobody but you may bring them: "
            f"python main.py data --benchmark {name}"
        )
    found = [replace(part, pairs=[pair for pair in part.pairs if pair.cell.benchmark not in missing]) for part in parts]
    if not any(part.pairs for part in found):
        raise ConfigError("nothing to measure: there are no data for any of it")
    return found


def lacking_data(pairs: Iterable[Pair]) -> list[str]:
    """A sentence for each data set, and for each model's pretrained weights, without which a job could not begin."""
    files: dict[DataFiles | WeightsFiles, None] = {}
    for plan in (plan for pair in pairs for plan in pair.jobs):
        folder, name = Path(plan.data_dir), plan.cell.benchmark
        if plan.data == "real" and declared_benchmark(name).data is not None:
            files[DataFiles(data_dir=folder, benchmark=name)] = None
        if plan.settings.get("weights") == "pretrained":
            for model in {variant.model: None for variant in plan.variants}:
                files[WeightsFiles(data_dir=folder, benchmark=name, model=model)] = None
    return [f"{one.manifest} is not here. {one.way_out}" for one in files if not one.manifest.exists()]


def must_be_brought(name: str, data_dir: Path) -> bool:
    source = declared_benchmark(name).data
    return source is not None and source.by_hand and not DataFiles(data_dir=data_dir, benchmark=name).manifest.exists()


def hand_over(
    pairs: list[Pair],
    config: Config,
    flags: JobFlags,
    conclude: Callable[[Results], object],
    *,
    beside: Sequence[str] = (),
) -> int:
    """Render and submit, or show what would be submitted, and `beside`; with --wait, follow the jobs, `conclude`, and
    make the report's page."""
    from pipeline.submission.dry_run import print_dry_run
    from pipeline.submission.queue_job import QueueJob, paired
    from pipeline.submission.render import write_scripts
    from pipeline.submission.whole_nodes import whole_nodes

    results = flags.results
    if config.profile:
        print(f"Cluster {config.profile}: {config.site_file} over {config.file}")
    require_writable(results)
    require_nothing_refused(os.environ)
    lacking = lacking_builds(pairs) if goes_to_slurm(flags.executor) else []
    if lacking and not flags.dry_run:
        raise ProjectError("\n".join(lacking))
    beside = [*map(wrapped, lacking), *beside]
    pairing = flags.pairing or config.pairing
    is_on_cpu = pairing == "auto" and runs_here_without_gpu(flags.executor)
    pairs = [paired(pair, pairing, is_on_cpu=is_on_cpu) for pair in pairs]
    jobs = [QueueJob.of(pair) for pair in pairs]
    if config.cluster.whole_nodes and goes_to_slurm(flags.executor):
        jobs = whole_nodes(pairs, config)
    if pairing == "interleaved":
        for pair in pairs:
            if len(pair.jobs) > 1 and (reason := pair.why_not_interleaved):
                print(wrapped(f"Not interleaved but together: {pair.cell.name}: {reason}"))
    scripts = write_scripts(jobs, config, config_path=flags.config, results=results.root)
    if flags.dry_run:
        return print_dry_run(
            jobs,
            results,
            executor=flags.executor,
            config=config,
            beside=beside,
        )

    from pipeline.submission.submit import choose_executor, submit
    from pipeline.watching.follow import INTERRUPTED, follow

    executor = choose_executor(flags.executor)
    if executor == "local" and (warning := busy_machine()):
        print(wrapped(warning))
    folders = submit(jobs, config, scripts, executor=executor, results=results)
    if flags.wait:
        from pipeline.report.command import make_page

        status = follow(folders, results)
        conclude(results)
        if status != INTERRUPTED and (page := make_page(results)):
            print(f"\nThe report, a page for your browser:\n{page}")
        return status
    if folders:
        elsewhere = "" if results.root == DEFAULT_RESULTS else f" --results {shlex.quote(str(results.root))}"
        print(f"To follow them: python main.py status --watch{elsewhere}")
    return 0


def runs_here_without_gpu(executor: Literal["auto", "slurm", "local"]) -> bool:
    from harness.measure.gpu import usable_gpu_count

    return not goes_to_slurm(executor) and usable_gpu_count() == 0


def goes_to_slurm(executor: Literal["auto", "slurm", "local"]) -> bool:
    """Also where only a dry run is made, and Slurm is not here."""
    from pipeline.submission.submit import choose_executor

    return executor == "slurm" or choose_executor(executor) == "slurm"


def require_writable(results: Results) -> None:
    """Raises ProjectError now, not hours later in a job, where the folder cannot be written."""
    try:
        results.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results.root):
            pass
    except OSError as error:
        raise ProjectError(
            f"{results.root}: cannot be written: {error.strerror}; choose another with --results DIR"
        ) from error
