"""The results of README.md, between its two markers: a picture, and the answers as a table."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from harness.results.record import Record
from pipeline.markdown import GeneratedPart
from pipeline.report.answer import answers_table, groups_of
from pipeline.report.charts import DARK, PRINT, Spec, specification
from pipeline.report.compare import Section
from pipeline.report.drawing import svg_of
from pipeline.report.environments import versions_and_days
from pipeline.report.figures import PUBLISHED_WIDTH, published_chart
from pipeline.report.table import markdown

PART_OF_README = GeneratedPart(begin="<!-- results:begin -->", end="<!-- results:end -->")
COMMAND = "python main.py report --update-readme"
NOTHING = "No result is published yet: `results/published` holds no full measurement. Quick runs are never shown here."


def published_part(compared: Sequence[Section], records: Sequence[Record], folder: str = "") -> str:
    """All that stands between the markers.

    Args:
        folder: where the PICTURES lie, from the README.
    """
    shown = full_sections(compared)
    if not shown:
        return NOTHING
    parts = []
    if specifications := pictures(compared):
        light, dark = (f"{folder}/{name}" for name in specifications)
        parts.append(
            "<picture>\n"
            f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
            f'  <img alt="Which framework is faster, by what factor: the rows of the table." src="{light}">\n'
            "</picture>"
        )
    for group in groups_of(shown):
        own = [record for record in records if record.measurement.cell in {one.setup.cell for one in group.sections}]
        table = answers_table("results", group.headline, group.answers)
        about = " ".join(filter(None, [group.about, _made_of(own)]))
        parts += [f"**{group.headline}.** {about}", markdown(table)]
    return "\n\n".join(parts)


PICTURES = {"overview.svg": PRINT, "overview-dark.svg": DARK}


def pictures(compared: Sequence[Section]) -> dict[str, Spec]:
    """The specification of each of PICTURES; none where there is no ratio."""
    chart = published_chart(full_sections(compared))
    return {
        name: specification(chart, palette, width=PUBLISHED_WIDTH) | {"padding": FOR_WIDER_FONTS}
        for name, palette in PICTURES.items()
        if chart.points
    }


FOR_WIDER_FONTS = {"left": 64, "right": 16, "top": 6, "bottom": 6}
"""Pixels: a reader's browser has another font than the one that labels were measured with."""


def picture_svg(wanted: Spec) -> str:
    """Ends with what it was drawn from, as other fonts draw the same a little differently."""
    return f"{svg_of(wanted)}\n{drawn_from(wanted)}\n"


def drawn_from(wanted: Spec) -> str:
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    return f"<!-- drawn from the Vega-Lite specification {digest[:16]} -->"


def full_sections(compared: Iterable[Section]) -> list[Section]:
    """Of full measurements, whatever their data."""
    return [section for section in compared if section.rows and not section.setup.quick]


def _made_of(records: Sequence[Record]) -> str:
    """How many records, from when, by which versions, and how."""
    versions, days = versions_and_days(records)
    runs = sorted({url.partition("/runs/")[0] for one in records if (url := one.environment.get("wandb_url"))})
    where = f" Their runs in W&B: {', '.join(f'<{url}>' for url in runs)}." if runs else ""
    return f"{len(records)} records, {days}, {versions}; made by `{COMMAND}`.{where}"
