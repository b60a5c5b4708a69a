"""Records of several releases, clusters and labs have rows of their own: what pairs with what, and what is shown."""

import csv
import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from harness.files import read_json
from harness.paths import PUBLISHED, Results
from harness.results.record import Record
from pipeline.report import command
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.compare import Section, sections
from pipeline.report.software import RESULTS_FOLDER
from tests.made import constructed_records
from tests.made.constructed_records import LOCK
from tests.made.report_records import CPU, passed, plain, record, text

OLD, NEW = (CPU | of_release for of_release in (constructed_records.OLD, constructed_records.NEW))


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


ALONE = OLD | {"packages": {"torch": "2.14.1"}, "lock": LOCK | {"sha256": "bb" * 8}}
NEWER = OLD | {"packages": {"jax": "0.11.0", "torch": "2.15.0"}}
BEFORE, AFTER = "jax 0.10.2, torch 2.14.1", "jax 0.11.0, torch 2.15.0"
FIRST_JOB = measured(2000, 1000, OLD, 21, "a")
FIRST_JOBS = [*measured(2000, None, OLD, 21, "a"), *measured(None, 1000, OLD, 21, "b")]


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        # JAX is of one release in both jobs: each ratio has the records of its own job.
        (FIRST_JOB, measured(2100, 1400, NEW, 22, "b"), {"torch 2.14.1": 2.0, "torch 2.15.0": 1.5}),
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


def test_two_labs_and_two_clusters_are_told_apart_by_as_little_as_does() -> None:
    def of(environment: dict[str, Any], job: str = "a", **changes: Any) -> list[Record]:
        return measured(2000, 1000, environment | changes, 21, job)

    labs = [*of(OLD, **{RESULTS_FOLDER: "east"}), *of(NEW, **{RESULTS_FOLDER: "west"})]
    assert [*ratios(sections(labs, passed))] == ["lab east, torch 2.14.1", "lab west, torch 2.15.0"]
    clusters = [*of(OLD, slurm={"cluster": "alpha"}), *of(OLD, slurm={"cluster": "beta"})]
    assert [*ratios(sections(clusters, passed))] == ["cluster alpha", "cluster beta"]
    cuda = [OLD["packages"] | {"nvidia-cuda-runtime-cu12": one} for one in ("12.6", "12.8")]
    with_cuda = [*of(OLD, packages=cuda[0]), *of(OLD, "b", packages=cuda[1])]
    assert [*ratios(sections(with_cuda, passed))] == ["CUDA 12.6", "CUDA 12.8"]
    locks = [*of(OLD), *of(OLD, "b", lock=LOCK | {"sha256": "cc" * 8})]
    assert [*ratios(sections(locks, passed))] == ["environment aaaaaaaa", "environment cccccccc"]


def published_as(folder: Path, **packages: str) -> Results:
    """Published records and parity numbers of a CPU, of two cells, as if made with these releases."""
    results = Results(root=folder)
    for cell in ("mnist_5", "text_1"):
        shutil.copytree(PUBLISHED / "cpu-2-cores/records/any" / cell, results.records() / "any" / cell)
    for path in sorted(results.records().rglob("*.json")):
        content = json.loads(read_json(path))
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


def test_two_labs_with_two_locks_are_shown_side_by_side_and_each_as_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PUBLISHED_CALIBRATIONS", tmp_path / "none")  # which take their time
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
