"""What a command line or a preset asks of the axes of its cells, and what is wrong with it. Pure."""

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast, get_args

from pydantic.fields import FieldInfo

from harness.errors import ConfigError
from harness.experiments.flags import BATCHES
from harness.experiments.model import Config
from harness.experiments.source import plain_value
from harness.experiments.words import field_problem
from harness.plan import FRAMEWORKS, Framework, MeasurementSettings, Pairing, Precision, Scalar
from harness.results.sequential import why_no_design
from harness.suggest import valid_names
from harness.work.applies import why_not_precision
from harness.work.declared import Benchmark, Mode, UseCase
from harness.work.declared import benchmark as declared_benchmark
from harness.work.declared import use_case as declared_use_case

Value = TypeVar("Value")
TWICE = "given twice, with different values; one run has one"
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """An empty tuple means all that experiments.yaml has."""

    models: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    """Global, over all devices, unless `batch` is `per_device`."""
    devices: tuple[int, ...] = ()
    batch: str | None = None
    """One of BATCHES: the sizes are those of the use case on one device, in all or on each device. None: those of the
    use case itself."""
    precisions: tuple[str, ...] = ()
    formulations: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    execution_modes: tuple[str, ...] = ()
    """These three of any framework."""
    options: tuple[tuple[str, Scalar], ...] = ()
    """Name and value; a name may stand there with several values."""
    settings: tuple[tuple[str, Scalar], ...] = ()
    """Of the use case, of the protocol, or sizes of the benchmark: what replaces the value of experiments.yaml."""

    @property
    def is_empty(self) -> bool:
        return self == ALL

    @property
    def names_modes(self) -> bool:
        return bool(self.formulations or self.runs or self.execution_modes)

    def with_modes(self, *names: str) -> "Narrowing":
        """With these instead of what it says of modes."""
        return replace(self, formulations=(), runs=(), execution_modes=names)

    def modes_of(self, declared: Iterable[Mode], chosen: Sequence[Mode]) -> Sequence[Mode]:
        """Those that have all that it names; of the `chosen` ones where they do and no mode is named itself."""
        if not self.names_modes:
            return chosen
        found = [mode for mode in declared if self._has(mode)]
        of_file = [mode for mode in chosen if mode in found]
        return found if self.execution_modes or not of_file else of_file

    def _has(self, mode: Mode) -> bool:
        return (
            (not self.execution_modes or mode.name in self.execution_modes)
            and (not self.formulations or mode.formulation in self.formulations)
            and (not self.runs or mode.run.name in self.runs)
        )

    def values_of(self, option: str) -> tuple[Scalar, ...]:
        return tuple(value for name, value in self.options if name == option)

    def flags(self) -> tuple[str, ...]:
        """As words of the command line, such as `--model cnn --batch_size 64`."""
        words: list[str] = []
        for axis, flag in FLAGS.items():
            value = getattr(self, axis)
            if axis == "devices":
                value = (",".join(map(str, value)),) if value else ()
            elif axis == "batch":
                value = (value,) if value else ()
            words += [word for one in value for word in (f"--{flag}", _text(one))]
        return tuple(words)


FLAGS = {
    **{"models": "model", "batch_sizes": "batch_size", "devices": "devices", "batch": "batch"},
    **{"precisions": "precision", "formulations": "formulation", "runs": "run", "execution_modes": "execution_mode"},
    **{"options": "option", "settings": "set"},
}
"""Of flags.py, for each field of a Narrowing."""
ALL = Narrowing()


def _text(value: Scalar | tuple[str, Scalar]) -> str:
    if isinstance(value, tuple):
        return f"{value[0]}={_text(value[1])}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def narrowing_of(arguments: argparse.Namespace) -> Narrowing:
    """Of the flags of flags.py, which need not all be there; each value once."""
    asked: dict[str, Any] = {axis: getattr(arguments, flag, None) or () for axis, flag in FLAGS.items()}
    for axis in ("options", "settings"):
        asked[axis] = [(name, plain_value(text)) for name, text in asked[axis]]
    batch = asked.pop("batch") or (BATCHES[0] if asked["devices"] else None)
    return Narrowing(batch=batch, **{axis: _once(values) for axis, values in asked.items()})


PAIRING = "pairing"
"""The one top-level key of experiments.yaml that `--set` takes."""


def take_pairing(arguments: argparse.Namespace) -> Pairing | None:
    """Remove the pairing from the values of `--set`, and return it; None where it is not given.

    Raises:
        ConfigError: it is not a pairing, or is given twice.
    """
    given = arguments.set or []
    values = _once(value for name, value in given if name == PAIRING)
    arguments.set = [(name, value) for name, value in given if name != PAIRING]
    for value in values:
        if wrong := _wrong_value(value, [Config.model_fields[PAIRING]]):
            raise ConfigError(f"--set {PAIRING}={value}: {wrong}")
    if len(values) > 1:
        raise ConfigError(f"--set {PAIRING}: {TWICE}")
    return cast(Pairing, values[0]) if values else None


def _once(values: Iterable[Value] | None) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(values or ()))


class Place(NamedTuple):
    """A benchmark and a use case that are selected."""

    benchmark: Benchmark
    use_case: UseCase
    devices: int


def places_of(config: Config, cells: Iterable[tuple[str, int]]) -> list[Place]:
    """`cells`: name of the benchmark, number of the use case."""
    return [
        Place(
            declared_benchmark(name), declared_use_case(config.use_cases[number].name), config.use_cases[number].devices
        )
        for name, number in cells
    ]


def require_valid(narrowing: Narrowing, places: Sequence[Place], frameworks: Sequence[Framework]) -> None:
    """Raises ConfigError for the first value that no place knows: what is valid in them, and the nearest."""
    for complaint in _complaints(narrowing, places, frameworks):
        raise ConfigError(complaint)


def _complaints(narrowing: Narrowing, places: Sequence[Place], frameworks: Sequence[Framework]) -> Iterator[str]:
    benchmarks = _names(place.benchmark.name for place in places)
    use_cases = {place.use_case.name: place.use_case for place in places}
    models = _once(model.name for place in places for model in place.benchmark.models)
    scoped = {f"{place.benchmark.name}/{model.name}" for place in places for model in place.benchmark.models}
    for name in narrowing.models:
        if name not in models and name not in scoped:
            yield f"--model {name}: no model of {benchmarks}; {valid_names(name, models)}"
    for size in narrowing.batch_sizes:
        if narrowing.batch is None and not any(size % place.devices == 0 for place in places):
            devices = sorted({place.devices for place in places})
            yield f"--batch_size {size}: must be divisible by {_or(devices)}: it is split among so many devices"
    for precision in narrowing.precisions:
        if precision not in PRECISIONS:
            yield f"--precision {precision}: no such precision; {valid_names(precision, PRECISIONS)}"
        reasons = [why_not_precision(use_case, precision) for use_case in use_cases.values()]
        if reasons and None not in reasons:
            yield f"--precision {precision}: not for {_names(use_cases)}: {reasons[0]}"
    declared = {
        one: _once(mode for use_case in use_cases.values() for mode in use_case.modes[one]) for one in FRAMEWORKS
    }
    for flag, asked, name_of in (
        ("--formulation", narrowing.formulations, attrgetter("formulation")),
        ("--run", narrowing.runs, attrgetter("run.name")),
        ("--execution_mode", narrowing.execution_modes, attrgetter("name")),
    ):
        names = {one: _once(map(name_of, modes)) for one, modes in declared.items()}
        for name in asked:
            if wrong := _wrong_name(name, names, _names(use_cases), frameworks):
                yield f"{flag} {name}: {wrong}"
    is_any = any(narrowing.modes_of(declared[one], ()) for one in frameworks)
    if narrowing.names_modes and not is_any:
        modes = ALL.with_modes(*narrowing.execution_modes)
        asked_for = replace(modes, formulations=narrowing.formulations, runs=narrowing.runs).flags()
        yield f"{' '.join(asked_for)}: no mode of {_names(use_cases)} has all of that"
    options = _fields((one.name, one.options.model_fields) for one in use_cases.values())
    settings = _fields((one.name, one.settings.model_fields) for one in use_cases.values())
    for place in places:
        for name, field in place.benchmark.sizes.model_fields.items():
            settings.setdefault(name, []).append(field)
    for name, field in MeasurementSettings.model_fields.items():
        settings.setdefault(name, []).append(field)
    for name, value in narrowing.options:
        if name not in options and name in settings:
            yield f"--option {name}={_text(value)}: it is a setting, not an option: --set {name}={_text(value)}"
        elif name not in options:
            yield f"--option {name}: not an option of {_names(use_cases)}; {valid_names(name, options)}"
        elif wrong := _wrong_value(value, options[name]):
            yield f"--option {name}={_text(value)}: {wrong}"
    for name, value in narrowing.settings:
        if name not in settings and name in options:
            yield f"--set {name}={_text(value)}: it is an option, not a setting: --option {name}={_text(value)}"
        elif name == PAIRING:
            yield f"--set {PAIRING}: only `main.py` and `main.py calibrate` take it; a job by hand takes --interleaved"
        elif name not in settings:
            valid = valid_names(name, [*settings, PAIRING])
            yield f"--set {name}: no setting of {_names(use_cases)} here; {valid}"
        elif (
            (wrong := _wrong_value(value, settings[name]))
            or name == "replicates"
            and isinstance(value, int)
            and (wrong := why_no_design(value))
        ):
            yield f"--set {name}={_text(value)}: {wrong}"
        elif [other for other, _ in narrowing.settings].count(name) > 1:
            yield f"--set {name}: {TWICE}"


def _wrong_name(
    name: str, names: Mapping[Framework, Sequence[str]], use_cases: str, frameworks: Sequence[Framework]
) -> str | None:
    """`names`: the valid ones of each framework."""
    if any(name in names[one] for one in frameworks):
        return None
    valid = dict.fromkeys(known for one in frameworks for known in names[one])
    for one in FRAMEWORKS:
        if name in names[one]:
            return f"only {one} has it, and only {_or(frameworks)} is selected; {valid_names(name, valid)}"
    return f"no such name in {use_cases}; {valid_names(name, valid)}"


def _fields(named: Iterable[tuple[str, dict[str, FieldInfo]]]) -> dict[str, list[FieldInfo]]:
    """By name, of all that have it."""
    found: dict[str, list[FieldInfo]] = {}
    for _, fields in named:
        for name, field in fields.items():
            found.setdefault(name, []).append(field)
    return found


def _wrong_value(value: Scalar, fields: Sequence[FieldInfo]) -> str | None:
    """None where one of them takes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "too large for a number"
    problems = [field_problem(value, field) for field in fields]
    return None if None in problems else problems[0]


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _or(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
