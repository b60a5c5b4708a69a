"""LaTeX tables as papers on inference and training have them: all numbers of each framework's best mode, and a summary
with a line for each model. Pure.

Best modes, ratios, intervals and verdicts are those of the comparison. A cell without a number has a mark, and the
reason stands below the table. A column without any number is left out, with its reason; so is one that says the same in
every line.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    doubts_sentence,
    headline,
    row_labels,
    settings_digest,
    variant_order,
)
from pipeline.report.declared import task_of
from pipeline.report.latex import latex_escaped, latex_mark, latex_table, ratio_text
from pipeline.report.models import OPERATIONS, PUBLISHED_HEADS, SIZES_OF_MODELS, ModelFacts, published_sources
from pipeline.report.wording import WHOSE_SIDE, best_of, difference_mark, difference_notes, flag_names

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


RATIOS = f"{WHOSE_SIDE} Geometric mean over paired replicates with its 95 % interval."


@dataclass(frozen=True)
class Missing:
    why: str
    is_not_counted: bool = False
    """There is a mode, with other numbers: a column of nothing else is left out."""


@dataclass(frozen=True)
class Ratio:
    row: Row
    estimate: RatioEstimate | PairedRatio


Cell = str | Missing | Ratio
Line = dict[str, Cell]
"""By the title of its column."""


def paper_tables(section: Section) -> dict[str, str]:
    """What the file's name ends with, to text; none of use cases that papers have no such tables of."""
    makers: Mapping[str, Mapping[str, Callable[[Section], str]]] = {
        "inference": {"full": inference_full, "summary": inference_summary},
        "train": {"full": training_full, "summary": training_summary},
    }
    of_use_case = makers.get(section.setup.cell.use_case_name, {})
    return {ending: make(section) for ending, make in of_use_case.items()} if section.rows else {}


def inference_full(section: Section) -> str:
    """A line for each model, precision, options, batch size and framework."""
    return _full(section, OF_INFERENCE, "p50, p95, p99, mean: of a call that was waited for.")


def training_full(section: Section) -> str:
    """The same of training."""
    return _full(
        section,
        OF_TRAINING,
        "s/epoch: of the steps; copying data to the device (input) and the evaluation are outside it. J/epoch: mean "
        "power of the energy window times s/epoch.",
    )


def inference_summary(section: Section) -> str:
    """A line for each model, precision and options: throughput at the largest batch, p50 at the smallest."""
    table = _Table(section)
    for label, rows in _by_model(section):
        smallest, largest = rows[0], rows[-1]
        of_p50 = smallest.comparison.of_quantities.get("step_time_p50_s") if smallest.comparison else None
        table.lines.append(
            {
                "model": label,
                **table.varying(largest.variant),
                "flags": _flags(smallest, largest),
                BATCHES[0]: str(largest.variant.batch_size),
                **_of_both(section, largest, (SPEED,)),
                "JAX / PyTorch": _ratio(section, largest, largest.ratio),
                BATCHES[1]: str(smallest.variant.batch_size),
                **_of_both(section, smallest, ("step_time_p50_s",)),
                "JAX / PyTorch, of the p50": _ratio(section, smallest, of_p50),
            }
        )
    return table.text(f"Each framework in its best mode at that batch size. {RATIOS}")


def training_summary(section: Section) -> str:
    """A line for each model, precision and options, at its largest batch."""
    table = _Table(section)
    for label, rows in _by_model(section):
        row = rows[-1]
        table.lines.append(
            {
                "model": label,
                **table.varying(row.variant),
                "flags": _flags(row),
                "batch": str(row.variant.batch_size),
                **_of_both(section, row, (SPEED, *OF_EPOCHS)),
                "JAX / PyTorch": _ratio(section, row, row.ratio),
            }
        )
    return table.text(f"Each framework in its best mode. Its ratio is that of the throughputs. {RATIOS}")


def models_table(models: Sequence[ModelFacts]) -> str:
    return latex_table(
        comments=["The models of this report."],
        columns="lllrrrrr",
        head=["benchmark", "model", "kind", "parameters", "GMAC", *PUBLISHED_HEADS],
        lines=[
            [
                latex_escaped(cell)
                for cell in (one.benchmark, one.name, one.kind, one.parameters, one.multiply_adds, *one.published)
            ]
            for one in models
        ],
        remarks=[SIZES_OF_MODELS, *published_sources(models), OPERATIONS],
    )


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


def _full(section: Section, names: Sequence[str], remark: str) -> str:
    table, task = _Table(section), task_of(section.setup.cell.benchmark)
    for side in _sides(section):
        mode, none = side.mode, Missing(side.why_none)
        line: Line = {
            "model": side.label,
            **table.varying(side.variant),
            "batch": str(side.variant.batch_size),
            "framework": NAMES[side.framework],
            "flags": ", ".join(sorted(mode.flags)) if mode else "",
            "mode": f"{mode.name} ({side.best_of})" if mode else none,
        }
        for name in _there(names, section):
            line[_head(name, task)] = _number(mode, BY_NAME[name], task) if mode else none
        table.lines.append(line)
    return table.text(f"Medians over replicates, each framework in its best mode. {remark} {COUNTED}")


def _flags(*rows: Row) -> str:
    return ", ".join(flag_names(*rows))


def _there(names: Iterable[str], section: Section) -> list[str]:
    found = {name for row in section.rows for mode in row.modes for name in mode.numbers}
    return [name for name in names if name in found or name not in ONLY_SOMETIMES]


def _head(name: str, task: Task) -> str:
    text = HEADS.get(name) or BY_NAME[name].title(task.metric)
    if name == ENERGY:
        return f"mJ/{task.samples.removesuffix('s')}"
    return text.replace("samples", task.samples)


def _number(mode: Mode, quantity: Quantity, task: Task) -> Cell:
    if quantity.name not in mode.numbers:
        return Missing(why_absent(mode, quantity), is_not_counted=True)
    return quantity.text(mode.numbers[quantity.name], task.metric)


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


def _of_both(section: Section, row: Row, names: Sequence[str]) -> Line:
    task = task_of(section.setup.cell.benchmark)
    line: Line = {}
    for name in _there(names, section):
        for framework in FRAMEWORKS:
            mode = row.best(framework)
            cell = _number(mode, BY_NAME[name], task) if mode else Missing(_why_none(section, row, framework))
            line[f"{NAMES[framework]} {_head(name, task)}"] = cell
    return line


def _ratio(section: Section, row: Row, estimate: RatioEstimate | PairedRatio | None) -> Cell:
    if estimate is not None:
        return Ratio(row, estimate)
    if row.comparison is not None:
        return Missing(row.comparison.why_no_ratio or "no replicate waited for a step on both sides")
    missing = [framework for framework in FRAMEWORKS if row.best(framework) is None]
    return Missing("; ".join(_why_none(section, row, framework) for framework in missing))


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


@dataclass
class _Table:
    """A table while it is made."""

    section: Section
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        variants = [row.variant for row in self.section.rows]
        variants += [record.measurement.variant for record in self.section.without_number]
        self._options = sorted({name for variant in variants for name in variant.options})

    def varying(self, variant: Variant) -> Line:
        options = {_in_words(name): _in_words(str(variant.options.get(name, ""))) for name in self._options}
        return {"precision": variant.precision, **options}

    def text(self, remark: str) -> str:
        """
        Args:
            remark: below the table, without a mark.
        """
        ratios = [cell for line in self.lines for cell in line.values() if isinstance(cell, Ratio)]
        differences = difference_notes({ratio.row.label: ratio.row for ratio in ratios}.values())
        notes = [f"The two sides: {note}." for note in differences.values()]
        repeated = {"precision", "flags", "batch", *BATCHES, *map(_in_words, self._options)}
        same: dict[str, str] = {}
        absent: dict[str, str] = {}
        heads: list[str] = []
        for head, first in self.lines[0].items():
            cells = [line[head] for line in self.lines]
            why = {cell.why: None for cell in cells if isinstance(cell, Missing) and cell.is_not_counted}
            if why and all(isinstance(cell, Missing) for cell in cells):
                absent[head] = "; ".join(why)
            elif head in repeated and isinstance(first, str) and all(cell == first for cell in cells):
                same[head] = first
            else:
                heads.append(head)
        lines = [[_latex(line[head], differences, notes) for head in heads] for line in self.lines]
        everywhere = ", ".join(f"{head}: {text}" for head, text in same.items() if text)
        return latex_table(
            comments=[headline(self.section.setup)],
            columns="".join("l" if head in TEXT or "JAX / PyTorch" in head else "r" for head in heads),
            head=heads,
            lines=lines,
            notes=notes,
            remarks=[
                *filter(None, [doubts_sentence(self.section.setup)]),
                *([f"Everywhere {everywhere}."] if everywhere else []),
                remark,
                *(f"No {head}: {why}." for head, why in absent.items()),
            ],
        )


def _in_words(name: str) -> str:
    return name.replace("_", " ")


BATCHES = ("batch of the throughput", "batch of the p50")
"""Columns of the summary of inference."""
TEXT = frozenset({"model", "framework", "mode", "flags", "precision"})
"""Columns that are set to the left."""


def _latex(cell: Cell, differences: Iterable[str], notes: list[str]) -> str:
    """
    Args:
        notes: gets the reason of a missing number, once.
    """
    if isinstance(cell, Ratio):
        return ratio_text(cell.estimate, difference_mark(cell.row, differences))
    if isinstance(cell, str):
        return latex_escaped(cell)
    note = f"None: {cell.why}."
    if note not in notes:
        notes.append(note)
    return f"--{latex_mark(notes.index(note) + 1)}"
