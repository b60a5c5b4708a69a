"""The results table of README.md, between its two markers."""

from collections.abc import Iterable, Sequence

from harness.plan import FRAMEWORKS
from harness.results.record import Record
from pipeline.markdown import GeneratedPart, markdown_table
from pipeline.report.compare import NAMES, VERDICTS, Section, tally
from pipeline.report.wording import bracket, flag_names, times, unlike_names, use_case_title

PART_OF_README = GeneratedPart(begin="<!-- results:begin -->", end="<!-- results:end -->")
COMMAND = "python main.py report --update-readme"
NOTHING = (
    "No result is published yet: `results/published` holds no full measurement on real data. "
    "Quick runs and sample data are never shown here."
)
HEAD = ("GPU", "benchmark", "use case", "flags", "JAX / PyTorch", "the two sides", *VERDICTS, "no ratio")


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
        f"{setup.cell.use_case}: {use_case_title(setup.cell)}",
        ", ".join(flag_names(mode for row in section.rows for mode in row.modes)) or "none",
        "none" if found.mean is None else f"**{times(found.mean)}**{bracket(found.interval)}",
        unlike_names(section.rows) or ("" if found.mean is None else "all equal"),
        *(str(found.verdicts[verdict] or "") for verdict in VERDICTS),
        str(found.without_ratio or ""),
    ]


def _below(quotable: Sequence[Section], records: Iterable[Record]) -> str:
    setups = {section.setup.cell for section in quotable}
    kept = [r for r in records if r.measurement.cell in setups and not r.measurement.quick]
    kept = [record for record in kept if record.measurement.data == "real"]
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
    return (
        "Throughput of JAX over that of PyTorch, each in its fastest mode: geometric mean over variants with its 95 % "
        "interval, and how many variants have which verdict. Above 1, JAX is faster. "
        f"{len(kept)} records, {when}, {' and '.join(versions)}; made by `{COMMAND}`.{where}"
    )
