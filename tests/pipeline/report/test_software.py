"""Records of several releases and clusters have rows of their own: what pairs with what, and what is shown."""

from typing import Any

import pytest

from harness.results.record import Record
from pipeline.report.compare import Section, sections
from tests.made import constructed_records
from tests.made.constructed_records import LOCK
from tests.made.report_records import CPU, passed, record

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
