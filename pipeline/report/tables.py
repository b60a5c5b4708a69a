"""The comparison as CSV, and as LaTeX tables for a paper (booktabs)."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.plan import FRAMEWORKS
from harness.results import quantities
from harness.results.quantities import shown_in
from harness.results.sequential import RatioEstimate
from harness.work.tasks import Metric
from pipeline.report import devices_axis
from pipeline.report.calibrations import CalibratedDevices, sentences
from pipeline.report.chance import chance_sentence
from pipeline.report.compare import (
    NAMES,
    VERDICTS,
    Comparison,
    Mode,
    OneDevice,
    Row,
    Section,
    Setup,
    doubts_sentence,
    headline,
    one_device,
    scaling,
    tally,
)
from pipeline.report.declared import task_of
from pipeline.report.devices_axis import DevicePanel
from pipeline.report.latex import columns_that_differ, latex_escaped, latex_mark, latex_table, ratio_text
from pipeline.report.models import models_of
from pipeline.report.paper_tables import models_table, paper_tables
from pipeline.report.phases import STATISTICS, PhaseTable, all_times, phase_table
from pipeline.report.why import TERMS, terms_of, why_of
from pipeline.report.why_words import tensor_cores_text, why_sentence
from pipeline.report.wording import (
    WHOSE_SIDE,
    best_of,
    bracket,
    declared_mean,
    declared_text,
    difference_mark,
    difference_notes,
    differences,
    equal_names,
    flag_names,
    milliseconds,
    modes_compared,
    registered_text,
    rules_sentence,
    times,
    unequal,
    unlike_names,
    unrecorded,
)

CSV_KEY = (
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
    "data_id",
    "framework",
    "execution_mode",
)
CSV_COMPARISON = (
    "throughput_low",
    "throughput_high",
    "parity",
    "parity_sentence",
    "ratio_jax_over_torch",
    "ratio_low",
    "ratio_high",
    "ratio_replicates",
    "verdict",
    "ratio_flags",
    "rules",
    "pairs_at_most",
    "p",
    "q",
    "declared_ratio_jax_over_torch",
    "declared_ratio_low",
    "declared_ratio_high",
    "declared_verdict",
    "declared_q",
    *(f"newest_{name}" for name in ("ratio_jax_over_torch", "ratio_low", "ratio_high", "ratio_replicates", "verdict")),
    *(f"{one.name}_ratio{end}" for one in quantities.COMPARED for end in ("", "_low", "_high")),
    "registered",
    "equal",
    "not_equal",
    "not_recorded",
    "left_out",
    "strong_scaling_efficiency",
    "weak_scaling_efficiency",
    "scaling_differences",
)
WHY_COLUMNS = (
    *CSV_KEY,
    "on_device",
    "step_time_s",
    "busy_s",
    *(f"{term}_s" for term in TERMS),
    "events",
    "dispatch_s",
    "bound",
    "attainable_operations_per_s",
    "share_of_attainable",
    "products_share_of_attainable",
    "tensor_cores",
    "not_explained",
    "doubts",
    "tracer",
    "sentence",
)
PHASE_COLUMNS = (*CSV_KEY, "phase", "replicates", *(f"{name}_s" for name in STATISTICS))


def csv_text(compared: Sequence[Section], alone: OneDevice | None = None) -> str:
    """One line for each framework and execution mode; the ratio stands in the lines of its two, and that of the
    declared pair in the lines of that."""
    alone = one_device(compared) if alone is None else alone
    lines = (_csv_line(one, row, mode, alone) for one in compared for row in one.rows for mode in row.modes)
    numbers = (quantity.name for quantity in quantities.QUANTITIES)
    columns = (*CSV_KEY, "fastest", "declared", "modes_compared", "flags", "replicates", *numbers, *CSV_COMPARISON)
    return _csv(columns, lines)


def phases_csv_text(compared: Sequence[Section]) -> str:
    """One line for each phase of a step, in each framework and execution mode, and one for the whole step."""
    return _csv(PHASE_COLUMNS, (line for section in compared for line in _phase_lines(section)))


def why_csv_text(compared: Sequence[Section]) -> str:
    """One line for each framework and execution mode that was explained: where a step's time goes, in seconds."""
    return _csv(WHY_COLUMNS, (line for section in compared for line in _why_lines(section)))


def _why_lines(section: Section) -> Iterator[dict[str, Any]]:
    for row in section.rows:
        why = why_of(row)
        for mode in row.modes:
            terms = terms_of(mode)
            if terms is None:
                continue
            is_of_pair = why is not None and why.terms[mode.framework].mode is mode
            yield {
                **_csv_key(section.setup, row, mode),
                "on_device": terms.on_device,
                "step_time_s": terms.step_s,
                "busy_s": terms.busy_s,
                **{f"{term}_s": time_s for term, time_s in terms.terms_s.items()},
                "events": terms.kernels_per_step,
                "dispatch_s": terms.dispatch_s,
                "bound": terms.bound or "",
                "attainable_operations_per_s": terms.mode.attainable_operations_per_s,
                "share_of_attainable": terms.share_of_attainable,
                "products_share_of_attainable": terms.products_share_of_attainable,
                "tensor_cores": tensor_cores_text(terms),
                "not_explained": "; ".join(terms.refusals),
                "doubts": "; ".join(terms.doubts),
                "tracer": terms.explanation.tracer,
                "sentence": why_sentence(why) if why is not None and is_of_pair else "",
            }


def _phase_lines(section: Section) -> Iterator[dict[str, Any]]:
    for of_mode in all_times(section):
        for phase, summary in of_mode.with_whole_step.items():
            yield {
                **_csv_key(section.setup, of_mode.row, of_mode.mode),
                "phase": phase,
                "replicates": len(of_mode.mode.throughputs),
                **{f"{name}_s": value for name, value in summary.items()},
            }


def _csv(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    output = io.StringIO()
    writer = csv.DictWriter(output, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in line.items()} for line in lines)
    return output.getvalue()


def _csv_cell(value: Any) -> Any:
    """A text that a spreadsheet would compute is marked as one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_BEGINS) else value


FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n")


def _csv_key(setup: Setup, row: Row, mode: Mode) -> dict[str, Any]:
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
        "settings": row.settings_digest,
        "data_id": row.data_id,
        "framework": mode.framework,
        "execution_mode": mode.execution_mode,
    }


def _csv_line(section: Section, row: Row, mode: Mode, alone: OneDevice) -> dict[str, Any]:
    setup = section.setup
    efficiency = scaling(setup, row, mode, alone)
    interval = mode.throughput_interval
    fastest = row.best(mode.framework) is mode
    declared = row.declared is not None and mode in (row.declared.jax, row.declared.torch)
    return {
        **_csv_key(setup, row, mode),
        "fastest": fastest,
        "declared": declared,
        "modes_compared": modes_compared(row, mode.framework),
        "flags": " ".join(sorted(mode.flags)),
        "replicates": len(mode.throughputs),
        **{quantity.name: mode.numbers.get(quantity.name) for quantity in quantities.QUANTITIES},
        "throughput_low": interval.low if interval else None,
        "throughput_high": interval.high if interval else None,
        **(_csv_comparison(row) if fastest else {}),
        **(_csv_declared(row) if declared else {}),
        "registered": section.why_exploratory is None,
        "strong_scaling_efficiency": efficiency.strong.value if efficiency.strong else None,
        "weak_scaling_efficiency": efficiency.weak.value if efficiency.weak else None,
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
        **_csv_ratio(estimate),
        "ratio_flags": " ".join(sorted(comparison.flags)),
        "rules": comparison.rules_version,
        "pairs_at_most": estimate.at_most or None,
        "p": estimate.p,
        "q": row.q,
        **_csv_newest(comparison),
        **{
            f"{name}_ratio{end}": value
            for name, ratio in comparison.of_quantities.items()
            for end, value in zip(("", "_low", "_high"), (ratio.value, *(ratio.interval or (None, None))), strict=True)
        },
    }


def _csv_newest(comparison: Comparison) -> dict[str, Any]:
    """By rules that are newer than those of the records."""
    found = comparison.newest
    return {} if found is None else {f"newest_{name}": value for name, value in _csv_ratio(found).items()}


def _csv_ratio(estimate: RatioEstimate) -> dict[str, Any]:
    return {
        "ratio_jax_over_torch": estimate.value,
        "ratio_low": estimate.interval.low if estimate.interval else None,
        "ratio_high": estimate.interval.high if estimate.interval else None,
        "ratio_replicates": estimate.replicates,
        "verdict": estimate.verdict,
    }


def _csv_declared(row: Row) -> dict[str, Any]:
    estimate = row.declared_ratio
    if estimate is None:
        return {}
    return {
        "declared_ratio_jax_over_torch": estimate.value,
        "declared_ratio_low": estimate.interval.low if estimate.interval else None,
        "declared_ratio_high": estimate.interval.high if estimate.interval else None,
        "declared_verdict": estimate.verdict,
        "declared_q": row.declared_q,
    }


# LaTeX.


def latex_tables(
    compared: Sequence[Section], names: Mapping[Setup, str], calibrated: CalibratedDevices | None = None
) -> dict[str, str]:
    """File name (without its ending) to text: `overview`, `models`, `devices` where a variant has several, and for each
    section that has rows one of its ratios, those of papers (`-full`, `-summary`), and one for the phases of a step
    where they were timed.

    Args:
        names: of the sections' files.
    """
    tables = {names[section.setup]: section_table(section) for section in compared if section.rows}
    for section in compared:
        if (found := phase_table(section)) and found.times:
            tables[f"{names[section.setup]}-phases"] = phases_table(section, found)
    for section in compared:
        tables |= {f"{names[section.setup]}-{ending}": text for ending, text in paper_tables(section).items()}
    if models := models_of(compared):
        tables["models"] = models_table(models)
    quotable = [section for section in compared if section.rows and not section.setup.doubts]
    if panels := devices_axis.device_panels(quotable):
        tables["devices"] = devices_table(panels)
    return {"overview": overview_table(quotable, calibrated or {}), **tables} if quotable else tables


def devices_table(panels: Iterable[DevicePanel]) -> str:
    """Device against device: a line for each variant and device."""
    return latex_table(
        comments=[],
        remarks=[devices_axis.ABOUT],
        columns="llll" + "r" * (len(devices_axis.HEADS) - 1),
        head=["where", "variant", "flags", *devices_axis.HEADS],
        lines=[
            [
                *map(latex_escaped, (panel.place, panel.label, devices_axis.flags(one.row))),
                *map(latex_escaped, devices_axis.cells(device, one.row)),
            ]
            for panel in panels
            for device, one in panel.devices.items()
        ],
    )


def overview_table(compared: Sequence[Section], calibrated: CalibratedDevices) -> str:
    """One line for each section: how many variants have which verdict, and their geometric mean. Below it, what is
    known of the verdicts on these devices."""
    devices = {section.setup.device for section in compared}
    notes = list(dict.fromkeys(text for section in compared if (text := unlike_names(section.rows))))
    return latex_table(
        comments=["Geometric mean over variants of the throughput of JAX over that of PyTorch, with 95 % interval."],
        columns="llllrrrrrrr",
        head=[
            *("device", "benchmark", "use case", "flags", "JAX / PyTorch", "declared pairs", "JAX faster"),
            *("PyTorch faster", "same", "undecided", "no ratio"),
        ],
        lines=[_latex_section(section, notes) for section in compared],
        notes=[f"The two sides: {text}." for text in notes],
        remarks=[
            WHOSE_SIDE,
            *filter(None, [chance_sentence(compared), rules_sentence(compared)]),
            *(
                f"{sentence}."
                for device, found in calibrated.items()
                if device in devices
                for sentence in sentences(device, found)
            ),
        ],
    )


def _latex_section(section: Section, notes: Sequence[str]) -> list[str]:
    setup, found, unlike = section.setup, tally(section.rows), unlike_names(section.rows)
    cell = setup.cell
    flags = flag_names(*section.rows)
    what = [setup.devices, cell.benchmark, f"{cell.use_case} {cell.use_case_name.replace('_', ' ')}", ", ".join(flags)]
    mean = "" if found.mean is None else f"{times(found.mean)}{bracket(found.interval)}"
    mark = latex_mark(notes.index(unlike) + 1 if unlike else None)
    counts = [str(found.verdicts[verdict]) for verdict in VERDICTS]
    return [*map(latex_escaped, what), mean + mark, declared_mean(found), *counts, str(found.without_ratio)]


def section_table(section: Section) -> str:
    notes = difference_notes(section.rows)
    metric = task_of(section.setup.cell.benchmark).metric
    numbers = [quantity.title(metric) for quantity in shown_in("latex")]
    sides = [text for framework in FRAMEWORKS for text in (f"{NAMES[framework]} mode", *numbers)]
    head, columns, lines, same = columns_that_differ(
        ["variant", "flags", *sides, "JAX / PyTorch", "q", "declared pair"],
        "ll" + ("l" + "r" * len(numbers)) * len(FRAMEWORKS) + "lrl",
        [_latex_row(row, notes, metric) for row in section.rows],
        of=("flags", "q", "declared pair"),
    )
    return latex_table(
        comments=[headline(section.setup), "Throughput: median over replicates. Ratio: JAX / PyTorch, 95 % interval."],
        columns=columns,
        head=head,
        lines=lines,
        notes=[f"The two sides: {note}." for note in notes.values()],
        remarks=[WHOSE_SIDE, *filter(None, [doubts_sentence(section.setup)]), registered_text(section)],
        same=same,
    )


def phases_table(section: Section, found: PhaseTable) -> str:
    """Milliseconds of each phase, and of the whole step."""
    return latex_table(
        comments=[
            headline(section.setup),
            "Milliseconds: medians over replicates. Every phase waits for the device; phases do not add up to a step.",
        ],
        columns="lll" + "r" * len(STATISTICS),
        head=["variant", "mode", "phase", *STATISTICS],
        lines=[
            [
                latex_escaped(of_mode.row.label),
                latex_escaped(f"{NAMES[of_mode.mode.framework]} {of_mode.mode.execution_mode}"),
                latex_escaped(phase.replace("_", " ")),
                *(milliseconds(summary.get(name)) for name in STATISTICS),
            ]
            for of_mode in found.times
            for phase, summary in of_mode.with_whole_step.items()
        ],
    )


def _latex_row(row: Row, notes: Iterable[str], metric: Metric) -> list[str]:
    cells = [row.label, ", ".join(flag_names(row))]
    for framework in FRAMEWORKS:
        mode = row.best(framework)
        numbers = mode.numbers if mode else {}
        cells.append(f"{mode.name} ({best_of(row, framework)})" if mode else "none")
        cells += [quantity.text(numbers.get(quantity.name), metric) for quantity in shown_in("latex")]
    estimate = row.ratio
    declared = latex_escaped("the same" if row.best_is_declared else declared_text(row) if row.comparison else "")
    if estimate is not None:
        ratio = ratio_text(estimate, difference_mark(row, notes))
        marked = " (may be luck)" if row.may_be_chance else ""
        return [*map(latex_escaped, cells), ratio, ("" if row.q is None else f"{row.q:.2g}") + marked, declared]
    why = "no pair" if row.comparison is None else f"parity {row.comparison.judgement.state}"
    return [*(latex_escaped(cell) for cell in [*cells, why, ""]), declared]
