"""Numbers and verdicts in words: what is rounded away must not hide what the verdict turned on."""

import pytest

from harness.statistics import Interval, RatioEstimate
from pipeline.report.wording import bracket, times, verdict


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.25, "1.25"),
        (1.1, "1.10"),
        (0.8, "0.80"),
        (0.0123, "0.0123"),
        (1.0199, "1.020"),
        (0.95, "0.950"),
        (1.0, "1.000"),
        # 1 / 1.01 is 0.990099, and 1.01 the other end of what counts as the same.
        (1.00046, "1.0005"),
        (0.99996, "0.99996"),
        (1.0101, "1.0101"),
        (0.9902, "0.9902"),
        (0.9901, "0.9901"),
        (0.99, "0.990"),
        (1 + 1e-12, "1.000"),  # rounding of the machine's own
    ],
)
def test_a_ratio_has_the_decimals_that_its_verdict_needs(ratio: float, text: str) -> None:
    assert times(ratio) == text


def test_an_interval_that_just_excludes_1_is_seen_to() -> None:
    assert bracket(Interval(1.00046, 1.0398)) == " [1.0005, 1.040]"


@pytest.mark.parametrize(
    ("needed", "text"),
    [
        (12, "undecided: 3 replicates, about 12 needed"),
        (99, "undecided: 3 replicates, about 99 needed"),
        (100, "undecided: 3 replicates, 100 or more needed"),
    ],
)
def test_a_hundred_replicates_stand_for_so_many_or_more(needed: int, text: str) -> None:
    estimate = RatioEstimate(1.02, Interval(0.9, 1.2), 3, "undecided", needed)
    assert verdict(estimate) == text
