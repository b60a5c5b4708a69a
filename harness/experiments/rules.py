"""What experiments.yaml means: do its names exist, do its numbers fit together, can the runners do it?

`check` yields every problem with its place; it runs on a file whose shape (model.py) is right. What there is to
measure is declared in harness/work/.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from harness.errors import ConfigError
from harness.experiments.expand import combinations, expand_variants, narrowed
from harness.experiments.model import (
    SAME_BENCHMARK,
    BatchSizes,
    Config,
    PartialVariant,
    PresetConfig,
    PresetPart,
    QuickBenchmark,
    QuickUseCase,
    UseCaseConfig,
)
from harness.experiments.narrow import places_of, require_valid
from harness.experiments.presets import cells_of, narrowing_of_part
from harness.experiments.source import Keys, Problem, Source
from harness.experiments.words import field_problem, field_words, shape_problems
from harness.plan import CPU, FRAMEWORKS, MOST_VARIANTS, Framework, Frozen, MeasurementSettings
from harness.results.sequential import why_no_design
from harness.suggest import valid_names
from harness.work.applies import why_not_precision
from harness.work.declared import Benchmark, UseCase, benchmark, benchmark_names, use_case, use_case_names

Problems = Iterator[Problem]


def check(config: Config, source: Source) -> Problems:
    yield from _check_matrix(config, source)
    yield from _check_cpu(config, source)
    yield from _check_benchmarks(config, source)
    for number, given in config.use_cases.items():
        yield from _check_use_case(number, given, config, source)
    for name, of_quick in config.quick.benchmarks.items():
        yield from _check_quick_benchmark(name, of_quick, config, source)
    for number, quick in config.quick.use_cases.items():
        keys: Keys = ("quick", "use_cases", number)
        if number in config.use_cases:
            yield from _check_axes(keys, quick, config.use_cases[number], config, source)
        else:
            yield source.problem(keys, f"not one of use_cases; {valid_names(number, config.use_cases)}", at_key=True)
    yield from _check_measurement(config, source)
    yield from _check_runs(config, source)
    yield from _check_cells(config, source)
    yield from _check_presets(config, source)


def _check_presets(config: Config, source: Source) -> Problems:
    for name, preset in config.presets.items():
        places: dict[tuple[str, int], int] = {}
        for index, part in enumerate(preset.parts):
            keys: Keys = ("presets", name, "parts", index)
            unknown = [
                *_known((*keys, "benchmarks"), part.benchmarks, config.benchmarks, source),
                *_known((*keys, "use_cases"), part.use_cases, config.use_cases, source),
            ]
            yield from unknown
            if unknown:
                continue
            for cell in cells_of(config, part):
                if places.setdefault(cell, index) != index:
                    rule = f"{cell[0]} with use case {cell[1]} is in parts[{places[cell]}] already"
                    yield source.problem(keys, f"{rule}; a preset has one part for each cell")
            yield from _check_part(keys, part, preset, config, source)


def _check_part(keys: Keys, part: PresetPart, preset: PresetConfig, config: Config, source: Source) -> Problems:
    cells = cells_of(config, part)
    is_declared = all(_benchmark(name) and _use_case(config.use_cases[number].name) for name, number in cells)
    if not is_declared:
        return
    narrowing = narrowing_of_part(config, preset, part)
    if narrowing.is_empty:
        return
    try:
        require_valid(narrowing, places_of(config, cells), part.frameworks or FRAMEWORKS)
    except ConfigError as error:
        yield source.problem(keys, f"as flags: {error}")
        return
    for benchmark_name, number in cells:
        own = narrowed(config, benchmark_name, number, part.frameworks or FRAMEWORKS, narrowing, quick=preset.quick)
        for framework in own:
            if not expand_variants(
                config, framework, benchmark_name, number, quick=preset.quick, narrowing=own[framework]
            ):
                yield source.problem(keys, f"leaves nothing to measure for {framework} in {benchmark_name}_{number}")


def _check_cells(config: Config, source: Source) -> Problems:
    """What only shows where a benchmark and a use case meet."""
    for number, given in config.use_cases.items():
        benchmarks = [
            name for name in config.benchmarks if not all(config.is_excluded(gpu, name, number) for gpu in config.gpus)
        ]
        yield from _check_settings_complete(number, given, benchmarks, config, source)
        for name in benchmarks:
            yield from _check_variants(number, given, name, config, source)


def _check_matrix(config: Config, source: Source) -> Problems:
    matrix = config.matrix
    yield from _known(("matrix", "gpus"), matrix.gpus, config.gpus, source)
    yield from _known(("matrix", "benchmarks"), matrix.benchmarks, config.benchmarks, source)
    yield from _known(("matrix", "use_cases"), matrix.use_cases, config.use_cases, source)
    for index, partial in enumerate(matrix.exclude):
        keys: Keys = ("matrix", "exclude", index)
        yield from _known((*keys, "gpu"), partial.gpu, config.gpus, source)
        yield from _known((*keys, "benchmark"), partial.benchmark, config.benchmarks, source)
        yield from _known((*keys, "use_case"), partial.use_case, config.use_cases, source)


def _check_cpu(config: Config, source: Source) -> Problems:
    given = config.gpus.get(CPU)
    for key in ("gres", "per_node"):
        if given and getattr(given, key) is not None:
            yield source.problem(("gpus", CPU, key), "is for GPUs; `cpu` asks for none", at_key=True)


def _check_benchmarks(config: Config, source: Source) -> Problems:
    for name, given in config.benchmarks.items():
        keys: Keys = ("benchmarks", name)
        declared = _benchmark(name)
        if declared is None:
            rule = f"no such benchmark in harness/work/benchmarks/; {valid_names(name, benchmark_names())}"
            yield source.problem(keys, rule, at_key=True)
        else:
            models = [model.name for model in declared.models]
            yield from _known((*keys, "models"), given.models, models, source, f"harness/work/benchmarks/{name}.py")
            yield from _check_fields((*keys, "sizes"), given.sizes, declared.sizes, f"a size of {name}", source)
            yield from _check_batch_sizes(keys, given.batch_sizes, given.models, config, source)
        yield from _check_settings_by_name(keys, given.settings, config, source)


def _check_quick_benchmark(name: str, quick: QuickBenchmark, config: Config, source: Source) -> Problems:
    keys: Keys = ("quick", "benchmarks", name)
    if name not in config.benchmarks:
        yield source.problem(keys, f"not one of benchmarks; {valid_names(name, config.benchmarks)}", at_key=True)
        return
    yield from _known((*keys, "models"), quick.models, config.benchmarks[name].models, source, f"benchmarks.{name}")
    if declared := _benchmark(name):
        yield from _check_fields((*keys, "sizes"), quick.sizes, declared.sizes, f"a size of {name}", source)
    yield from _check_batch_sizes(keys, quick.batch_sizes, config.benchmarks[name].models, config, source)
    yield from _check_settings_by_name(keys, quick.settings, config, source)
    yield from _check_exclude(keys, quick.exclude, list(config.use_cases), config, source)


def _check_batch_sizes(
    keys: Keys, given: Mapping[str, BatchSizes], models: Sequence[str], config: Config, source: Source
) -> Problems:
    """Of a benchmark, or of its part under `quick`: use case, perhaps model, and sizes that its devices can split."""
    names = {of_number.name for of_number in config.use_cases.values()}
    for name, sizes in given.items():
        inner: Keys = (*keys, "batch_sizes", name)
        if name not in names:
            rule = f"not the name of a use case; {valid_names(name, sorted(names))}"
            yield source.problem(inner, rule, at_key=True)
            continue
        of_places: dict[Keys, tuple[int, ...]] = {inner: sizes} if isinstance(sizes, tuple) else {}
        for model, of_model in sizes.items() if isinstance(sizes, dict) else ():
            of_places[*inner, model] = of_model
            if model not in models:
                rule = f"not one of its models; {valid_names(model, models)}"
                yield source.problem((*inner, model), rule, at_key=True)
        for place, of_model in of_places.items():
            for number, of_number in config.use_cases.items():
                wrong = [index for index, size in enumerate(of_model) if size % of_number.devices]
                if of_number.name == name and wrong:
                    rule = f"must be divisible by devices of use case {number} ({of_number.devices})"
                    yield source.problem((*place, wrong[0]), rule)


def _check_use_case(number: int, given: UseCaseConfig, config: Config, source: Source) -> Problems:
    keys: Keys = ("use_cases", number)
    declared = _use_case(given.name)
    if declared is None:
        rule = f"no such use case in harness/work/use_cases/; {valid_names(given.name, use_case_names())}"
        yield source.problem((*keys, "name"), rule)
    for framework in FRAMEWORKS:
        if framework not in given.formulations:
            yield source.problem((*keys, "formulations", framework), "is missing; name at least one")
    if given.devices % given.nodes:
        rule = f"must be divisible by nodes ({given.nodes}): every node takes as many"
        yield source.problem((*keys, "devices"), rule, value=given.devices)
    if given.devices > 1 and declared and declared.one_device:
        rule = f"must be 1: {given.name} splits no work among devices"
        yield source.problem((*keys, "devices"), rule, value=given.devices)
    yield from _check_axes(keys, given, given, config, source)
    for axis, field in declared.options.model_fields.items() if declared else ():
        if field.is_required() and axis not in given.options:
            yield source.problem((*keys, "options", axis), "is missing; list the values to measure")
    yield from _check_exclude(keys, given.exclude, [number], config, source)


def _check_axes(
    keys: Keys, axes: UseCaseConfig | QuickUseCase, given: UseCaseConfig, config: Config, source: Source
) -> Problems:
    """What may stand in a use case and in its part under `quick`."""
    for index, batch_size in enumerate(axes.batch_sizes or ()):
        if batch_size % given.devices:
            rule = f"must be divisible by devices ({given.devices}): a batch size is that of all devices"
            yield source.problem((*keys, "batch_sizes", index), rule)
    declared = _use_case(given.name)
    if declared is None:
        return
    for index, precision in enumerate(axes.precisions or ()):
        if why := why_not_precision(declared, precision):
            yield source.problem((*keys, "precisions", index), f"not for {given.name}: {why}")
    for framework, chosen in axes.formulations.items():
        yield from _check_formulations((*keys, "formulations", framework), chosen, declared, framework, config, source)
    fields = declared.options.model_fields
    for axis, values in axes.options.items():
        inner: Keys = (*keys, "options", axis)
        if axis not in fields:
            yield source.problem(inner, f"not an option of {given.name}; {valid_names(axis, fields)}", at_key=True)
            continue
        for index, value in enumerate(values):
            if wrong := field_problem(value, fields[axis]):
                place = (*inner, index) if (*inner, index) in source.values else inner
                yield source.problem(place, wrong)
    yield from _check_settings((*keys, "settings"), axes.settings, given.name, source)


def _check_formulations(
    keys: Keys,
    chosen: Sequence[Mapping[str, Sequence[str]]],
    declared: UseCase,
    framework: Framework,
    config: Config,
    source: Source,
) -> Problems:
    """Of a use case and framework: formulations that are declared, with runs that they have."""
    runs_of = {one.name: [run.name for run in one.runs] for one in declared.formulations[framework]}
    owner = f"harness/work/use_cases/{declared.name}.py for {framework}"
    by_default = config.runs.get(framework, ())
    are_known = bool(by_default) and not {*by_default}.difference(_run_names(framework))
    seen: set[str] = set()
    for index, one in enumerate(chosen):
        is_text = isinstance(source.at((*keys, index)), str)
        for name, runs in one.items():
            place: Keys = (*keys, index) if is_text else (*keys, index, name)
            if name not in runs_of:
                rule = f"not in {owner}; {valid_names(name, runs_of)}"
                yield source.problem(place, rule, at_key=not is_text)
            elif name in seen:
                yield source.problem(place, "given twice; write all of its runs into one entry", at_key=not is_text)
            elif runs:
                yield from _known(place, runs, runs_of[name], source, f"the runs of {name} in {owner}")
            elif not is_text:
                rule = f"must not be empty; name some of its runs, or write `{name}` alone for those of `runs`"
                yield source.problem(place, rule)
            elif are_known and not {*by_default}.intersection(runs_of[name]):
                rule = f"has none of `runs`; write some beside it, such as `{name}: [{runs_of[name][0]}]`"
                yield source.problem(place, rule)
            seen.add(name)


def _check_runs(config: Config, source: Source) -> Problems:
    """Names that no formulation of any use case has."""
    places: list[tuple[Keys, Mapping[Framework, Sequence[str]]]] = [(("runs",), config.runs)]
    places.append((("quick", "runs"), config.quick.runs))
    places += [(("quick", "benchmarks", name, "runs"), one.runs) for name, one in config.quick.benchmarks.items()]
    for keys, given in places:
        for framework, names in given.items():
            owner = f"the runs of {framework}"
            unknown = list(_known((*keys, framework), names, _run_names(framework), source, owner))
            yield from unknown or _check_quick_runs((*keys, framework), framework, config, source)
    for framework in FRAMEWORKS:
        if framework not in config.runs:
            yield source.problem(("runs", framework), "is missing; name at least one")


def _check_quick_runs(keys: Keys, framework: Framework, config: Config, source: Source) -> Problems:
    """Runs that leave a cell without any execution mode. `keys` leads to them."""
    of_benchmark = keys[2] if keys[:2] == ("quick", "benchmarks") else None
    for name in config.benchmarks:
        given = config.quick.benchmarks.get(name, SAME_BENCHMARK).runs
        is_other = name != of_benchmark if of_benchmark else keys[0] != "quick" or framework in given
        for number in () if is_other else config.use_cases:
            full, quick = (config.modes(framework, name, number, quick=quick) for quick in (False, True))
            if full and not quick and not all(config.is_excluded(gpu, name, number) for gpu in config.gpus):
                yield source.problem(keys, f"leaves no execution mode for {name}_{number} with --quick")


def _run_names(framework: Framework) -> dict[str, None]:
    declared = (use_case(name) for name in use_case_names())
    return dict.fromkeys(mode.run.name for one in declared for mode in one.modes[framework])


def _check_settings_by_name(
    keys: Keys, given: Mapping[str, dict[str, Any]], config: Config, source: Source
) -> Problems:
    """Of a benchmark, or of its part under `quick`."""
    names = sorted({use_case.name for use_case in config.use_cases.values()})
    for name, settings in given.items():
        inner: Keys = (*keys, "settings", name)
        if name not in names:
            yield source.problem(inner, f"not the name of a use case; {valid_names(name, names)}", at_key=True)
        else:
            yield from _check_settings(inner, settings, name, source)


def _check_settings(keys: Keys, settings: dict[str, Any], use_case_name: str, source: Source) -> Problems:
    if declared := _use_case(use_case_name):
        yield from _check_fields(keys, settings, declared.settings, f"a setting of {use_case_name}", source)


def _check_fields(keys: Keys, values: dict[str, Any], kind: type[Frozen], what: str, source: Source) -> Problems:
    """Each of the values against the field of its name."""
    fields = kind.model_fields
    for name, value in values.items():
        if name not in fields:
            yield source.problem((*keys, name), f"not {what}; {valid_names(name, fields)}", at_key=True)
        elif rule := field_problem(value, fields[name]):
            yield source.problem((*keys, name), rule)


def _check_exclude(
    keys: Keys, exclude: Sequence[PartialVariant], numbers: Sequence[int], config: Config, source: Source
) -> Problems:
    """Of what is excluded from these use cases. A name that is on no axis excludes nothing, so it is a slip."""
    given = [config.use_case(number, quick=quick) for number in numbers for quick in (False, True)]
    models = [model for one in config.benchmarks.values() for model in one.models]
    models += [f"{name}/{model}" for name, one in config.benchmarks.items() for model in one.models]
    batch_sizes = [size for number in numbers for size in _all_batch_sizes(number, config)]
    precisions = [precision for one in given for precision in one.precisions]
    modes = [
        mode
        for number in numbers
        for quick in (False, True)
        for framework in FRAMEWORKS
        for name in config.benchmarks
        for mode in config.modes(framework, name, number, quick=quick)
    ]
    formulations = [name for one in given for chosen in one.formulations.values() for entry in chosen for name in entry]
    options: dict[str, list[object]] = {}
    for one in given:
        for option, values in one.options.items():
            options.setdefault(option, []).extend(values)
    for index, partial in enumerate(exclude):
        place: Keys = (*keys, "exclude", index)
        named: list[tuple[str, Iterable[object] | None, Iterable[object]]] = [
            ("benchmark", partial.benchmark, config.benchmarks),
            ("model", partial.model, models),
            ("batch_size", partial.batch_size, batch_sizes),
            ("precision", partial.precision, precisions),
            ("formulation", partial.formulation, formulations),
            ("run", partial.run, [mode.run.name for mode in modes]),
        ]
        for key, named_values, axis in named:
            yield from _known((*place, key), named_values, dict.fromkeys(axis), source)
        for option, named_values in (partial.options or {}).items():
            inner: Keys = (*place, "options", option)
            if option not in options:
                rule = f"not an option of this use case; {valid_names(option, options)}"
                yield source.problem(inner, rule, at_key=True)
            else:
                yield from _known(inner, named_values, dict.fromkeys(options[option]), source)


def _all_batch_sizes(number: int, config: Config) -> list[int]:
    return [
        size
        for quick in (False, True)
        for benchmark in config.benchmarks
        for model in config.models(benchmark, quick=quick)
        for size in config.batch_sizes(benchmark, model, number, quick=quick)
    ]


def _check_settings_complete(
    number: int, given: UseCaseConfig, benchmarks: list[str], config: Config, source: Source
) -> Problems:
    declared = _use_case(given.name)
    for setting, field in declared.settings.model_fields.items() if declared else ():
        if not field.is_required():
            continue
        lacking = [name for name in benchmarks if setting not in config.settings(name, number, quick=False)]
        if lacking:
            yield source.problem(
                ("use_cases", number, "settings", setting),
                f"is missing for {', '.join(lacking)}; give {field_words(field)} here "
                f"or at benchmarks.{lacking[0]}.settings.{given.name}.{setting}",
            )


def _check_variants(number: int, given: UseCaseConfig, benchmark_name: str, config: Config, source: Source) -> Problems:
    keys: Keys = ("use_cases", number)
    declared, data = _use_case(given.name), _benchmark(benchmark_name)
    if declared is None or data is None or (declared.one_device and given.devices > 1):
        return  # which is told already
    for quick in (False, True):
        told = {why_not_precision(declared, one) for one in config.use_case(number, quick=quick).precisions}
        for framework in FRAMEWORKS:
            if {*config.runs.get(framework, ()), *config.quick.runs.get(framework, ())} - _run_names(framework).keys():
                continue  # which is told where they stand
            if too_many := _too_many(config, framework, benchmark_name, number, quick=quick):
                yield source.problem(keys, too_many, at_key=True)
                continue
            try:
                found = list(combinations(config, framework, benchmark_name, number, quick=quick))
                reasons = dict.fromkeys(one.why_not for one in found)
            except ValidationError:  # a value that no option has, which is told where it stands
                continue
            if not reasons or None in reasons or reasons.keys() & told:
                continue
            when, what = "with --quick, " if quick else "", f"nothing to measure for {framework} on {benchmark_name}"
            if any(one.is_excluded for one in found):
                yield source.problem((*keys, "exclude"), f"{when}exclude leaves {what}", at_key=True)
            else:
                yield source.problem(keys, f"{when}{what}: {next(iter(reasons))}", at_key=True)


def _too_many(config: Config, framework: Framework, benchmark_name: str, number: int, *, quick: bool) -> str | None:
    """Before any is made. Of what `exclude` leaves out nothing is known then."""
    axes = config.use_case(number, quick=quick)
    of_options = math.prod(len(values) for values in axes.options.values())
    of_models = sum(
        len(config.batch_sizes(benchmark_name, model, number, quick=quick))
        for model in config.models(benchmark_name, quick=quick)
    )
    modes = config.modes(framework, benchmark_name, number, quick=quick)
    count = of_options * of_models * len(axes.precisions) * len(modes)
    if count > MOST_VARIANTS:
        return f"{count:,} variants for {framework} on {benchmark_name}; must be at most {MOST_VARIANTS:,}"
    return None


def _check_protocols(config: Config, source: Source) -> Problems:
    """What only shows where `measurement`, a use case's and that of --quick meet."""
    for number in config.use_cases:
        for quick in (False, True):
            try:
                protocol = config.protocol(number, quick=quick)
            except ValidationError:
                return  # the parts are not right, and that is told already
            for low, high in (
                ("min_blocks", "max_blocks"),
                ("min_time_s", "max_time_s"),
                ("latency_max_time_s", "timeout_s"),
            ):
                values = getattr(protocol, low), getattr(protocol, high)
                if values[0] > values[1]:
                    keys = _given(low, number, source, quick=quick) or _given(high, number, source, quick=quick)
                    what = f"{low} must not be above {high}: {values[0]:g} and {values[1]:g}"
                    yield source.problem(keys or ("measurement",), what)
            if why_not := why_no_design(protocol.replicates):
                yield source.problem(_given("replicates", number, source, quick=quick) or ("measurement",), why_not)


def _given(name: str, number: int, source: Source, *, quick: bool) -> Keys | None:
    """Where the value of the protocol stands that counts; None where it is the default."""
    places: list[Keys] = [("quick", "measurement", name)] if quick else []
    places += [("use_cases", number, "measurement", name), ("measurement", name)]
    return next((place for place in places if place in source.values), None)


def _check_measurement(config: Config, source: Source) -> Problems:
    """The shape of `quick.measurement` and of a use case's is that of `measurement`, but nothing needs to be there."""
    parts: list[tuple[Keys, dict[str, Any]]] = [(("quick", "measurement"), config.quick.measurement)]
    parts += [(("use_cases", number, "measurement"), given.measurement) for number, given in config.use_cases.items()]
    for keys, given in parts:
        try:
            MeasurementSettings.model_validate(given, strict=True)
        except ValidationError as error:
            yield from shape_problems(error, MeasurementSettings, source, above=keys)
    yield from _check_protocols(config, source)


def _known(
    keys: Keys, values: Iterable[object] | None, valid: Iterable[object], source: Source, owner: str = ""
) -> Problems:
    """One problem for each of `values` that is not valid. `keys` leads to a list, or to the one value."""
    valid = list(valid)
    for index, value in enumerate(values or ()):
        if value not in valid:
            inner = (*keys, index) if (*keys, index) in source.values else keys
            rule = f"not in {owner}" if owner else "not defined"
            yield source.problem(inner, f"{rule}; {valid_names(value, valid)}")


def _benchmark(name: str) -> Benchmark | None:
    """A missing one is a problem of its own."""
    return benchmark(name) if name in benchmark_names() else None


def _use_case(name: str) -> UseCase | None:
    return use_case(name) if name in use_case_names() else None
