"""The charts: what each is called, what it says, and how Vega-Lite draws it. Data come from figures.py.

A chart is a Vega-Lite specification as its documentation has it (https://vega.github.io/vega-lite/docs/), and the
names of its rows of data. JAX and PyTorch have one colour, one shape and one dash each, everywhere. The colours are of
Okabe and Ito, "Color Universal Design" (2008).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.report.compare import NAMES, SAME, VERDICTS
from pipeline.report.option_axis import PLAIN
from pipeline.report.wording import axis_name

Spec = dict[str, Any]
Points = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
MIB = 2**20
LOG: Spec = {"type": "log", "nice": False, "padding": 8}
ONCE: Spec = {"values": [{}]}
"""The data of a mark that stands in the chart once, such as the line at 1."""
SHAPES = {"JAX": "circle", "PyTorch": "diamond"}
DASHES: dict[str, list[int]] = {"JAX": [1, 0], "PyTorch": [5, 3]}


@dataclass(frozen=True, kw_only=True)
class Palette:
    jax: str
    torch: str
    neutral: str
    text: str
    grid: str
    background: str
    font: str


PRINT = Palette(
    jax="#0072B2",
    torch="#D55E00",
    neutral="#767676",
    text="#1a1a1a",
    grid="#dddddd",
    background="white",
    font="sans-serif",
)
PAGE = Palette(
    jax="var(--jax)",
    torch="var(--torch)",
    neutral="var(--muted)",
    text="var(--text)",
    grid="var(--line)",
    background="transparent",
    font="system-ui, sans-serif",
)
"""Names that the page's style sheet gives a colour for each theme."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    name: str
    """Ends the file name, such as `throughput`."""
    title: str
    caption: str
    """What is shown and how it was made, in one or two sentences."""
    data: str
    """The key in the data that belongs to it."""
    x: str
    """The field of the horizontal axis; a point without it is not drawn."""
    layers: Spec
    """Vega-Lite without its data, size and colours."""
    wide: bool = False
    """Small multiples, whose width is fixed."""


MEMORY_KINDS = {
    "memory_step_peak_bytes": "steady step",
    "memory_allocator_peak_bytes": "allocator's peak",
    "memory_pool_peak_bytes": "pool",
    "memory_process_bytes": "process (NVML)",
}


def _tooltip(fields: Mapping[str, str]) -> list[Spec]:
    return [{"field": field, "title": title, **_format(field)} for field, title in fields.items()]


def _format(field: str) -> Spec:
    if field in ("ratio", "low", "high"):
        return {"type": "quantitative", "format": ",.6~r"}
    if field in ("efficiency", "accuracy", "worst", "best"):
        return {"type": "quantitative", "format": ".1%"}
    if field in (
        "throughput",
        "p50_ms",
        "p95_ms",
        "compile_s",
        "compile_warm_s",
        "gross_mj",
        "net_mj",
        "mib",
        "time_s",
        "step_ms",
        "speed_up",
    ):
        return {"type": "quantitative", "format": ",.4~r"}
    return {"type": "nominal"}


def _variants(field: str = "variant") -> Spec:
    """In the order of the rows; ` | ` in a label breaks the line."""
    return {
        "field": field,
        "type": "nominal",
        "sort": {"field": "order", "op": "min"},
        "title": None,
        "axis": {"labelLimit": 0, "labelOverlap": False, "labelExpr": "split(datum.label, ' | ')"},
    }


def _by_framework(*, shape: bool = True, dash: bool = False) -> Spec:
    domain = list(NAMES.values())

    def scaled(values: Any) -> Spec:
        scale = {"domain": domain, "range": values}
        return {"field": "framework", "type": "nominal", "title": None, "scale": scale}

    found = {"color": scaled("COLORS")}
    if shape:
        found["shape"] = scaled([SHAPES[name] for name in domain])
    if dash:
        found["strokeDash"] = scaled([DASHES[name] for name in domain])
    return found


FRAMEWORK_OFFSET: Spec = {
    "field": "framework",
    "type": "nominal",
    "sort": list(NAMES.values()),
    "scale": {"domain": list(NAMES.values())},
}
POINT: Spec = {"type": "point", "filled": True, "size": 55, "opacity": 1}


def _ratio_chart(name: str, title: str, place: str, data: str, tooltip: Mapping[str, str]) -> Chart:
    """Ratios with their intervals on a logarithmic axis; a line at 1 and a band where the two are the same."""
    x: Spec = {"type": "quantitative", "title": "JAX / PyTorch", "scale": LOG}
    favours = name == "overview"
    domain: Sequence[str] = list(NAMES.values()) if favours else VERDICTS
    color = {
        "field": "favours" if favours else "verdict",
        "type": "nominal",
        "title": None,
        "scale": {"domain": domain, "range": "COLORS" if favours else "VERDICTS"},
    }
    shapes = {"range": ["circle", "diamond"] if favours else ["circle", "diamond", "square", "cross"]}
    shape = {**color, "scale": {"domain": domain, **shapes}}
    if favours:
        color["legend"] = shape["legend"] = None
    return Chart(
        name=name,
        title=title,
        caption="Right of the line at 1, JAX is faster; left of it, PyTorch. Bars are 95 % intervals over replicates."
        if not favours
        else "Right of the line at 1, JAX is faster; left of it, PyTorch. Bars are 95 % intervals.",
        data=data,
        x="ratio",
        layers={
            "encoding": {"y": _variants(place)},
            "layer": [
                {
                    "data": ONCE,
                    "mark": {"type": "rect", "color": "NEUTRAL", "opacity": 0.2},
                    "encoding": {"x": {"datum": SAME.low, **x}, "x2": {"datum": SAME.high}, "y": None},
                },
                {
                    "data": ONCE,
                    "mark": {"type": "rule", "color": "NEUTRAL"},
                    "encoding": {"x": {"datum": 1, **x}, "y": None},
                },
                {
                    "mark": {"type": "rule", "strokeWidth": 2},
                    "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "color": color},
                },
                {
                    "mark": {**POINT, "size": 70},
                    "encoding": {
                        "x": {"field": "ratio", **x},
                        "color": color,
                        "shape": shape,
                        "tooltip": _tooltip(tooltip),
                    },
                },
            ],
        },
    )


def _dots(
    *,
    name: str,
    title: str,
    caption: str,
    x: str,
    x_title: str,
    ends: tuple[str, str],
    tooltip: Mapping[str, str],
    log: bool = True,
    only_fastest: bool = False,
) -> Chart:
    """A point for each variant and framework; `ends` are the fields of a bar through it."""
    scale = LOG if log else {"zero": True}
    of_x: Spec = {"type": "quantitative", "title": x_title, "scale": scale, "axis": {"format": "~s"}}
    low, high = ends
    pale: Spec = {"opacity": {"condition": {"test": "datum.fastest", "value": 1}, "value": 0.45}}
    layers: Spec = {
        "transform": [{"filter": f"isValid(datum.{x})"}, *([{"filter": "datum.fastest"}] if only_fastest else [])],
        "encoding": {"y": _variants(), "yOffset": FRAMEWORK_OFFSET},
        "layer": [
            {
                "transform": [{"filter": f"isValid(datum.{low}) && isValid(datum.{high})"}],
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {"field": low, **of_x}, "x2": {"field": high}, **_by_framework(shape=False)},
            },
            {
                "mark": POINT,
                "encoding": {
                    "x": {"field": x, **of_x},
                    **_by_framework(),
                    **({} if only_fastest else pale),
                    "tooltip": _tooltip(tooltip),
                },
            },
        ],
    }
    return Chart(name=name, title=title, caption=caption, data="modes", x=x, layers=layers)


def _kinds(
    *,
    name: str,
    title: str,
    caption: str,
    x: str,
    x_title: str,
    kinds: Sequence[str],
    tooltip: Mapping[str, str],
    percent: bool = False,
) -> Chart:
    """Several numbers of one variant and framework: the colour is the framework, the shape the kind of number; pale is
    what rests on unstable blocks. In percent, with a line at 100."""
    shape = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(kinds), "range": ["circle", "square", "triangle-up", "cross"][: len(kinds)]},
    }
    points: Spec = {
        "mark": POINT,
        "encoding": {
            "x": {
                "field": x,
                "type": "quantitative",
                "title": x_title,
                "scale": {"zero": False} if percent else LOG,
                "axis": {"format": "%" if percent else ",~r"},
            },
            **_by_framework(shape=False),
            "shape": shape,
            "opacity": {"condition": {"test": "datum.unstable", "value": 0.45}, "value": 1},
            "tooltip": _tooltip(tooltip),
        },
    }
    at_1: Spec = {
        "data": ONCE,
        "mark": {"type": "rule", "color": "NEUTRAL"},
        "encoding": {"x": {"datum": 1}, "y": None, "yOffset": None},
    }
    layers: Spec = {
        "encoding": {"y": _variants(), "yOffset": FRAMEWORK_OFFSET},
        "layer": [at_1, points] if percent else [points],
    }
    return Chart(name=name, title=title, caption=caption, data=name, x=x, layers=layers)


def _lines(
    *,
    name: str,
    title: str,
    caption: str,
    data: str,
    x: Spec,
    y: Spec,
    tooltip: Mapping[str, str],
    detail: Sequence[str] = (),
) -> Chart:
    """Small multiples, one for each group."""
    common = {"x": x, "y": y, "detail": [{"field": field} for field in detail]}
    layers: Spec = {
        "facet": {"field": "group", "type": "nominal", "sort": None, "title": None},
        "columns": 3,
        "resolve": {"scale": {"x": "independent"}},
        "spec": {
            "width": 200,
            "height": 140,
            "layer": [
                {
                    "mark": {"type": "line", "strokeWidth": 2},
                    "encoding": {**common, **_by_framework(shape=False, dash=True)},
                },
                {"mark": POINT, "encoding": {**common, **_by_framework(), "tooltip": _tooltip(tooltip)}},
            ],
        },
    }
    return Chart(name=name, title=title, caption=caption, data=data, x=x["field"], layers=layers, wide=True)


FORMULATION_SHAPES = (
    *("circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "triangle-left", "triangle-right"),
    "M0,-1L0.235,-0.324L0.951,-0.309L0.38,0.124L0.588,0.809L0,0.4L-0.588,0.809L-0.38,0.124L-0.951,-0.309L-0.235,-0.324Z",
    "M-0.8,-0.8L0.8,-0.8L-0.8,0.8L0.8,0.8Z",
)
"""In the order of the formulations' names. The last two are paths: a star and an hourglass."""
RUN_AS_DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])


def axis_charts(option: str) -> tuple[Chart, ...]:
    """Of an option that is a number: what it does to each execution mode."""
    modes = "Shape: formulation; dash: how it is run; filled: JAX, hollow: PyTorch."
    return (
        _over_option(
            option,
            name="step_time",
            title="Time per step",
            caption=f"Median over replicates, of back-to-back steps; every execution mode. {modes} "
            "Both axes are logarithmic.",
            data="axis_step",
            y="step_ms",
            y_title="ms / step",
            tooltip={"step_ms": "ms / step"},
        ),
        _over_option(
            option,
            name="speed_up",
            title="Speed-up over the loop",
            caption="Throughput of each mode over that of the same framework's own loop, geometric mean over paired "
            "replicates: `loop` of PyTorch, which runs eagerly; `unrolled` of JAX, which is one jitted program. So "
            f"speed-ups do not compare the frameworks with each other. {modes}",
            data="axis_speed_up",
            y="speed_up",
            y_title="speed-up",
            tooltip={"speed_up": "speed-up", **INTERVAL},
            line_at_1=True,
        ),
        _over_option(
            option,
            name="memory",
            title="Memory",
            caption=f"Per device, median over replicates; every execution mode. {modes} "
            "Steady step: what tensors hold, which each framework counts in its own way. Pool: what is reserved.",
            data="axis_memory",
            y="mib",
            y_title="MiB",
            tooltip={"mib": "MiB"},
        ),
    )


def _over_option(
    option: str,
    *,
    name: str,
    title: str,
    caption: str,
    data: str,
    y: str,
    y_title: str,
    tooltip: Mapping[str, str],
    line_at_1: bool = False,
) -> Chart:
    """Small multiples, one for each panel, with a line for each framework and execution mode."""
    common: Spec = {
        "x": {
            "field": "value",
            "type": "quantitative",
            "title": axis_name(option),
            "scale": {**LOG, "base": 2},
            "axis": {"format": "~g", "tickCount": 5},
        },
        "y": {
            "field": y,
            "type": "quantitative",
            "title": y_title,
            "scale": LOG,
            "axis": {"format": ",.3~r", "tickCount": 4},
        },
        "detail": {"field": "mode"},
        **_by_framework(shape=False),
    }
    dash = {
        "field": "run_as",
        "type": "nominal",
        "title": None,
        "sort": [PLAIN],
        "scale": {"range": RUN_AS_DASHES},
    }
    shape = {"field": "formulation", "type": "nominal", "title": None, "scale": {"range": FORMULATION_SHAPES}}
    told = {"framework": "framework", "mode": "execution mode", "value": axis_name(option), **tooltip}
    points: list[Spec] = [
        {
            "transform": [{"filter": {"field": "framework", "equal": side}}],
            "mark": {
                "type": "point",
                "filled": side == NAMES["jax"],
                "size": 45,
                "opacity": 1,
                "strokeWidth": 1.5,
            },
            "encoding": {**common, "shape": shape, "tooltip": _tooltip(told)},
        }
        for side in NAMES.values()
    ]
    lines: Spec = {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": {**common, "strokeDash": dash}}
    at_1: Spec = {
        "data": ONCE,
        "mark": {"type": "rule", "color": "NEUTRAL"},
        "encoding": {"y": {"datum": 1, "type": "quantitative", "scale": LOG}},
    }
    layers: Spec = {
        "facet": {
            "field": "group",
            "type": "nominal",
            "sort": None,
            "title": None,
            "header": {"labelExpr": "split(datum.label, ' | ')"},
        },
        "columns": 3,
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
        "spec": {"width": 200, "height": 170, "layer": [*([at_1] if line_at_1 else []), lines, *points]},
    }
    return Chart(
        name=f"{name}_over_{option}",
        title=f"{title} by {axis_name(option)}",
        caption=caption,
        data=data,
        x="value",
        layers=layers,
        wide=True,
    )


WHAT = {"variant": "variant", "framework": "framework", "mode": "execution mode"}
INTERVAL = {"low": "low", "high": "high"}
OVERVIEW = _ratio_chart(
    "overview",
    "Geometric mean over variants",
    "place",
    "overview",
    {
        "flags": "flags",
        "place": "where",
        "ratio": "JAX / PyTorch",
        **INTERVAL,
        "two sides": "the two sides",
        "variants": "variants",
    },
)
CHARTS = (
    _ratio_chart(
        "ratio",
        "JAX over PyTorch",
        "variant",
        "ratios",
        {
            "flags": "flags",
            "variant": "variant",
            "in words": "verdict",
            "ratio": "JAX / PyTorch",
            **INTERVAL,
            "two sides": "the two sides",
        },
    ),
    _dots(
        name="throughput",
        title="Throughput",
        caption="Samples per second, median over replicates with its 95 % interval. Pale: slower execution modes.",
        x="throughput",
        x_title="samples / s",
        ends=("low", "high"),
        tooltip={"flags": "flags", **WHAT, "throughput": "samples / s", **INTERVAL, "replicates": "replicates"},
    ),
    _dots(
        name="latency",
        title="Latency of one step",
        caption="Point: median (p50). The bar ends at the 95th percentile (p95). Without a bar, one call holds many "
        "steps (JAX's scan), and a percentile of their means is not that of a step. Each framework's fastest mode.",
        x="p50_ms",
        x_title="ms",
        ends=("p50_ms", "p95_ms"),
        only_fastest=True,
        tooltip={"flags": "flags", **WHAT, "p50_ms": "p50 (ms)", "p95_ms": "p95 (ms)"},
    ),
    _dots(
        name="compile",
        title="Compile time",
        caption="What the first calls of the step took more than later ones. Point: all caches empty; end of the bar: "
        "with the caches of an earlier process. Pale: slower execution modes.",
        x="compile_s",
        x_title="s",
        ends=("compile_warm_s", "compile_s"),
        log=False,
        tooltip={**WHAT, "compile_s": "cold (s)", "compile_warm_s": "warm (s)"},
    ),
    _kinds(
        name="memory",
        title="Memory",
        caption="Per device, in each framework's fastest mode. Each counts its steady step in its own way.",
        x="mib",
        x_title="MiB",
        kinds=list(MEMORY_KINDS.values()),
        tooltip={**WHAT, "kind": "what", "mib": "MiB"},
    ),
    _dots(
        name="energy",
        title="Energy of one sample",
        caption="Of the GPU's board, in each framework's fastest mode. Point: gross; end of the bar: less idle power.",
        x="gross_mj",
        x_title="mJ / sample",
        ends=("net_mj", "gross_mj"),
        only_fastest=True,
        tooltip={"flags": "flags", **WHAT, "gross_mj": "gross (mJ)", "net_mj": "net (mJ)"},
    ),
    _lines(
        name="learning",
        title="Learning curves",
        caption="Test accuracy over training time, evaluation excluded; medians over replicates, fastest modes.",
        data="learning",
        x={"field": "time_s", "type": "quantitative", "title": "training time (s)"},
        y={
            "field": "accuracy",
            "type": "quantitative",
            "title": "test accuracy",
            "scale": {"zero": False},
            "axis": {"format": "%"},
        },
        tooltip={
            "framework": "framework",
            "mode": "execution mode",
            "epoch": "epoch",
            "time_s": "time (s)",
            "accuracy": "test accuracy",
            "worst": "worst replicate",
            "best": "best replicate",
        },
    ),
    _lines(
        name="batch_size",
        title="Throughput over batch size",
        caption="Each framework's fastest mode at each batch size; both axes are logarithmic.",
        data="batches",
        x={
            "field": "batch_size",
            "type": "quantitative",
            "title": "batch size",
            "scale": {**LOG, "base": 2},
            "axis": {"format": "d", "tickCount": 5},
        },
        y={
            "field": "throughput",
            "type": "quantitative",
            "title": "samples / s",
            "scale": LOG,
            "axis": {"format": "~s", "tickCount": 4},
        },
        detail=("settings",),
        tooltip={
            "framework": "framework",
            "mode": "execution mode",
            "batch_size": "batch size",
            "throughput": "samples / s",
            **INTERVAL,
        },
    ),
    _kinds(
        name="scaling",
        title="Scaling efficiency",
        caption="Throughput over that of one device times the number of devices. Strong: the same batch in all. "
        "Weak: the same batch for each device. At the line, nothing is lost. Pale: blocks were unstable on one side.",
        x="efficiency",
        x_title="efficiency",
        kinds=("strong", "weak"),
        percent=True,
        tooltip={"flags": "flags", **WHAT, "kind": "which", "efficiency": "efficiency"},
    ),
)
"""In the order in which they are shown."""


def specification(chart: Chart, data: Mapping[str, Points] | None, palette: Palette, *, title: str = "") -> Spec:
    """The whole of it. Without `data` the page fills that in.

    Args:
        title: above a static figure; the page has it as text.
    """
    size: Spec = {} if chart.wide else {"height": {"step": 36 if chart.name == "overview" else 24, "for": "position"}}
    if not chart.wide:
        size["width"] = 460 if data is not None else "container"
    spec = {
        "$schema": SCHEMA,
        "description": f"{chart.title}. {chart.caption}",
        **({"title": {"text": title, "subtitle": chart.title}} if title else {}),
        "data": {"name": chart.data},
        **({"datasets": {chart.data: data[chart.data]}} if data is not None else {}),
        **size,
        **chart.layers,
        "config": _config(palette),
    }
    if not chart.wide and data is None:
        spec |= {
            "autosize": {"type": "fit-x", "contains": "padding"},
            "padding": {"left": 5, "right": 16, "top": 5, "bottom": 8},
        }
    coloured: Spec = _coloured(spec, palette)
    return coloured


def _config(palette: Palette) -> Spec:
    return {
        "background": palette.background,
        "font": palette.font,
        "view": {"stroke": None},
        "axis": {
            "labelColor": palette.text,
            "titleColor": palette.text,
            "gridColor": palette.grid,
            "domainColor": palette.grid,
            "tickColor": palette.grid,
            "labelFontSize": 11,
            "titleFontWeight": "normal",
        },
        "axisX": {"labelOverlap": "greedy", "labelSeparation": 6},
        "legend": {
            "labelColor": palette.text,
            "titleColor": palette.text,
            "symbolBaseFillColor": palette.text,
            "symbolBaseStrokeColor": palette.text,
            "orient": "top",
            "columns": 2,
            "layout": {"top": {"direction": "vertical", "anchor": "start"}},
        },
        "header": {"labelColor": palette.text, "titleColor": palette.text, "labelFontSize": 11},
        "title": {"color": palette.text, "subtitleColor": palette.text, "anchor": "start", "fontSize": 12},
    }


def _coloured(part: Any, palette: Palette) -> Any:
    """The same with colours for the words that stand for them."""
    colours: dict[str, Any] = {
        "COLORS": [palette.jax, palette.torch],
        "VERDICTS": [palette.jax, palette.torch, palette.text, palette.neutral],
        "NEUTRAL": palette.neutral,
    }
    if isinstance(part, dict):
        return {key: value if key == "datasets" else _coloured(value, palette) for key, value in part.items()}
    if isinstance(part, list):
        return [_coloured(entry, palette) for entry in part]
    return colours.get(part, part) if isinstance(part, str) else part
