"""How numbers, ratios and doubts are put into words, the same on the terminal, in the page and in tables."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from harness.plan import FRAMEWORKS, Cell, Framework
from harness.results.quantities import BY_NAME, absences, number
from harness.results.record import Record
from harness.results.sequential import FIRST_LOOK, RatioEstimate
from harness.results.statistics import CONFIDENCE, SAME_WITHIN, Interval, PairedRatio, holm
from harness.work.tasks import Metric
from pipeline.report.compare import NAMES, Comparison, Mode, Row, Scaling, Section, may_be_chance

WHOSE_SIDE = "Above 1, JAX is faster; below 1, PyTorch."
"""Of every ratio of the two, beside every table that has one."""
EDGES = (1 / SAME_WITHIN, 1.0, SAME_WITHIN)
"""What a verdict turns on."""
MOST_DECIMALS = 6


def times(ratio: float) -> str:
    """1.25, 0.0123, and near 1 at least three decimals: 1.020. As many more as show on which side of 1, and of what
    counts as the same, it lies: 1.0005, 0.9902."""
    if ratio < 0.1:
        return f"{ratio:.3g}"
    fewest = 3 if 0.9 <= ratio < 1.1 else 2
    texts = [f"{ratio:.{decimals}f}" for decimals in range(fewest, MOST_DECIMALS + 1)]
    return next((text for text in texts if _sides(float(text)) == _sides(ratio)), texts[0])


def _sides(ratio: float) -> list[int]:
    return [(ratio > edge) - (ratio < edge) for edge in EDGES]


SCALES = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)


def end_of_axis(ratios: Iterable[float | None]) -> float:
    """The factor at both ends of an axis around 1: the smallest of SCALES that holds all ratios, and most of their
    intervals."""
    sizes = [abs(math.log(ratio)) for ratio in ratios if ratio]
    return next((end for end in SCALES if all(size <= math.log(end) for size in sizes)), SCALES[-1])


def milliseconds(seconds: float | None) -> str:
    """Empty where there is none."""
    return "" if seconds is None else number(seconds * 1e3)


def scaling_texts(found: Scaling) -> dict[str, str]:
    """Strong, weak and communication, of which there is any: `87% [81%, 93%]`."""
    moved = "" if found.communication is None else f"{found.communication:.0%}"
    texts = {"strong": share_text(found.strong), "weak": share_text(found.weak), "communication": moved}
    return {kind: text for kind, text in texts.items() if text}


def share_text(ratio: PairedRatio | None) -> str:
    """`87% [81%, 93%]`; empty where there is none."""
    if ratio is None:
        return ""
    interval = f" [{ratio.interval.low:.0%}, {ratio.interval.high:.0%}]" if ratio.interval else ""
    return f"{ratio.value:.0%}{interval}"


def bracket(interval: Interval | None) -> str:
    """` [1.20, 1.31]`, with its blank; empty where there is none."""
    return "" if interval is None else f" [{times(interval.low)}, {times(interval.high)}]"


def pairs(estimate: RatioEstimate) -> str:
    """`4 of at most 12 pairs`, or `12 pairs` of a design that is at its end, or `3 replicates` of none."""
    count = estimate.replicates
    if not estimate.at_most:
        return f"{count} replicate{'' if count == 1 else 's'}"
    more = f" of at most {estimate.at_most}" if count < estimate.at_most else ""
    extended = ", extended after a look" if estimate.is_extended else ""
    return f"{count}{more} pair{'' if count == 1 and not more else 's'}{extended}"


def verdict(estimate: RatioEstimate) -> str:
    """`JAX faster: after 4 of at most 12 pairs`, `not decided after 12 pairs: between ...`, or why there is none."""
    if estimate.doubt:
        return f"no verdict: {estimate.doubt}"
    if estimate.verdict != "undecided":
        return f"{estimate.verdict}: after {pairs(estimate)}"
    if estimate.p is None:
        return f"so far: {pairs(estimate)}, no verdict before {FIRST_LOOK}"
    return f"not decided after {pairs(estimate)}: {between(estimate.interval)}"


def between(interval: Interval | None) -> str:
    """`between JAX 1.2 % and PyTorch 0.7 % faster`, of an interval that holds 1."""
    if interval is None or not interval.low <= 1 <= interval.high:
        return "open"
    return f"between JAX {_by(interval.high)} and PyTorch {_by(1 / interval.low)} faster"


def _by(factor: float) -> str:
    percent = (factor - 1) * 100
    return f"{percent:.2g} %" if percent < 100 else f"{percent:,.0f} %"


def chance_mark(estimate: RatioEstimate | None, q: float | None) -> str:
    """`may be luck (q 0.08)`, behind a verdict; empty where it is not marked."""
    return f"may be luck (q {q:.2f})" if q is not None and may_be_chance(estimate, q) else ""


def chance_sentence(compared: Sequence[Section]) -> str:
    """Of all ratios that had a look, and no doubt against a verdict; empty where there are none. Marked are the named
    whose q is above 5 %. If all were equal in truth, a design would name a side in 5 % of cases."""
    rows = [row for section in compared for row in section.rows]
    judged = [(row, ratio) for row in rows if (ratio := row.ratio) and ratio.is_judged]
    if not judged:
        return ""
    named, chance = (
        sum(ratio.names_a_side for _, ratio in judged),
        sum(may_be_chance(ratio, row.q) for row, ratio in judged),
    )
    comparisons = "1 comparison has" if len(judged) == 1 else f"{len(judged)} comparisons have"
    winners = f"{named} winner{'' if named == 1 else 's'}"
    marked = f", of which {chance} may be luck after a correction for so many" if chance else ""
    return f"{comparisons} {winners}{marked}. Chance alone would give {(1 - CONFIDENCE) * len(judged):.2g}."


COLD = "compile_time_s"


def pays_after(row: Row) -> str:
    """From how many samples on the faster side has made up for its longer compilation; empty where it compiles no
    longer, or not by a second."""
    both = [row.best(framework) for framework in FRAMEWORKS]
    if None in both or row.ratio is None or not row.ratio.excludes_1:
        return ""
    slow, fast = sorted((mode for mode in both if mode), key=lambda mode: mode.throughput_samples_per_s)
    more_s = fast.numbers.get(COLD, 0.0) - slow.numbers.get(COLD, 0.0)
    saved_s = 1 / slow.throughput_samples_per_s - 1 / fast.throughput_samples_per_s
    if more_s < 1 or saved_s <= 0 or COLD not in fast.numbers.keys() & slow.numbers.keys():
        return ""
    samples = float(f"{more_s / saved_s:.2g}")
    return (
        f"{NAMES[fast.framework]}'s lead has paid for its compilation, {number(more_s)} s longer, "
        f"after {samples:,.0f} samples ({number(samples / fast.throughput_samples_per_s)} s)"
    )


def quantity_lines(rows: Iterable[Row], metric: Metric) -> list[list[str]]:
    """Of each ratio that is no throughput: variant, quantity, both medians, ratio, the side that takes less, and how
    many replicates. A side is named where its p is below 5 % after Holm's correction over those of the row."""
    lines = []
    for row in rows:
        if row.comparison is None or row.ratio is None:
            continue
        found = row.comparison.of_quantities
        named = holm([(name, ratio.p) for name, ratio in found.items() if ratio.p is not None])
        for name, ratio in found.items():
            quantity = BY_NAME[name]
            sides = [quantity.text(mode.numbers[name], metric) for mode in (row.comparison.jax, row.comparison.torch)]
            less = ("PyTorch" if ratio.value > 1 else "JAX") if name in named else ""
            text = f"{times(ratio.value)}{bracket(ratio.interval)}"
            lines.append([row.label, quantity.title(metric), *sides, text, less, str(ratio.replicates)])
    return lines


def declared_text(row: Row) -> str:
    """`Declared pair: 1.10 [1.05, 1.15] JAX faster (jit / compiled)`, which most people run, or why there is no ratio;
    empty where that is the pair of the ratio."""
    if row.best_is_declared or row.comparison is None:
        return ""
    if row.declared is None:
        return "Declared pair: one of its modes was not measured"
    estimate = row.declared.estimate
    names = f"({row.declared.jax.execution_mode} / {row.declared.torch.execution_mode})"
    if estimate is None:
        return f"Declared pair: no ratio {names}: {row.declared.why_no_ratio}"
    mark = chance_mark(estimate, row.declared_q)
    words = f"{times(estimate.value)}{bracket(estimate.interval)} {verdict(estimate)}"
    return f"Declared pair: {words}{mark and f', {mark}'} {names}"


def equal_names(comparison: Comparison) -> str:
    return ", ".join(condition.name for condition in comparison.conditions if condition.state == "equal")


def unequal(comparison: Comparison | Scaling) -> str:
    """`node: n1 / n2; GPU: ...`, JAX's before PyTorch's, or that on one device before that on several."""
    return "; ".join(f"{c.name}: {c.detail}" for c in comparison.conditions if c.state == "differs")


def unrecorded(comparison: Comparison | Scaling) -> str:
    return ", ".join(condition.name for condition in comparison.conditions if condition.state == "not recorded")


def differences(comparison: Comparison | Scaling) -> str:
    """What stands beside the ratio: `not equal: node: n1 / n2; not recorded: CPUs`. Empty where all was equal."""
    found = {"not equal": unequal(comparison), "not recorded": unrecorded(comparison)}
    if isinstance(comparison, Comparison) and comparison.left_out:
        found["left out"] = comparison.left_out
    return "; ".join(f"{what}: {text}" for what, text in found.items() if text)


def of_how_many(names: Counter[str], of_all: int) -> str:
    """`node (2 of 8), driver (1 of 8)`"""
    return ", ".join(f"{name} ({count} of {of_all})" for name, count in names.most_common())


def failure_lines(records: Sequence[Record]) -> list[str]:
    """What was tried and has no number: once for all replicates with the same outcome and reason."""
    places: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        measurement = record.measurement
        where = f"{NAMES[measurement.framework]} {measurement.variant.key}"
        reason = record.reason or "measured nothing that can be compared"
        places[where, record.outcome.replace("_", " "), reason].append(record)
    lines = []
    for (where, outcome, reason), same in places.items():
        how_many = f" ({len(same)} replicates)" if len(same) > 1 else ""
        lines.append(f"{where}: {outcome}{how_many}: {reason}")
    return lines


def fastest_modes(row: Row) -> list[Mode]:
    """Those that the row's ratio is made of."""
    return [mode for framework in FRAMEWORKS if (mode := row.best(framework))]


def modes_compared(row: Row, framework: Framework) -> int:
    """From which the one in the ratio was chosen; with those that were only screened."""
    comparable = sum(mode.framework == framework and not mode.why_worthless for mode in row.modes)
    return comparable + sum(one.framework == framework for one in row.only_screened)


def best_of(row: Row, framework: Framework) -> str:
    """`first of 14`, where a screening chose the mode, or `best of 4`, where the ratio's own numbers did."""
    count = modes_compared(row, framework)
    if count <= 1:
        return "only mode"
    return f"first of {count}" if row.is_chosen_by_screening(framework) else f"best of {count}"


def choice_notes(rows: Iterable[Row]) -> list[str]:
    """How the modes in the ratios were chosen; none where there was no choice."""
    words = {best_of(row, framework).partition(" ")[0] for row in rows for framework in FRAMEWORKS}
    notes = {
        "first": "First of n: chosen by separate short runs (in brackets, a mode that had no more), so the choice "
        "cannot bias the ratio.",
        "best": "Best of n: chosen after the fact, so slightly optimistic.",
    }
    return [note for word, note in notes.items() if word in words]


def absent_lines(rows: Iterable[Row]) -> list[str]:
    """Which numbers are missing beside a throughput and why, once for all modes and numbers of the same reason."""
    records = [
        (f"{NAMES[mode.framework]} {row.label} {mode.execution_mode}", record, record.result)
        for row in rows
        for mode in row.modes
        for record in mode.records
        if record.result
    ]
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for absence in absences():
        places: dict[str, dict[str, None]] = defaultdict(dict)
        for label, record, result in records:
            if reason := absence.reason(record, result):
                places[reason][label] = None
        for reason, labels in places.items():
            names[reason, _some(list(labels))].append(absence.words)
    return [f"{', '.join(missing)}: {reason}; {where}" for (reason, where), missing in names.items()]


def _some(labels: Sequence[str]) -> str:
    return labels[0] + (f" (and {len(labels) - 1} more)" if len(labels) > 1 else "")


TITLES = {"per_sample_gradients": "Per-sample gradients"}
"""Of use cases whose file name does not read well by itself."""


def use_case_title(cell: Cell) -> str:
    """`Train`, for any use case, known here or not."""
    return TITLES.get(cell.use_case_name, cell.use_case_name.replace("_", " ").capitalize())


def on_devices(cell: Cell) -> str:
    return f" on {cell.devices} devices" if cell.devices > 1 else ""
