"""The report as one HTML page that needs nothing else: no network, no other file, no browser newer than 2023."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS
from harness.printable import printable
from harness.results.fake_gpu import HEADLINE, is_of_a_fake
from harness.results.kernel_names import class_of
from harness.results.quantities import THROUGHPUT, Quantity, number, shown_in
from harness.results.record import Record
from harness.results.statistics import calls_needed
from harness.work.tasks import Metric
from pipeline.report import calibrations, devices_axis, why_words, wording
from pipeline.report.calibrations import CalibratedDevices
from pipeline.report.ceilings import ABOUT as ABOUT_CEILINGS
from pipeline.report.ceilings import DeviceCeilings, ceiling_table, sources
from pipeline.report.chance import chance_sentence
from pipeline.report.charts import PAGE, Chart, Points, Spec, specification
from pipeline.report.compare import NAMES, VERDICTS, Mode, OneDevice, Row, Section, Setup, Tally, scaling, tally
from pipeline.report.declared import task_of
from pipeline.report.environments import environment_groups
from pipeline.report.figures import Drawing, overview, section_drawing
from pipeline.report.left_out import left_out_lines
from pipeline.report.models import OPERATIONS, PUBLISHED_HEADS, SIZES_OF_MODELS, models_of, published_sources
from pipeline.report.option_axis import OptionAxis, option_axis
from pipeline.report.phases import STATISTICS, PhaseTable, phase_table
from pipeline.report.why import TERMS, Terms, explained, why_of

if TYPE_CHECKING:
    from jinja2 import Template

PAGE_BEGINS = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
"""By which a page of a report is known."""
TEMPLATES = REPOSITORY / "templates"
EMBED = "window.vegaEmbed = vegaEmbed;"
"""What the page's own script uses of Vega."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A section with all that the page shows of it."""

    id: str
    section: Section
    tally: Tally
    drawing: Drawing
    scalings: Sequence[tuple[Row, Mode, str, str, str, str]]
    """Row, mode, strong and weak efficiency, and share of communication, in per cent; what differs on one device."""
    axis: OptionAxis | None
    phases: PhaseTable | None
    explained: Sequence[Terms]

    @property
    def setup(self) -> Setup:
        return self.section.setup

    @property
    def flags(self) -> list[str]:
        return wording.flag_names(*self.section.rows)

    @property
    def unlike(self) -> str:
        return wording.unlike_names(self.section.rows)

    @property
    def metric(self) -> Metric:
        return task_of(self.setup.cell.benchmark).metric

    @cached_property
    def columns(self) -> list[Quantity]:
        """Of the table of all execution modes, beside the throughput; left out where no mode has the number."""
        there = {name for row in self.section.rows for mode in row.modes for name in mode.numbers}
        return [one for one in shown_in("page") if one.name in there and one is not THROUGHPUT]


@dataclass(frozen=True, kw_only=True)
class Card:
    """All places of one device together: the first that a reader sees."""

    device: str
    places: Sequence[Place]

    @property
    def tally(self) -> Tally:
        return tally(self._rows)

    @property
    def unlike(self) -> str:
        return wording.unlike_names(self._rows)

    @property
    def _rows(self) -> list[Row]:
        return [row for place in self.places for row in place.section.rows]

    @property
    def flags(self) -> list[str]:
        return sorted({flag for place in self.places for flag in place.flags})


@dataclass(frozen=True, kw_only=True)
class UseCase:
    """All places of one use case."""

    title: str
    places: Sequence[Place]


def page_html(
    compared: Sequence[Section],
    alone: OneDevice,
    records: Sequence[Record],
    refused: Sequence[str],
    source: Path,
    calibrated: CalibratedDevices | None = None,
    now: datetime | None = None,
    *,
    traces: Mapping[str, str] | None = None,
    ceilings: DeviceCeilings | None = None,
) -> str:
    """
    Args:
        records: all that were read; for their environments, and for what is left out of them.
        refused: sentences about files that could not be read.
        source: the folder of the records.
        calibrated: what is known of the verdicts on each device.
        traces: by the name of an explanation's timeline, where its trace is.
        ceilings: what the devices can do.
    """
    from markupsafe import Markup

    places = [_place(index, section, alone) for index, section in enumerate(compared)]
    quotable = [place for place in places if not place.setup.doubts]
    doubtful = [place for place in places if place.setup.doubts]
    shown = quotable or doubtful
    summary = overview([place.section for place in shown])
    models = models_of(compared)
    return _template().render(
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "report.js").read_text(encoding="utf-8")),
        vega=Markup(_vega()),
        charts=Markup(_safe_json(_chart_data(places, summary))),
        summary=summary,
        cards=_cards(quotable),
        quotable=_by_use_case(quotable),
        doubtful=_by_use_case(doubtful),
        shown=shown,
        calibrated=calibrated or {},
        traces=traces or {},
        ceilings=ceiling_table(ceilings or {}),
        about_ceilings=[ABOUT_CEILINGS, *sources(ceilings or {})],
        by_chance=chance_sentence(compared),
        older_rules=wording.rules_sentence(compared),
        device_panels=devices_axis.device_panels([place.section for place in shown]),
        devices=_distinct(place.setup.device for place in places),
        benchmarks=_distinct(place.setup.cell.benchmark for place in places),
        use_cases=_use_cases(places),
        models=models,
        about_models=[SIZES_OF_MODELS, *published_sources(models), OPERATIONS],
        environments=environment_groups(records),
        records=len(records),
        left_out=left_out_lines(records),
        about_fakes=HEADLINE if any(is_of_a_fake(record.environment) for record in records) else "",
        refused=[printable(sentence) for sentence in refused],
        source=printable(str(source)),
        now=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "wording": wording,
        "why": why_words,
        "why_of": why_of,
        "terms": TERMS,
        "class_of": class_of,
        "calibrations": calibrations,
        "number": number,
        "throughput": THROUGHPUT,
        "cell_of": _cell_text,
        "names": NAMES,
        "frameworks": FRAMEWORKS,
        "verdicts": VERDICTS,
        "statistics": STATISTICS,
        "devices_axis": devices_axis,
        "calls_for_p99": calls_needed(0.99),
        "published_heads": PUBLISHED_HEADS,
    }
    return environment.get_template("report.html.j2")


@cache
def _vega() -> str:
    """It takes seconds to bundle."""
    import vl_convert

    return _safe_script(vl_convert.javascript_bundle(EMBED))


def _place(index: int, section: Section, alone: OneDevice) -> Place:
    return Place(
        id=f"s{index}",
        section=section,
        tally=tally(section.rows),
        drawing=section_drawing(section, alone),
        scalings=list(_scalings(section, alone)),
        axis=option_axis(section),
        phases=phase_table(section),
        explained=explained(section),
    )


def _scalings(section: Section, alone: OneDevice) -> Iterable[tuple[Row, Mode, str, str, str, str]]:
    for row in section.rows:
        for mode in row.modes:
            found = scaling(section.setup, row, mode, alone)
            strong, weak, moved = wording.scaling_texts(found)
            if strong or weak or moved:
                yield row, mode, strong, weak, moved, wording.differences(found)


def _by_use_case(places: Sequence[Place]) -> list[UseCase]:
    groups: dict[tuple[int, str], list[Place]] = defaultdict(list)
    for place in sorted(places, key=_place_order):
        cell = place.setup.cell
        title = f"Use case {cell.use_case}: {wording.use_case_title(cell, place.setup.device)}"
        groups[cell.use_case, title].append(place)
    return [UseCase(title=title, places=same) for (_, title), same in groups.items()]


def _place_order(place: Place) -> tuple[Any, ...]:
    setup = place.setup
    cell = setup.cell
    return cell.use_case, cell.devices, cell.benchmark, setup.device, cell.gpu, setup.quick, setup.data


def _cards(places: Sequence[Place]) -> list[Card]:
    groups: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        groups[place.setup.device].append(place)
    return [Card(device=device, places=same) for device, same in sorted(groups.items())]


def _use_cases(places: Sequence[Place]) -> list[tuple[int, str]]:
    """Number and titles of each, for the filter."""
    titles: dict[int, set[str]] = defaultdict(set)
    for setup in (place.setup for place in places):
        titles[setup.cell.use_case].add(wording.use_case_title(setup.cell, setup.device))
    return [(number, " / ".join(sorted(found))) for number, found in sorted(titles.items())]


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted(set(values))


def _cell_text(place: Place, mode: Mode, quantity: Quantity) -> str:
    """Behind the number, how many replicates have it, where it is not all of them."""
    if quantity.name not in mode.numbers:
        return ""
    text = quantity.text(mode.numbers[quantity.name], place.metric)
    having, all_ = mode.replicates_with[quantity.name], len(mode.throughputs)
    return text if having == all_ else f"{text} ({having} of {all_})"


def _chart_data(places: Sequence[Place], summary: Drawing) -> dict[str, Any]:
    """Specifications once for each kind of chart, data once for each section."""
    charts: dict[str, Chart] = {chart.name: chart for place in places for chart in place.drawing.charts}
    charts |= {chart.name: chart for chart in summary.charts}
    specifications: dict[str, Spec] = {name: specification(chart, None, PAGE) for name, chart in charts.items()}
    data: dict[str, dict[str, Points]] = {place.id: dict(place.drawing.data) for place in places}
    return {"specifications": specifications, "data": data | {"summary": dict(summary.data)}}


def _safe_json(content: Any) -> str:
    """As the text of a script element: no `</script>` and no `<!--` in it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _safe_script(text: str) -> str:
    """JavaScript as the text of a script element. A `<` of these words can only stand in a string there."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
