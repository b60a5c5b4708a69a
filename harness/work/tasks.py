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
    of_mean: Literal["identity", "exp"] = "identity"
    """From the mean over the test samples' scores to the metric: the perplexity is exp of the mean loss."""

    def value(self, mean_score: float) -> float:
        return math.exp(mean_score) if self.of_mean == "exp" else mean_score

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
    samples="windows of text",
    metric=PERPLEXITY,
)
"""tokens: int32 [samples, positions + 1]; each is to be predicted from those before it in its sample."""
