"""The models of a report: how large they are, by declaration and by their records. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.work.declared import Layer, Model
from pipeline.report.compare import Section
from pipeline.report.declared import NOT_DECLARED, model_of
from pipeline.report.table import Line, Table, numbers, texts

KINDS = {Layer.ATTENTION: "attention", Layer.DEPTHWISE: "depthwise", Layer.BATCH_NORM: "BatchNorm"}
PUBLISHED_HEADS = ("published parameters", "published GMAC", "published top-1")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    benchmark: str
    name: str
    parameter_counts: tuple[int, ...]
    """The declared one, with the benchmark's default sizes; else all that records say, ascending."""
    declared: Model | None
    """None where it is not declared any more."""

    @property
    def cells(self) -> list[str]:
        """Benchmark, name, kind (by the layers that the declaration names), parameters (from the least to the most),
        multiply-adds."""
        layers = self.declared.layers if self.declared else frozenset()
        kind = ", ".join(words for layer, words in KINDS.items() if layer in layers) or NOT_DECLARED
        ends = dict.fromkeys(self.parameter_counts[:1] + self.parameter_counts[-1:])
        parameters = " to ".join(f"{count:,}" for count in ends) or "not recorded"
        multiply_adds = giga(self.declared.multiply_adds if self.declared else None)
        return [self.benchmark, self.name, kind, parameters, multiply_adds]

    @property
    def published(self) -> list[str]:
        """In the order of PUBLISHED_HEADS."""
        found = self.declared.reference if self.declared else None
        if found is None:
            return [NOT_DECLARED] * len(PUBLISHED_HEADS)
        return [f"{found.parameter_count:,}", giga(found.multiply_adds), f"{found.accuracy:.1%}"]


def giga(count: int | None) -> str:
    """Three significant digits of 10^9."""
    return NOT_DECLARED if count is None else f"{count / 1e9:.3g}"


def models_of(compared: Iterable[Section]) -> list[ModelFacts]:
    """Each that has a number or was tried, once."""
    counts: dict[tuple[str, str], set[int]] = defaultdict(set)
    for section in compared:
        for row in section.rows:
            found = counts[section.setup.cell.benchmark, row.variant.model]
            for mode in row.modes:
                found |= {count for one in mode.records if one.result and (count := one.result.parameter_count)}
        for record in section.without_number:
            counts[section.setup.cell.benchmark, record.measurement.variant.model] |= set()
    facts = []
    for (benchmark, name), recorded in sorted(counts.items()):
        declared = model_of(benchmark, name)
        known = (declared.parameter_count,) if declared and declared.parameter_count else tuple(sorted(recorded))
        facts.append(ModelFacts(benchmark=benchmark, name=name, parameter_counts=known, declared=declared))
    return facts


def models_table(models: Sequence[ModelFacts]) -> Table:
    references = [one.declared.reference for one in models if one.declared and one.declared.reference]
    published = dict.fromkeys(f"Published: {one.source}, with {one.outputs:,} outputs." for one in references)
    return Table(
        name="models",
        title="Models",
        caption=" ".join(
            [
                "GMAC: billions of multiply-adds of one sample's forward pass, with the benchmark's default sizes.",
                *published,
                "Achieved FLOP/s: throughput times the floating-point operations of a sample, two for each "
                "multiply-add of convolutions, dense layers and attention; three times a forward pass in training, the "
                "usual count. What a formulation computes beyond that is not counted, and there is none where the "
                "sizes are not the benchmark's default ones.",
            ]
        ),
        columns=[*texts("benchmark", "model", "kind"), *numbers("parameters", "GMAC", *PUBLISHED_HEADS)],
        lines=[Line([*one.cells, *one.published]) for one in models],
    )
