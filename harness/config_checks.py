"""What experiments.yaml means: do its names exist, do its numbers fit together, can the runners do it?

`check` yields every problem with its place; it runs on a file whose shape (harness/config_model.py) is right.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from harness.catalog import Catalog, UseCaseFile
from harness.config_model import Config, QuickUseCase, UseCaseConfig
from harness.config_shape import shape_problems
from harness.matrix import expand_variants
from harness.settings import FRAMEWORKS, MeasurementSettings
from harness.suggest import valid_names
from harness.yaml_source import Keys, Problem, Source

Problems = Iterator[Problem]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


SETTING_CHECKS: dict[str, Callable[[Any], bool]] = {
    "positive integer": lambda value: _is_number(value) and isinstance(value, int) and value > 0,
    "positive number": lambda value: _is_number(value) and value > 0,
    "non-negative number": lambda value: _is_number(value) and value >= 0,
    "fraction": lambda value: _is_number(value) and 0 <= value <= 1,
}
SETTING_WORDS = {
    "positive integer": "a whole number of at least 1",
    "positive number": "a number greater than 0",
    "non-negative number": "a number of at least 0",
    "fraction": "a number from 0 to 1",
}


def check(config: Config, source: Source, catalog: Catalog) -> Problems:
    yield from _check_matrix(config, source)
    yield from _check_benchmarks(config, source, catalog)
    for number, use_case in config.use_cases.items():
        yield from _check_use_case(number, use_case, config, source, catalog)
    for number, quick in config.quick.use_cases.items():
        keys: Keys = ("quick", "use_cases", number)
        if number in config.use_cases:
            yield from _check_axes(keys, quick, config.use_cases[number], source, catalog)
        else:
            yield source.problem(keys, f"not one of use_cases; {valid_names(number, config.use_cases)}", at_key=True)
    yield from _check_quick_measurement(config, source)
    yield from _check_cells(config, source, catalog)


def _check_cells(config: Config, source: Source, catalog: Catalog) -> Problems:
    """What only shows where a benchmark and a use case meet."""
    for number, use_case in config.use_cases.items():
        benchmarks = [
            benchmark
            for benchmark in config.benchmarks
            if not all(config.is_excluded(gpu, benchmark, number) for gpu in config.gpus)
        ]
        yield from _check_settings_complete(number, use_case, benchmarks, config, source, catalog)
        for benchmark in benchmarks:
            yield from _check_variants(number, use_case, benchmark, config, source, catalog)


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


def _check_benchmarks(config: Config, source: Source, catalog: Catalog) -> Problems:
    names_of_use_cases = {use_case.name for use_case in config.use_cases.values()}
    for name, benchmark in config.benchmarks.items():
        keys: Keys = ("benchmarks", name)
        files = [catalog[framework].benchmarks for framework in FRAMEWORKS]
        if any(name not in of_runner for of_runner in files):
            valid = sorted(files[0].keys() & files[1].keys())
            yield source.problem(
                keys,
                f"no file {name}.py in both runners' benchmarks/; {valid_names(name, valid)}",
                at_key=True,
            )
        else:
            models = [model for model in files[0][name].MODELS if model in files[1][name].MODELS]
            yield from _known(
                (*keys, "models"), benchmark.models, models, source, f"both runners' benchmarks/{name}.py"
            )
        for use_case_name, settings in benchmark.settings.items():
            inner: Keys = (*keys, "settings", use_case_name)
            if use_case_name not in names_of_use_cases:
                rule = f"not the name of a use case; {valid_names(use_case_name, sorted(names_of_use_cases))}"
                yield source.problem(inner, rule, at_key=True)
            else:
                yield from _check_settings(inner, settings, use_case_name, source, catalog)


def _check_use_case(number: int, use_case: UseCaseConfig, config: Config, source: Source, catalog: Catalog) -> Problems:
    keys: Keys = ("use_cases", number)
    files = [catalog[framework].use_cases for framework in FRAMEWORKS]
    if any(use_case.name not in of_runner for of_runner in files):
        valid = sorted(files[0].keys() & files[1].keys())
        rule = f"no file {use_case.name}.py in both runners' use_cases/; {valid_names(use_case.name, valid)}"
        yield source.problem((*keys, "name"), rule)
    for framework in FRAMEWORKS:
        if framework not in use_case.execution_modes:
            yield source.problem((*keys, "execution_modes", framework), "is missing; name one at least")
    if use_case.devices % use_case.nodes:
        rule = f"must be divisible by nodes ({use_case.nodes}): every node takes as many"
        yield source.problem((*keys, "devices"), rule, value=use_case.devices)
    if use_case.devices > 1 and any(file.ONE_DEVICE for file in _files(use_case.name, catalog)):
        rule = f"must be 1: {use_case.name} splits no work among devices"
        yield source.problem((*keys, "devices"), rule, value=use_case.devices)
    yield from _check_axes(keys, use_case, use_case, source, catalog)
    for axis in _option_axes(use_case, catalog):
        if axis not in use_case.options:
            yield source.problem((*keys, "options", axis), "is missing; list the values to measure")
    yield from _check_exclude(number, use_case, config, source)


def _check_axes(
    keys: Keys, axes: UseCaseConfig | QuickUseCase, use_case: UseCaseConfig, source: Source, catalog: Catalog
) -> Problems:
    """What may stand in a use case and in its part under `quick`."""
    for index, batch_size in enumerate(axes.batch_sizes or ()):
        if batch_size % use_case.devices:
            rule = f"must be divisible by devices ({use_case.devices}): a batch size is that of all devices"
            yield source.problem((*keys, "batch_sizes", index), rule)
    for framework, modes in axes.execution_modes.items():
        file = catalog[framework].use_cases.get(use_case.name)
        if file:
            owner = f"{framework}_runner/use_cases/{use_case.name}.py"
            yield from _known((*keys, "execution_modes", framework), modes, file.EXECUTION_MODES, source, owner)
    declared = _option_axes(use_case, catalog)
    for axis, values in axes.options.items():
        inner: Keys = (*keys, "options", axis)
        if axis not in declared:
            rule = f"not an option of {use_case.name}; {valid_names(axis, declared)}"
            yield source.problem(inner, rule, at_key=True)
        else:
            yield from _check_option(inner, values, declared[axis], source)
    yield from _check_settings((*keys, "settings"), axes.settings, use_case.name, source, catalog)


def _check_option(keys: Keys, values: Iterable[object], declared: tuple[Any, ...] | str, source: Source) -> Problems:
    """`declared` is what OPTIONS says of the axis: its values, or a rule."""
    if not isinstance(declared, str):
        yield from _known(keys, values, declared, source)
        return
    for index, value in enumerate(values):
        if not SETTING_CHECKS[declared](value):
            inner = (*keys, index) if (*keys, index) in source.values else keys
            yield source.problem(inner, f"must be {SETTING_WORDS[declared]}", value=value)


def _check_settings(
    keys: Keys, settings: dict[str, Any], use_case_name: str, source: Source, catalog: Catalog
) -> Problems:
    rules = _setting_rules(use_case_name, catalog)
    for setting, value in settings.items():
        if setting not in rules:
            if _files(use_case_name, catalog):
                rule = f"not a setting of {use_case_name}; {valid_names(setting, rules)}"
                yield source.problem((*keys, setting), rule, at_key=True)
        elif not SETTING_CHECKS[rules[setting]](value):
            yield source.problem((*keys, setting), f"must be {SETTING_WORDS[rules[setting]]}")


def _check_exclude(number: int, use_case: UseCaseConfig, config: Config, source: Source) -> Problems:
    """A name that is on no axis excludes nothing, so it is a slip."""
    quick = config.use_case(number, quick=True)
    models = dict.fromkeys(model for benchmark in config.benchmarks.values() for model in benchmark.models)
    modes = [*use_case.execution_modes.values(), *quick.execution_modes.values()]
    for index, partial in enumerate(use_case.exclude):
        keys: Keys = ("use_cases", number, "exclude", index)
        named: list[tuple[str, Iterable[object] | None, Iterable[object]]] = [
            ("benchmark", partial.benchmark, config.benchmarks),
            ("model", partial.model, models),
            ("batch_size", partial.batch_size, use_case.batch_sizes + quick.batch_sizes),
            ("precision", partial.precision, use_case.precisions + quick.precisions),
            ("execution_mode", partial.execution_mode, [mode for some in modes for mode in some]),
        ]
        for key, values, axis in named:
            yield from _known((*keys, key), values, dict.fromkeys(axis), source)
        for option, values in (partial.options or {}).items():
            inner: Keys = (*keys, "options", option)
            if option not in use_case.options:
                rule = f"not an option of this use case; {valid_names(option, use_case.options)}"
                yield source.problem(inner, rule, at_key=True)
            else:
                axis = dict.fromkeys(use_case.options[option] + quick.options[option])
                yield from _known(inner, values, axis, source)


def _check_settings_complete(
    number: int,
    use_case: UseCaseConfig,
    benchmarks: list[str],
    config: Config,
    source: Source,
    catalog: Catalog,
) -> Problems:
    for setting, rule in _setting_rules(use_case.name, catalog).items():
        lacking = [name for name in benchmarks if setting not in config.settings(name, number, quick=False)]
        if lacking:
            yield source.problem(
                ("use_cases", number, "settings", setting),
                f"is missing for {', '.join(lacking)}; give {SETTING_WORDS[rule]} here "
                f"or at benchmarks.{lacking[0]}.settings.{use_case.name}.{setting}",
            )


def _check_variants(
    number: int, use_case: UseCaseConfig, benchmark: str, config: Config, source: Source, catalog: Catalog
) -> Problems:
    refused = {model: why for file in _files(use_case.name, catalog) for model, why in file.REFUSED_MODELS.items()}
    keys: Keys = ("use_cases", number)
    for quick in (False, True):
        for framework in use_case.execution_modes:
            variants = expand_variants(config, framework, benchmark, number, quick=quick)
            if not variants:
                what = "with --quick, exclude leaves" if quick else "exclude leaves"
                rule = f"{what} nothing to measure for {framework} on {benchmark}"
                yield source.problem((*keys, "exclude"), rule, at_key=True)
            for model in dict.fromkeys(variant.model for variant in variants if variant.model in refused):
                rule = (
                    f"does not go with {model} of {benchmark}: {refused[model]}; "
                    f"add `- {{model: {model}}}` to use_cases.{number}.exclude"
                )
                yield source.problem((*keys, "name"), rule)


def _check_quick_measurement(config: Config, source: Source) -> Problems:
    """The shape of `quick.measurement` is that of `measurement`, but nothing needs to be there."""
    try:
        config.protocol(quick=True)
    except ValidationError as error:
        yield from shape_problems(error, MeasurementSettings, source, above=("quick", "measurement"))


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


def _files(use_case_name: str, catalog: Catalog) -> list[UseCaseFile]:
    """The runners' files of a use case; a missing one is a problem of its own."""
    found = (catalog[framework].use_cases.get(use_case_name) for framework in FRAMEWORKS)
    return [file for file in found if file]


def _setting_rules(use_case_name: str, catalog: Catalog) -> dict[str, str]:
    return {name: rule for file in _files(use_case_name, catalog) for name, rule in file.SETTINGS.items()}


def _option_axes(use_case: UseCaseConfig, catalog: Catalog) -> dict[str, tuple[Any, ...] | str]:
    files = _files(use_case.name, catalog)
    return {axis: values for file in files for axis, values in file.OPTIONS.items()}
