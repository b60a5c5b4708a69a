"""The presets of experiments.yaml: selections that have a name. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from harness.errors import ConfigError
from harness.experiments.expand import Scope, Selection, pairs_in, scope_of
from harness.experiments.model import Config, PresetConfig, PresetPart
from harness.experiments.narrow import Narrowing, places_of, require_valid
from harness.plan import FRAMEWORKS, Framework, Pair
from harness.suggest import valid_names
from harness.work.declared import use_case

Choice = TypeVar("Choice")
HEADLINE = "headline"
"""What plain `python main.py` measures, where experiments.yaml has it."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a preset as a command has it: narrowed further by its flags."""

    selection: Selection
    pairs: list[Pair]


def preset_of(config: Config, name: str | None, selection: Selection) -> str | None:
    """The preset that is asked for: by name, or the headline where no benchmark, no use case and no quick run is.

    Raises:
        ConfigError: experiments.yaml has no preset of this name.
    """
    if name is not None and name not in config.presets:
        raise ConfigError(f"--preset {name}: not defined in experiments.yaml; {valid_names(name, config.presets)}")
    if name is not None and selection.narrowing.devices:
        raise ConfigError(f"--preset {name}: says itself on how many devices; --devices goes with --use_case")
    asks_for_cells = selection.benchmarks or selection.use_cases or selection.quick or selection.narrowing.devices
    return HEADLINE if name is None and not asks_for_cells and HEADLINE in config.presets else name


def expand_preset(config: Config, name: str, selection: Selection) -> list[Part]:
    """Its parts that have anything of the selection. What a flag names replaces what the preset says of that axis;
    benchmarks, use cases and frameworks are those that both have. A quick preset and one of sample data stay so.

    Raises:
        ConfigError: as expand(), or where the preset has nothing of what is asked for.
    """
    scope_of(config, selection)  # the names are defined
    preset = config.presets[name]
    is_sample = "sample" in (selection.data, preset.data)
    common = replace(selection, quick=selection.quick or preset.quick, data="sample" if is_sample else "real")
    scopes = [
        (part_selection, scope)
        for part in preset.parts
        if (part_selection := _selection(config, preset, part, common)) is not None
        and (scope := scope_of(config, part_selection)).cells
    ]
    if not scopes:
        raise ConfigError(f"--preset {name}: has none of the cells asked for; it has {cells_in_words(config, name)}")
    if not selection.narrowing.is_empty:
        cells = [cell for _, scope in scopes for cell in scope.cells]
        require_valid(selection.narrowing, places_of(config, cells), _frameworks(scopes))
    parts = [Part(selection=one, pairs=pairs) for one, scope in scopes if (pairs := pairs_in(config, one, scope))]
    if not parts:
        raise ConfigError(
            f"nothing to measure: no cell of the preset {name} has all of {' '.join(selection.narrowing.flags())}; "
            f"name --benchmark and --use_case to choose from all that experiments.yaml has"
        )
    return parts


def _frameworks(scopes: Iterable[tuple[Selection, Scope]]) -> list[Framework]:
    found = {framework for _, scope in scopes for framework in scope.frameworks}
    return [framework for framework in FRAMEWORKS if framework in found]


def _selection(config: Config, preset: PresetConfig, part: PresetPart, selection: Selection) -> Selection | None:
    """None where the part has none of the benchmarks, use cases or frameworks."""
    benchmarks = _common(part.benchmarks or tuple(config.benchmarks), selection.benchmarks)
    use_cases = _common(part.use_cases or tuple(config.use_cases), selection.use_cases)
    frameworks = _common(tuple[str, ...](part.frameworks or FRAMEWORKS), selection.frameworks)
    if not (benchmarks and use_cases and frameworks):
        return None
    return replace(
        selection,
        benchmarks=benchmarks,
        use_cases=use_cases,
        frameworks=frameworks,
        narrowing=_merged(narrowing_of_part(config, preset, part), selection.narrowing),
    )


def _common(of_part: tuple[Choice, ...], asked: tuple[Choice, ...]) -> tuple[Choice, ...]:
    return tuple(name for name in of_part if name in asked) if asked else of_part


def narrowing_of_part(config: Config, preset: PresetConfig, part: PresetPart) -> Narrowing:
    use_cases = {config.use_cases[number].name for _, number in cells_of(config, part)} if preset.headline else ()
    headlines = [use_case(name).headline for name in sorted(use_cases)]
    of_headline = (one[framework] for one in headlines for framework in part.frameworks or one if framework in one)
    return Narrowing(
        models=part.models,
        batch_sizes=part.batch_sizes,
        precisions=part.precisions,
        formulations=part.formulations,
        runs=part.runs,
        execution_modes=(*part.execution_modes, *of_headline),
        options=tuple((name, value) for name, values in part.options.items() for value in values),
        settings=tuple(part.settings.items()),
    )


def _merged(of_part: Narrowing, asked: Narrowing) -> Narrowing:
    """The flags' where they say anything; of options and settings by name."""
    by_name = {
        axis: (*(one for one in getattr(of_part, axis) if one[0] not in dict(named)), *named)
        for axis, named in (("options", asked.options), ("settings", asked.settings))
    }
    of_part = of_part.with_modes() if asked.names_modes else of_part
    axes = {one.name: getattr(asked, one.name) or getattr(of_part, one.name) for one in fields(asked)}
    return Narrowing(**axes | by_name)


def cells_of(config: Config, part: PresetPart) -> list[tuple[str, int]]:
    """Benchmark and use case, without those that matrix.exclude names on every GPU."""
    return [
        (benchmark, number)
        for benchmark in part.benchmarks or config.benchmarks
        for number in part.use_cases or config.use_cases
        if not all(config.is_excluded(gpu, benchmark, number) for gpu in config.gpus)
    ]


def cells_in_words(config: Config, name: str) -> str:
    """`mnist_1, cifar10_1, ...`"""
    cells = (cell for part in config.presets[name].parts for cell in cells_of(config, part))
    return ", ".join(dict.fromkeys(f"{benchmark}_{number}" for benchmark, number in cells))
