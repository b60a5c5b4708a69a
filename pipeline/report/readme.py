"""The results table of README.md, between its two markers."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from harness.plan import FRAMEWORKS
from harness.results.quantities import number
from harness.results.record import Record
from pipeline.markdown import GeneratedPart, markdown_table
from pipeline.report.charts import DARK, PRINT, PUBLISHED, PUBLISHED_WIDTH, Spec, specification
from pipeline.report.compare import NAMES, VERDICTS, Mode, Row, Section, tally
from pipeline.report.drawing import svg_of
from pipeline.report.figures import published_points
from pipeline.report.wording import (
    WHOSE_SIDE,
    bracket,
    cold_start,
    flag_names,
    newest_text,
    rules_sentence,
    times,
    unlike_names,
    use_case_title,
    verdict,
)

PART_OF_README = GeneratedPart(begin="<!-- results:begin -->", end="<!-- results:end -->")
COMMAND = "python main.py report --update-readme"
NOTHING = (
    "No result on real data is published yet: `results/published` holds no full measurement of one. "
    "Quick runs are never shown here, and sample data only in a table of their own."
)
HEAD = ("device", "benchmark", "use case", "flags", "JAX / PyTorch", "the two sides", *VERDICTS, "no ratio")

SAMPLE_HEAD = (
    *("device", "benchmark", "use case", "variant", "JAX, samples/s", "PyTorch, samples/s", "JAX / PyTorch"),
    *("verdict", "flags", "the two sides"),
)


def published_part(compared: Sequence[Section], records: Sequence[Record], folder: str = "") -> str:
    """All that stands between the markers: the results, and what was measured on sample data.

    Args:
        folder: where the PICTURES of both lie, from the README.
    """
    parts = [results_table(compared, records), sample_table(compared, records)]
    parts.append(rules_sentence(full_sections(compared)))
    if specifications := pictures(compared):
        light, dark = (f"{folder}/{name}" for name in specifications)
        parts.append(
            "<picture>\n"
            f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
            f'  <img alt="Throughput of JAX over that of PyTorch, with its 95 % interval: the ratios of the table'
            f'{_of_sample(compared)}." src="{light}">\n'
            "</picture>"
        )
    return "\n\n".join(part for part in parts if part)


PICTURES = {"overview.svg": PRINT, "overview-dark.svg": DARK}


def pictures(compared: Sequence[Section]) -> dict[str, Spec]:
    """The specification of each of PICTURES; none where there is no ratio."""
    shown = full_sections(compared)
    points = published_points(shown)
    if not points:
        return {}
    on_sample = {section.setup.data == "sample" for section in shown}
    title = "Sample data: not results to quote" if on_sample == {True} else "JAX or PyTorch"
    return {
        name: specification(PUBLISHED, {"published": points}, palette, title=title, width=PUBLISHED_WIDTH)
        | {"padding": FOR_WIDER_FONTS}
        for name, palette in PICTURES.items()
    }


FOR_WIDER_FONTS = {"left": 28, "right": 16, "top": 6, "bottom": 6}
"""Pixels: a reader's browser has another font than the one that labels were measured with."""


def picture_svg(wanted: Spec) -> str:
    """Ends with what it was drawn from, as other fonts draw the same a little differently."""
    return f"{svg_of(wanted)}\n{drawn_from(wanted)}\n"


def drawn_from(wanted: Spec) -> str:
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    return f"<!-- drawn from the Vega-Lite specification {digest[:16]} -->"


def _of_sample(compared: Iterable[Section]) -> str:
    return ", on sample data" if any(one.setup.data == "sample" for one in full_sections(compared)) else ""


def full_sections(compared: Iterable[Section]) -> list[Section]:
    """Of full measurements, whatever their data."""
    return [section for section in compared if section.rows and not section.setup.quick]


def sample_table(compared: Iterable[Section], records: Iterable[Record]) -> str:
    """Markdown. One line for each variant of a full measurement on sample data; empty where there is none."""
    on_sample = [section for section in full_sections(compared) if section.setup.data == "sample"]
    if not on_sample:
        return ""
    lines = (_variant_cells(section, row) for section in on_sample for row in section.rows)
    of_these = [r for r in records if r.measurement.data == "sample" and not r.measurement.quick]
    return (
        "Full measurements on the sample that is embedded in this project, where nobody had the data set at hand. A "
        "step computes the same on it, but it is one small data set and tells nothing of accuracy: not results to "
        "quote.\n\n"
        f"{markdown_table(SAMPLE_HEAD, lines)}\n\n"
        "Throughput: median over replicates, each framework in its fastest mode (in brackets). Ratio: geometric mean "
        f"over paired replicates, with its 95 % interval. {WHOSE_SIDE} {_made_of(on_sample, of_these)}"
    )


def _variant_cells(section: Section, row: Row) -> list[str]:
    ratio, newer = row.ratio, newest_text(row.comparison) if row.comparison else ""
    return [
        section.setup.devices,
        section.setup.cell.benchmark,
        f"{section.setup.cell.use_case}: {use_case_title(section.setup.cell, section.setup.device)}",
        row.label,
        *(_best_cell(row.best(framework)) for framework in FRAMEWORKS),
        (row.why_no_ratio or "none") if ratio is None else f"**{times(ratio.value)}**{bracket(ratio.interval)}",
        "" if ratio is None else verdict(ratio) + (f"; {newer}" if newer else ""),
        ", ".join(flag_names(row)) or "none",
        unlike_names([row]) or ("" if ratio is None else "all equal"),
    ]


def _best_cell(mode: Mode | None) -> str:
    if mode is None:
        return "none"
    return f"{number(mode.throughput_samples_per_s)} ({', '.join(filter(None, [mode.name, cold_start(mode)]))})"


def results_table(compared: Sequence[Section], records: Iterable[Record]) -> str:
    """Markdown. One line for each section that may be quoted; a sentence where there is none.

    Args:
        records: those of the sections; for the versions and dates below the table.
    """
    quotable = [section for section in compared if section.rows and not section.setup.doubts]
    if not quotable:
        return NOTHING
    return f"{markdown_table(HEAD, map(_cells, quotable))}\n\n{_below(quotable, records)}"


def _cells(section: Section) -> list[str]:
    setup, found = section.setup, tally(section.rows)
    return [
        setup.devices,
        setup.cell.benchmark,
        f"{setup.cell.use_case}: {use_case_title(setup.cell, setup.device)}",
        ", ".join(flag_names(*section.rows)) or "none",
        "none" if found.mean is None else f"**{times(found.mean)}**{bracket(found.interval)}",
        unlike_names(section.rows) or ("" if found.mean is None else "all equal"),
        *(str(found.verdicts[verdict] or "") for verdict in VERDICTS),
        str(found.without_ratio or ""),
    ]


def _below(quotable: Sequence[Section], records: Iterable[Record]) -> str:
    kept = [record for record in records if record.measurement.data == "real" and not record.measurement.quick]
    return (
        "Throughput of JAX over that of PyTorch, each in its fastest mode: geometric mean over variants with its 95 % "
        f"interval, and how many variants have which verdict. {WHOSE_SIDE} {_made_of(quotable, kept)}"
    )


def _made_of(shown: Sequence[Section], records: Iterable[Record]) -> str:
    """How many records, from when, by which versions, and how."""
    setups = {section.setup.cell for section in shown}
    kept = [record for record in records if record.measurement.cell in setups]
    versions = []
    for framework in FRAMEWORKS:
        found = {
            str((record.environment.get("framework") or {}).get("version") or "of unknown version")
            for record in kept
            if record.measurement.framework == framework and record.outcome == "ok"
        }
        if found:
            versions.append(f"{NAMES[framework]} {', '.join(sorted(found))}")
    days = sorted({record.ended_at[:10] for record in kept})
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    runs = sorted({url.partition("/runs/")[0] for one in kept if (url := one.environment.get("wandb_url"))})
    where = f" Their runs in W&B: {', '.join(f'<{url}>' for url in runs)}." if runs else ""
    return f"{len(kept)} records, {when}, {' and '.join(versions)}; made by `{COMMAND}`.{where}"
