"""Kinds of data: the names of their arrays, what one sample is called, and the metric of a trained model."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.plan import Frozen
from harness.work.average_precision import mean_average_precision
from harness.work.graphs import SAMPLE_ARRAYS, SHARED_ARRAYS


class Metric(Frozen):
    """What a trained model is judged by on the test set."""

    name: str
    """As W&B's keys and CSV columns have it."""
    words: str
    higher_is_better: bool
    format: Literal["percent", "number"]
    of_mean: Literal["identity", "exp", "bits"] = "identity"
    """From the mean over the test samples' scores to the metric: the perplexity is exp of the mean loss; in bits it is
    the mean loss over log 2."""

    of: Literal["samples", "test_set"] = "samples"
    """samples: each has a score, and the metric is made of their mean. test_set: it is made of what the model says of
    all samples together, by `of_test_set`."""

    def of_test_set(self, said: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float | None:
        """What `value` takes in the place of a mean score; None for a metric of samples.

        Args:
            said: of each batch of the test set, what the task's `scores` and `targets` gave, [batch, ...] each.
        """
        if self.of == "samples":
            return None
        scores, targets = (np.concatenate(parts) for parts in zip(*said, strict=True))
        return mean_average_precision(scores, targets)

    def value(self, mean_score: float) -> float:
        if self.of_mean == "exp":
            return math.exp(mean_score)
        return mean_score / math.log(2) if self.of_mean == "bits" else mean_score

    def reaches(self, value: float, target: float) -> bool:
        return value >= target if self.higher_is_better else value <= target


class Task(Frozen):
    """A kind of data with its loss and metric. Each runner's task.py has the functions."""

    name: str
    arrays: tuple[str, ...]
    """Names of the arrays of a data set; their first axis counts samples."""
    shared: tuple[str, ...] = ()
    """Those that all samples share (`Dataset.shared`)."""
    balanced_by: str | None = None
    """The array with each sample's size, where samples differ in size: batches are made of samples of all sizes alike
    (harness/work/graphs.py)."""
    model_inputs: tuple[str, ...]
    """Those of the arrays that a model is given; it is judged by the others."""
    samples: str
    """What the samples are called, as in `60,000 images to train on`."""
    metric: Metric
    further_metrics: tuple[Metric, ...] = ()
    """Recorded beside it after each epoch. Each runner's task.py has their scores, by these names."""


ACCURACY = Metric(name="accuracy", words="test accuracy", higher_is_better=True, format="percent")
TOP_5 = Metric(name="top_5_accuracy", words="test accuracy, top 5", higher_is_better=True, format="percent")
"""Right where fewer than five classes have a larger logit than the label's."""
PERPLEXITY = Metric(name="perplexity", words="test perplexity", higher_is_better=False, format="number", of_mean="exp")
BITS_PER_BYTE = Metric(
    name="bits_per_byte", words="test bits per byte", higher_is_better=False, format="number", of_mean="bits"
)
MEAN_AVERAGE_PRECISION = Metric(
    name="mean_average_precision",
    words="mean average precision on the test set",
    higher_is_better=True,
    format="number",
    of="test_set",
)

IMAGE_CLASSIFICATION = Task(
    name="image_classification",
    arrays=("images", "labels"),
    model_inputs=("images",),
    samples="images",
    metric=ACCURACY,
)
"""images: uint8 [samples, height, width, channels]; labels: int32 [samples], from 0."""
IMAGES_OF_MANY_CLASSES = IMAGE_CLASSIFICATION.model_copy(update={"further_metrics": (TOP_5,)})
"""The same of 100 classes and more."""
GENERATED_CLASSIFICATION = Task(
    name="generated_classification",
    arrays=("inputs", "labels"),
    model_inputs=("inputs",),
    samples="samples",
    metric=ACCURACY,
)
"""inputs: float32 [samples, features] or [samples, channels, height, width]; labels as above."""

NEXT_TOKEN = Task(
    name="next_token",
    arrays=("tokens",),
    model_inputs=("tokens",),
    samples="sequences",
    metric=PERPLEXITY,
)
"""tokens: integers [samples, positions + 1], as narrow as the vocabulary allows; each is to be predicted from those
before it in its sample."""
NEXT_BYTE = NEXT_TOKEN.model_copy(update={"metric": BITS_PER_BYTE})
"""The same where tokens are bytes."""

GRAPH_CLASSIFICATION = Task(
    name="graph_classification",
    arrays=(*SAMPLE_ARRAYS, "labels"),
    shared=SHARED_ARRAYS,
    model_inputs=SAMPLE_ARRAYS,
    samples="graphs",
    metric=MEAN_AVERAGE_PRECISION,
    balanced_by="edge_count",
)
"""labels: int8 [samples, questions]: 1 yes, 0 no, -1 missing. Of the others see harness/work/graphs.py."""
