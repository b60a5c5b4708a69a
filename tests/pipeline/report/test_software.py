"""Records of several releases and clusters have rows of their own: what pairs with what, what takes the place of
what, and what is shown."""

from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from harness.results.record import Record
from pipeline.report.answer import groups_of
from pipeline.report.compare import Section, scaling, sections
from pipeline.report.left_out import left_out_lines
from pipeline.report.scaling_axis import scaling_panels
from tests.made.report_records import CELL, CPU, pair, passed, plan, record
from tests.pipeline.report.shown import reported, summary_of

LOCK = {"name": "2026-11", "file": "cpu", "sha256": "aa" * 8, "packages": 9, "matching": 9}
OLD = CPU | {"packages": {"jax": "0.10.2", "torch": "2.14.1"}, "lock": LOCK}
NEW = OLD | {"packages": {"jax": "0.10.2", "torch": "2.15.0"}}


def measured(
    jax: float | None, torch: float | None, environment: dict[str, Any], day: int, job: str | None = None
) -> list[Record]:
    """Of throughputs, in four replicates; None where that side was not measured."""
    of: dict[str, Any] = {"environment": environment, "ended_at": f"2026-11-{day}T10:00:00+00:00", "job": job}
    ours = [record("jax", "step.jit", jax, replicate=number, **of) for number in range(4) if jax]
    return ours + [record("torch", "step.eager", torch, replicate=number, **of) for number in range(4) if torch]


def ratios(found: list[Section]) -> dict[str, float | None]:
    """By what tells sections apart; four digits, as replicates differ by a trifle."""
    return {one.setup.apart: round(row.ratio.value, 4) if row.ratio else None for one in found for row in one.rows}


def test_an_upgrade_in_one_folder_replaces_nothing() -> None:
    both = [*measured(2000, 1000, OLD, 21, "a"), *measured(2100, 1400, NEW, 22, "b")]
    compared = sections(both, passed)
    # JAX is of one release in both jobs: each ratio has the records of its own job.
    assert ratios(compared) == {"torch 2.14.1": 2.0, "torch 2.15.0": 1.5}
    devices = [one.setup.devices for one in compared]
    assert devices == ["CPU: Xeon (torch 2.14.1)", "CPU: Xeon (torch 2.15.0)"]
    assert [one.headline.partition(": Train")[0] for one in groups_of(compared)] == [f"On {one}" for one in devices]
    assert left_out_lines(both) == []


ALONE = OLD | {"packages": {"torch": "2.14.1"}, "lock": LOCK | {"sha256": "bb" * 8}}
NEWER = OLD | {"packages": {"jax": "0.11.0", "torch": "2.15.0"}}
BEFORE, AFTER = "jax 0.10.2, torch 2.14.1", "jax 0.11.0, torch 2.15.0"
FIRST_JOB = measured(2000, 1000, OLD, 21, "a")
FIRST_JOBS = [*measured(2000, None, OLD, 21, "a"), *measured(None, 1000, OLD, 21, "b")]


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        # An upgrade of one framework alone finds its partner.
        (FIRST_JOB, measured(None, 1600, NEW, 22, "b"), {"torch 2.14.1": 2.0, "torch 2.15.0": 1.25}),
        # What was measured in jobs of one framework each meets its nearest in time.
        (FIRST_JOBS, [*measured(3000, None, NEWER, 22), *measured(None, 1200, NEWER, 22)], {BEFORE: 2.0, AFTER: 2.5}),
        # Of one software the newer replaces the older.
        (FIRST_JOB, measured(3000, 1000, OLD, 22, "b"), {"": 3.0}),
        # JAX's and PyTorch's processes of one pair have each an environment of their own.
        (measured(2000, None, OLD, 21, "a"), measured(None, 1000, ALONE, 21, "a"), {"": 2.0}),
    ],
)
def test_what_pairs_with_what(older: list[Record], newer: list[Record], expected: dict[str, float]) -> None:
    assert ratios(sections([*older, *newer], passed)) == expected


def test_clusters_and_installations_are_told_apart_by_as_few_words_as_possible() -> None:
    def of(environment: dict[str, Any], job: str = "a", **changes: Any) -> list[Record]:
        return measured(2000, 1000, environment | changes, 21, job)

    clusters = [*of(OLD, slurm={"cluster": "alpha"}), *of(OLD, slurm={"cluster": "beta"})]
    assert [*ratios(sections(clusters, passed))] == ["cluster alpha", "cluster beta"]
    cuda = [OLD["packages"] | {"nvidia-cuda-runtime-cu12": one} for one in ("12.6", "12.8")]
    with_cuda = [*of(OLD, packages=cuda[0]), *of(OLD, "b", packages=cuda[1])]
    assert [*ratios(sections(with_cuda, passed))] == ["CUDA 12.6", "CUDA 12.8"]
    locks = [*of(OLD), *of(OLD, "b", lock=LOCK | {"sha256": "cc" * 8})]
    assert [*ratios(sections(locks, passed))] == ["environment aaaaaaaa", "environment cccccccc"]


def test_a_failure_after_an_upgrade_is_reported_and_no_row() -> None:
    failed = [record("torch", "step.eager", environment=NEW, outcome="failed", reason="x", result=None, job="b")]
    (section,) = sections([*measured(2000, 1000, OLD, 21, "a"), *failed], passed)
    assert (section.setup.apart, len(section.rows), section.without_number) == ("", 1, ())


def test_scaling_takes_the_same_software_of_one_device_where_there_is_any() -> None:
    two = CELL.model_copy(update={"use_case": 2, "devices": 2})
    alone = [*measured(1000, None, OLD, 21, "a"), *measured(800, None, OLD | {"packages": {"jax": "0.11.0"}}, 22, "b")]
    both = (OLD, OLD | {"packages": {"jax": "0.11.0"}})
    of_two: dict[str, Any] = {"cell": two, "throughput": 1500}
    several = [record("jax", "step.jit", environment=one, replicate=n, **of_two) for one in both for n in range(4)]
    compared = sections([*alone, *several], passed)
    panels = {panel.label.rpartition(" on ")[2]: [*panel.points] for panel in scaling_panels(compared)}
    assert panels == {f"CPU: Xeon (jax {release})": [(1, 1), (2, 1)] for release in ("0.10.2", "0.11.0")}
    on_two = [one for one in compared if one.setup.cell == two]
    kept = {one.setup.apart: scaling(one, one.rows[0], one.rows[0].modes[0]).strong.value for one in on_two}
    assert kept == pytest.approx({"jax 0.10.2": 0.75, "jax 0.11.0": 0.9375})  # 1500 / 2 over 1000, and over 800


# Records of two machines in one folder: what the newest ones take the place of is counted and named.

PACKAGES = {"numpy": "2.3", "torch": "2.15.0", "jax": "0.11.1"}
HERE = CPU | {"node": "n1", "python": "3.12.1", "packages": PACKAGES, "variables": {}}
THERE = HERE | {"node": "n2", "packages": PACKAGES | {"numpy": "2.4"}}


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


def test_a_measurement_that_was_repeated_is_counted_calmly_and_nothing_is_said_of_others() -> None:
    (line,) = left_out_lines([*made(HERE, 5), *made(HERE, 9, 1)])
    assert line.startswith("2 records are left out: newer ones of the same measurements stand in their place, where ")
    thrice = left_out_lines([*made(HERE, 5, 1)[:1], *made(HERE, 7, 1)[:1], *made(THERE, 9, 1)[:1]])
    assert thrice[0].startswith("2 records are left out")  # both, by the one that counts
    # Nothing is said of what failed, of copies and of other devices.
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
