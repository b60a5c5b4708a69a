"""The simulation of what choosing the fastest mode does to a ratio: its record, and the table that the docs show."""

import json
import math

import numpy as np
import pytest

from harness.paths import REPOSITORY
from studies.best_of_modes import RECORD, fastest, simulate, table


def test_the_docs_show_the_published_table() -> None:
    text = (REPOSITORY / "docs" / "studies" / "best_of_modes.md").read_text()
    assert table(json.loads(RECORD.read_text())) in text


def test_the_fastest_has_the_largest_median() -> None:
    # Medians 2, 3 and 2.5: the second, though the third has the largest value and the largest mean.
    run = np.array([[1.0, 2.0, 3.0], [3.0, 3.0, 0.0], [2.5, 2.0, 9.0]])
    assert fastest(run[None]).tolist() == [[3.0, 3.0, 0.0]]


def test_a_short_simulation_agrees_with_the_published_one() -> None:
    runs = 400
    again = simulate(runs)["cases"]
    assert isinstance(again, list)
    for new, old in zip(again, json.loads(RECORD.read_text())["cases"], strict=True):
        assert (new["noise"], list(new["modes"]), new["replicates"]) == (old["noise"], old["modes"], old["replicates"])
        # Five standard errors: a log ratio of two sides has at most the variance of both.
        error = old["noise"] * math.sqrt(2 / old["replicates"] / runs)
        assert new["bias"] == pytest.approx(old["bias"], abs=5 * error)


def test_one_mode_on_each_side_has_no_bias_and_keeps_its_95_percent() -> None:
    for case in json.loads(RECORD.read_text())["cases"]:
        if case["modes"] == [1, 1]:
            # 10,000 runs: the standard error of the mean is noise * sqrt(2 / n) / 100, that of a share of 5 % 0.2 %.
            assert abs(case["bias"]) < 5 * case["noise"] * math.sqrt(2 / case["replicates"]) / 100
            assert sum(case["named_faster"].values()) <= 0.06
        if case["modes"] in ([1, 4], [4, 14], [1, 14]):
            assert case["bias"] < 0
