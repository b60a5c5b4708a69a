"""The models of a report: how large they are, by declaration and by their records. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.work.declared import Layer, Model
from pipeline.report.compare import Section
from pipeline.report.declared import NOT_DECLARED, model_of

OPERATIONS = (
    "Achieved FLOP/s: throughput times the floating-point operations of a sample, two for each multiply-add of "
    "convolutions, dense layers and attention; three times a forward pass in training, the usual count. What a "
    "formulation computes beyond that is not counted, and there is none where the sizes are not the benchmark's "
    "default ones."
)

SIZES_OF_MODELS = "GMAC: billions of multiply-adds of one sample's forward pass, with the benchmark's default sizes."
PUBLISHED_HEADS = ("published parameters", "published GMAC", "published top-1")


KINDS = {Layer.ATTENTION: "attention", Layer.DEPTHWISE: "depthwise", Layer.BATCH_NORM: "BatchNorm"}


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    benchmark: str
    name: str
    parameter_counts: tuple[int, ...]
    """The declared one, with the benchmark's default sizes; else all that records say, ascending."""
    declared: Model | None
    """None where it is not declared any more."""

    @property
    def kind(self) -> str:
        """By the layers that the declaration names."""
        layers = self.declared.layers if self.declared else frozenset()
        return ", ".join(words for layer, words in KINDS.items() if layer in layers) or NOT_DECLARED

    @property
    def parameters(self) -> str:
        """`25,557,032`, or from the least to the most."""
        ends = dict.fromkeys(self.parameter_counts[:1] + self.parameter_counts[-1:])
        return " to ".join(f"{count:,}" for count in ends) or "not recorded"

    @property
    def multiply_adds(self) -> str:
        return giga(self.declared.multiply_adds if self.declared else None)

    @property
    def published(self) -> tuple[str, ...]:
        """In the order of PUBLISHED_HEADS."""
        found = self.declared.reference if self.declared else None
        if found is None:
            return (NOT_DECLARED,) * len(PUBLISHED_HEADS)
        return f"{found.parameter_count:,}", giga(found.multiply_adds), f"{found.accuracy:.1%}"


def giga(count: int | None) -> str:
    """Three significant digits of 10^9."""
    return NOT_DECLARED if count is None else f"{count / 1e9:.3g}"


def published_sources(models: Iterable[ModelFacts]) -> list[str]:
    """A sentence for each source."""
    found = [one.declared.reference for one in models if one.declared and one.declared.reference]
    return list(dict.fromkeys(f"Published: {one.source}, with {one.outputs:,} outputs." for one in found))


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
