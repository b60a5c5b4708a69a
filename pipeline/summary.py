"""The comparison in numbers: from records to the table JAX | PyTorch | ratio, on the terminal and as CSV.

What may be compared is decided here: only the same device, cell, variant, settings, data and length of run
ever meet in one number.
"""

import csv
import hashlib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RecordError
from harness.files import write_atomically
from harness.paths import Results
from harness.plan import Cell, JobPlan, Measurement, Variant
from harness.record import SETTLED, Record, read_record
from harness.settings import FRAMEWORKS, DataKind, Framework
from harness.statistics import (
    Interval,
    geometric_mean,
    median,
    quality_flags,
    ratio_interval,
    summary_numbers,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NAMES: dict[Framework, str] = {"jax": "JAX", "torch": "PyTorch"}
REPLICATES_FOR_AN_INTERVAL = 3
UNKNOWN_DEVICE = "a device that was not recorded"

CSV_NUMBERS = (
    "throughput_samples_per_s",
    "step_time_s",
    "step_time_p50_s",
    "step_time_p95_s",
    "step_time_mean_s",
    "compile_time_s",
    "memory_allocator_peak_bytes",
    "memory_step_peak_bytes",
    "memory_pool_peak_bytes",
    "memory_process_bytes",
    "memory_host_peak_bytes",
    "energy_gross_joules_per_sample",
    "test_accuracy",
    "test_loss",
    "time_to_target_s",
)
"""Of harness.statistics.summary_numbers; each is the median over replicates."""
FLAGS_OF_EVERY_QUICK_RUN = frozenset({"few_replicates", "imprecise", "too_few_latency_calls"})
"""What its section's heading says already."""
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
    "replicates",
    *CSV_NUMBERS,
    "ratio_jax_over_torch",
    "ratio_low",
    "ratio_high",
    "strong_scaling_efficiency",
    "weak_scaling_efficiency",
    "flags",
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a reader must know of a whole table. Records of different setups never meet."""

    device: str
    """The GPU's own name, or the CPU's: what it really ran on, whatever the cell asked for."""
    cell: Cell
    data: DataKind
    quick: bool


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One framework in one execution mode, over its replicates."""

    framework: Framework
    execution_mode: str
    throughputs: dict[int, float]
    """Samples per second of each replicate."""
    numbers: dict[str, float]
    """Median over replicates of each of harness.statistics.summary_numbers."""
    flags: dict[str, str]

    @property
    def throughput_samples_per_s(self) -> float:
        return median(list(self.throughputs.values()))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Throughput of JAX over that of PyTorch, each in its fastest mode."""

    value: float
    """Geometric mean of the ratios of the replicates that both have."""
    interval: Interval | None
    replicates: int

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "undecided"
        if self.interval.low <= 1 <= self.interval.high:
            return "no clear difference"
        return f"{NAMES['jax' if self.value > 1 else 'torch']} faster"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant, without its execution mode: what both frameworks did in the same way."""

    label: str
    variant: Variant
    """Of any of its records; its execution mode has no meaning here."""
    settings: str
    """Four hex digits: rows that differ in it were measured with other settings of the use case."""
    modes: tuple[Mode, ...]
    """JAX before PyTorch, the fastest first."""

    def best(self, framework: Framework) -> Mode | None:
        return next((mode for mode in self.modes if mode.framework == framework), None)

    @property
    def ratio(self) -> Ratio | None:
        """None where one side has no number."""
        jax, torch = self.best("jax"), self.best("torch")
        if jax is None or torch is None:
            return None
        common = sorted(jax.throughputs.keys() & torch.throughputs.keys())
        if not common:
            return None
        ours = [jax.throughputs[replicate] for replicate in common]
        theirs = [torch.throughputs[replicate] for replicate in common]
        return Ratio(
            value=geometric_mean([a / b for a, b in zip(ours, theirs, strict=True)]),
            interval=ratio_interval(ours, theirs),
            replicates=len(common),
        )


@dataclass(frozen=True, kw_only=True)
class Section:
    """All rows of one setup, and what has no number there."""

    setup: Setup
    rows: tuple[Row, ...]
    without_number: tuple[Record, ...]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Throughput on N devices over N times that of one; 1 is what nothing lost would give. None without a record."""

    strong: float | None
    """The one device had the same batch, so N times the work of each of the N."""
    weak: float | None
    """The one device had the batch that each of the N has."""


OneDevice = dict[tuple[object, ...], Mode]
"""What ran on one device, by `_scaling_key`."""


def print_summary(results: Results, plans: list[JobPlan], console: "Console | None" = None) -> None:
    """The comparison of what the plans measure, from the records that are there by now."""
    console = console or _console()
    measurements = {measurement.id: measurement for plan in plans for measurement in plan.measurements()}
    paths = [path for measurement in measurements.values() for path in results.record_files(measurement)]
    records = _read(paths, console)
    _print_sections(sections(records), console, one_device(sections(_one_device_records(results, plans, console))))
    recorded = {record.measurement_id for record in records}
    missing = [measurement for id_, measurement in measurements.items() if id_ not in recorded]
    if missing:
        console.print(f"Not measured yet: {len(missing)} of {len(measurements)} ({_shortened(missing)}).")


def report_command(results: Results, csv: Path | None, console: "Console | None" = None) -> int:
    """`main.py report`: the comparison of all records in the results folder. 1 if there is none, else 0."""
    console = console or _console()
    records = _read(sorted(results.records().rglob("*.json")), console)
    if not records:
        console.print(
            f"No records under {results.records()}. Measure first: "
            f"python main.py --benchmark mnist --use_case 1 --data sample --quick --wait",
            soft_wrap=True,
        )
        return 1
    compared = sections(records)
    _print_sections(compared, console, one_device(compared))
    if csv is not None:
        write_atomically(csv, csv_text(compared), replace=True)
        console.print(f"Written: {csv}", soft_wrap=True)
    return 0


# From records to rows. Pure.


def device_name(record: Record) -> str:
    """What the framework computed on. A JAX for the CPU beside a GPU ran on the CPU."""
    environment = record.environment
    gpu = (environment.get("gpu") or {}).get("name")
    platform = (environment.get("framework") or {}).get("platform")
    if gpu and platform != "cpu":
        return str(gpu)
    if platform is None and record.outcome != "ok":
        return UNKNOWN_DEVICE
    return f"CPU: {(environment.get('cpu') or {}).get('model') or 'of unknown model'}"


def newest(records: Iterable[Record]) -> list[Record]:
    """One record for each measurement on each device: the newest that is settled, or else the newest.

    A later failure does not hide a number that was measured; a later number replaces an earlier one.
    """
    chosen: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: (record.outcome in SETTLED, record.ended_at)):
        chosen[device_name(record), record.measurement_id] = record
    return list(chosen.values())


def sections(records: Iterable[Record]) -> list[Section]:
    """One for each setup, in the order of their names."""
    by_setup: dict[Setup, list[Record]] = defaultdict(list)
    unplaced = []
    for record in newest(records):
        setup = _setup(record)
        if setup.device == UNKNOWN_DEVICE:
            unplaced.append(record)
        else:
            by_setup[setup].append(record)
    for record in unplaced:  # failed before its device was known: told beside its cell's other records
        setup = _setup(record)
        beside = [other for other in by_setup if replace(other, device=UNKNOWN_DEVICE) == setup]
        by_setup[beside[0] if beside else setup].append(record)
    return [_section(setup, by_setup[setup]) for setup in sorted(by_setup, key=_setup_order)]


def _setup(record: Record) -> Setup:
    measurement = record.measurement
    return Setup(device=device_name(record), cell=measurement.cell, data=measurement.data, quick=measurement.quick)


def _setup_order(setup: Setup) -> tuple[Any, ...]:
    return setup.device, setup.cell.name, setup.quick, setup.data


def _section(setup: Setup, records: Sequence[Record]) -> Section:
    rows: dict[tuple[str, str], list[Record]] = defaultdict(list)
    without_number = []
    for record in records:
        if record.outcome == "ok" and record.result is not None and record.result.blocks is not None:
            key = record.measurement.variant.comparison_key
            rows[key, _settings_digest(record.measurement)].append(record)
        else:
            without_number.append(record)
    settings_of = Counter(key for key, _ in rows)
    return Section(
        setup=setup,
        rows=tuple(
            _row(f"{key} (settings {digest})" if settings_of[key] > 1 else key, digest, rows[key, digest])
            for key, digest in sorted(rows)
        ),
        without_number=tuple(
            sorted(without_number, key=lambda record: (record.measurement.framework, record.measurement.key))
        ),
    )


def _settings_digest(measurement: Measurement) -> str:
    """Of the use case's settings and the protocol: with others it is another measurement, and has a row of its own."""
    protocol = measurement.protocol.model_dump(mode="json", exclude={"replicates", "timeout_s"})
    content = json.dumps([measurement.settings, protocol], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:4]


def _row(label: str, settings: str, records: Sequence[Record]) -> Row:
    by_mode: dict[tuple[Framework, str], list[Record]] = defaultdict(list)
    for record in records:
        measurement = record.measurement
        by_mode[measurement.framework, measurement.variant.execution_mode].append(record)
    modes = [_mode(framework, mode, of_mode) for (framework, mode), of_mode in by_mode.items()]
    modes.sort(key=lambda mode: (FRAMEWORKS.index(mode.framework), -mode.throughput_samples_per_s))
    return Row(label=label, variant=records[0].measurement.variant, settings=settings, modes=tuple(modes))


def _mode(framework: Framework, execution_mode: str, records: Sequence[Record]) -> Mode:
    throughputs: dict[int, float] = {}
    values: dict[str, list[float]] = defaultdict(list)
    flags: dict[str, str] = {}
    for record in sorted(records, key=lambda record: record.measurement.replicate):
        assert record.result is not None, "only records with a number come here"
        numbers = summary_numbers(record.result)
        throughputs[record.measurement.replicate] = numbers["throughput_samples_per_s"]
        for name, value in numbers.items():
            values[name].append(value)
        # Today's rules over yesterday's samples; what only the job could see was recorded.
        flags = (
            quality_flags(record.result, record.environment, record.measurement.protocol.target_noise)
            | record.flags
            | flags
        )
    if len(throughputs) < REPLICATES_FOR_AN_INTERVAL:
        count = len(throughputs)
        flags["few_replicates"] = f"{count} replicate{'s' if count > 1 else ''}: an interval takes 3"
    if records[0].measurement.quick:
        flags = {name: sentence for name, sentence in flags.items() if name not in FLAGS_OF_EVERY_QUICK_RUN}
    return Mode(
        framework=framework,
        execution_mode=execution_mode,
        throughputs=throughputs,
        numbers={name: median(of_replicates) for name, of_replicates in values.items()},
        flags=flags,
    )


def one_device(compared: Sequence[Section]) -> OneDevice:
    return {
        _scaling_key(section.setup, row, mode, row.variant.batch_size): mode
        for section in compared
        if section.setup.cell.devices == 1
        for row in section.rows
        for mode in row.modes
    }


def scaling(setup: Setup, row: Row, mode: Mode, alone: OneDevice) -> Scaling:
    devices, batch_size = setup.cell.devices, row.variant.batch_size

    def efficiency(batch_size_alone: int) -> float | None:
        other = alone.get(_scaling_key(setup, row, mode, batch_size_alone))
        return mode.throughput_samples_per_s / (devices * other.throughput_samples_per_s) if other else None

    if devices == 1:
        return Scaling(strong=None, weak=None)
    return Scaling(strong=efficiency(batch_size), weak=efficiency(batch_size // devices))


def _scaling_key(setup: Setup, row: Row, mode: Mode, batch_size: int) -> tuple[object, ...]:
    """All that must be the same on one device and on several; the use cases have numbers of their own."""
    cell, variant = setup.cell, row.variant
    what = (setup.device, cell.benchmark, cell.use_case_name, setup.data, setup.quick, row.settings)
    options = tuple(sorted(variant.options.items()))
    return (*what, variant.model, batch_size, variant.precision, options, mode.framework, mode.execution_mode)


# From rows to text.


def csv_text(compared: Sequence[Section]) -> str:
    """One line for each framework and execution mode; the ratio stands in the lines of its two."""
    output = io.StringIO()
    writer = csv.DictWriter(output, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    alone = one_device(compared)
    for section in compared:
        for row in section.rows:
            for mode in row.modes:
                writer.writerow(_csv_line(section.setup, row, mode, alone))
    return output.getvalue()


def _csv_line(setup: Setup, row: Row, mode: Mode, alone: OneDevice) -> dict[str, Any]:
    efficiency = scaling(setup, row, mode, alone)
    fastest = row.best(mode.framework) is mode
    ratio = row.ratio if fastest else None
    interval = ratio.interval if ratio else None
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
        "replicates": len(mode.throughputs),
        **{name: mode.numbers.get(name) for name in CSV_NUMBERS},
        "ratio_jax_over_torch": ratio.value if ratio else None,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "strong_scaling_efficiency": efficiency.strong,
        "weak_scaling_efficiency": efficiency.weak,
        "flags": " ".join(sorted(mode.flags)),
    }


def headline(setup: Setup) -> str:
    """What this was measured on, and whether it may be quoted."""
    cell = setup.cell
    devices = f"{cell.devices} x " if cell.devices > 1 else ""
    line = f"{cell.benchmark}, use case {cell.use_case} ({cell.use_case_name}), on {devices}{setup.device}"
    doubts = []
    if setup.quick:
        doubts.append("quick run")
    if setup.data == "sample":
        doubts.append("sample data")
    return f"{line}. {' on '.join(doubts).capitalize()}: not a result to quote." if doubts else f"{line}."


def _print_sections(compared: Sequence[Section], console: "Console", alone: OneDevice) -> None:
    for section in compared:
        console.rule(style="dim")
        console.print(headline(section.setup), style="bold", highlight=False)
        if section.rows:
            console.print(_pair_table(section.rows))
            console.print(
                "Samples per second: median over replicates, each framework in its fastest mode. Ratio: "
                "geometric mean over paired replicates, with its 95 % interval.",
                style="dim",
                highlight=False,
            )
            console.print(_mode_table(section.rows))
            if section.setup.cell.devices > 1:
                _print_scaling(section, alone, console)
        for line in (*_flag_lines(section.rows), *_failure_lines(section.without_number)):
            console.print(line, highlight=False, markup=False)


def _pair_table(rows: Sequence[Row]) -> "Table":
    table = _table("variant", "JAX\nsamples/s", "PyTorch\nsamples/s", "JAX / PyTorch", "flags")
    for row in rows:
        bests = [mode for framework in FRAMEWORKS if (mode := row.best(framework))]
        flags = sorted({flag for mode in bests for flag in mode.flags})
        cells = [_best_cell(row.best("jax")), _best_cell(row.best("torch")), _ratio_cell(row.ratio)]
        table.add_row(_breakable(row.label), *cells, "\n".join(flags))
    return table


def _best_cell(mode: Mode | None) -> str:
    return "none" if mode is None else f"{_number(mode.throughput_samples_per_s)}\n({mode.execution_mode})"


def _ratio_cell(ratio: Ratio | None) -> str:
    if ratio is None:
        return "no pair"
    if ratio.interval is None:
        plural = "s" if ratio.replicates > 1 else ""
        return f"{_times(ratio.value)}\n{ratio.verdict}\n{ratio.replicates} replicate{plural}: no interval"
    low, high = ratio.interval
    return f"{_times(ratio.value)} [{_times(low)}, {_times(high)}]\n{ratio.verdict}"


def _times(ratio: float) -> str:
    """1.25, 0.80, 0.0123: two decimals, and more only where they would be mostly zeros."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3g}"


def _print_scaling(section: Section, alone: OneDevice, console: "Console") -> None:
    cell = section.setup.cell
    table = _table("scaling efficiency", "strong", "weak")
    for row in section.rows:
        for mode in row.modes:
            efficiency = scaling(section.setup, row, mode, alone)
            shares = ["" if share is None else f"{share:.0%}" for share in (efficiency.strong, efficiency.weak)]
            if any(shares):
                table.add_row(f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}", *shares)
    if table.row_count:
        console.print(table)
        note = (
            f"Throughput on {cell.devices} devices over {cell.devices} times that of one, which had the whole batch "
            f"(strong) or 1/{cell.devices} of it (weak)."
        )
    else:
        note = (
            f"No scaling efficiency: this folder has no record of {cell.use_case_name} on one such device with the "
            f"same settings and the same batch, or 1/{cell.devices} of it."
        )
    console.print(note, style="dim", highlight=False)


def _mode_table(rows: Sequence[Row]) -> "Table":
    """Every execution mode below its variant; the columns of training only where there was some."""
    trained = any("test_accuracy" in mode.numbers for row in rows for mode in row.modes)
    columns = ["every mode", "samples/s", "step\np50 ms", "step\np95 ms", "compile\ns"]
    table = _table(*columns, *(["test\nacc.", "to goal\ns"] if trained else []))
    for row in rows:
        table.add_row(row.label, style="bold")
        for mode in row.modes:
            numbers = mode.numbers
            cells = [
                f"  {NAMES[mode.framework]} {mode.execution_mode}",
                _number(mode.throughput_samples_per_s),
                _number(numbers.get("step_time_p50_s"), factor=1e3),
                _number(numbers.get("step_time_p95_s"), factor=1e3),
                _number(numbers.get("compile_time_s")),
            ]
            if trained:
                accuracy = numbers.get("test_accuracy")
                cells.append("" if accuracy is None else f"{accuracy:.1%}")
                cells.append(_number(numbers.get("time_to_target_s")))
            table.add_row(*cells)
    return table


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column in columns:
        is_text = column in ("variant", "every mode", "flags", "scaling efficiency")
        table.add_column(
            column,
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=column == "every mode",
        )
    return table


def _breakable(label: str) -> str:
    """Two lines at the most: the model and batch size, then the rest."""
    parts = label.split("-")
    return label if len(label) <= 16 else "-".join(parts[:2]) + "-\n" + "-".join(parts[2:])


def _number(value: float | None, *, factor: float = 1.0) -> str:
    """Three significant digits, or whole numbers from 100 on; nothing where there is none."""
    if value is None:
        return ""
    scaled = value * factor
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


def _flag_lines(rows: Sequence[Row]) -> list[str]:
    """Each flag once, with where it was seen and one of its sentences."""
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        for mode in row.modes:
            for flag, sentence in mode.flags.items():
                where = f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}"
                seen[flag].append((where, sentence))
    lines = []
    for flag, places in sorted(seen.items()):
        where, sentence = places[0]
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        lines.append(f"{flag}: {sentence}; {where}{more}")
    return lines


def _failure_lines(records: Sequence[Record]) -> list[str]:
    """What was tried and has no number: once for all replicates with the same outcome and reason."""
    places: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        measurement = record.measurement
        where = f"{NAMES[measurement.framework]} {measurement.variant.key}"
        reason = record.reason or "measured nothing that can be compared"
        places[where, record.outcome.replace("_", " "), reason].append(record)
    lines = []
    for (where, outcome, reason), same in places.items():
        times = f" ({len(same)} replicates)" if len(same) > 1 else ""
        lines.append(f"No number: {where}: {outcome}{times}: {reason}")
    return lines


def _shortened(measurements: Sequence[Measurement]) -> str:
    names = [f"{NAMES[measurement.framework]} {measurement.key}" for measurement in measurements]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _one_device_records(results: Results, plans: Sequence[JobPlan], console: "Console") -> list[Record]:
    """All that plans for several devices may be compared with, whatever the number of the use case it was made for."""
    benchmarks = {plan.cell.benchmark for plan in plans if plan.cell.devices > 1}
    paths = [path for name in sorted(benchmarks) for path in results.records().glob(f"*/{name}_*/*/*.json")]
    return [record for record in _read(paths, console) if record.measurement.cell.devices == 1]


def _read(paths: Iterable[Path], console: "Console") -> list[Record]:
    """The records; a corrupt one is named and left alone."""
    records = []
    for path in paths:
        try:
            records.append(read_record(path))
        except RecordError as error:
            console.print(f"Warning: {error}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    return records


def _console() -> "Console":
    from rich.console import Console

    return Console()
