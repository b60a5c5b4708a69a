"""The predictions that a record keeps: packed into text, and how many of two records' are the same. Pure."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.results.record import Evaluation


def evaluation_of(labels: NDArray[np.integer[Any]], test_metric: float | None, absent: str | None) -> Evaluation:
    """For the record.

    Args:
        labels: from 0 to 65,535.
        test_metric: None with the reason in `absent`.
    """
    content = np.ascontiguousarray(labels, "<u2").tobytes()
    return Evaluation(
        shape=list(labels.shape),
        predictions=base64.b64encode(content).decode(),
        sha256=hashlib.sha256(content).hexdigest(),
        test_metric=test_metric,
        test_metric_absent=absent,
    )


def predictions_of(evaluation: Evaluation) -> NDArray[np.uint16]:
    """The labels, [samples, ...]."""
    return np.frombuffer(base64.b64decode(evaluation.predictions), "<u2").reshape(evaluation.shape)


def agreement(ours: Evaluation, theirs: Evaluation) -> float | None:
    """The share of predictions that are the same, 0 to 1; None where they are not of the same samples."""
    if ours.shape != theirs.shape or 0 in ours.shape:
        return None
    return float(np.mean(predictions_of(ours) == predictions_of(theirs)))


def agreement_in_words(jax: Sequence[Evaluation], torch: Sequence[Evaluation]) -> str | None:
    """A sentence on the predictions of a pair, replicate by replicate; None where there is nothing to compare.

    With how many classes they are: a model that always says the same one agrees easily.
    """
    pairs = [pair for pair in zip(jax, torch, strict=False) if agreement(*pair) is not None]
    if not pairs:
        return None
    worst = min(pairs, key=lambda pair: agreement(*pair) or 0.0)
    ours, theirs = (predictions_of(evaluation) for evaluation in worst)
    differing, classes = int(np.sum(ours != theirs)), len(np.unique([ours, theirs]))
    of_all = f"{ours.size:,} predictions on the test set, of {classes:,} class{'es' if classes > 1 else ''}"
    if differing == 0:
        return f"All {of_all}, are the same."
    return f"Of {of_all}, {1 - differing / ours.size:.2%} are the same; {differing:,} differ."
