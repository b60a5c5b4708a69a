"""The comparison as CSV, with all digits: `comparison.csv`, `phases.csv` and `why.csv`."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.results import quantities
from harness.results.sequential import RatioEstimate
from pipeline.report.compare import Comparison, Mode, OneDevice, Row, Section, Setup, one_device, scaling
from pipeline.report.phases import STATISTICS, all_times
from pipeline.report.why import TERMS, terms_of, why_of
from pipeline.report.why_words import tensor_cores_text, why_sentence
from pipeline.report.wording import differences, equal_names, modes_compared, unequal, unrecorded

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
    "lab_and_software",
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
    return csv_of(columns, lines)


def phases_csv_text(compared: Sequence[Section]) -> str:
    """One line for each phase of a step, in each framework and execution mode, and one for the whole step."""
    return csv_of(PHASE_COLUMNS, (line for section in compared for line in _phase_lines(section)))


def why_csv_text(compared: Sequence[Section]) -> str:
    """One line for each framework and execution mode that was explained: where a step's time goes, in seconds."""
    return csv_of(WHY_COLUMNS, (line for section in compared for line in _why_lines(section)))


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


def csv_of(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
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
        "lab_and_software": setup.apart,
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
    found = {f"declared_{name}": value for name, value in _csv_ratio(estimate).items() if name != "ratio_replicates"}
    return found | {"declared_q": row.declared_q}
