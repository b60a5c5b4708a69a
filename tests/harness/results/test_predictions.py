"""Predictions as a record keeps them, and how many of a pair's are the same."""

import base64

import numpy as np

from harness.results.predictions import agreement_in_words, evaluation_of, predictions_of
from harness.results.record import Evaluation


def of(*labels: int) -> Evaluation:
    return evaluation_of(np.array(labels), None, "the weights are drawn")


def test_labels_are_packed_as_little_endian_16_bit_numbers() -> None:
    evaluation = evaluation_of(np.array([[1, 258], [65535, 0]]), 0.25, None)
    assert base64.b64decode(evaluation.predictions) == bytes([1, 0, 2, 1, 255, 255, 0, 0])
    assert evaluation.shape == [2, 2] and evaluation.test_metric == 0.25
    read = Evaluation.model_validate_json(evaluation.model_dump_json())
    np.testing.assert_array_equal(predictions_of(read), [[1, 258], [65535, 0]])


def test_in_words() -> None:
    same = of(*range(2), *[7] * 1998)
    assert agreement_in_words([same], [same]) == "All 2,000 predictions on the test set, of 3 classes, are the same."
    other = of(1, *range(1, 2), *[7] * 1998)
    sentence = "Of 2,000 predictions on the test set, of 3 classes, 99.95% are the same; 1 differ."
    assert agreement_in_words([same, same], [same, other]) == sentence
    assert agreement_in_words([], [of(1)]) is agreement_in_words([of(1)], [of(1, 2)]) is None
    assert agreement_in_words([of(4, 4)], [of(4, 4)]) == "All 2 predictions on the test set, of 1 class, are the same."
