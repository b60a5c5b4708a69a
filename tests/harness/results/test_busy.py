"""A busy machine: when a record counts as measured on one, and that its speed is compared with nothing."""

from pathlib import Path

import pytest

from harness.paths import Results
from harness.results.busy import busy_in_words, is_busy, share_of_others
from harness.results.flags import comparable_throughput
from harness.results.looks import Part, rounds
from harness.results.partner import ratio_so_far
from harness.results.record import Record
from tests.made.report_records import CPU, Gate, plan, record, save, with_result

TWO_CPUS = CPU | {"node": "n1", "cpu": {"model": "Xeon", "affinity": [0, 1]}}


def beside(others: float | None, one: Record | None = None) -> Record:
    return with_result(one or record("jax", "step.jit", 3000, environment=TWO_CPUS), other_cpus=others)


@pytest.mark.parametrize(
    ("others", "share", "busy"),
    [(None, None, False), (0.0, 0.0, False), (0.5, 0.25, False), (0.51, 0.255, True), (0.76, 0.38, True)],
)
def test_a_quarter_of_the_cpus(others: float | None, share: float | None, busy: bool) -> None:  # noqa: FBT001
    one = beside(others)
    assert (share_of_others(one), is_busy(one)) == (share, busy)
    assert comparable_throughput(one) == (None if busy else pytest.approx(3000, rel=1e-3))


def test_of_one_cpu_where_it_is_not_known_how_many() -> None:
    unknown = record("jax", "step.jit", environment=CPU)
    assert is_busy(beside(0.26, unknown)) and not is_busy(beside(0.25, unknown))
    assert not is_busy(record("jax", "step.jit", outcome="failed", result=None))


def test_in_words() -> None:
    assert (
        busy_in_words([beside(None), beside(0.76), beside(0.6)]) == "machine busy (other processes: 38 % of the CPUs)"
    )


def test_no_live_ratio(tmp_path: Path) -> None:
    """Neither of the busy one, nor of what has a busy partner."""
    results, gate = Results(root=tmp_path), Gate()
    save(record("torch", "step.eager", 1000, environment=TWO_CPUS), results)
    assert ratio_so_far(beside(None), results, gate)["ratio_so_far"] == pytest.approx(3.0)
    assert ratio_so_far(beside(0.76), results, gate) == {}
    save(beside(0.76, record("torch", "step.compiled", 2000, environment=TWO_CPUS)), results)
    assert ratio_so_far(beside(None), results, gate)["ratio_so_far"] == pytest.approx(3.0)


def test_a_row_of_busy_pairs_ends_and_one_busy_pair_costs_another() -> None:
    """The first look is after four pairs. Where all of them were busy, more would be so too."""
    parts = [Part(one, {}, one.variants) for one in (plan("jax", "step.jit"), plan("torch", "step.eager"))]

    def counts(busy: set[int]) -> list[int]:
        records = {}
        for framework, mode, speed in (("jax", "step.jit", 3000), ("torch", "step.eager", 1000)):
            for replicate in range(12):
                one = record(framework, mode, speed, replicate=replicate, environment=TWO_CPUS)
                records[framework, replicate] = beside(0.9, one) if replicate in busy else one
        found = rounds(parts, lambda each: records[each.framework, each.replicate], Gate())
        return [len({each.replicate for each in replicates}) for replicates in found]

    assert counts(set()) == [4]
    assert counts({0, 1, 2, 3}) == [4]
    assert counts({3}) == [4, 2]
