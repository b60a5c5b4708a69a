"""The table of all models in README.md: `python -m pipeline.report.declared_models` writes it from the declarations."""

from collections.abc import Iterator

from harness.paths import README
from harness.work.declared import benchmark, benchmark_names
from pipeline.markdown import GeneratedPart, markdown_table
from pipeline.report.declared import NOT_DECLARED
from pipeline.report.models import ModelFacts

PART_OF_README = GeneratedPart(begin="<!-- models:begin -->", end="<!-- models:end -->")


def declared_models() -> Iterator[ModelFacts]:
    for name in benchmark_names():
        for model in benchmark(name).models:
            counts = (model.parameter_count,) if model.parameter_count else ()
            yield ModelFacts(benchmark=name, name=model.name, parameter_counts=counts, declared=model)


def models_table() -> str:
    head = ("benchmark", "model", "kind", "parameters", "GMAC")
    return markdown_table(
        head, (["" if cell == NOT_DECLARED else cell for cell in one.cells] for one in declared_models())
    )


if __name__ == "__main__":
    PART_OF_README.write(README, models_table())
