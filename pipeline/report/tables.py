"""The comparison as CSV, and as LaTeX tables for a paper (booktabs)."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.settings import FRAMEWORKS
from pipeline.report.compare import (
    VERDICTS,
    Mode,
    OneDevice,
    Row,
    Section,
    Setup,
    Tally,
    headline,
    one_device,
    scaling,
    tally,
)
from pipeline.report.wording import bracket, differences, equal_names, number, times, unequal, unrecorded

CSV_NUMBERS = (
    "throughput_samples_per_s",
    "step_time_s",
    "step_time_alone_s",
    "step_time_p50_s",
    "step_time_p95_s",
    "step_time_mean_s",
    "compile_time_s",
    "compile_time_warm_s",
    "memory_allocator_peak_bytes",
    "memory_step_peak_bytes",
    "memory_pool_peak_bytes",
    "memory_process_bytes",
    "memory_host_peak_bytes",
    "energy_gross_joules_per_sample",
    "energy_net_joules_per_sample",
    "test_accuracy",
    "test_loss",
    "time_to_target_s",
)
"""Of harness.statistics.summary_numbers; each is the median over replicates."""
CSV_COLUMNS = (
    "device",
    "gpu",
    "benchmark",
    "use_case",
    "use_case_name",
    "devices",
    "data",
    "quick",
    "model",
    "batch_size",
    "precision",
    "options",
    "settings",
    "framework",
    "execution_mode",
    "fastest",
    "flags",
    "replicates",
    *CSV_NUMBERS,
    "throughput_low",
    "throughput_high",
    "parity",
    "parity_sentence",
    "ratio_jax_over_torch",
    "ratio_low",
    "ratio_high",
    "ratio_replicates",
    "verdict",
    "replicates_needed",
    "equal",
    "not_equal",
    "not_recorded",
    "left_out",
    "strong_scaling_efficiency",
    "weak_scaling_efficiency",
    "scaling_differences",
)
LONGEST_TABULAR = 40
"""Rows. A longer table gets `longtable`, which breaks over pages."""


def csv_text(compared: Sequence[Section], alone: OneDevice | None = None) -> str:
    """One line for each framework and execution mode; the ratio stands in the lines of its two."""
    output = io.StringIO()
    writer = csv.DictWriter(output, CSV_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    alone = one_device(compared) if alone is None else alone
    for section in compared:
        for row in section.rows:
            for mode in row.modes:
                writer.writerow(_csv_line(section.setup, row, mode, alone))
    return output.getvalue()


def _csv_line(setup: Setup, row: Row, mode: Mode, alone: OneDevice) -> dict[str, Any]:
    efficiency = scaling(setup, row, mode, alone)
    interval = mode.throughput_interval
    fastest = row.best(mode.framework) is mode
    return {
        "device": setup.device,
        "gpu": setup.cell.gpu,
        "benchmark": setup.cell.benchmark,
        "use_case": setup.cell.use_case,
        "use_case_name": setup.cell.use_case_name,
        "devices": setup.cell.devices,
        "data": setup.data,
        "quick": setup.quick,
        "model": row.variant.model,
        "batch_size": row.variant.batch_size,
        "precision": row.variant.precision,
        "options": " ".join(f"{name}={value}" for name, value in sorted(row.variant.options.items())),
        "settings": row.settings,
        "framework": mode.framework,
        "execution_mode": mode.execution_mode,
        "fastest": fastest,
        "flags": " ".join(sorted(mode.flags)),
        "replicates": len(mode.throughputs),
        **{name: mode.numbers.get(name) for name in CSV_NUMBERS},
        "throughput_low": interval.low if interval else None,
        "throughput_high": interval.high if interval else None,
        **(_csv_comparison(row) if fastest else {}),
        "strong_scaling_efficiency": efficiency.strong,
        "weak_scaling_efficiency": efficiency.weak,
        "scaling_differences": differences(efficiency),
    }


def _csv_comparison(row: Row) -> dict[str, Any]:
    comparison = row.comparison
    if comparison is None:
        return {}
    found: dict[str, Any] = {
        "parity": comparison.judgement.state,
        "parity_sentence": comparison.judgement.sentence,
        "equal": equal_names(comparison),
        "not_equal": unequal(comparison),
        "not_recorded": unrecorded(comparison),
        "left_out": comparison.left_out,
    }
    estimate = comparison.estimate
    if estimate is None:
        return found
    return found | {
        "ratio_jax_over_torch": estimate.value,
        "ratio_low": estimate.interval.low if estimate.interval else None,
        "ratio_high": estimate.interval.high if estimate.interval else None,
        "ratio_replicates": estimate.replicates,
        "verdict": estimate.verdict,
        "replicates_needed": estimate.replicates_needed,
    }


# LaTeX.

LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "-": "-{}",  # `--` would become a dash
}


def latex_escaped(text: str) -> str:
    """Of any text what pdflatex prints literally, in ASCII: letters lose their accents, the rest becomes `?`."""
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in _ascii(text))


def _ascii(text: str) -> str:
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(letter if " " <= letter <= "~" else " " if letter.isspace() else "?" for letter in plain)


def latex_tables(compared: Sequence[Section], names: Mapping[Setup, str]) -> dict[str, str]:
    """File name (without its ending) to text: `overview`, and one for each section that has rows.

    Args:
        names: of the sections' files.
    """
    tables = {names[section.setup]: section_table(section) for section in compared if section.rows}
    quotable = [section for section in compared if section.rows and not section.setup.doubts]
    return {"overview": overview_table(quotable), **tables} if quotable else tables


def overview_table(compared: Sequence[Section]) -> str:
    """One line for each section: how many variants have which verdict, and their geometric mean."""
    lines = []
    for section in compared:
        setup, found = section.setup, tally(section.rows)
        cell = setup.cell
        what = [setup.devices, cell.benchmark, f"{cell.use_case} {cell.use_case_name.replace('_', ' ')}"]
        counts = [str(found.verdicts[verdict]) for verdict in VERDICTS]
        lines.append([*map(latex_escaped, what), *counts, str(found.without_ratio), _latex_mean(found)])
    return _latex(
        comments=["Geometric mean over variants of the throughput of JAX over that of PyTorch, with 95 % interval."],
        columns="lllrrrrrr",
        head=[
            *("device", "benchmark", "use case", "JAX faster", "PyTorch faster"),
            *("same", "undecided", "no ratio", "JAX / PyTorch"),
        ],
        lines=lines,
    )


def _latex_mean(found: Tally) -> str:
    return "" if found.mean is None else f"{times(found.mean)}{bracket(found.interval)}"


def section_table(section: Section) -> str:
    return _latex(
        comments=[headline(section.setup), "Throughput: median over replicates. Ratio: JAX / PyTorch, 95 % interval."],
        columns="llrlrll",
        head=["variant", "JAX mode", "samples/s", "PyTorch mode", "samples/s", "JAX / PyTorch", "flags"],
        lines=[_latex_row(row) for row in section.rows],
    )


def _latex_row(row: Row) -> list[str]:
    cells = [row.label]
    for framework in FRAMEWORKS:
        mode = row.best(framework)
        cells += [mode.execution_mode, number(mode.throughput_samples_per_s)] if mode else ["none", ""]
    estimate = row.ratio
    if estimate is not None:
        cells.append(f"{times(estimate.value)}{bracket(estimate.interval)} {estimate.verdict}")
    else:
        cells.append("no pair" if row.comparison is None else f"parity {row.comparison.judgement.state}")
    flags = {flag for mode in row.modes if row.best(mode.framework) is mode for flag in mode.flags}
    return [latex_escaped(cell) for cell in [*cells, ", ".join(sorted(flags))]]


def _latex(*, comments: Iterable[str], columns: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for `\\input`. What is in `lines` is escaped already."""
    long = len(lines) > LONGEST_TABULAR
    environment = "longtable" if long else "tabular"
    packages = "booktabs, longtable" if long else "booktabs"
    end = r" \\"
    text = [f"% {_ascii(comment)}" for comment in [*comments, f"Needs: {packages}."]]
    text += [rf"\begin{{{environment}}}{{{columns}}}", r"\toprule"]
    text += [" & ".join(latex_escaped(name) for name in head) + end, r"\midrule"]
    text += [r"\endhead"] if long else []
    text += [" & ".join(line) + end for line in lines]
    text += [r"\bottomrule", rf"\end{{{environment}}}", ""]
    return "\n".join(text)
