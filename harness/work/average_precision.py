"""Mean average precision over binary tasks, in numpy on the host."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mean_average_precision(scores: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]]) -> float:
    """The mean over the tasks that have a sample of label 1 and one of label 0 (ogb/graphproppred/evaluate.py,
    `_eval_ap`). Zero where no task has.

    Args:
        scores: [samples, tasks]; the larger, the more a 1.
        labels: [samples, tasks]: 1, 0, or -1 where it is missing, which leaves the sample out of that task.
    """
    found = []
    for of_task, own in zip(scores.T, labels.T, strict=True):
        known = own >= 0
        if (own == 1).any() and (own == 0).any():
            found.append(average_precision(of_task[known], own[known]))
    return float(np.mean(found)) if found else 0.0


def average_precision(scores: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]]) -> float:
    """Sum over the thresholds of (gain in recall) * (precision); equal scores share a threshold.

    Source: sklearn.metrics.average_precision_score.

    Args:
        scores: [samples]
        labels: [samples], 0 or 1; at least one is 1.
    """
    order = np.argsort(-scores, kind="stable")
    sorted_scores, sorted_labels = scores[order], labels[order]
    is_last = np.append(sorted_scores[1:] != sorted_scores[:-1], True)
    right = np.cumsum(sorted_labels, dtype=np.int64)[is_last]
    taken = np.flatnonzero(is_last) + 1
    return float(np.sum(np.diff(right, prepend=0) * right / taken) / right[-1])
