"""The numbers of the report, one row each: name, unit, words, format, derivation, why it may be missing, where it is
shown. Pure.

The CSV's columns, the page's table of modes, the LaTeX and terminal tables, W&B's summary and the table in
docs/reference.md follow from these rows. The formulas are in statistics.py. A number that is a median over replicates
of what each record gives belongs here; a ratio of two frameworks does not (pipeline/report/compare.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from harness.results.record import Blocks, EpochPoint, Latency, Record, Result
from harness.results.statistics import (
    block_drift,
    dispatch_time_s,
    energy_per_epoch,
    energy_per_sample,
    epoch_time_s,
    held_back_shares,
    latency_mean_s,
    latency_p50_s,
    latency_p95_s,
    latency_p99_s,
    median,
    net_energy_per_sample,
    numbers_read,
    relative_interquartile_range,
    step_time_s,
    throughput_samples_per_s,
)


class Metric(Protocol):
    """What a row takes from that of the benchmark's task (harness/work/tasks.py)."""

    @property
    def name(self) -> str: ...
    @property
    def words(self) -> str: ...
    @property
    def format(self) -> str: ...


Derive = Callable[[Result], float | None]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """In which a number is shown."""

    name: str
    factor: float = 1.0
    """From the unit in the number's name to this one."""


SECONDS, MS = Unit(name="s"), Unit(name="ms", factor=1e3)
MIB = Unit(name="MiB", factor=1 / 2**20)
PERCENT = Unit(name="%", factor=100)
MILLIJOULES = Unit(name="mJ/sample", factor=1e3)
JOULES = Unit(name="J")
GIGAFLOP = Unit(name="GFLOP", factor=1e-9)
TERAFLOPS = Unit(name="TFLOP/s", factor=1e-12)


@dataclass(frozen=True, kw_only=True)
class Absence:
    """Why some numbers may be missing beside a throughput."""

    words: str
    reason: Callable[[Record, Result], str | None]


@dataclass(frozen=True)
class Quantity:
    """In its words, `{metric.name}` and `{metric.words}` stand for those of the benchmark's task."""

    name: str
    """With the unit of its values: the CSV's column, and W&B's key."""
    words: str
    """The title of its column, without the unit."""
    unit: Unit | None
    derive: Derive
    """From one record; the report shows the median over replicates."""
    _: KW_ONLY
    on_page: bool = False
    """Whether the page's table of modes has a column for it. The CSV and W&B's summary have all numbers."""
    about: str = ""
    """What it is, in a few words, for docs/reference.md."""
    absent: Absence | None = None
    is_metric: bool = False
    """Its format is that of the task's metric."""
    times_operations: bool = False
    """What `derive` gives per sample is multiplied by a sample's floating-point operations, and is none where these
    are not known (`operations_of` of harness/work/declared.py)."""

    def title(self, metric: Metric) -> str:
        return self.words.format(metric=metric) + (f", {self.unit.name}" if self.unit else "")

    def scaled(self, value: float) -> float:
        return value * self.unit.factor if self.unit else value

    def text(self, value: float | None, metric: Metric) -> str:
        """As a cell of a table; empty where there is no number."""
        if value is None:
            return ""
        return f"{value:.1%}" if self.is_metric and metric.format == "percent" else number(self.scaled(value))


def number(value: float) -> str:
    """Three significant digits, or whole numbers from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _of_blocks(formula: Callable[[Blocks], float | None], which: str = "blocks") -> Derive:
    return lambda result: formula(blocks) if (blocks := getattr(result, which)) else None


def _of_latency(formula: Callable[[Latency], float | None]) -> Derive:
    return lambda result: formula(result.latency) if result.latency else None


def _of_last_epoch(of_point: Callable[[EpochPoint], float | None]) -> Derive:
    return lambda result: of_point(result.epochs[-1]) if result.epochs else None


def _test_metric(result: Result) -> float | None:
    """Of what was trained, after its last epoch; of what infers, as it is."""
    if result.evaluation is not None:
        return result.evaluation.test_metric
    return result.epochs[-1].test_metric if result.epochs else None


STEPS_OF_A_RUN = 10_000


def _time_of_many_steps(result: Result) -> float | None:
    """With the compilation, by empty caches."""
    if result.blocks is None or result.compile_time_s is None:
        return None
    return result.compile_time_s + STEPS_OF_A_RUN * step_time_s(result.blocks)


def _epoch_cost(result: Result) -> float | None:
    """From a cold start: its compilation and its steps, at the price of all GPUs; in the currency that was given."""
    time_s = epoch_time_s(result.epochs)
    if result.price_per_hour is None or result.compile_time_s is None or time_s is None:
        return None
    return (result.compile_time_s + time_s) / 3600 * result.price_per_hour


def _memory(field: str, words: str, about: str) -> Quantity:
    def derive(result: Result) -> float | None:
        value: int | None = getattr(result.memory, field)
        return value

    return Quantity(f"memory_{field}", words, MIB, derive, on_page=True, about=about, absent=MEMORY)


def _rate(unit: str) -> Quantity:
    """How many of `Result.units`' units a second; as samples where a benchmark counts nothing else."""

    def derive(result: Result) -> float | None:
        per_sample = result.units.get(unit)
        return per_sample * throughput_samples_per_s(result.blocks) if per_sample and result.blocks else None

    about = f"the throughput in {unit}: times what a sample has of them, padding excluded"
    return Quantity(f"throughput_{unit}_per_s", f"{unit}/s", None, derive, on_page=True, about=about)


def of_gpu(reading: str, *, name: str, words: str, unit: str) -> Quantity:
    """The row of a reading of harness/measure/gpu.py: its median over the blocks."""

    def derive(result: Result) -> float | None:
        values = numbers_read(result.gpu_states, reading)
        return median(values) if values else None

    about = "median over the readings between two blocks"
    return Quantity(name, words, Unit(name=unit), derive, on_page=True, about=about, absent=_refused(reading, words))


def _refused(reading: str, words: str) -> Absence:
    """By the GPU, as its description has it."""

    def reason(record: Record, result: Result) -> str | None:
        refused = (record.environment.get("gpu") or {}).get("absent")
        return result.gpu_states_absent or (refused.get(reading) if isinstance(refused, Mapping) else None)

    return Absence(words=words, reason=reason)


def _held_back(words: str, name: str, *reasons: str) -> Quantity:
    """The share of the throughput window in which the driver held the clocks back for any of `reasons`
    (harness/measure/gpu.py). They overlap, so the largest counts."""

    def derive(result: Result) -> float | None:
        shares = held_back_shares(result)
        return max((shares[reason] for reason in reasons if reason in shares), default=None)

    about = "share of the throughput window, by the driver's counter of nanoseconds; of several, the largest"
    return Quantity(
        name, words, PERCENT, derive, on_page=True, about=about, absent=_refused(f"held_back {reasons[0]}", words)
    )


WARM = Absence(words="Compile time with warm caches", reason=lambda _, result: result.compile_time_warm_absent)
QUALITY = Absence(
    words="Quality on the test set",
    reason=lambda _, result: result.evaluation.test_metric_absent if result.evaluation else None,
)
COMMUNICATION = Absence(words="Communication", reason=lambda _, result: result.blocks_alone_absent)
EXPLANATION = Absence(words="Where the time goes", reason=lambda _, result: result.explanation_absent)


def _of_work(field: str) -> Derive:
    """Of a step, counted from its shapes."""

    def derive(result: Result) -> float | None:
        work = result.explanation.work if result.explanation else None
        return None if work is None else float(getattr(work, field))

    return derive


MEMORY = Absence(words="Memory", reason=lambda _, result: result.memory.absent)
ENERGY = Absence(words="Energy", reason=lambda _, result: result.energy.absent)

# fmt: off
THROUGHPUT = Quantity(
    "throughput_samples_per_s", "samples/s", None, _of_blocks(throughput_samples_per_s),
    on_page=True,
    about="of each block its samples over its time, then the median over blocks",
)
QUANTITIES = (
    THROUGHPUT,
    _rate("tokens"),
    _rate("edges"),
    Quantity(
        "step_time_s", "step", MS, _of_blocks(step_time_s),
        about="of each block its time over its steps, then the median over blocks",
    ),
    Quantity(
        "block_spread", "spread of block times", PERCENT,
        _of_blocks(lambda blocks: relative_interquartile_range(blocks.block_times_s)),
        about="interquartile range over the median",
    ),
    Quantity(
        "block_drift", "last third of the blocks over the first", PERCENT, _of_blocks(block_drift),
        about="median of the last third of the block times over that of the first, less 1",
    ),
    Quantity(
        "step_time_alone_s", "step without communication", MS, _of_blocks(step_time_s, "blocks_alone"),
        about="on several devices, of the control that moves nothing between them", absent=COMMUNICATION,
    ),
    Quantity(
        "step_time_p50_s", "step p50", MS, _of_latency(latency_p50_s), on_page=True,
        about="of calls that are waited for, each over its steps; linear between two samples",
    ),
    Quantity(
        "step_time_p95_s", "step p95", MS, _of_latency(latency_p95_s), on_page=True,
        about="the same; none where a call has many steps, in whose mean one slow step disappears",
    ),
    Quantity(
        "step_time_p99_s", "step p99", MS, _of_latency(latency_p99_s), on_page=True,
        about="the same; none from fewer than 368 calls, which cannot bound it with 95 % confidence",
    ),
    Quantity(
        "step_time_mean_s", "step mean", MS, _of_latency(latency_mean_s), about="mean of the calls waited for",
    ),
    Quantity(
        "achieved_flop_per_s", "achieved", TERAFLOPS, _of_blocks(throughput_samples_per_s), on_page=True,
        times_operations=True,
        about="throughput times a sample's declared operations: two for each multiply-add of the forward pass, three "
        "passes for a step of training (Kaplan et al. 2020, section 2.1). Useful work: what a formulation computes "
        "beyond that is not counted. None at other sizes, and where the work depends on the formulation",
    ),
    Quantity(
        "step_operations", "work of a step", GIGAFLOP, _of_work("operations"), on_page=True, absent=EXPLANATION,
        about="products of a step, counted from the shapes that PyTorch dispatches, or that stand in JAX's jaxpr; both "
        "agree for every model. A product costs as much again for each operand that depends on a parameter",
    ),
    Quantity(
        "step_forward_operations", "its forward pass", GIGAFLOP, _of_work("forward_operations"),
        about="two for each multiply-add of a convolution, dense layer or attention; padded and masked positions count",
    ),
    Quantity(
        "step_least_bytes", "least traffic of a step", MIB, _of_work("least_bytes"), on_page=True,
        about="each product reads its operands and writes its result once, and the optimizer all parameters (5 times "
        "for SGD with momentum, 7 for AdamW). No measured traffic: a fused kernel may need less",
    ),
    Quantity(
        "dispatch_time_s", "host returns after", MS,
        lambda result: dispatch_time_s(result.explanation) if result.explanation else None, on_page=True,
        about="from an idle device until the host has handed out one call; median of up to 30",
    ),
    Quantity(
        "compile_time_s", "compile, cold", SECONDS, lambda result: result.compile_time_s, on_page=True,
        about="the 3 first calls with empty caches less 3 median warm calls: tracing, compilation, autotuning, loading "
        "of kernels, graph capture. Inductor writes its cache in it, as by default; JAX does not. Of several ranks the "
        "largest",
    ),
    Quantity(
        "compile_time_warm_s", "compile, warm", SECONDS, lambda result: result.compile_time_warm_s, on_page=True,
        absent=WARM,
        about="the same of a process that finds the caches that another one filled; replicate 0, on one device",
    ),
    _memory(
        "step_peak_bytes", "memory of a steady step",
        about="JAX: arguments + outputs + temporaries - aliased, by XLA's analysis, as its peak cannot be reset. "
        "PyTorch: largest `max_memory_allocated` over blocks and latency calls, plus what CUDA graphs' pools hold. Not "
        "the same quantity: compare with care",
    ),
    _memory(
        "allocator_peak_bytes", "allocator's peak",
        about="JAX: `peak_bytes_in_use`. PyTorch: `max_memory_allocated`. Over the life of the process",
    ),
    _memory(
        "pool_peak_bytes", "pool",
        about="JAX: `peak_pool_bytes`. PyTorch: `max_memory_reserved` since the blocks began",
    ),
    _memory(
        "process_bytes", "process (NVML)",
        about="of the process at its end. None in a container, where NVML names processes by the host's numbers",
    ),
    _memory(
        "device_used_bytes", "device memory added (NVML)",
        about="in use on the device at the end, less that before the process had a context; none beside others",
    ),
    _memory("host_peak_bytes", "host's peak", about="peak resident set of the process in the host's memory"),
    Quantity(
        "energy_gross_joules_per_sample", "energy gross", MILLIJOULES, lambda result: energy_per_sample(result.energy),
        on_page=True, absent=ENERGY,
        about="difference of NVML's energy counter over the energy window, of the whole board, over its samples",
    ),
    Quantity(
        "energy_net_joules_per_sample", "energy net", MILLIJOULES, lambda result: net_energy_per_sample(result.energy),
        on_page=True, absent=ENERGY, about="gross energy less idle power times the window, over its samples",
    ),
    Quantity(
        "test_metric", "{metric.words}", None, _test_metric, on_page=True,
        absent=QUALITY, is_metric=True,
        about="of the benchmark, such as the accuracy, after the last epoch; in inference with pretrained weights",
    ),
    Quantity(
        "test_top_5_accuracy", "test accuracy, top 5", PERCENT,
        _of_last_epoch(lambda point: point.further_metrics.get("top_5_accuracy")), on_page=True,
        about="fewer than five classes have a larger output than the label's",
    ),
    Quantity(
        "test_loss", "test loss", None, _of_last_epoch(lambda point: point.test_loss),
        about="mean over the test set after the last epoch, without smoothed labels",
    ),
    Quantity(
        "epoch_time_s", "epoch", SECONDS, lambda result: epoch_time_s(result.epochs), on_page=True,
        about="median over epochs of the steps' time, without copies to the device and evaluation",
    ),
    Quantity(
        "epoch_cost", "cost of a first epoch", None, _epoch_cost, on_page=True,
        about="(compile time + epoch) at `price_per_hour` of all its GPUs, in that currency",
    ),
    Quantity(
        "energy_per_epoch_joules", "energy of an epoch", JOULES, energy_per_epoch, on_page=True, absent=ENERGY,
        about="mean power of the energy window's blocks times the epoch's time; no counter is read around an epoch",
    ),
    Quantity(
        "time_to_target_s", "time to {metric.name}", SECONDS, lambda result: result.time_to_target_s, on_page=True,
        about="training time to the end of the first epoch whose test metric reaches `target_metric`; no compilation, "
        "no evaluation",
    ),
    Quantity(
        "input_time_s", "input of an epoch", SECONDS, _of_last_epoch(lambda point: point.input_time_s), on_page=True,
        about="copying the chunks of a training set above 1 GiB to the device; beside the epoch, never in it",
    ),
    of_gpu("sm_clock_mhz", name="gpu_sm_clock_mhz", words="SM clock", unit="MHz"),
    of_gpu("memory_clock_mhz", name="gpu_memory_clock_mhz", words="memory clock", unit="MHz"),
    of_gpu("temperature_c", name="gpu_temperature_c", words="GPU temperature", unit="°C"),
    of_gpu("power_watts", name="gpu_power_watts", words="GPU power", unit="W"),
    _held_back("clocks held back by the power limit", "gpu_held_back_by_power_share", "sw_power_cap"),
    _held_back(
        "clocks held back by heat", "gpu_held_back_by_heat_share",
        "thermal", "sw_thermal_slowdown", "hw_thermal_slowdown",
    ),
    _held_back("clocks held back by the power brake", "gpu_held_back_by_brake_share", "hw_power_brake_slowdown"),
    Quantity(
        "time_of_10000_steps_s", "10,000 steps from a cold start", SECONDS, _time_of_many_steps,
        about="compile time with empty caches plus 10,000 step times; without building the model",
    ),
    Quantity(
        "parameter_count", "parameters", None, lambda result: result.parameter_count,
        about="of the model; of all models in use case 6",
    ),
)
# fmt: on
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}
COMPARED = [
    BY_NAME[name]
    for name in (
        *("compile_time_s", "time_of_10000_steps_s", "step_time_p50_s", "step_time_p95_s", "step_time_p99_s"),
        *("epoch_time_s", "epoch_cost", "time_to_target_s"),
        *("energy_gross_joules_per_sample", "memory_device_used_bytes"),
    )
]
"""Of which the report has JAX's over PyTorch's, with its interval, beside that of the throughput."""


def summary_numbers(result: Result, operations: float | None = None) -> dict[str, float]:
    """The numbers of one record that it has, by name.

    Args:
        operations: floating-point operations of one sample; None where they are not known.
    """
    numbers = {}
    for quantity in QUANTITIES:
        value = quantity.derive(result)
        if value is not None and quantity.times_operations:
            value = None if operations is None else value * operations
        if value is not None:
            numbers[quantity.name] = float(value)
    return numbers


ON_PAGE = tuple(quantity for quantity in QUANTITIES if quantity.on_page)


def absences() -> tuple[Absence, ...]:
    """Each once, in the order of the rows."""
    return tuple(dict.fromkeys(quantity.absent for quantity in QUANTITIES if quantity.absent))
