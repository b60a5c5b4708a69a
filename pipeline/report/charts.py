"""The charts: what each is called, what it says, and how it is drawn. Their points come from figures.py.

A chart is a Vega-Lite specification as its documentation has it (https://vega.github.io/vega-lite/docs/). JAX and
PyTorch have one colour, one shape and one dash each, everywhere. The colours are of Okabe and Ito, "Color Universal
Design" (2008).
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.work.tasks import Metric
from pipeline.report.compare import NAMES, SAME, VERDICTS
from pipeline.report.why import TERMS, Term
from pipeline.report.why_words import term_words
from pipeline.report.wording import end_of_axis

Spec = dict[str, Any]
Points = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


class Palette(NamedTuple):
    jax: str
    torch: str
    neutral: str
    text: str
    grid: str
    background: str
    font: str


PRINT = Palette("#0072B2", "#D55E00", "#767676", "#1a1a1a", "#dddddd", "white", "sans-serif")
DARK = Palette("#56B4E9", "#E69F00", "#9198a1", "#f0f6fc", "#3d444d", "#0d1117", "sans-serif")
"""Of the same authors, for a dark page; the rest is GitHub's."""
PAGE = Palette(
    "var(--jax)", "var(--torch)", "var(--muted)", "var(--text)", "var(--line)", "transparent", "system-ui, sans-serif"
)
"""Names that the page's style sheet gives a colour for each theme."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    name: str
    """Ends the file name, such as `throughput`; that of its data, too."""
    title: str
    caption: str
    """What is shown and how it was made, in one or two sentences."""
    points: Points
    layers: Spec
    """Vega-Lite without its data and size. Its colours are those of the palette's scale and of the style `neutral`."""
    row_height: int = 24

    @property
    def wide(self) -> bool:
        """Small multiples, whose width is fixed."""
        return "facet" in self.layers


RATIO, NUMBER, PERCENT = ",.6~r", ",.4~r", ".1%"
FIELDS = {
    "mode": ("execution mode", ""),
    "place": ("where", ""),
    "chosen": ("best mode here", ""),
    "term": ("what", ""),
    "ratio": ("JAX / PyTorch", RATIO),
    "low": ("low", RATIO),
    "high": ("high", RATIO),
    "throughput": ("samples / s", NUMBER),
    "time_s": ("time (s)", NUMBER),
    "ms": ("ms", NUMBER),
    "count": ("in a step", NUMBER),
}
"""Title and format of each field that is a number, or has another title than its name."""


def _tooltip(*names: str, **others: tuple[str, str]) -> list[Spec]:
    """
    Args:
        others: title and format of fields that have others here than in FIELDS.
    """
    found = []
    for name in names:
        title, format_ = others.get(name) or FIELDS.get(name, (name, ""))
        kind = {"type": "quantitative", "format": format_} if format_ else {"type": "nominal"}
        found.append({"field": name, "title": title, **kind})
    return found


LOG: Spec = {"type": "log", "nice": False, "padding": 8}
LOG_2: Spec = {**LOG, "base": 2}
POINT: Spec = {"type": "point", "filled": True, "size": 55, "opacity": 1}
SHAPES = {"JAX": "circle", "PyTorch": "diamond"}


def _numbers(title: str | Sequence[str], scale: Spec | None = None, **axis: Any) -> Spec:
    """An axis. A logarithmic one has a label at each tick that has room for it: d3's own rule leaves most of them blank
    where the values are within a decade of each other."""
    if scale == LOG:
        axis["labelExpr"] = f"format(datum.value, '{axis.get('format', '~r')}')"
    found: Spec = {"type": "quantitative", "title": title}
    return found | ({"scale": scale} if scale else {}) | ({"axis": axis} if axis else {})


def _scaled(field: str, domain: Sequence[str], values: Sequence[Any] | None = None) -> Spec:
    """A field that has these values, each of which looks like that."""
    scale: Spec = {"domain": list(domain)} | ({"range": list(values)} if values else {})
    return {"field": field, "type": "nominal", "title": None, "scale": scale}


FRAMEWORKS = list(NAMES.values())
COLOR: Spec = {"color": _scaled("framework", FRAMEWORKS)}
SHAPE = {"shape": _scaled("framework", FRAMEWORKS, [SHAPES[name] for name in FRAMEWORKS])}
DASH = {"strokeDash": _scaled("framework", FRAMEWORKS, [[1, 0], [5, 3]])}
LABELS: Spec = {"labelExpr": "split(datum.label, ' | ')"}
"""` | ` in a label breaks the line."""


IN_ORDER: Spec = {"field": "order", "op": "min"}


def _rows(field: str) -> Spec:
    axis = {"labelLimit": 0, "labelOverlap": False, **LABELS}
    return {"field": field, "type": "nominal", "sort": IN_ORDER, "title": None, "axis": axis}


def _once(mark: str, encoding: Spec, **look: Any) -> Spec:
    """A mark that stands in the chart once, such as the line at 1."""
    return {"data": {"values": [{}]}, "mark": {"type": mark, **look, "style": "neutral"}, "encoding": encoding}


def ratios(name: str, title: str, points: Points, *, row_height: int = 24, with_words: bool = False) -> Chart:
    """Ratios with their intervals on a logarithmic axis; a line at 1 and a band where the two are the same. Colors and
    shapes are those of the verdicts.

    Args:
        with_words: to the right, who is faster; the page has no room for them.
    """
    x = _numbers("JAX / PyTorch", LOG)
    if with_words:  # by what factor, to both sides
        end = end_of_axis(point["ratio"] for point in points)
        factors = [1.0, *(factor for factor in (end**0.5, end) for factor in (factor, 1 / factor))]
        label = "format(max(datum.value, 1 / datum.value), '.2~r') + ' ×'"
        x = _numbers(["← PyTorch faster   |   JAX faster →"], {**LOG, "domain": [1 / end, end], "clamp": True})
        x["axis"] = {"values": factors, "labelExpr": label}
    colors = {"color": _scaled("verdict", VERDICTS)}
    shapes = {"shape": _scaled("verdict", VERDICTS, ["circle", "diamond", "square", "cross"])}
    band: Spec = {"x": {"datum": SAME.low, **x}, "x2": {"datum": SAME.high}, "y": None}
    interval: Spec = {"x": {"field": "low", **x}, "x2": {"field": "high"}, **colors}
    tooltip = _tooltip("place", "ratio", "low", "high")
    point: Spec = {"x": {"field": "ratio", **x}, **colors, **shapes, "tooltip": tooltip}
    beside: Spec = {"x": {"value": "width"}, "text": {"field": "words"}, **colors}
    layers: list[Spec] = [
        _once("rect", band, opacity=0.2),
        _once("rule", {"x": {"datum": 1, **x}, "y": None}),
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
        {"mark": {**POINT, "size": 70}, "encoding": point},
    ]
    if with_words:
        layers.append({"mark": {"type": "text", "align": "left", "dx": 10, "fontWeight": "bold"}, "encoding": beside})
    return Chart(
        name=name,
        title=title,
        caption="Right of the line at 1, JAX is faster; left of it, PyTorch. Bars are 95 % intervals.",
        points=points,
        layers={"encoding": {"y": _rows("place")}, "layer": layers},
        row_height=row_height,
    )


LONGEST_LINE = 34
"""Letters above a small multiple: longer lines are cut at the edge of the figure, or run into the next."""


def _broken(label: str) -> str:
    lines = (textwrap.wrap(part, LONGEST_LINE, break_on_hyphens=False) or [part] for part in label.split(" | "))
    return " | ".join(line for of_part in lines for line in of_part)


def _small_multiples(
    name: str,
    title: str,
    caption: str,
    points: Points,
    *layers: Spec,
    own: Sequence[str] = ("x", "y"),
    columns: int = 3,
) -> Chart:
    """One for each group, with scales of its own on these axes, in the order of the points.

    Args:
        columns: of a static figure; the page has as many as there is room for.
    """
    order = {group: place for place, group in enumerate(dict.fromkeys(point["group"] for point in points))}
    points = [{**point, "group": _broken(point["group"]), "order": order[point["group"]]} for point in points]
    facet = {"field": "group", "type": "nominal", "sort": IN_ORDER, "title": None, "header": LABELS}
    spec = {
        "facet": facet,
        "columns": columns,
        "resolve": {"scale": dict.fromkeys(own, "independent")},
        "spec": {"width": 200, "height": 150, "layer": list(layers)},
    }
    return Chart(name=name, title=title, caption=caption, points=points, layers=spec)


def _lines(x: Spec, y: Spec, tooltip: list[Spec]) -> list[Spec]:
    """Each framework's chosen mode, and pale all its modes."""
    color = {**COLOR["color"], "legend": {"symbolOpacity": 1}}
    chosen = {"transform": [{"filter": "datum.chosen"}]}
    best: Spec = {"x": x, "y": y, "color": color}
    every: Spec = {**best, "detail": {"field": "mode"}}
    return [
        {"mark": {"type": "line", "strokeWidth": 1, "opacity": 0.4}, "encoding": every},
        {"mark": {**POINT, "size": 12, "opacity": 0.45}, "encoding": {**every, "tooltip": tooltip}},
        {**chosen, "mark": {"type": "line", "strokeWidth": 2}, "encoding": {**best, **DASH}},
        {**chosen, "mark": POINT, "encoding": {**best, **SHAPE, "tooltip": tooltip}},
    ]


def learning_curves(points: Points, metric: Metric) -> Chart:
    is_percent = metric.format == "percent"
    shown = PERCENT if is_percent else NUMBER
    of_metric = {name: (metric.words if name == "metric" else name, shown) for name in ("metric", "low", "high")}
    return _small_multiples(
        # A page may hold benchmarks of several tasks, each with its own metric.
        f"learning_{metric.name}",
        "Learning curves",
        f"{metric.words.capitalize()} over training time, evaluation excluded; medians over replicates, fastest modes.",
        points,
        *_lines(
            {"field": "time_s", **_numbers("training time (s)")},
            {"field": "metric", **_numbers(metric.words, {"zero": False}, format="%" if is_percent else NUMBER)},
            _tooltip("framework", "mode", "epoch", "time_s", "metric", "low", "high", **of_metric),
        ),
        own=["x"],
    )


def throughput_over(axis: str, title: str, points: Points) -> Chart:
    """
    Args:
        axis: of the batch size, or of an option that is a number; ends the chart's name.
        title: the same in words.
    """
    return _small_multiples(
        f"throughput_over_{axis}",
        f"Throughput by {title}",
        f"Samples per second, median over processes. Bold: each framework's best mode at that {title}; pale: all its "
        "modes. Both axes are logarithmic.",
        points,
        *_lines(
            {"field": "value", **_numbers(title, LOG_2, format="~g", tickCount=5)},
            {"field": "throughput", **_numbers("samples / s", LOG, format="~s", tickCount=4)},
            _tooltip(
                *("flags", "framework", "mode", "chosen", "value", "throughput", "low", "high"), value=(title, NUMBER)
            ),
        ),
    )


def devices_chart(points: Points) -> Chart:
    """Two for each panel: throughput and efficiency over the number of devices."""
    of_y = _numbers("", {"zero": False}, format="~s")
    common: Spec = {
        "x": {"field": "devices", **_numbers("devices", LOG_2, format="d", tickCount=5)},
        "y": {"field": "value", **of_y},
        **COLOR,
    }
    interval: Spec = {**common, "y": {"field": "low", **of_y}, "y2": {"field": "high"}}
    tooltip = _tooltip("framework", "mode", "devices", "nodes", "value", "low", "high")
    return _small_multiples(
        "scaling_over_devices",
        "Scaling over the number of devices",
        "Throughput; and efficiency, which is throughput over that of one device times the number of devices. Bars are "
        "95 % intervals.",
        points,
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {**common, **DASH}},
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
        {"mark": POINT, "encoding": {**common, **SHAPE, "tooltip": tooltip}},
        columns=2,
    )


TERM_COLORS: dict[Term, str] = {
    "product": "#009E73",
    "traffic": "#E69F00",
    "layout": "#F0E442",
    "communication": "#CC79A7",
    "other": "#767676",
    "idle": "#c9c9c9",
}
"""Others than those of the frameworks; what nothing runs in is pale."""


def time_by_class(points: Points, *, on_device: bool) -> Chart:
    """Of a section's explained modes, whose rows name the framework."""
    there = {point["term"] for point in points}
    colors = {word: TERM_COLORS[term] for term in TERMS if (word := term_words(term, on_device=on_device)) in there}
    bar: Spec = {
        "x": {"field": "ms", **_numbers("ms of a step"), "stack": True},
        "color": _scaled("term", [*colors], [*colors.values()]) | {"legend": {"columns": 1, "labelLimit": 0}},
        "order": {"field": "term_order", "type": "quantitative"},
        "tooltip": _tooltip("variant", "framework", "mode", "term", "ms", "count"),
    }
    what = "kernels of the GPU" if on_device else "operators and not kernels, as this is a CPU"
    return Chart(
        name="time_by_class",
        title="Where a step's time goes",
        caption=f"One traced process of each framework's fastest mode: {what}. The bars add up to the step without a "
        "tracer.",
        points=points,
        layers={"encoding": {"y": _rows("side")}, "layer": [{"mark": {"type": "bar"}, "encoding": bar}]},
        row_height=34,
    )


def specification(chart: Chart, palette: Palette, *, title: str = "", width: int = 460) -> Spec:
    """Vega-Lite, the whole of it. The page fills in the points, and the width of what has no fixed one.

    Args:
        title: above a static figure; the page has it as text.
        width: of a static figure's axis, in pixels.
    """
    is_static = palette is not PAGE
    spec: Spec = {
        "$schema": SCHEMA,
        "description": f"{chart.title}. {chart.caption}",
        "data": {"name": chart.name},
        **chart.layers,
        "config": _config(palette),
    }
    if title:
        spec["title"] = {"text": title, "subtitle": chart.title}
    if is_static:
        spec["datasets"] = {chart.name: chart.points}
    if not chart.wide:
        spec["height"] = {"step": chart.row_height, "for": "position"}
        spec["width"] = width if is_static else "container"
        if not is_static:
            spec["autosize"] = {"type": "fit-x", "contains": "padding"}
            spec["padding"] = {"left": 5, "right": 16, "top": 5, "bottom": 8}
    return spec


def _config(palette: Palette) -> Spec:
    text, grid = palette.text, palette.grid
    words = {"labelColor": text, "titleColor": text}
    lines = {"gridColor": grid, "domainColor": grid, "tickColor": grid}
    symbols = {"symbolBaseFillColor": text, "symbolBaseStrokeColor": text}
    top = {"direction": "vertical", "anchor": "start"}
    return {
        "background": palette.background,
        "font": palette.font,
        "view": {"stroke": None},
        "range": {"category": [palette.jax, palette.torch, text, palette.neutral]},
        "style": {"neutral": {"color": palette.neutral}},
        "axis": {**words, **lines, "labelFontSize": 11, "titleFontWeight": "normal"},
        "axisX": {"labelOverlap": "greedy", "labelSeparation": 6},
        "legend": {**words, **symbols, "orient": "top", "columns": 2, "layout": {"top": top}},
        "header": {**words, "labelFontSize": 11},
        "title": {"color": text, "subtitleColor": text, "anchor": "start", "fontSize": 12},
    }
