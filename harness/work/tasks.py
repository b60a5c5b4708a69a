"""Kinds of data: the names of their arrays, what one sample is called, and the metric of a trained model."""

import math
from typing import Literal

from harness.plan import Frozen


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
