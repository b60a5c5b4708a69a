"""Measurements on a busy machine: other processes took so much of the CPUs that no ratio is made of them. Pure."""

from collections.abc import Iterable

from harness.results.record import Record

BUSY_SHARE = 0.25
"""Share of a measurement's CPUs. On two busy cores a demo's two ratios were 9.83 and 7.72 for JAX; on a quiet machine
they are 1.28 for JAX and 2.42 for PyTorch."""


def share_of_others(record: Record) -> float | None:
    """Return which share of this measurement's CPUs other processes kept busy; None where it was not counted."""
    others = record.result.other_cpus if record.result else None
    cpus = (record.environment.get("cpu") or {}).get("affinity") or [0]
    return None if others is None else others / len(cpus)


def is_busy(record: Record) -> bool:
    """Return whether others took more than BUSY_SHARE."""
    return (share_of_others(record) or 0.0) > BUSY_SHARE


def busy_in_words(records: Iterable[Record]) -> str:
    """Return `machine busy (other processes: 38 % of the CPUs)`, by the busiest of the records."""
    share = max(share_of_others(record) or 0.0 for record in records)
    return f"machine busy (other processes: {100 * share:.0f} % of the CPUs)"
