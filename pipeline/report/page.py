"""The report as one HTML page that needs nothing else: no network, no other file, no browser newer than 2023."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.paths import REPOSITORY
from harness.printable import printable
from harness.results.record import Record
from pipeline.report import wording
from pipeline.report.answer import Answer, Group, groups_of, place_on_axis
from pipeline.report.calibration import CalibratedDevices, trust_sentences
from pipeline.report.charts import PAGE, Chart, Spec, specification
from pipeline.report.compare import NAMES, Section, Setup
from pipeline.report.environments import environments_table, versions_and_days
from pipeline.report.figures import section_charts
from pipeline.report.left_out import left_out_lines
from pipeline.report.scaling_axis import scaling_chart
from pipeline.report.table import Table
from pipeline.report.tables import report_tables, section_tables

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

TEMPLATES = REPOSITORY / "templates"
EMBED = "window.vegaEmbed = vegaEmbed;"
"""What the page's own script uses of Vega."""


@dataclass(frozen=True, kw_only=True)
class Place:
    id: str
    section: Section
    charts: Sequence[Chart]
    tables: Sequence[Table]

    @property
    def setup(self) -> Setup:
        return self.section.setup

    @property
    def title(self) -> str:
        setup = self.setup
        asked = f" (asked for as {setup.cell.gpu})" if setup.cell.gpu != "any" else ""
        kind = "".join(f", {doubt}" for doubt in setup.doubts)
        what = wording.use_case_title(setup.cell)
        return f"{setup.cell.benchmark}: {what} on {setup.devices}{asked}{kind}"

    @property
    def failures(self) -> list[str]:
        return wording.failure_lines(self.section.without_number)


def page_html(
    compared: Sequence[Section],
    records: Sequence[Record],
    refused: Sequence[str],
    source: Path,
    calibrated: CalibratedDevices | None = None,
    now: datetime | None = None,
) -> str:
    """
    Args:
        records: all that were read; for their environments, and for what is left out of them.
        refused: sentences about files that could not be read.
        source: the folder of the records.
        calibrated: what is known of the verdicts on each device.
    """
    from markupsafe import Markup

    groups = groups_of(compared)
    places = [_place(index, section) for index, section in enumerate(compared)]
    overall = {chart.name: chart for chart in [scaling_chart(compared)] if chart.points}
    return template("report.html.j2").render(
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "report.js").read_text(encoding="utf-8")),
        vega=Markup(_vega()),
        charts=Markup(_safe_json(_chart_data(places, overall))),
        groups=[(group, _how_sure(group, calibrated or {})) for group in groups],
        headline=groups[0].headline if groups else "Nothing has a number yet",
        measured=measured_sentence(records),
        places=places,
        place_ids={place.setup: place.id for place in places},
        tables=[*report_tables(compared), environments_table(records)],
        overall=overall,
        filters=_filters(places),
        left_out=left_out_lines(records),
        refused=[printable(sentence) for sentence in refused],
        source=printable(str(source)),
        now=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
    )


@cache
def template(name: str) -> "Template":
    """Of the folder `templates`, with what pages need in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"axis_of": axis_of, "names": NAMES, "whose_side": wording.WHOSE_SIDE}
    environment.filters["with_code"] = _with_code
    return environment.get_template(name)


def _with_code(text: str) -> "Markup":
    """What is in backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def _vega() -> str:
    """It takes seconds to bundle."""
    import vl_convert

    return _safe_script(vl_convert.javascript_bundle(EMBED))


def axis_of(answer: Answer, scale: float) -> tuple[float, float, float] | None:
    """The point and both ends of the interval in per cent of the picture's width; None without a ratio."""
    if answer.ratio is None:
        return None
    low, high = answer.interval or (answer.ratio, answer.ratio)
    point, left, right = (round(place_on_axis(one, scale), 2) for one in (answer.ratio, low, high))
    return point, left, right


def measured_sentence(records: Sequence[Record]) -> str:
    """`JAX 0.10.2 and PyTorch 2.14.1, 96 measurements, 2026-11-25.`"""
    versions, days = versions_and_days(records)
    count = f"{len(records)} measurement{'' if len(records) == 1 else 's'}"
    return ", ".join(filter(None, [versions, count, days])) + "."


def _how_sure(group: Group, calibrated: CalibratedDevices) -> list[str]:
    found = [*trust_sentences(calibrated.get(group.device, ())), wording.chance_sentence(group.sections)]
    return list(filter(None, found))


def _place(index: int, section: Section) -> Place:
    return Place(
        id=f"s{index}",
        section=section,
        charts=section_charts(section),
        tables=section_tables(section),
    )


def _filters(places: Sequence[Place]) -> dict[str, list[tuple[str, str]]]:
    """Of each filter the values, and the words for each."""
    setups = [place.setup for place in places]
    use_cases = {setup.cell.use_case: wording.use_case_title(setup.cell) for setup in setups}
    return {
        "device": [(one, one) for one in sorted({setup.device for setup in setups})],
        "benchmark": [(one, one) for one in sorted({setup.cell.benchmark for setup in setups})],
        "use case": [(str(number), f"{number}: {title}") for number, title in sorted(use_cases.items())],
    }


def _chart_data(places: Sequence[Place], overall: Mapping[str, Chart]) -> dict[str, Any]:
    """Specifications once for all charts that look alike; of each section, and of what is of all sections, by the name
    of each chart which specification has its look, and its points."""
    specifications: list[Spec] = []

    def looks_of(chart: Chart) -> int:
        found = specification(chart, PAGE)
        if found not in specifications:
            specifications.append(found)
        return specifications.index(found)

    of_places = {place.id: place.charts for place in places} | {"overall": [*overall.values()]}
    data = {id_: {one.name: [looks_of(one), one.points] for one in of_place} for id_, of_place in of_places.items()}
    return {"specifications": specifications, "data": data}


def _safe_json(content: Any) -> str:
    """As the text of a script element: no `</script>` and no `<!--` in it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _safe_script(text: str) -> str:
    """JavaScript as the text of a script element. A `<` of these words can only stand in a string there."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
