"""Metrics: from a mean score to a value, and which way is better."""

import math

import pytest

from harness.work.tasks import ACCURACY, PERPLEXITY


def test_accuracy_is_the_mean_score_and_perplexity_its_exponential() -> None:
    assert ACCURACY.value(0.75) == 0.75
    assert PERPLEXITY.value(math.log(20)) == pytest.approx(20)


def test_which_way_is_better() -> None:
    assert ACCURACY.reaches(0.5, 0.5) and ACCURACY.reaches(0.6, 0.5) and not ACCURACY.reaches(0.4, 0.5)
    assert PERPLEXITY.reaches(20, 20) and PERPLEXITY.reaches(19, 20) and not PERPLEXITY.reaches(21, 20)
