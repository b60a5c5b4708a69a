"""From experiments.yaml to the pairs of jobs that a command asks for. Pure: no file, no Slurm."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from harness.errors import ConfigError
from harness.experiments.model import Config
from harness.plan import FRAMEWORKS, Cell, DataKind, Framework, JobPlan, Pair, Scalar, Screening, Variant
from harness.suggest import valid_names
from harness.work.declared import benchmark as declared_benchmark
from harness.work.declared import benchmark_names, use_case_names
from harness.work.declared import use_case as declared_use_case

Choice = TypeVar("Choice", str, int)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the command line asks for. An empty tuple means all of the matrix."""

    gpus: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    use_cases: tuple[int, ...] = ()
    frameworks: tuple[str, ...] = ()
    data: DataKind = "real"
    quick: bool = False
    force: bool = False
    full: bool = False
    """Every mode in all replicates, whichever is the fastest."""


def expand(config: Config, selection: Selection) -> list[Pair]:
    """One pair for each cell that is selected and not excluded; the order is that of experiments.yaml.

    A name may be any that experiments.yaml defines, in its `matrix` or not.

    Raises:
        ConfigError: a name that is not defined, a cell that takes more GPUs than its nodes have, or nothing left to
            measure.
    """
    where = f"not defined in {config.file}"
    gpus = _chosen("--gpu", selection.gpus, config.gpus, config.matrix.gpus, where)
    benchmarks = _chosen("--benchmark", selection.benchmarks, config.benchmarks, config.matrix.benchmarks, where)
    use_cases = _chosen("--use_case", selection.use_cases, config.use_cases, config.matrix.use_cases, where)
    frameworks = _chosen("--framework", selection.frameworks, FRAMEWORKS, FRAMEWORKS, "no such framework")

    # The same for every GPU, and there may be thousands of variants.
    @cache
    def plans_of(benchmark: str, use_case: int) -> list[JobPlan]:
        plans = [
            JobPlan(
                framework=framework,
                cell=config.cell(gpus[0], benchmark, use_case),
                variants=expand_variants(config, framework, benchmark, use_case, quick=selection.quick),
                settings=with_possible_weights(
                    config.settings(benchmark, use_case, quick=selection.quick), selection.data
                ),
                sizes=config.sizes(benchmark, quick=selection.quick),
                protocol=config.protocol(use_case, quick=selection.quick),
                wandb=config.wandb,
                data=selection.data,
                data_dir=config.data_dir,
                quick=selection.quick,
                force=selection.force,
                full=selection.full,
                screening=None if selection.full or selection.quick else _screening(config, framework, use_case),
            )
            for framework in FRAMEWORKS
            if framework in frameworks
        ]
        return [plan if plan.screened_variants() else plan.model_copy(update={"screening": None}) for plan in plans]

    pairs = []
    for gpu, benchmark, use_case in itertools.product(gpus, benchmarks, use_cases):
        if config.is_excluded(gpu, benchmark, use_case):
            continue
        cell = config.cell(gpu, benchmark, use_case)
        _require_enough_gpus(config, cell)
        jobs = tuple(plan.model_copy(update={"cell": cell}) for plan in plans_of(benchmark, use_case))
        pairs.append(Pair(cell=cell, jobs=jobs))
    if not pairs:
        raise ConfigError(f"nothing to measure: matrix.exclude in {config.file} removes every cell asked for")
    return pairs


def _screening(config: Config, framework: Framework, number: int) -> Screening | None:
    """None where one replicate is all that is wanted, which is as much as a screening; and for a use case that is not
    declared, which the check of experiments.yaml tells."""
    name = config.use_cases[number].name
    if config.protocol(number, quick=False).replicates == 1 or name not in use_case_names():
        return None
    declared = declared_use_case(name)
    modes = declared.modes[framework]
    headline = [declared.headline[framework]] if framework in declared.headline else []
    return Screening(
        always=(*headline, *(mode.name for mode in modes if mode.is_loop)),
        many_steps=tuple(mode.name for mode in modes if mode.several_steps),
    )


def with_possible_weights(settings: dict[str, Scalar], data: DataKind) -> dict[str, Scalar]:
    """The sample's classes are none of ImageNet's, so pretrained weights have no outputs for them: they are drawn."""
    is_pretrained = settings.get("weights") == "pretrained"
    return settings | {"weights": "drawn"} if data == "sample" and is_pretrained else settings


def _require_enough_gpus(config: Config, cell: Cell) -> None:
    per_node = config.gpus[cell.gpu].per_node
    if per_node is not None and cell.devices > per_node * cell.nodes:
        raise ConfigError(
            f"{config.file}: {cell.name}: use_cases.{cell.use_case} takes {cell.devices} GPUs on {cell.nodes} node(s), "
            f"and by gpus.{cell.gpu}.per_node a node has {per_node}. Lower `devices` or raise `nodes` of the use case, "
            f"correct per_node, or leave the cell out with `- {{gpu: {cell.gpu}, use_case: {cell.use_case}}}` under "
            f"matrix.exclude."
        )


def baselines(config: Config, pairs: Sequence[Pair], selection: Selection) -> list[Pair]:
    """What must be measured on one device for the scaling efficiency of these pairs, and is not among them.

    From the use case of the same name with one device: its variants with the whole batch of a variant on N devices, or
    with 1/N of it. A quick run finds them among the variants of the full run and its own.
    """
    one_device = {use_case.name: number for number, use_case in config.use_cases.items() if use_case.devices == 1}
    asked = {pair.cell for pair in pairs}
    found: dict[Cell, Pair] = {}
    for pair in pairs:
        cell, number = pair.cell, one_device.get(pair.cell.use_case_name)
        if cell.devices == 1 or number is None or config.is_excluded(cell.gpu, cell.benchmark, number):
            continue
        alone = replace(selection, gpus=(cell.gpu,), benchmarks=(cell.benchmark,), use_cases=(number,), force=False)
        (whole,) = expand(config, alone)
        jobs = [_partners(config, job, pair) for job in whole.jobs]
        needed = whole.model_copy(update={"jobs": tuple(job for job in jobs if job.variants)})
        if whole.cell not in asked and needed.jobs:
            found[whole.cell] = needed
    return list(found.values())


def _partners(config: Config, job: JobPlan, of_several: Pair) -> JobPlan:
    """The one-device job with only those variants that a job of `of_several` is compared with."""
    devices = of_several.cell.devices
    wanted = {
        variant.model_copy(update={"batch_size": batch_size}).key
        for other in of_several.jobs
        if other.framework == job.framework
        for variant in other.variants
        for batch_size in (variant.batch_size, variant.batch_size // devices)
    }
    full = expand_variants(config, job.framework, job.cell.benchmark, job.cell.use_case, quick=False)
    known = {variant.key: variant for variant in (*full, *job.variants)}
    variants = tuple(variant for key, variant in known.items() if key in wanted)
    return job.model_copy(update={"variants": variants, "screening": None})  # all of them are wanted


def expand_variants(
    config: Config, framework: Framework, benchmark: str, number: int, *, quick: bool
) -> tuple[Variant, ...]:
    """Every combination of the use case's axes that makes sense and that `exclude` does not name."""
    use_case = config.use_case(number, quick=quick)
    options = _combinations(use_case.options)
    excluded = [
        partial for partial in config.excluded(benchmark, number, quick=quick) if partial.concerns(framework, benchmark)
    ]
    combinations = (
        combination
        for model in config.models(benchmark, quick=quick)
        for combination in itertools.product(
            [model],
            options,
            config.batch_sizes(benchmark, model, number, quick=quick),
            use_case.precisions,
            use_case.execution_modes[framework],
        )
    )
    variants = (
        Variant(
            model=model,
            batch_size=batch_size,
            precision=precision,
            execution_mode=execution_mode,
            options=chosen,
        )
        for model, chosen, batch_size, precision, execution_mode in combinations
    )
    return tuple(
        variant
        for variant in variants
        if makes_sense(use_case.name, framework, benchmark, variant)
        and not any(partial.matches(variant) for partial in excluded)
    )


def makes_sense(use_case_name: str, framework: Framework, benchmark_name: str, variant: Variant) -> bool:
    """Whether its execution mode makes sense for its model and can do what its options ask for. Of names that are not
    declared nothing is said here: the check of experiments.yaml, which tells of them, expands too."""
    if use_case_name not in use_case_names() or benchmark_name not in benchmark_names():
        return True
    use_case = declared_use_case(use_case_name)
    modes = [mode for mode in use_case.modes[framework] if mode.name == variant.execution_mode]
    models = [model for model in declared_benchmark(benchmark_name).models if model.name == variant.model]
    if not modes or not models or use_case.options.model_fields.keys() - variant.options.keys():
        return True
    return use_case.goes_with(modes[0], models[0], variant.options)


def _combinations(axes: dict[str, tuple[str | int | float | bool, ...]]) -> list[dict[str, Scalar]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _chosen(
    flag: str, asked: Sequence[Choice], defined: Iterable[Choice], of_matrix: Sequence[Choice], where: str
) -> list[Choice]:
    """In the order of definition and once each, however often and in which order they were asked for."""
    defined = dict.fromkeys(defined)
    for name in asked:
        if name not in defined:
            raise ConfigError(f"{flag} {name}: {where}; {valid_names(name, defined)}")
    wanted = set(asked or of_matrix)
    return [name for name in defined if name in wanted]
