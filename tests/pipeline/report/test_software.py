"""Records of several releases, clusters and labs have rows of their own: what pairs with what, and what is shown."""

import csv
import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from harness.packs import record_paths, record_text
from harness.paths import PUBLISHED, Results
from harness.results.record import Record
from pipeline.report.answer import groups_of
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.compare import Section, scaling, sections
from pipeline.report.left_out import left_out_lines
from pipeline.report.scaling_axis import scaling_panels
from pipeline.report.software import RESULTS_FOLDER
from tests.made.report_records import CELL, CPU, passed, plain, record, text

LOCK = {"name": "2026-11", "file": "cpu", "sha256": "aa" * 8, "packages": 9, "matching": 9}
OLD = CPU | {"packages": {"jax": "0.10.2", "torch": "2.14.1"}, "lock": LOCK}
NEW = OLD | {"packages": {"jax": "0.10.2", "torch": "2.15.0"}}


def pair(
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
    both = [*pair(2000, 1000, OLD, 21, "a"), *pair(2100, 1400, NEW, 22, "b")]
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
FIRST_JOBS = [*pair(2000, None, OLD, 21, "a"), *pair(None, 1000, OLD, 21, "b")]


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        # An upgrade of one framework alone finds its partner.
        (pair(2000, 1000, OLD, 21, "a"), pair(None, 1600, NEW, 22, "b"), {"torch 2.14.1": 2.0, "torch 2.15.0": 1.25}),
        # What was measured in jobs of one framework each meets its nearest in time.
        (FIRST_JOBS, [*pair(3000, None, NEWER, 22), *pair(None, 1200, NEWER, 22)], {BEFORE: 2.0, AFTER: 2.5}),
        # Of one software the newer replaces the older.
        (pair(2000, 1000, OLD, 21, "a"), pair(3000, 1000, OLD, 22, "b"), {"": 3.0}),
        # JAX's and PyTorch's processes of one pair have each an environment of their own.
        (pair(2000, None, OLD, 21, "a"), pair(None, 1000, ALONE, 21, "a"), {"": 2.0}),
    ],
)
def test_what_pairs_with_what(older: list[Record], newer: list[Record], expected: dict[str, float]) -> None:
    assert ratios(sections([*older, *newer], passed)) == expected


def test_two_labs_and_two_clusters_are_told_apart_by_as_little_as_does() -> None:
    def of(environment: dict[str, Any], job: str = "a", **changes: Any) -> list[Record]:
        return pair(2000, 1000, environment | changes, 21, job)

    labs = [*of(OLD, **{RESULTS_FOLDER: "east"}), *of(NEW, **{RESULTS_FOLDER: "west"})]
    assert [*ratios(sections(labs, passed))] == ["lab east, torch 2.14.1", "lab west, torch 2.15.0"]
    clusters = [*of(OLD, slurm={"cluster": "alpha"}), *of(OLD, slurm={"cluster": "beta"})]
    assert [*ratios(sections(clusters, passed))] == ["cluster alpha", "cluster beta"]
    cuda = [OLD["packages"] | {"nvidia-cuda-runtime-cu12": one} for one in ("12.6", "12.8")]
    with_cuda = [*of(OLD, packages=cuda[0]), *of(OLD, "b", packages=cuda[1])]
    assert [*ratios(sections(with_cuda, passed))] == ["CUDA 12.6", "CUDA 12.8"]
    locks = [*of(OLD), *of(OLD, "b", lock=LOCK | {"sha256": "cc" * 8})]
    assert [*ratios(sections(locks, passed))] == ["environment aaaaaaaa", "environment cccccccc"]


def test_a_failure_after_an_upgrade_is_reported_and_no_row() -> None:
    failed = [record("torch", "step.eager", environment=NEW, outcome="failed", reason="x", result=None, job="b")]
    (section,) = sections([*pair(2000, 1000, OLD, 21, "a"), *failed], passed)
    assert (section.setup.apart, len(section.rows), section.without_number) == ("", 1, ())


def test_scaling_takes_the_same_software_of_one_device_where_there_is_any() -> None:
    two = CELL.model_copy(update={"use_case": 2, "devices": 2})
    alone = [*pair(1000, None, OLD, 21, "a"), *pair(800, None, OLD | {"packages": {"jax": "0.11.0"}}, 22, "b")]
    both = (OLD, OLD | {"packages": {"jax": "0.11.0"}})
    several = [
        record("jax", "step.jit", 1500, cell=two, environment=one, replicate=n) for one in both for n in range(4)
    ]
    compared = sections([*alone, *several], passed)
    panels = {panel.label.rpartition(" on ")[2]: [*panel.points] for panel in scaling_panels(compared)}
    assert panels == {f"CPU: Xeon (jax {release})": [(1, 1), (2, 1)] for release in ("0.10.2", "0.11.0")}
    of_two = [one for one in compared if one.setup.cell == two]
    kept = {one.setup.apart: scaling(one, one.rows[0], one.rows[0].modes[0]).strong.value for one in of_two}
    assert kept == pytest.approx({"jax 0.10.2": 0.75, "jax 0.11.0": 0.9375})  # 1500 / 2 over 1000, and over 800


def published_as(folder: Path, **packages: str) -> Results:
    """Published records and parity numbers of a CPU, of two cells, as if made with these releases."""
    results = Results(root=folder)
    for cell in ("mnist_5", "text_1"):
        shutil.copytree(PUBLISHED / "cpu-2-cores/records/any" / cell, results.records() / "any" / cell)
    for path in record_paths(results.records()):
        content = json.loads(record_text(path))
        environment = content["environment"]
        environment["packages"] |= packages
        environment["lock"]["sha256"] = sha256(json.dumps(packages).encode()).hexdigest()[:16]
        if packages and content["measurement"]["framework"] == "torch":
            blocks = content["result"]["blocks"]
            blocks["block_times_s"] = [time_s / 2 for time_s in blocks["block_times_s"]]
        path.write_text(json.dumps(content))
    return results


def comparison_of(results: Results, *beside: Results) -> tuple[dict[tuple[str, ...], str], str]:
    """The ratio of each line of the CSV, and the terminal's text."""
    console = plain(120)
    assert report_command(results, ReportOptions(figures=False, beside=beside), console) == 0
    with (results.report / "comparison.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    key = ("lab_and_software", "benchmark", "use_case", "model", "batch_size", "framework", "execution_mode")
    return {tuple(one[name] for name in key): one["ratio_jax_over_torch"] for one in lines}, text(console)


def test_two_labs_with_two_locks_are_shown_side_by_side_and_each_as_it_is_alone(tmp_path: Path) -> None:
    east = published_as(tmp_path / "east" / "results")
    west = published_as(tmp_path / "west" / "results", torch="2.99.0")
    for parity in (west.root / "records" / "any" / "mnist_5").rglob("parity-*.npz"):
        parity.unlink()  # of the west's own, so that only the east's pairs of this cell pass the gate
    alone = [comparison_of(one)[0] for one in (east, west)]
    both, shown = comparison_of(east, west)
    apart = [f"lab {name}/results, torch {torch}" for name, torch in (("east", "2.14.1"), ("west", "2.99.0"))]
    assert both == {
        (name, *key[1:]): ratio for name, lines in zip(apart, alone, strict=True) for key, ratio in lines.items()
    }
    assert {key[0] for key, ratio in both.items() if key[1:3] == ("mnist", "5") and ratio} == {apart[0]}
    assert "left out" not in shown
    page = (east.report / "report.html").read_text()
    for name in apart:
        assert f"({name})" in shown and f"({name})" in page
    assert f"{east.root} and {west.root}" in page
