"""Tables as papers on inference and training have them: all numbers of each framework's best mode, and a summary with a
line for each model. Pure.

Best modes, ratios and intervals are those of the comparison. A cell without a number is a dash, and the reason stands
below the table; a column without any number is left out, with its reason.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.plan import FRAMEWORKS, Framework, Variant
from harness.results.quantities import BY_NAME, THROUGHPUT, Quantity
from harness.results.record import Record
from harness.results.sequential import RatioEstimate
from harness.results.statistics import PairedRatio, calls_needed
from harness.work.tasks import Task
from pipeline.report.compare import (
    MANY_STEPS,
    NAMES,
    Mode,
    Row,
    RowKey,
    Section,
    data_id,
    row_labels,
    settings_digest,
    variant_order,
)
from pipeline.report.declared import task_of
from pipeline.report.table import Column, Line, Table
from pipeline.report.wording import WHOSE_SIDE, best_of, bracket, times

HEADS = {
    "step_time_p50_s": "p50, ms",
    "step_time_p95_s": "p95, ms",
    "step_time_p99_s": "p99, ms",
    "step_time_mean_s": "mean, ms",
    "achieved_flop_per_s": "TFLOP/s",
    "memory_step_peak_bytes": "step, MiB",
    "memory_process_bytes": "process, MiB",
    "compile_time_s": "cold, s",
    "compile_time_warm_s": "warm, s",
    "epoch_time_s": "s/epoch",
    "input_time_s": "input, s/epoch",
    "energy_per_epoch_joules": "J/epoch",
}
"""Of columns whose words elsewhere are too long here."""
SPEED, ENERGY = THROUGHPUT.name, "energy_gross_joules_per_sample"
COST = (
    "achieved_flop_per_s",
    "memory_step_peak_bytes",
    "memory_process_bytes",
    "compile_time_s",
    "compile_time_warm_s",
)
OF_INFERENCE = (
    *(SPEED, "step_time_p50_s", "step_time_p95_s", "step_time_p99_s", "step_time_mean_s", "test_metric", ENERGY),
    *COST,
)
OF_EPOCHS = ("epoch_time_s", "test_metric", "test_top_5_accuracy", "energy_per_epoch_joules", ENERGY)
OF_TRAINING = (SPEED, *OF_EPOCHS, "input_time_s", *COST)
ONLY_SOMETIMES = frozenset({"test_top_5_accuracy", "input_time_s"})
"""No column and no word where nothing has the number: few tasks have the metric, and most data lie on the device."""
COUNTED = (
    "step: the memory of a steady step, which each framework counts in its own way; process: NVML's. "
    "cold, warm: compile time with empty caches, and with those of an earlier process."
)


RATIOS = f"{WHOSE_SIDE} Geometric mean over pairs with its 95 % interval."
NONE = "--"
P50 = "step_time_p50_s"


def paper_tables(section: Section) -> list[Table]:
    """None of use cases that papers have no such tables of."""
    numbers = {"inference": OF_INFERENCE, "train": OF_TRAINING}.get(section.setup.cell.use_case_name)
    if not section.rows or numbers is None:
        return []
    return [_full(section, numbers), _summary(section)]


@dataclass
class _Making:
    """A table while it is made: lines by the title of their columns, and reasons of what is missing."""

    section: Section
    lines: list[dict[str, str]] = field(default_factory=list)
    absent: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """Reasons by column."""
    numeric: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task: Task = task_of(self.section.setup.cell.benchmark)
        variants = [row.variant for row in self.section.rows]
        variants += [record.measurement.variant for record in self.section.without_number]
        self._options = sorted({name for variant in variants for name in variant.options})

    def varying(self, variant: Variant) -> dict[str, str]:
        options = {name.replace("_", " "): str(variant.options.get(name, "")) for name in self._options}
        return {"precision": variant.precision, **{name: text.replace("_", " ") for name, text in options.items()}}

    def number(self, title: str, mode: Mode | None, name: str, why_none: str) -> str:
        """The cell of a quantity, whose column is one of numbers; a dash where there is none."""
        self.numeric[title] = None
        if mode is not None and name in mode.numbers:
            return BY_NAME[name].text(mode.numbers[name], self.task.metric)
        return self.missing(title, why_none if mode is None else why_absent(mode, BY_NAME[name]))

    def missing(self, title: str, why: str) -> str:
        self.absent[title][why] = None
        return NONE

    def table(self, name: str, title: str, caption: str) -> Table:
        heads = list(self.lines[0])
        empty = {head for head in heads if all(line[head] == NONE for line in self.lines) and head in self.numeric}
        shown = [head for head in heads if head not in empty]
        partly: dict[str, list[str]] = defaultdict(list)
        for head in shown:
            for why in self.absent.get(head, ()):
                partly[why].append(head)
        notes = [f"No {head}: {'; '.join(self.absent[head])}." for head in heads if head in empty]
        notes += [f"{NONE}: {why} ({', '.join(columns)})." for why, columns in partly.items()]
        return Table(
            name=name,
            title=title,
            caption=caption,
            columns=[Column(head, is_number=head in self.numeric) for head in shown],
            lines=[Line([line[head] for head in shown]) for line in self.lines],
            notes=notes,
        )


def _full(section: Section, names: Sequence[str]) -> Table:
    """A line for each model, precision, options, batch size and framework."""
    making = _Making(section)
    for side in _sides(section):
        mode = side.mode
        making.lines.append(
            {
                "model": side.label,
                **making.varying(side.variant),
                "batch": str(side.variant.batch_size),
                "framework": NAMES[side.framework],
                "mode": f"{mode.name} ({side.best_of})" if mode else making.missing("mode", side.why_none),
                **{
                    (title := _head(name, making.task)): making.number(title, mode, name, side.why_none)
                    for name in _there(names, section)
                },
            }
        )
    is_training = section.setup.cell.use_case_name == "train"
    about = (
        "s/epoch: of the steps; copying data to the device (input) and the evaluation are outside it. J/epoch: mean "
        "power of the energy window times s/epoch."
        if is_training
        else "p50, p95, p99, mean: of a call that was waited for."
    )
    caption = f"Medians over processes, each framework in its best mode. {about} {COUNTED}"
    return making.table("full", "All numbers of each framework's best mode", caption)


def _summary(section: Section) -> Table:
    """A line for each model, precision and options: throughput at the largest batch, and of inference p50 at the
    smallest."""
    making = _Making(section)
    is_training = section.setup.cell.use_case_name == "train"
    for label, rows in _by_model(section):
        smallest, largest = rows[0], rows[-1]
        line = {"model": label, **making.varying(largest.variant), "batch": str(largest.variant.batch_size)}
        line |= _of_both(making, largest, (THROUGHPUT.name, *(OF_EPOCHS if is_training else ())))
        line["JAX / PyTorch"] = _ratio(making, "JAX / PyTorch", largest, largest.ratio)
        if not is_training:
            of_p50 = smallest.comparison.of_quantities.get(P50) if smallest.comparison else None
            line["batch of the p50"] = str(smallest.variant.batch_size)
            line |= _of_both(making, smallest, (P50,))
            line["JAX / PyTorch, of the p50"] = _ratio(making, "JAX / PyTorch, of the p50", smallest, of_p50)
        making.lines.append(line)
    return making.table("summary", "Each model in a line", f"Each framework in its best mode at that batch. {RATIOS}")


def _there(names: Iterable[str], section: Section) -> list[str]:
    found = {name for row in section.rows for mode in row.modes for name in mode.numbers}
    return [name for name in names if name in found or name not in ONLY_SOMETIMES]


def _head(name: str, task: Task) -> str:
    text = HEADS.get(name) or BY_NAME[name].title(task.metric)
    if name == ENERGY:
        return f"mJ/{task.samples.removesuffix('s')}"
    return text.replace("samples", task.samples)


def why_absent(mode: Mode, quantity: Quantity) -> str:
    """Why a mode that has a throughput lacks another number."""
    results = [(record, record.result) for record in mode.records if record.result]
    reasons = (quantity.absent.reason(record, result) for record, result in results if quantity.absent)
    if reason := next((reason for reason in reasons if reason), None):
        return reason
    if quantity.times_operations:
        return "operations not declared for this model in this use case and size"
    latencies = [result.latency for _, result in results if result.latency]
    if latencies and quantity.name in CALLS_NEEDED:
        if any(latency.steps_per_call > 1 for latency in latencies):
            return "one call holds many steps"
        most = max(len(latency.call_times_s) for latency in latencies)
        return f"{most} calls were waited for, and this takes {CALLS_NEEDED[quantity.name]}"
    return "not measured"


CALLS_NEEDED = {"step_time_p95_s": calls_needed(0.95), "step_time_p99_s": calls_needed(0.99)}


def _of_both(making: _Making, row: Row, names: Sequence[str]) -> dict[str, str]:
    line = {}
    for name in _there(names, making.section):
        for framework in FRAMEWORKS:
            title = f"{NAMES[framework]} {_head(name, making.task)}"
            why = _why_none(making.section, row, framework)
            line[title] = making.number(title, row.best(framework), name, why)
    return line


def _ratio(making: _Making, title: str, row: Row, estimate: RatioEstimate | PairedRatio | None) -> str:
    """`1.25 [1.20, 1.30] JAX faster`; only a throughput has a verdict."""
    if estimate is not None:
        verdict = f" {estimate.verdict}" if isinstance(estimate, RatioEstimate) else ""
        return f"{times(estimate.value)}{bracket(estimate.interval)}{verdict}"
    if row.comparison is not None:
        why = row.comparison.why_no_ratio or "no pair waited for a step on both sides"
        return making.missing(title, why)
    missing = [framework for framework in FRAMEWORKS if row.best(framework) is None]
    return making.missing(title, "; ".join(_why_none(making.section, row, framework) for framework in missing))


def _by_model(section: Section) -> list[tuple[str, list[Row]]]:
    """Rows that differ in nothing but their batch size, the smallest first, with the model's label."""
    labels = _labels(section)
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in section.rows:
        of_any_batch = row.variant.model_copy(update={"batch_size": 1})
        found[labels[_key_of_row(row)], of_any_batch.comparison_key].append(row)
    return [(label, sorted(rows, key=lambda row: row.variant.batch_size)) for (label, _), rows in found.items()]


def _key_of_row(row: Row) -> RowKey:
    model = f"{row.variant.model}{MANY_STEPS if row.many_steps_in_a_call else ''}"
    return RowKey(model, row.settings_digest, row.data_id)


def _labels(section: Section) -> dict[RowKey, str]:
    """Names of models, with what tells apart those of other settings or data."""
    return row_labels({_key_of_row(row) for row in section.rows})


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One framework on one variant."""

    variant: Variant
    label: str
    """Of the model."""
    framework: Framework
    mode: Mode | None
    best_of: str
    """From how many modes this one was chosen."""
    why_none: str
    """Empty where there is a mode."""


def _sides(section: Section) -> list[_Side]:
    """Both frameworks of each row; and of what was tried without any number, each framework that did."""
    labels = _labels(section)
    found = [
        _Side(
            variant=row.variant,
            label=labels[_key_of_row(row)],
            framework=framework,
            mode=row.best(framework),
            best_of=best_of(row, framework),
            why_none="" if row.best(framework) else _why_none(section, row, framework),
        )
        for row in section.rows
        for framework in FRAMEWORKS
    ]
    with_number = {row.variant.comparison_key for row in section.rows}
    failed: dict[tuple[str, Framework], Record] = {}
    for record in section.without_number:
        measurement = record.measurement
        if measurement.variant.comparison_key not in with_number:
            failed.setdefault((measurement.variant.comparison_key, measurement.framework), record)
    for (_, framework), record in failed.items():
        measurement = record.measurement
        key = RowKey(measurement.variant.model, settings_digest(measurement), data_id(record))
        label = labels.get(key, measurement.variant.model)
        why = _became_of(record)
        found.append(
            _Side(variant=measurement.variant, label=label, framework=framework, mode=None, best_of="", why_none=why)
        )
    return sorted(found, key=lambda side: (variant_order(side.variant), side.label, FRAMEWORKS.index(side.framework)))


def _why_none(section: Section, row: Row, framework: Framework) -> str:
    """Why a framework has no mode on this row that may be compared."""
    worthless = [mode.why_worthless for mode in row.modes if mode.framework == framework and mode.why_worthless]
    failed = [
        _became_of(record)
        for record in section.without_number
        if record.measurement.framework == framework
        and record.measurement.variant.comparison_key == row.variant.comparison_key
    ]
    return next(iter([*worthless, *failed]), "not measured")


def _became_of(record: Record) -> str:
    """`failed: CUDA_ERROR_ILLEGAL_ADDRESS`"""
    return f"{record.outcome.replace('_', ' ')}: {record.reason or 'no reason was recorded'}"
