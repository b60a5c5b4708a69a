"""Records of two machines in one folder: what the newest ones take the place of is counted and named."""

from pathlib import Path
from typing import Any

from harness.paths import Results
from harness.results.record import Record
from pipeline.report.left_out import left_out_lines
from tests.made.report_records import CELL, CPU, pair, plan, record
from tests.pipeline.report.shown import reported, summary_of

HERE = CPU | {
    "node": "n1",
    "python": "3.12.1",
    "packages": {"numpy": "2.3", "torch": "2.15.0", "jax": "0.11.1"},
    "variables": {},
    "git": {"commit": "a" * 40, "clean": True},
}
THERE = HERE | {"node": "n2", "packages": HERE["packages"] | {"numpy": "2.4"}}


def made(environment: dict[str, Any], minute: int, replicates: int = 4, **changes: Any) -> list[Record]:
    """Of both frameworks."""
    ended_at = f"2026-11-21T10:{minute:02}:00+00:00"
    return pair(replicates=replicates, environment=environment, ended_at=ended_at, **changes)


def test_another_machine_s_newer_records_are_counted_with_what_differs() -> None:
    (line,) = left_out_lines([*made(THERE, 9), *made(HERE, 5)])
    assert line == (
        "8 records are left out: newer ones of the same measurements stand in their place. Not the same: "
        "node (8 of 8), libraries (8 of 8). To see the older ones, keep each in a results folder of its own."
    )
    one, *_ = left_out_lines([made(HERE, 5)[0], made(THERE, 9)[0]])
    assert one.startswith("1 record is left out: a newer one of the same measurement stands in its place. Not the ")
    # Of both frameworks replicate 0 on another node, and replicate 1 on the same with another driver.
    here = HERE | {"gpu": {"name": "H200", "driver_version": "570.1"}, "framework": {"platform": "gpu"}}
    newer = here | {"gpu": {"name": "H200", "driver_version": "580.2"}}
    there = [*made(here | {"node": "n2"}, 9, 1), *made(newer, 9, 2)[1::2]]
    (line,) = left_out_lines([*made(here, 5), *there, *made(here | {"slurm": {"cluster": "west"}}, 9)])
    assert "4 records are left out" in line and "Not the same: node (2 of 4), driver (2 of 4). " in line


def test_a_measurement_that_was_repeated_is_counted_calmly() -> None:
    (line,) = left_out_lines([*made(HERE, 5), *made(HERE, 9, 1)])
    assert line.startswith("2 records are left out: newer ones of the same measurements stand in their place, where ")
    thrice = left_out_lines([*made(HERE, 5, 1)[:1], *made(HERE, 7, 1)[:1], *made(THERE, 9, 1)[:1]])
    assert thrice[0].startswith("2 records are left out")  # both, by the one that counts


def test_nothing_is_said_of_what_failed_of_copies_and_of_other_devices() -> None:
    first = made(HERE, 5)
    failed = made(THERE, 3, outcome="failed", reason="x", result=None)
    other_cpu = made(HERE | {"cpu": {"model": "Ryzen"}}, 9)
    assert left_out_lines([*first, *failed, *other_cpu, *made(HERE, 5)]) == []


def test_the_terminal_and_the_page_say_it_once_but_for_other_cells(tmp_path: Path) -> None:
    two_machines = Results(root=tmp_path)
    begin = "4 records are left out: newer ones of the same measurements stand in their place. Not the same: node ("
    for shown in reported(two_machines, *made(HERE, 5), *made(THERE, 9, 2)):
        assert shown.count(begin) == shown.count("left out: newer") == 1
    waited_for = summary_of(two_machines, [plan("jax", "step.jit"), plan("torch", "step.compiled")], width=1000)
    assert waited_for.count(begin) == 1
    other = record("jax", "step.jit", cell=CELL.model_copy(update={"benchmark": "cifar10"}))
    shown, _ = reported(two_machines, other, benchmarks=("cifar10",))
    assert "left out" not in shown
