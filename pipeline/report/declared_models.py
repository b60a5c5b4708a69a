"""The table of all models in README.md: `python -m pipeline.report.declared_models` writes it from the declarations."""

from collections.abc import Iterator

from harness.paths import README
from harness.work.declared import Layer, benchmark, benchmark_names
from pipeline.markdown import GeneratedPart, markdown_table

PART_OF_README = GeneratedPart(begin="<!-- models:begin -->", end="<!-- models:end -->")
KINDS = {Layer.ATTENTION: "attention", Layer.DEPTHWISE: "depthwise", Layer.BATCH_NORM: "BatchNorm"}


def models_table() -> str:
    return markdown_table(("benchmark", "model", "kind", "parameters", "GMAC"), _lines())


def _lines() -> Iterator[list[str]]:
    """Empty where a size is not declared. GMAC: billions of multiply-adds of a sample's forward pass."""
    for name in benchmark_names():
        for model in benchmark(name).models:
            kind = ", ".join(words for layer, words in KINDS.items() if layer in model.layers)
            parameters = f"{model.parameter_count:,}" if model.parameter_count else ""
            multiply_adds = f"{model.multiply_adds / 1e9:.3g}" if model.multiply_adds is not None else ""
            yield [name, model.name, kind, parameters, multiply_adds]


if __name__ == "__main__":
    PART_OF_README.write(README, models_table())
