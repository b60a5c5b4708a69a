"""The report's tables, each made once: the terminal, the page, LaTeX and Markdown write the same values."""

from collections.abc import Sequence

from harness.results.kernel_names import class_of
from harness.results.quantities import ON_PAGE, THROUGHPUT, Quantity, number
from harness.results.statistics import calls_needed
from harness.work.tasks import Metric
from pipeline.report.answer import answer_of, answers_table
from pipeline.report.compare import NAMES, Mode, Row, Section
from pipeline.report.declared import task_of
from pipeline.report.device_peaks import device_peaks_table, peaks_of_sections
from pipeline.report.phases import all_times, phases_absent, phases_of
from pipeline.report.scaling_axis import scaling_over_devices
from pipeline.report.table import Line, Table, group, numbers, texts
from pipeline.report.why import TERMS, explained
from pipeline.report.why_words import ON_CPU, not_explained_lines, tensor_cores_text, term_words
from pipeline.report.wording import (
    absent_lines,
    best_of,
    choice_notes,
    differences,
    equal_names,
    milliseconds,
    quantity_lines,
)


def section_tables(section: Section) -> list[Table]:
    """All that a section has, in the order in which they are shown; those without a line are left out."""
    found = [
        rows_table(section),
        modes_table(section),
        quantities_table(section),
        phases_table(section),
        terms_table(section),
        kernels_table(section),
        sides_table(section),
    ]
    return [table for table in found if table.lines or table.notes]


def _metric(section: Section) -> Metric:
    return task_of(section.setup.cell.benchmark).metric


def rows_table(section: Section) -> Table:
    """The answers of a section, also where the first screen has one for all of them."""
    return answers_table("answers", "Who is faster, row by row", [answer_of(section, row) for row in section.rows])


def modes_table(section: Section) -> Table:
    """Every execution mode below its variant; a column only where there is any number."""
    metric = _metric(section)
    there = {name for row in section.rows for mode in row.modes for name in mode.numbers}
    shown = [one for one in ON_PAGE if one.name in there and one is not THROUGHPUT]
    lines = []
    for row in section.rows:
        lines.append(group(row.label))
        for mode in row.modes:
            cells = [f"{NAMES[mode.framework]} {mode.name}", number(mode.throughput_samples_per_s)]
            interval = mode.throughput_interval
            cells.append(f"{number(interval.low)} to {number(interval.high)}" if interval else "")
            cells += [str(len(mode.throughputs)), _role(row, mode), " ".join(sorted(mode.flags))]
            lines.append(Line([*cells, *(_number(mode, one, metric) for one in shown)], mode.framework))
        for one in row.only_screened:
            cells = [f"{NAMES[one.framework]} {one.execution_mode}", f"({number(one.throughput_samples_per_s)})"]
            lines.append(Line([*cells, "", "0", "screened only", "", *[""] * len(shown)], one.framework, is_pale=True))
    return Table(
        name="modes",
        title="Every execution mode in numbers",
        caption=(
            f"{' '.join(['Medians over processes.', *choice_notes(section.rows)])} Compile: what the first calls took "
            "more than later ones, with empty caches (cold) and with those of an earlier process (warm). No p95 where "
            "one call holds many steps: a percentile of their means is not that of a step; no p99 from fewer than "
            f"{calls_needed(0.99)} calls. Each framework counts the memory of a steady step in its own way. Flags: "
            "docs/reference.md says what each is; an answer names the one that matters to it."
        ),
        columns=[
            *texts("mode"),
            *numbers("samples/s", "95 % interval", "processes"),
            *texts("in the ratio", "flags"),
            *numbers(*(one.title(metric) for one in shown)),
        ],
        lines=lines,
        notes=[f"No number for {line}" for line in absent_lines(section.rows)],
    )


def _role(row: Row, mode: Mode) -> str:
    """Whether it is in the ratio, from how many it was chosen, and whether the use case declares it."""
    found = [best_of(row, mode.framework)] if row.best(mode.framework) is mode else []
    declared = row.declared is not None and mode in (row.declared.jax, row.declared.torch)
    found += ["declared pair"] if declared else []
    return ", ".join(found or ([mode.why_worthless] if mode.why_worthless else []))


def _number(mode: Mode, quantity: Quantity, metric: Metric) -> str:
    """Behind the number, how many processes have it, where it is not all of them."""
    text = quantity.text(mode.numbers.get(quantity.name), metric)
    having, all_ = mode.replicates_with.get(quantity.name, 0), len(mode.throughputs)
    return text if not text or having == all_ else f"{text} ({having} of {all_})"


def quantities_table(section: Section) -> Table:
    return Table(
        name="quantities",
        title="JAX over PyTorch in everything but throughput",
        caption=(
            "Medians of the modes in the ratio, and the geometric mean of the ratios of pairs with Student's t at "
            "95 %. Above 1, JAX takes more. `less` names a side where its interval holds after a correction for all "
            "quantities of a row (Holm)."
        ),
        columns=[
            *texts("variant", "quantity"),
            *numbers("JAX", "PyTorch", "JAX / PyTorch"),
            *texts("less"),
            *numbers("pairs"),
        ],
        lines=[Line(cells) for cells in quantity_lines(section.rows, _metric(section))],
    )


def phases_table(section: Section) -> Table:
    found = all_times(section)
    phases = phases_of(found)
    lines: dict[str, list[Line]] = {}
    for times_ in (one for one in found if one.phases):
        mode = times_.mode
        cells = [f"{NAMES[mode.framework]} {mode.execution_mode}"]
        cells += [milliseconds(times_.phases.get(name, {}).get("p50")) for name in phases]
        cells.append(milliseconds(mode.numbers.get("step_time_p50_s")))
        lines.setdefault(times_.row.label, [group(times_.row.label)]).append(Line(cells, mode.framework))
    return Table(
        name="phases",
        title="Phases of a step",
        caption=(
            "Milliseconds: median over processes of the median over runs. The clock waits for the device at the end of "
            "each phase, and of the whole step. In PyTorch the phases are the calls that a step makes. In JAX each is "
            "a program of its own, and their sum is not the step. Data generation and build, which makes models and "
            "their optimizer, are no part of the step. phases.csv has the mean, spread and extremes of each."
        ),
        columns=[*texts("mode"), *numbers(*(name.replace("_", " ") for name in phases), "whole step, p50")],
        lines=[line for of_row in lines.values() for line in of_row],
        notes=[f"No phases: {line}" for line in phases_absent(found)],
    )


def terms_table(section: Section) -> Table:
    found = explained(section)
    on_device = bool(found) and found[0].on_device
    return Table(
        name="why",
        title="Where the time of a step goes",
        caption=(
            "Milliseconds of a step. What ran was traced by each framework's own profiler in a process that is not "
            "timed, or in a smoke run after everything was timed; the step is the clock's, without a tracer. Events "
            "that overlap share their time. Handed out: from an idle device until one call has returned. Work: "
            "floating-point operations, counted on each side from its own shapes. Of attainable: that work in the "
            "step's time, over the matrix products that this device can do (Device peaks); empty where "
            "no record of the device's peaks exists." + ("" if on_device else f" {ON_CPU}")
        ),
        columns=[
            *texts("mode"),
            *numbers("step", *(term_words(term, on_device=on_device) for term in TERMS), "events", "handed out"),
            *numbers("GFLOP", "of attainable"),
            *texts("bound by", "tensor cores", "read first"),
        ],
        lines=[
            Line(
                [
                    f"{NAMES[one.mode.framework]} {one.mode.records[0].measurement.variant.key}",
                    milliseconds(one.step_s),
                    *(milliseconds(time_s) if time_s else "" for time_s in one.terms_s.values()),
                    number(one.kernels_per_step),
                    milliseconds(one.dispatch_s),
                    number(one.explanation.work.operations / 1e9) if one.explanation.work else "",
                    "" if one.share_of_attainable is None else f"{one.share_of_attainable:.1%}",
                    one.bound or "",
                    tensor_cores_text(one),
                    "; ".join(one.refusals + one.doubts),
                ],
                one.mode.framework,
            )
            for one in found
        ],
        notes=[f"Where the time goes is not known: {line}" for line in not_explained_lines(section.rows)],
    )


def kernels_table(section: Section) -> Table:
    lines = []
    for one in explained(section):
        mode = one.mode
        lines.append(group(f"{NAMES[mode.framework]} {mode.records[0].measurement.variant.key}", mode.framework))
        lines += [
            Line(
                [
                    kernel.name,
                    class_of(kernel.name, kernel.content),
                    number(kernel.count / one.window.steps),
                    milliseconds(kernel.busy_s / one.window.steps),
                ]
            )
            for kernel in one.longest
        ]
    return Table(
        name="kernels",
        title="The longest events of a step",
        caption="The ten longest kernels (on a CPU: operators) of each mode, by their names in the trace.",
        columns=[*texts("name", "what"), *numbers("in a step", "ms of a step")],
        lines=lines,
    )


def sides_table(section: Section) -> Table:
    """What was equal on both sides of each ratio, and what was not."""
    lines = []
    for row in section.rows:
        pair = row.comparison
        if pair is None:
            lines.append(Line([row.label, "no pair", row.why_no_ratio or "", "", ""]))
        else:
            words = (
                "passed" if pair.judgement.state == "passed" else f"{pair.judgement.state}: {pair.judgement.sentence}"
            )
            lines.append(Line([row.label, words, differences(pair), equal_names(pair), pair.predictions or ""]))
    return Table(
        name="sides",
        title="What was equal on both sides",
        caption=(
            "A ratio exists only where the parity gate has passed: outputs, loss, gradients and steps of the optimizer "
            "were the same on both sides before anything was timed."
        ),
        columns=texts("variant", "parity", "not equal", "equal", "predictions on the test set"),
        lines=lines,
    )


def report_tables(compared: Sequence[Section]) -> list[Table]:
    """Return the tables over all sections that have a line."""
    found = (scaling_over_devices(compared), device_peaks_table(peaks_of_sections(compared)))
    return [table for table in found if table.lines]
