"""`main.py --dry-run --why`: what experiments.yaml names and is not measured, with the reason. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.experiments.expand import Combination, combinations, narrowed, scope_of
from harness.experiments.model import Config
from harness.experiments.presets import Part
from harness.plan import FRAMEWORKS, Framework


def left_out_in_words(parts: Iterable[Part], config: Config) -> Iterator[str]:
    """A line for each cell, then one for each framework, model and reason in it."""
    for part in parts:
        selection = part.selection
        scope = scope_of(config, selection)
        yield from (f"{cell}: not measured" for cell in scope.without)
        for benchmark, number in scope.cells:
            of_frameworks = narrowed(
                config, benchmark, number, scope.frameworks, selection.narrowing, quick=selection.quick
            )
            found = [
                (framework, one)
                for framework, own in of_frameworks.items()
                for one in combinations(config, framework, benchmark, number, quick=selection.quick, narrowing=own)
            ]
            yield from _of_cell(f"{benchmark}_{number}", found)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Combinations of one model that are left out for one reason, in the order of their axes."""

    modes: dict[str, str] = field(default_factory=dict)
    """The formulation of each, by its name."""
    others: dict[str, dict[str, None]] = field(default_factory=dict)
    """Batch sizes, precisions and options, by their names."""

    def add(self, one: Combination) -> None:
        self.modes[one.mode.name] = one.mode.formulation
        for name, value in _axes(one).items():
            self.others.setdefault(name, {})[value] = None


def _axes(one: Combination) -> dict[str, str]:
    variant = one.variant
    options = {name: str(value) for name, value in variant.options.items()}
    return {"batch size": str(variant.batch_size), "precision": variant.precision, **options}


def _of_cell(cell: str, found: Sequence[tuple[Framework, Combination]]) -> Iterator[str]:
    measured = sum(one.why_not is None for _, one in found)
    yield f"{cell}: {measured:,} of {len(found):,} combinations are measured" + (
        "" if measured == len(found) else "; the others are left out:"
    )
    for framework in FRAMEWORKS:
        everything: dict[str, _Group] = {}
        groups: dict[tuple[str, str], _Group] = {}
        for name, one in found:
            if name == framework:
                everything.setdefault(one.variant.model, _Group()).add(one)
            if name == framework and one.why_not is not None:
                groups.setdefault((one.variant.model, one.why_not), _Group()).add(one)
        models: dict[tuple[str, str], list[str]] = {}
        for (model, reason), group in groups.items():
            models.setdefault((_what(group, everything[model], reason), reason), []).append(model)
        for (what, reason), of_reason in models.items():
            yield f"  {framework:<5}  {'; '.join([', '.join(of_reason), *filter(None, [what])])}: {reason}"


def _what(group: _Group, everything: _Group, reason: str) -> str:
    """What tells the group from all of the model's combinations, beside the formulation that the reason names; empty
    where that is nothing."""
    formulations = dict.fromkeys(group.modes.values())
    all_of_them = {name for name, formulation in everything.modes.items() if formulation in formulations}
    parts = []
    if all_of_them != group.modes.keys():
        parts.append(", ".join(group.modes))
    elif group.modes.keys() != everything.modes.keys() and not reason.startswith(" ".join(formulations)):
        parts.append(", ".join(formulations))
    parts += [
        f"{name} {', '.join(values)}" for name, values in group.others.items() if values != everything.others[name]
    ]
    return "; ".join(parts)
