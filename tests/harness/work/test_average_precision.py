"""Mean average precision by hand."""

import numpy as np
import pytest

from harness.work.average_precision import average_precision, mean_average_precision
from harness.work.tasks import ACCURACY, MEAN_AVERAGE_PRECISION


def test_average_precision_by_hand() -> None:
    """In the order of the scores the labels are 1 0 1 0: recall rises by 1/2 at precision 1, and by 1/2 at 2/3. Of two
    equal scores, which share a threshold, one is right: 1/2 at precision 1/2, and 1/2 at 2/3."""
    assert average_precision(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])) == pytest.approx(5 / 6)
    for labels in ([1, 0, 1], [0, 1, 1]):
        assert average_precision(np.array([0.5, 0.5, 0.2]), np.array(labels)) == pytest.approx(7 / 12)


def test_missing_labels_and_tasks_of_one_kind_have_no_part() -> None:
    """Without its missing label the first task is that of the first test; the second has no 0, the third no 1, the
    fourth's labels are 0 0 1 1 in the order of the scores."""
    scores = np.array([[0.1, 1, 1, 0.1], [0.4, 2, 2, 0.4], [0.35, 3, 3, 0.35], [0.8, 4, 4, 0.8], [9.0, 5, 5, 9.0]])
    labels = np.array([[0, 1, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1], [1, 1, 0, 0], [-1, -1, -1, -1]], np.int8)
    expected = (5 / 6 + (1 / 2 * 1 / 3 + 1 / 2 * 2 / 4)) / 2
    assert mean_average_precision(scores, labels) == pytest.approx(expected)
    assert mean_average_precision(scores[:, 1:3], labels[:, 1:3]) == 0


def test_a_metric_of_the_whole_test_set_is_made_of_all_batches_at_once() -> None:
    scores, labels = np.array([[0.1], [0.4], [0.35], [0.8]]), np.array([[0], [0], [1], [1]])
    said = [(scores[:1], labels[:1]), (scores[1:], labels[1:])]
    found = MEAN_AVERAGE_PRECISION.of_test_set(said)
    assert found == pytest.approx(5 / 6)
    assert MEAN_AVERAGE_PRECISION.value(found) == found
    assert MEAN_AVERAGE_PRECISION.reaches(0.3, 0.2)
    assert ACCURACY.of_test_set(said) is None
