"""The simulation of the screening: its record, what it must show, and the tables that the docs show."""

import json
import math
import statistics

import pytest

from harness.paths import REPOSITORY
from harness.plan import BASES
from harness.results.record import read_record
from harness.results.screening import Screened, screened
from pipeline.report.calibrations import PUBLISHED_CALIBRATIONS
from studies.screening import LEADS, RECORD, cost_table, simulate, table


def test_the_docs_show_the_published_tables() -> None:
    text = (REPOSITORY / "docs" / "studies" / "screening.md").read_text()
    record = json.loads(RECORD.read_text())
    assert table(record) in text
    assert cost_table(record) in text


def test_the_ratio_after_a_screening_covers_what_it_claims() -> None:
    record = json.loads(RECORD.read_text())
    error = math.sqrt(0.05 * 0.95 / record["runs"])
    for case in record["cases"]:
        assert case["of_the_chosen_pair"] == pytest.approx(0.95, abs=4 * error), case
        if case["lead"] in (LEADS[0], LEADS[-2], LEADS[-1]):  # equal, or a clear leader: also of the two fastest
            assert case["after"]["coverage"] == pytest.approx(0.95, abs=4 * error), case
            assert abs(case["after"]["bias"]) <= 0.08 * case["noise"], case
    [leaning] = [
        case
        for case in record["cases"]
        if (case["noise"], case["modes"], case["lead"], case["replicates"]) == (0.01, [1, 14], 0, 5)
    ]
    assert leaning["before"]["coverage"] < 0.92 and leaning["before"]["bias"] < -0.005


def test_the_noise_that_the_page_names() -> None:
    """Of the unslowed processes of the calibrations that it was made with: between processes, and by the blocks of
    one."""
    found: dict[str, list[Screened]] = {}
    for path in sorted(PUBLISHED_CALIBRATIONS.rglob("*.json")):
        record = read_record(path)
        is_earlier = record.started_at < "2026-11-22"
        if is_earlier and record.measurement.variant.planted in BASES and (one := screened(record.result)):
            found.setdefault(record.measurement.framework, []).append(one)
    numbers = {
        framework: (
            len(processes),
            round(100 * statistics.stdev(math.log(one.throughput_samples_per_s) for one in processes)),
            round(100 * statistics.median(one.noise for one in processes)),
        )
        for framework, processes in found.items()
    }
    assert numbers == {"jax": (14, 10, 9), "torch": (14, 15, 9)}


def test_a_short_simulation_agrees_with_the_published_one() -> None:
    runs = 60
    for new, old in zip(simulate(runs)["cases"], json.loads(RECORD.read_text())["cases"], strict=True):
        assert (new["noise"], list(new["modes"]), new["lead"]) == (old["noise"], old["modes"], old["lead"])
        # Five standard errors: a log ratio of two sides has at most the variance of both.
        error = old["noise"] * math.sqrt(2 / old["replicates"] / runs)
        for choice in ("before", "after"):
            assert new[choice]["bias"] == pytest.approx(old[choice]["bias"], abs=5 * error)
        assert new["measurements"] == pytest.approx(old["measurements"], rel=0.2)
