"""From experiments.yaml to the pairs of jobs that a command asks for. Pure: no file, no Slurm."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from harness.config_model import Config
from harness.errors import ConfigError
from harness.plan import JobPlan, Pair, Scalar, Variant
from harness.settings import FRAMEWORKS, DataKind, Framework
from harness.suggest import valid_names

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


def expand(config: Config, selection: Selection) -> list[Pair]:
    """One pair for each cell that is selected and not excluded; the order is that of experiments.yaml.

    A name may be any that experiments.yaml defines, in its `matrix` or not.

    Raises:
        ConfigError: a name that is not defined, or nothing left to measure.
    """
    gpus = _chosen("--gpu", selection.gpus, config.gpus, config.matrix.gpus)
    benchmarks = _chosen("--benchmark", selection.benchmarks, config.benchmarks, config.matrix.benchmarks)
    use_cases = _chosen("--use_case", selection.use_cases, config.use_cases, config.matrix.use_cases)
    frameworks = _chosen("--framework", selection.frameworks, FRAMEWORKS, FRAMEWORKS)
    protocol = config.protocol(quick=selection.quick)

    # The same for every GPU, and there may be thousands of variants.
    @cache
    def variants_of(framework: Framework, benchmark: str, use_case: int) -> tuple[Variant, ...]:
        return expand_variants(config, framework, benchmark, use_case, quick=selection.quick)

    pairs = []
    for gpu, benchmark, use_case in itertools.product(gpus, benchmarks, use_cases):
        if config.is_excluded(gpu, benchmark, use_case):
            continue
        cell = config.cell(gpu, benchmark, use_case)
        settings = config.settings(benchmark, use_case, quick=selection.quick)
        jobs = tuple(
            JobPlan(
                framework=framework,
                cell=cell,
                variants=variants_of(framework, benchmark, use_case),
                settings=settings,
                protocol=protocol,
                wandb=config.wandb,
                data=selection.data,
                data_dir=config.data_dir,
                quick=selection.quick,
                force=selection.force,
            )
            for framework in FRAMEWORKS
            if framework in frameworks
        )
        pairs.append(Pair(cell=cell, jobs=jobs))
    if not pairs:
        raise ConfigError("nothing to measure: matrix.exclude in experiments.yaml removes every cell asked for")
    return pairs


def expand_variants(
    config: Config, framework: Framework, benchmark: str, number: int, *, quick: bool
) -> tuple[Variant, ...]:
    """Every combination of the use case's axes that `exclude` does not name."""
    use_case = config.use_case(number, quick=quick)
    options = _combinations(use_case.options)
    combinations = itertools.product(
        config.benchmarks[benchmark].models,
        options,
        use_case.batch_sizes,
        use_case.precisions,
        use_case.execution_modes[framework],
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
        if not any(partial.matches(framework, benchmark, variant) for partial in use_case.exclude)
    )


def _combinations(axes: dict[str, tuple[str | int | float | bool, ...]]) -> list[dict[str, Scalar]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _chosen(flag: str, asked: Sequence[Choice], defined: Iterable[Choice], of_matrix: Sequence[Choice]) -> list[Choice]:
    """In the order of definition and once each, however often and in which order they were asked for."""
    defined = list(defined)
    for name in asked:
        if name not in defined:
            where = "no such framework" if flag == "--framework" else "not defined in experiments.yaml"
            raise ConfigError(f"{flag} {name}: {where}; {valid_names(name, defined)}")
    wanted = asked or of_matrix
    return [name for name in defined if name in wanted]
