"""From experiments.yaml to the pairs of jobs that a command asks for. Pure: no file, no Slurm."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from harness.errors import ConfigError
from harness.experiments.model import Config, is_named
from harness.experiments.narrow import ALL, Narrowing, places_of, require_valid
from harness.plan import (
    FRAMEWORKS,
    Cell,
    DataKind,
    Framework,
    JobPlan,
    MeasurementSettings,
    Pair,
    Scalar,
    Screening,
    Variant,
)
from harness.suggest import valid_names
from harness.work.applies import why_not
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
    narrowing: Narrowing = ALL
    full: bool = False
    """Every mode in all replicates, whichever is the fastest."""


def expand(config: Config, selection: Selection) -> list[Pair]:
    """One pair for each cell that is selected and not excluded; the order is that of experiments.yaml.

    A name may be any that experiments.yaml defines, in its `matrix` or not. What the selection's narrowing names may be
    any that harness/work/ declares. A cell that has nothing of it is no pair.

    Raises:
        ConfigError: a name that is not defined, a cell that takes more GPUs than its nodes have, or nothing left to
            measure.
    """
    counts = selection.narrowing.devices
    if not counts:
        return _expand(config, selection)
    gpus = scope_of(config, selection).gpus
    on_each = (on_devices(config, selection, gpu, devices) for gpu in gpus for devices in counts)
    return [pair for of_one, selected in on_each for pair in _expand(of_one, selected)]


def on_devices(config: Config, selection: Selection, gpu: str, devices: int) -> tuple[Config, Selection]:
    """With every use case on several devices on so many of this GPU, and the selection's use cases replaced by those of
    the same name on one device or on several, whichever `devices` asks for. A number that experiments.yaml itself has
    keeps its nodes, so that its measurements keep their ids."""
    several = devices > 1
    numbers: dict[int, None] = {}
    for asked in selection.use_cases or config.matrix.use_cases:
        name = config.use_cases[asked].name
        alike = [
            one for one, other in config.use_cases.items() if other.name == name and (other.devices > 1) == several
        ]
        if not alike:
            where = "several devices" if several else "one device"
            raise ConfigError(
                f"--devices {devices}: {config.file} has no use case {name} on {where}; leave {asked} out"
            )
        numbers[asked if asked in alike else alike[0]] = None
    per_node = config.gpus[gpu].per_node
    nodes = -(-devices // per_node) if per_node else 1
    if devices % nodes:
        raise ConfigError(
            f"--devices {devices}: takes {nodes} nodes with {per_node} GPUs each (gpus.{gpu}.per_node), "
            f"which cannot have the same number; a multiple of {nodes} can be shared by them"
        )
    use_cases = {
        number: of_file
        if of_file.devices in (1, devices)
        else of_file.model_copy(update={"devices": devices, "nodes": nodes})
        for number, of_file in config.use_cases.items()
    }
    narrowing = replace(selection.narrowing, devices=(devices,))
    selected = replace(selection, gpus=(gpu,), use_cases=tuple(numbers), narrowing=narrowing)
    return config.model_copy(update={"use_cases": use_cases}), selected


def _expand(config: Config, selection: Selection) -> list[Pair]:
    scope = scope_of(config, selection)
    if not scope.cells:
        raise ConfigError("nothing to measure: " + "; ".join(scope.without))
    if not selection.narrowing.is_empty:
        require_valid(selection.narrowing, places_of(config, scope.cells), scope.frameworks)
    pairs = pairs_in(config, selection, scope)
    if not pairs:
        raise ConfigError(_why_nothing(config, selection, scope.cells, scope.frameworks))
    return pairs


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The names that a selection stands for, in the order of experiments.yaml."""

    gpus: list[str]
    cells: list[tuple[str, int]]
    """Benchmark and use case; those that some of the GPUs measures."""
    frameworks: list[Framework]
    without: list[str]
    """Why the others are not measured, each reason once."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Of a model, a batch size, a precision, an execution mode and options."""

    variant: Variant
    why_not: str | None
    """Why it is not measured; None where it is."""
    is_excluded: bool
    """By `exclude`, though it would make sense."""


def scope_of(config: Config, selection: Selection) -> Scope:
    """Raises ConfigError for a name that is not defined."""
    where = f"not defined in {config.file}"
    gpus = _chosen("--gpu", selection.gpus, config.gpus, config.matrix.gpus, where)
    benchmarks = _chosen("--benchmark", selection.benchmarks, config.benchmarks, config.matrix.benchmarks, where)
    use_cases = _chosen("--use_case", selection.use_cases, config.use_cases, config.matrix.use_cases, where)
    known = _chosen("--framework", selection.frameworks, FRAMEWORKS, FRAMEWORKS, "no such framework")
    cells, without = [], []
    for benchmark, use_case in itertools.product(benchmarks, use_cases):
        reasons = [config.why_no_cell(gpu, benchmark, use_case) for gpu in gpus]
        if None in reasons:
            cells.append((benchmark, use_case))
        else:
            without.append(f"{benchmark}_{use_case}: {reasons[0]}")
    return Scope(
        gpus=gpus,
        cells=cells,
        frameworks=[framework for framework in FRAMEWORKS if framework in known],
        without=without,
    )


def pairs_in(config: Config, selection: Selection, scope: Scope) -> list[Pair]:
    """Of a selection whose narrowing is valid; none where no cell has all of it. Raises ConfigError for a cell that
    takes more GPUs than its nodes have."""
    # The same for every GPU, and there may be thousands of variants.
    plans = {cell: _plans(config, selection, scope.gpus[0], *cell, scope.frameworks) for cell in scope.cells}
    pairs = []
    for gpu, (benchmark, use_case) in itertools.product(scope.gpus, scope.cells):
        if config.is_excluded(gpu, benchmark, use_case):
            continue
        if not selection.narrowing.is_empty and not all(plan.variants for plan in plans[benchmark, use_case]):
            continue
        cell = config.cell(gpu, benchmark, use_case)
        _require_enough_gpus(config, cell)
        jobs = tuple(plan.model_copy(update={"cell": cell}) for plan in plans[benchmark, use_case])
        pairs.append(Pair(cell=cell, jobs=jobs))
    return pairs


def _plans(
    config: Config,
    selection: Selection,
    gpu: str,
    benchmark: str,
    use_case: int,
    frameworks: Sequence[Framework],
) -> list[JobPlan]:
    quick, narrowing = selection.quick, selection.narrowing
    settings = config.settings(benchmark, use_case, quick=quick)
    sizes, protocol = config.sizes(benchmark, quick=quick), config.protocol(use_case, quick=quick)
    if narrowing.settings:
        asked = dict(narrowing.settings)
        declared = declared_use_case(config.use_cases[use_case].name).settings.model_fields
        settings |= {name: value for name, value in asked.items() if name in declared}
        sizes |= {name: value for name, value in asked.items() if name in sizes}
        of_protocol = {name: value for name, value in asked.items() if name in MeasurementSettings.model_fields}
        protocol = MeasurementSettings.model_validate(protocol.model_dump() | of_protocol, strict=True)
    of_frameworks = narrowed(config, benchmark, use_case, frameworks, narrowing, quick=quick)
    plans = [
        JobPlan(
            framework=framework,
            cell=config.cell(gpu, benchmark, use_case),
            variants=expand_variants(config, framework, benchmark, use_case, quick=quick, narrowing=own),
            settings=with_possible_weights(settings, selection.data),
            sizes=sizes,
            protocol=protocol,
            wandb=config.wandb,
            data=selection.data,
            data_dir=config.data_dir,
            quick=quick,
            force=selection.force,
            flags=own.flags(),
            srun_options=config.srun_options(),
            full=selection.full,
            launch=config.launch(framework, in_a_job=True),
            price_per_hour=config.price_per_hour(gpu, use_case),
            screening=None
            if selection.full or quick or narrowing.execution_modes or narrowing.runs  # who names them wants them
            else _screening(config, framework, use_case, protocol),
        )
        for framework, own in of_frameworks.items()
    ]
    return [plan if plan.screened_variants() else plan.model_copy(update={"screening": None}) for plan in plans]


def narrowed(
    config: Config,
    benchmark: str,
    number: int,
    frameworks: Sequence[Framework],
    narrowing: Narrowing,
    *,
    quick: bool,
) -> dict[Framework, Narrowing]:
    """What of it concerns each framework in this cell.

    Where execution modes are named and none is this framework's, it has one all the same: the first that meets the
    other's in most comparisons, of its headline and those in experiments.yaml.
    """
    if narrowing.is_empty:
        return dict.fromkeys(frameworks, narrowing)
    use_case = config.use_case(number, quick=quick)
    declared = declared_use_case(use_case.name)
    of_benchmark = declared_benchmark(benchmark)
    settings = {*declared.settings.model_fields, *of_benchmark.sizes.model_fields, *MeasurementSettings.model_fields}
    models = tuple(model.name for model in of_benchmark.models if is_named(model.name, benchmark, narrowing.models))
    here = replace(
        narrowing,
        models=models or narrowing.models,
        batch_sizes=tuple(size for size in narrowing.batch_sizes if narrowing.batch or size % use_case.devices == 0)
        or narrowing.batch_sizes,
        options=tuple(one for one in narrowing.options if one[0] in declared.options.model_fields),
        settings=tuple(one for one in narrowing.settings if one[0] in settings),
    )
    chosen = {one: config.modes(one, benchmark, number, quick=quick) for one in frameworks}
    own = {one: tuple(mode.name for mode in narrowing.modes_of(declared.modes[one], chosen[one])) for one in frameworks}
    if not narrowing.names_modes or not any(own.values()):
        return dict.fromkeys(frameworks, here)
    found = {framework: here.with_modes(*modes) for framework, modes in own.items()}
    met = {
        comparison
        for framework, modes in own.items()
        if modes
        for comparison in _comparisons(config, framework, benchmark, number, found[framework], quick=quick)
    }
    for framework in frameworks:
        if own[framework]:
            continue
        headline = [declared.headline[framework]] if framework in declared.headline else []
        choices = [
            here.with_modes(name) for name in dict.fromkeys([*headline, *(mode.name for mode in chosen[framework])])
        ]
        found[framework] = max(
            choices,
            key=lambda one: len(met & _comparisons(config, framework, benchmark, number, one, quick=quick)),
        )
    return found


def _comparisons(
    config: Config, framework: Framework, benchmark: str, number: int, narrowing: Narrowing, *, quick: bool
) -> set[tuple[str, bool]]:
    """The comparisons, rows of the report, that these variants belong to."""
    declared = declared_use_case(config.use_cases[number].name)
    many_steps = {mode.name for mode in declared.modes[framework] if mode.several_steps}
    variants = expand_variants(config, framework, benchmark, number, quick=quick, narrowing=narrowing)
    return {(variant.comparison_key, variant.execution_mode in many_steps) for variant in variants}


def _why_nothing(
    config: Config, selection: Selection, cells: Sequence[tuple[str, int]], frameworks: Sequence[Framework]
) -> str:
    """All that is asked for exists, but no cell has it together. Said of the first, with the flags whose absence would
    leave something."""
    benchmark, number = cells[0]
    quick, narrowing = selection.quick, selection.narrowing

    def found(of: Narrowing) -> dict[Framework, list[Combination]]:
        own_of = narrowed(config, benchmark, number, frameworks, of, quick=quick)
        return {
            one: list(combinations(config, one, benchmark, number, quick=quick, narrowing=own))
            for one, own in own_of.items()
        }

    asked = {one: [combination.why_not for combination in of_one] for one, of_one in found(narrowing).items()}
    lacking = [framework for framework, reasons in asked.items() if None not in reasons]
    reasons = dict.fromkeys(reason for framework in lacking for reason in asked[framework])
    ways_out = []
    for axis in fields(narrowing):
        if axis.name in ("settings", "devices", "batch") or not getattr(narrowing, axis.name):
            continue
        less: dict[str, Any] = {axis.name: ()}
        without = {one: _count(of_one) for one, of_one in found(replace(narrowing, **less)).items()}
        if all(without.values()):
            flag = replace(ALL, **{axis.name: getattr(narrowing, axis.name)}).flags()[0]
            ways_out.append(f"without {flag} there would be {' + '.join(map(str, without.values()))}")
    where = f"{benchmark}_{number}" + (" and the other cells asked for" if len(cells) > 1 else "")
    return (
        f"nothing to measure: {where} has no variant for {' and '.join(lacking)} with all of "
        f"{' '.join(narrowing.flags())}: {'; '.join(map(str, reasons)) or 'they are not in one benchmark'}"
        f"{'. ' if ways_out else ''}{', '.join(ways_out).capitalize()}."
    )


def _count(found: Iterable[Combination]) -> int:
    return sum(one.why_not is None for one in found)


def _screening(config: Config, framework: Framework, number: int, protocol: MeasurementSettings) -> Screening | None:
    """None where one replicate is all that is wanted, which is as much as a screening; and for a use case that is not
    declared, which the check of experiments.yaml tells."""
    name = config.use_cases[number].name
    if protocol.replicates == 1 or name not in use_case_names():
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
            f"{config.place_of_devices(cell.use_case)}: {cell.name}: use_cases.{cell.use_case} takes "
            f"{cell.devices} GPUs on {cell.nodes} node(s), and by gpus.{cell.gpu}.per_node a node has {per_node}. "
            f"Lower `devices` or raise `nodes` of the use case, correct per_node, or leave the cell out with "
            f"`- {{gpu: {cell.gpu}, use_case: {cell.use_case}}}` under matrix.exclude."
        )


def baselines(config: Config, pairs: Sequence[Pair], selection: Selection, asked: Collection[Cell] = ()) -> list[Pair]:
    """What must be measured on one device for the scaling efficiency of these pairs, and is not among them, nor of the
    cells `asked`.

    From the use case of the same name with one device: its variants with the whole batch of a variant on N devices, or
    with 1/N of it. A quick run finds them among the variants of the full run and its own.
    """
    one_device = {use_case.name: number for number, use_case in config.use_cases.items() if use_case.devices == 1}
    asked = {*asked, *(pair.cell for pair in pairs)}
    found: dict[Cell, Pair] = {}
    for pair in pairs:
        cell, number = pair.cell, one_device.get(pair.cell.use_case_name)
        if cell.devices == 1 or number is None or config.is_excluded(cell.gpu, cell.benchmark, number):
            continue
        alone = replace(
            selection,
            gpus=(cell.gpu,),
            benchmarks=(cell.benchmark,),
            use_cases=(number,),
            force=False,
            narrowing=_of_baseline(pair, selection.narrowing),
        )
        for whole in pairs_in(config, alone, scope_of(config, alone)):
            jobs = [_partners(config, job, pair) for job in whole.jobs]
            needed = whole.model_copy(update={"jobs": tuple(job for job in jobs if job.variants)})
            if whole.cell not in asked and needed.jobs:
                found[whole.cell] = _together(found.get(whole.cell), needed)
    return list(found.values())


def _together(one: Pair | None, other: Pair) -> Pair:
    """What the same cell on several numbers of devices is compared with, each variant once."""
    jobs = {job.framework: job for job in (one.jobs if one else ())}
    for job in other.jobs:
        known = jobs.get(job.framework)
        variants = {variant.key: variant for variant in (*(known.variants if known else ()), *job.variants)}
        jobs[job.framework] = job.model_copy(update={"variants": tuple(variants.values())})
    return other.model_copy(update={"jobs": tuple(jobs[one] for one in FRAMEWORKS if one in jobs)})


def _of_baseline(of_several: Pair, narrowing: Narrowing) -> Narrowing:
    """All modes of one device, and the batch sizes that those of several are compared with."""
    narrowing = replace(narrowing.with_modes(), devices=(), batch=None)
    if not narrowing.batch_sizes:
        return narrowing
    sizes = [variant.batch_size for job in of_several.jobs for variant in job.variants]
    parts = [size // of_several.cell.devices for size in sizes]
    return replace(narrowing, batch_sizes=tuple(sorted({*sizes, *parts})))


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
    config: Config,
    framework: Framework,
    benchmark: str,
    number: int,
    *,
    quick: bool,
    narrowing: Narrowing = ALL,
) -> tuple[Variant, ...]:
    """Every combination of the use case's axes that makes sense and that `exclude` does not name.

    Args:
        narrowing: of valid values; none of them need be this cell's.
    """
    found = combinations(config, framework, benchmark, number, quick=quick, narrowing=narrowing)
    return tuple(one.variant for one in found if one.why_not is None)


def combinations(
    config: Config,
    framework: Framework,
    benchmark: str,
    number: int,
    *,
    quick: bool,
    narrowing: Narrowing = ALL,
) -> Iterator[Combination]:
    """All of them, in the order in which they are measured; the arguments are those of `expand_variants`. None where a
    name is not declared: the check of experiments.yaml, which tells of it, expands too."""
    use_case = config.use_case(number, quick=quick)
    if use_case.name not in use_case_names() or benchmark not in benchmark_names():
        return
    declared, of_benchmark = declared_use_case(use_case.name), declared_benchmark(benchmark)
    needed = {name for name, field in declared.options.model_fields.items() if field.is_required()}
    if needed - use_case.options.keys():
        return
    modes = narrowing.modes_of(declared.modes[framework], config.modes(framework, benchmark, number, quick=quick))
    models = {model.name: model for model in of_benchmark.models}
    if narrowing.models:
        names: Sequence[str] = [name for name in models if is_named(name, benchmark, narrowing.models)]
    else:
        names = [name for name in config.models(benchmark, quick=quick) if name in models]
    excluded = [
        own
        for partial in config.excluded(benchmark, number, quick=quick)
        if (own := partial.of_benchmark(framework, benchmark, names))
    ]
    of_options = declared.options.model_fields
    asked = {name: narrowing.values_of(name) for name, _ in narrowing.options if name in of_options}
    options = [  # what the file leaves out is in no measurement's id, unless it is another value than the default
        {name: value for name, value in one.items() if name in use_case.options or value != of_options[name].default}
        for one in _combinations(use_case.options | asked)
    ]
    precisions: Sequence[Any] = narrowing.precisions or use_case.precisions
    for name, with_options in itertools.product(names, options):
        sizes = _batch_sizes(config, benchmark, name, number, narrowing, quick=quick)
        reasons = {
            (precision, mode.name): why_not(
                declared, of_benchmark, models[name], mode, precision, with_options, use_case.devices
            )
            for precision in precisions
            for mode in modes
        }
        for size, precision, mode in itertools.product(sizes, precisions, modes):
            variant = Variant(
                model=name, batch_size=size, precision=precision, execution_mode=mode.name, options=with_options
            )
            why = reasons[precision, mode.name]
            is_excluded = why is None and any(partial.matches(variant, mode) for partial in excluded)
            if is_excluded:
                why = f"`exclude` in {config.file}"
            yield Combination(variant=variant, why_not=why, is_excluded=is_excluded)


def _batch_sizes(
    config: Config, benchmark: str, model: str, number: int, narrowing: Narrowing, *, quick: bool
) -> Sequence[int]:
    """Global. Raises ConfigError for one of `--batch global` that cannot be split."""
    name, devices = config.use_cases[number].name, config.use_cases[number].devices
    asked = narrowing.batch_sizes
    if narrowing.batch is None:
        if asked:
            return [size for size in asked if size % devices == 0]
        return config.batch_sizes(benchmark, model, number, quick=quick)
    alone = next((one for one, other in config.use_cases.items() if (other.name, other.devices) == (name, 1)), number)
    sizes = asked or config.batch_sizes(benchmark, model, alone, quick=quick)
    if narrowing.batch == "per_device":
        return [size * devices for size in sizes]
    if odd := [str(size) for size in sizes if size % devices]:
        raise ConfigError(
            f"--batch global: {benchmark}_{number}, {model}: {', '.join(odd)} samples cannot be split among {devices} "
            f"devices; name multiples of {devices} with --batch_size, or take --batch per_device"
        )
    return sizes


def _combinations(axes: dict[str, tuple[Scalar, ...]]) -> list[dict[str, Scalar]]:
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
