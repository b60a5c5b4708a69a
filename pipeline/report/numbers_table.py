"""The table of all numbers in docs/measurement.md: `python -m pipeline.report.numbers_table` writes it."""

from harness.paths import REPOSITORY
from harness.results.quantities import QUANTITIES, Place, Quantity
from harness.work.tasks import Metric
from pipeline.markdown import GeneratedPart, markdown_table

PART_OF_DOCS = GeneratedPart(begin="<!-- numbers:begin -->", end="<!-- numbers:end -->")
DOCUMENT = REPOSITORY / "docs" / "measurement.md"
ANY_METRIC = Metric(name="the metric", words="the task's metric", higher_is_better=True, format="number")
PLACES: dict[Place, str] = {"page": "page", "latex": "LaTeX", "terminal": "terminal"}


def numbers_table() -> str:
    return markdown_table(("number", "what", "shown in, beside the CSV and W&B"), map(_cells, QUANTITIES))


def _cells(quantity: Quantity) -> list[str]:
    places = [words for place, words in PLACES.items() if place in quantity.shown]
    return [f"`{quantity.name}`", quantity.title(ANY_METRIC), ", ".join(places + ["charts"] * bool(quantity.chart))]


if __name__ == "__main__":
    PART_OF_DOCS.write(DOCUMENT, numbers_table())
