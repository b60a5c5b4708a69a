"""The charts: what each is called, what it says, and how it is drawn. Data come from figures.py.

A chart is a Vega-Lite specification as its documentation has it (https://vega.github.io/vega-lite/docs/), and the
names of its rows of data. JAX and PyTorch have one colour, one shape and one dash each, everywhere. The colours are of
Okabe and Ito, "Color Universal Design" (2008).
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from harness.work.declared import Graph, Run, RunAs
from harness.work.tasks import Metric
from pipeline.report.compare import NAMES, SAME, VERDICTS
from pipeline.report.declared import NOT_DECLARED
from pipeline.report.option_axis import OptionAxis
from pipeline.report.why import TERMS, Term
from pipeline.report.why_words import term_words
from pipeline.report.wording import axis_name, loops_text

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


@dataclass(frozen=True)
class Chart:
    name: str
    """Ends the file name, such as `throughput`."""
    title: str
    caption: str
    """What is shown and how it was made, in one or two sentences."""
    _: KW_ONLY
    data: str
    """The key in the data that belongs to it."""
    x: str
    """The field of the horizontal axis; a point without it is not drawn."""
    layers: Spec
    """Vega-Lite without its data and size. Its colours are those of the palette's scale and of the style `neutral`."""
    row_height: int = 24
    fewest_x: int = 1
    """With fewer values of `x` there is no chart."""

    @property
    def wide(self) -> bool:
        """Small multiples, whose width is fixed."""
        return "facet" in self.layers


RATIO, NUMBER, PERCENT = ",.6~r", ",.4~r", ".1%"
FORMATS = {
    **dict.fromkeys(("ratio", "low", "high"), RATIO),
    **dict.fromkeys(
        ("throughput", "step_ms", "mib", "time_s", "speed_up", "ms", "count", "intensity", "teraflops"), NUMBER
    ),
    **dict.fromkeys(("efficiency", "share"), PERCENT),
}
"""Of the fields that are numbers."""
TITLES = {
    "mode": "execution mode",
    "place": "where",
    "ratio": "JAX / PyTorch",
    "in words": "verdict",
    "two sides": "the two sides",
    "throughput": "samples / s",
    "kind": "what",
    "mib": "MiB",
    "time_s": "time (s)",
    "worst": "worst replicate",
    "best": "best replicate",
    "batch_size": "batch size",
    "chosen": "best mode here",
    "step_ms": "ms / step",
    "speed_up": "speed-up",
    "term": "what",
    "ms": "ms",
    "count": "in a step",
    "intensity": "operations / byte",
    "teraflops": "TFLOP / s",
    "share": "of attainable",
}
"""Of fields; the others are their own titles."""
WHAT = ("variant", "framework", "mode")
INTERVAL = ("low", "high")


def _tooltip(
    *fields: str, titles: Mapping[str, str] | None = None, formats: Mapping[str, str] | None = None
) -> list[Spec]:
    """
    Args:
        titles, formats: of fields that have others here.
    """
    titles, formats = TITLES | dict(titles or {}), FORMATS | dict(formats or {})
    types = {field: {"type": "quantitative", "format": formats[field]} for field in fields if field in formats}
    nominal = {"type": "nominal"}
    return [{"field": field, "title": titles.get(field, field), **types.get(field, nominal)} for field in fields]


LOG: Spec = {"type": "log", "nice": False, "padding": 8}
LOG_2: Spec = {**LOG, "base": 2}
POINT: Spec = {"type": "point", "filled": True, "size": 55, "opacity": 1}
SHAPES = {"JAX": "circle", "PyTorch": "diamond"}
DASHES = {"JAX": [1, 0], "PyTorch": [5, 3]}


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
COLOR = {"color": _scaled("framework", FRAMEWORKS)}
SHAPE = {"shape": _scaled("framework", FRAMEWORKS, [SHAPES[name] for name in FRAMEWORKS])}
DASH = {"strokeDash": _scaled("framework", FRAMEWORKS, [DASHES[name] for name in FRAMEWORKS])}
OFFSET: Spec = {"field": "framework", "type": "nominal", "sort": FRAMEWORKS, "scale": {"domain": FRAMEWORKS}}


def _rows(field: str = "variant") -> Spec:
    """In the order of the rows; ` | ` in a label breaks the line."""
    axis = {"labelLimit": 0, "labelOverlap": False, "labelExpr": "split(datum.label, ' | ')"}
    return {"field": field, "type": "nominal", "sort": {"field": "order", "op": "min"}, "title": None, "axis": axis}


def _once(mark: str, encoding: Spec, **look: Any) -> Spec:
    """A mark that stands in the chart once, such as the line at 1."""
    return {"data": {"values": [{}]}, "mark": {"type": mark, **look, "style": "neutral"}, "encoding": encoding}


def _small_multiples(*layers: Spec, height: int, own: Sequence[str] = ("x",), **facet: Any) -> Spec:
    """One for each group, with scales of its own on these axes."""
    return {
        "facet": {"field": "group", "type": "nominal", "sort": None, "title": None, **facet},
        "columns": 3,
        "resolve": {"scale": dict.fromkeys(own, "independent")},
        "spec": {"width": 200, "height": height, "layer": list(layers)},
    }


def _ratios(
    name: str,
    title: str,
    caption: str,
    *,
    data: str,
    rows: str,
    tooltip: list[Spec],
    row_height: int = 24,
    x_title: str | Sequence[str] = TITLES["ratio"],
    words: str = "",
) -> Chart:
    """Ratios with their intervals on a logarithmic axis; a line at 1 and a band where the two are the same. Colors and
    shapes are those of the verdicts.

    Args:
        words: the field of a text to the right of each.
    """
    x = _numbers(x_title, LOG)
    colors = {"color": _scaled("verdict", VERDICTS)}
    shapes = {"shape": _scaled("verdict", VERDICTS, ["circle", "diamond", "square", "cross"])}
    band: Spec = {"x": {"datum": SAME.low, **x}, "x2": {"datum": SAME.high}, "y": None}
    interval: Spec = {"x": {"field": "low", **x}, "x2": {"field": "high"}, **colors}
    point: Spec = {"x": {"field": "ratio", **x}, **colors, **shapes, "tooltip": tooltip}
    layers: list[Spec] = [
        _once("rect", band, opacity=0.2),
        _once("rule", {"x": {"datum": 1, **x}, "y": None}),
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
        {"mark": {**POINT, "size": 70}, "encoding": point},
    ]
    if words:
        beside: Spec = {"x": {"value": "width"}, "text": {"field": words}, **colors}
        layers.append({"mark": {"type": "text", "align": "left", "dx": 10, "fontWeight": "bold"}, "encoding": beside})
    return Chart(
        name,
        title,
        f"Right of the line at 1, JAX is faster; left of it, PyTorch. {caption}",
        data=data,
        x="ratio",
        layers={"encoding": {"y": _rows(rows)}, "layer": layers},
        row_height=row_height,
    )


def _kinds(*text: str, data: str, x: str, kinds: Sequence[str], tooltip: list[Spec], percent: bool = False) -> Chart:
    """Several numbers of one variant and framework: the colour is the framework, the shape the kind of number. In
    percent, with a line at 100."""
    of_x = _numbers(TITLES.get(x, x), {"zero": False} if percent else LOG, format="%" if percent else ",~r")
    point: Spec = {
        "x": {"field": x, **of_x},
        **COLOR,
        "shape": _scaled("kind", kinds, ["circle", "square", "triangle-up", "cross"][: len(kinds)]),
        "tooltip": tooltip,
    }
    at_1 = [_once("rule", {"x": {"datum": 1}, "y": None, "yOffset": None})] if percent else []
    encoding = {"y": _rows(), "yOffset": OFFSET}
    layers = {"encoding": encoding, "layer": [*at_1, {"mark": POINT, "encoding": point}]}
    return Chart(*text, data=data, x=x, layers=layers)


def _lines(
    *text: str, data: str, x: Spec, y: Spec, tooltip: list[Spec], detail: Sequence[str] = (), fewest_x: int = 1
) -> Chart:
    """Small multiples, one for each group."""
    common: Spec = {"x": x, "y": y, "detail": [{"field": field} for field in detail], **COLOR}
    lines = {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {**common, **DASH}}
    points = {"mark": POINT, "encoding": {**common, **SHAPE, "tooltip": tooltip}}
    layers = _small_multiples(lines, points, height=140)
    return Chart(*text, data=data, x=x["field"], layers=layers, fewest_x=fewest_x)


FORMULATION_SHAPES = (
    *("circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "triangle-left", "triangle-right"),
    "M0,-1L0.235,-0.324L0.951,-0.309L0.38,0.124L0.588,0.809L0,0.4L-0.588,0.809L-0.38,0.124L-0.951,-0.309L-0.235,-0.324Z",
    "M-0.8,-0.8L0.8,-0.8L-0.8,0.8L0.8,0.8Z",
)
"""In the order of the formulations' names. The last two are paths: a star and an hourglass."""
DASH_OF: dict[RunAs, list[int]] = {"eager": [6, 3], "compiled": [1, 0], "max_autotune": [10, 4]}
DOTS_OF: dict[Graph, list[int]] = {"none": [], "parts": [2, 2, 2, 3], "step": [2, 3]}
DASHES = {
    Run(name="", run_as=run_as, graph=graph).words: [*dash, *dots]
    for run_as, dash in DASH_OF.items()
    for graph, dots in DOTS_OF.items()
} | {NOT_DECLARED: [1, 4]}
"""By how a mode is run: the dash says how it is compiled, the dots behind it what is a CUDA graph."""


def axis_charts(axis: OptionAxis) -> tuple[Chart, ...]:
    """Of an option that is a number: what it does to each execution mode."""
    there = {line.run_as for panel in axis.panels for line in panel.lines}
    return _axis_charts(axis.option, tuple(how for how in DASHES if how in there), loops_text(axis))


@cache
def _axis_charts(option: str, run_as: tuple[str, ...], loops: str) -> tuple[Chart, ...]:
    over_option = partial(_over_option, option, run_as)
    modes = "Shape: formulation; dash: how it is run; filled: JAX, hollow: PyTorch."
    return (
        over_option(
            "step_time",
            "Time per step",
            f"Median over replicates, of back-to-back steps; every execution mode. {modes} Both axes are logarithmic.",
            data="axis_step",
            y="step_ms",
        ),
        over_option(
            "speed_up",
            "Speed-up over the loop",
            "Throughput of each mode over that of the same framework's own loop, geometric mean over paired "
            f"replicates: {loops}. So speed-ups do not compare the frameworks with each other. {modes}",
            data="axis_speed_up",
            y="speed_up",
            more_told=INTERVAL,
            at_1=True,
        ),
        over_option(
            "memory",
            "Memory",
            f"Per device, median over replicates; every execution mode. {modes} "
            "Steady step: what tensors hold, which each framework counts in its own way. Pool: what is reserved.",
            data="axis_memory",
            y="mib",
        ),
    )


def _over_option(
    option: str,
    run_as: Sequence[str],
    name: str,
    title: str,
    caption: str,
    *,
    data: str,
    y: str,
    more_told: Sequence[str] = (),
    at_1: bool = False,
) -> Chart:
    """Small multiples, one for each panel, with a line for each framework and execution mode."""
    x_title = axis_name(option)
    common: Spec = {
        "x": {"field": "value", **_numbers(x_title, LOG_2, format="~g", tickCount=5)},
        "y": {"field": y, **_numbers(TITLES[y], LOG, format=",.3~r", tickCount=4)},
        "detail": {"field": "mode"},
        **COLOR,
    }
    dash = _scaled("run_as", run_as, [DASHES[how] for how in run_as])
    shape: Spec = {"field": "formulation", "type": "nominal", "title": None, "scale": {"range": FORMULATION_SHAPES}}
    tooltip = _tooltip("framework", "mode", "value", y, *more_told, titles={"value": x_title})
    points: list[Spec] = [
        {
            "transform": [{"filter": {"field": "framework", "equal": side}}],
            "mark": {**POINT, "filled": side == NAMES["jax"], "size": 45, "strokeWidth": 1.5},
            "encoding": {**common, "shape": shape, "tooltip": tooltip},
        }
        for side in FRAMEWORKS
    ]
    lines = {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": {**common, "strokeDash": dash}}
    at_1_line = [_once("rule", {"y": {"datum": 1, "type": "quantitative", "scale": LOG}})] if at_1 else []
    header = {"labelExpr": "split(datum.label, ' | ')"}
    return Chart(
        f"{name}_over_{option}",
        f"{title} by {x_title}",
        caption,
        data=data,
        x="value",
        layers=_small_multiples(*at_1_line, lines, *points, height=170, own=("x", "y"), header=header),
    )


def throughput_over_batch_size() -> Chart:
    """Small multiples, one for each panel: each framework's best mode at each batch size, and pale all its modes. Two
    batch sizes make a line."""
    x: Spec = {"field": "batch_size", **_numbers("batch size", LOG_2, format="d", tickCount=5)}
    of_y = _numbers(TITLES["throughput"], LOG, format="~s", tickCount=4)
    common: Spec = {
        "x": x,
        "y": {"field": "throughput", **of_y},
        "color": {**COLOR["color"], "legend": {"symbolOpacity": 1}},
    }
    tooltip = _tooltip("flags", "framework", "mode", "chosen", "batch_size", "throughput", *INTERVAL)
    every_mode: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.4},
            "encoding": {**common, "detail": {"field": "mode"}},
        },
        {"mark": {**POINT, "size": 12, "opacity": 0.45}, "encoding": {**common, "tooltip": tooltip}},
    ]
    best: list[Spec] = [
        {
            "transform": [{"filter": f"datum.chosen && datum.framework === '{side}'"}],
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {**common, **DASH}},
                {"mark": POINT, "encoding": {**common, **SHAPE, "tooltip": tooltip}},
            ],
        }
        for side in FRAMEWORKS
    ]
    header = {"labelExpr": "split(datum.label, ' | ')"}
    return Chart(
        "throughput_over_batch_size",
        "Throughput by batch size",
        "Samples per second, median over processes. Bold: each framework's best mode at that batch size; pale: all its "
        "modes. Both axes are logarithmic.",
        data="batch_throughput",
        x="batch_size",
        layers=_small_multiples(*every_mode, *best, height=150, own=("x", "y"), header=header),
        fewest_x=2,
    )


def devices_chart() -> Chart:
    """Small multiples, two for each panel: throughput and efficiency over the number of devices."""
    x: Spec = {"field": "devices", **_numbers("devices", LOG_2, format="d")}
    of_y = _numbers("", {"zero": False}, format="~s")
    common: Spec = {"x": x, "y": {"field": "value", **of_y}, **COLOR}
    layers = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {**common, **DASH}},
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {**common, "y": {"field": "low", **of_y}, "y2": {"field": "high"}},
        },
        {
            "mark": POINT,
            "encoding": {**common, **SHAPE, "tooltip": _tooltip("framework", "mode", "devices", "value", *INTERVAL)},
        },
    ]
    layout = _small_multiples(*layers, height=150, own=("x", "y"), header={"labelExpr": "split(datum.label, ' | ')"})
    return Chart(
        "scaling_over_devices",
        "Scaling over the number of devices",
        "Throughput, and what it is of that of one device times the number of devices; bars are 95 % intervals.",
        data="scaling_over_devices",
        x="devices",
        layers=layout | {"columns": 2},
        fewest_x=2,
    )


PUBLISHED = _ratios(
    "published",
    "Which framework is faster, by what factor; bars: 95 % intervals",
    "Bars are 95 % intervals.",
    data="published",
    rows="place",
    row_height=40,
    tooltip=_tooltip("place", "ratio", *INTERVAL),
    words="words",
    x_title=["throughput, JAX / PyTorch", "← PyTorch faster   |   JAX faster →"],
)
PUBLISHED_WIDTH = 230
"""Pixels: with its labels still legible on a phone."""


TERM_COLORS: dict[Term, str] = {
    "product": "#009E73",
    "traffic": "#E69F00",
    "layout": "#F0E442",
    "communication": "#CC79A7",
    "other": "#767676",
    "idle": "#c9c9c9",
}
"""Others than those of the frameworks; what nothing runs in is pale."""


def time_by_class(*, on_device: bool) -> Chart:
    """Of a section's explained modes, whose rows name the framework."""
    words = [term_words(term, on_device=on_device) for term in TERMS]
    bar: Spec = {
        "x": {"field": "ms", **_numbers("ms of a step"), "stack": True},
        "color": _scaled("term", words, list(TERM_COLORS.values())) | {"legend": {"columns": 1, "labelLimit": 0}},
        "order": {"field": "term_order", "type": "quantitative"},
        "tooltip": _tooltip("variant", "framework", "mode", "term", "ms", "count"),
    }
    what = "kernels of the GPU" if on_device else "operators and not kernels, as this is a CPU"
    return Chart(
        "time_by_class",
        "Where a step's time goes",
        f"One traced process of each framework's fastest mode: {what}. The bars add up to the step without a tracer.",
        data="time_by_class",
        x="ms",
        layers={"encoding": {"y": _rows("side")}, "layer": [{"mark": {"type": "bar"}, "encoding": bar}]},
        row_height=34,
    )


def roofline() -> Chart:
    """Points of explained steps, and lines of what the device can do, in one set of data: `kind` tells them apart."""
    x = _numbers("operations / byte of least traffic", LOG, format=",.3~r")
    y = _numbers("TFLOP / s", LOG, format=",.3~r")
    places: Spec = {"x": {"field": "intensity", **x}, "y": {"field": "teraflops", **y}}
    tooltip = _tooltip("variant", "framework", "mode", "precision", "intensity", "teraflops", "share")
    roofs: Spec = {
        "transform": [{"filter": "datum.kind == 'roof'"}],
        "mark": {"type": "line", "style": "neutral", "strokeWidth": 1.5},
        "encoding": {**places, "detail": {"field": "precision"}},
    }
    steps: Spec = {
        "transform": [{"filter": "datum.kind == 'step'"}],
        "mark": POINT,
        "encoding": {**places, **COLOR, **SHAPE, "tooltip": tooltip},
    }
    return Chart(
        "roofline",
        "Roofline",
        "The work of a step over its time, in each framework's fastest mode, and the lines that bound it: what the "
        "device reached in large matrix products of this precision, and in traffic to its memory. Least traffic: each "
        "product reads and writes its operands once; no measured traffic.",
        data="roofline",
        x="intensity",
        layers={"height": 240, "layer": [roofs, steps]},
    )


@cache
def charts_of(metric: Metric) -> tuple[Chart, ...]:
    """Those of a section, in the order in which they are shown."""
    percent = metric.format == "percent"
    return (
        _ratios(
            "ratio",
            "JAX over PyTorch",
            "Bars are 95 % intervals over replicates.",
            data="ratios",
            rows="variant",
            tooltip=_tooltip("flags", "variant", "in words", "ratio", *INTERVAL, "two sides"),
        ),
        _lines(
            # A page may hold benchmarks of several tasks, each with its own metric.
            f"learning_{metric.name}",
            "Learning curves",
            f"{metric.words.capitalize()} over training time, evaluation excluded; medians over replicates, fastest "
            "modes.",
            data="learning",
            x={"field": "time_s", **_numbers("training time (s)")},
            y={"field": "metric", **_numbers(metric.words, {"zero": False}, format="%" if percent else ",~r")},
            tooltip=_tooltip(
                *("framework", "mode", "epoch", "time_s", "metric", "worst", "best"),
                titles={"metric": metric.words},
                formats=dict.fromkeys(("metric", "worst", "best"), PERCENT if percent else NUMBER),
            ),
        ),
        _kinds(
            "scaling",
            "Scaling efficiency",
            "Throughput over that of one device times the number of devices. Strong: the same batch in all. Weak: the "
            "same batch for each device. At the line, nothing is lost.",
            data="scaling",
            x="efficiency",
            kinds=("strong", "weak"),
            percent=True,
            tooltip=_tooltip(*WHAT, "kind", "efficiency", titles={"kind": "which"}),
        ),
    )


def specification(
    chart: Chart, data: Mapping[str, Points] | None, palette: Palette, *, title: str = "", width: int = 460
) -> Spec:
    """Vega-Lite, the whole of it. Without `data` the page fills that in.

    Args:
        title: above a static figure; the page has it as text.
        width: of a static figure's axis, in pixels.
    """
    spec: Spec = {
        "$schema": SCHEMA,
        "description": f"{chart.title}. {chart.caption}",
        "data": {"name": chart.data},
        **chart.layers,
        "config": _config(palette),
    }
    if title:
        spec["title"] = {"text": title, "subtitle": chart.title}
    if data is not None:
        spec["datasets"] = {chart.data: data[chart.data]}
    if not chart.wide:
        spec.setdefault("height", {"step": chart.row_height, "for": "position"})
        spec["width"] = width if data is not None else "container"
        if data is None:
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
