"""The comparison as CSV, with all digits: `comparison.csv`, `phases.csv` and `why.csv`."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.results import quantities
from harness.results.sequential import RatioEstimate
from harness.results.statistics import PairedRatio
from pipeline.report.compare import Comparison, Mode, Row, Section, Setup, scaling
from pipeline.report.phases import STATISTICS, all_times
from pipeline.report.why import terms_of, why_of
from pipeline.report.why_words import tensor_cores_text, why_sentence
from pipeline.report.wording import differences, equal_names, modes_compared, unequal, unrecorded

Cells = dict[str, Any]
"""Of a line, by the titles of their columns; None where there is nothing."""


def csv_text(compared: Sequence[Section]) -> str:
    """One line for each framework and execution mode; the ratio stands in the lines of its two, and that of the
    declared pair in the lines of that."""
    return csv_of(_line(one, row, mode) for one in compared for row in one.rows for mode in row.modes)


def phases_csv_text(compared: Sequence[Section]) -> str:
    """One line for each phase of a step, in each framework and execution mode, and one for the whole step."""
    return csv_of(line for section in compared for line in _phase_lines(section))


def why_csv_text(compared: Sequence[Section]) -> str:
    """One line for each framework and execution mode that was explained: where a step's time goes, in seconds."""
    return csv_of(line for section in compared for line in _why_lines(section))


def csv_of(lines: Iterable[Cells]) -> str:
    """All lines have the same columns; without a line there are those that say what was measured."""
    found = list(lines)
    output = io.StringIO()
    writer = csv.DictWriter(output, found[0] if found else KEY, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in line.items()} for line in found)
    return output.getvalue()


def _csv_cell(value: Any) -> Any:
    """A text that a spreadsheet would compute is marked as one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_BEGINS) else value


FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n")
KEY = (
    *("device", "gpu", "benchmark", "use_case", "use_case_name", "devices", "data", "quick"),
    *("model", "batch_size", "precision", "options", "settings", "data_id", "framework", "execution_mode"),
    "lab_and_software",
)


def _key(setup: Setup, row: Row, mode: Mode) -> Cells:
    cell, variant = setup.cell, row.variant
    options = " ".join(f"{name}={value}" for name, value in sorted(variant.options.items()))
    values = (
        *(setup.device, cell.gpu, cell.benchmark, cell.use_case, cell.use_case_name, cell.devices, setup.data),
        *(setup.quick, variant.model, variant.batch_size, variant.precision, options, row.settings_digest, row.data_id),
        *(mode.framework, mode.execution_mode, setup.apart),
    )
    return dict(zip(KEY, values, strict=True))


def _why_lines(section: Section) -> Iterator[Cells]:
    for row in section.rows:
        why = why_of(row)
        for mode in row.modes:
            terms = terms_of(mode)
            if terms is None:
                continue
            is_of_pair = why is not None and why.terms[mode.framework].mode is mode
            yield {
                **_key(section.setup, row, mode),
                "on_device": terms.on_device,
                "step_time_s": terms.step_s,
                "busy_s": terms.busy_s,
                **{f"{term}_s": time_s for term, time_s in terms.terms_s.items()},
                "events": terms.kernels_per_step,
                "dispatch_s": terms.dispatch_s,
                "bound": terms.bound,
                "attainable_operations_per_s": terms.mode.attainable_operations_per_s,
                "share_of_attainable": terms.share_of_attainable,
                "products_share_of_attainable": terms.products_share_of_attainable,
                "tensor_cores": tensor_cores_text(terms),
                "not_explained": "; ".join(terms.refusals),
                "doubts": "; ".join(terms.doubts),
                "tracer": terms.explanation.tracer,
                "sentence": why_sentence(why) if why is not None and is_of_pair else None,
            }


def _phase_lines(section: Section) -> Iterator[Cells]:
    for of_mode in all_times(section):
        for phase, summary in of_mode.with_whole_step.items():
            yield {
                **_key(section.setup, of_mode.row, of_mode.mode),
                "phase": phase,
                "replicates": len(of_mode.mode.throughputs),
                **{f"{name}_s": summary.get(name) for name in STATISTICS},
            }


def _line(section: Section, row: Row, mode: Mode) -> Cells:
    efficiency = scaling(section, row, mode)
    interval = mode.throughput_interval
    fastest = row.best(mode.framework) is mode
    declared = row.declared is not None and mode in (row.declared.jax, row.declared.torch)
    comparison = row.comparison if fastest else None
    return {
        **_key(section.setup, row, mode),
        "fastest": fastest,
        "declared": declared,
        "modes_compared": modes_compared(row, mode.framework),
        "flags": " ".join(sorted(mode.flags)),
        "replicates": len(mode.throughputs),
        **{quantity.name: mode.numbers.get(quantity.name) for quantity in quantities.QUANTITIES},
        "throughput_low": interval.low if interval else None,
        "throughput_high": interval.high if interval else None,
        "parity": comparison and comparison.judgement.state,
        "parity_sentence": comparison and comparison.judgement.sentence,
        **_ratio("", comparison.estimate if comparison else None),
        **_of_ratio(row, comparison if comparison and comparison.estimate else None),
        **_ratio("declared_", row.declared_ratio if declared else None),
        "declared_q": row.declared_q if declared else None,
        "equal": comparison and equal_names(comparison),
        "not_equal": comparison and unequal(comparison),
        "not_recorded": comparison and unrecorded(comparison),
        "left_out": comparison and comparison.left_out,
        "strong_scaling_efficiency": efficiency.strong and efficiency.strong.value,
        "weak_scaling_efficiency": efficiency.weak and efficiency.weak.value,
        "scaling_differences": differences(efficiency),
    }


def _of_ratio(row: Row, comparison: Comparison | None) -> Cells:
    """What there is beside a ratio, and beside none."""
    estimate = comparison and comparison.estimate
    of_quantities: Mapping[str, PairedRatio] = comparison.of_quantities if comparison else {}
    found: Cells = {
        "ratio_flags": comparison and " ".join(sorted(comparison.flags)),
        "pairs_at_most": (estimate and estimate.at_most) or None,
        "p": estimate and estimate.p,
        "q": row.q if comparison else None,
    }
    for quantity in quantities.COMPARED:
        ratio = of_quantities.get(quantity.name)
        low, high = (ratio and ratio.interval) or (None, None)
        name = f"{quantity.name}_ratio"
        found |= {name: ratio and ratio.value, f"{name}_low": low, f"{name}_high": high}
    return found


def _ratio(prefix: str, estimate: RatioEstimate | None) -> Cells:
    low, high = (estimate and estimate.interval) or (None, None)
    return {
        f"{prefix}ratio_jax_over_torch": estimate and estimate.value,
        f"{prefix}ratio_low": low,
        f"{prefix}ratio_high": high,
        f"{prefix}ratio_replicates": estimate and estimate.replicates,
        f"{prefix}verdict": estimate and estimate.verdict,
    }
