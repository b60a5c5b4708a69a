"""Both runners' task.py: inputs, targets, losses and scores of a small batch, by hand in numpy."""

import importlib
from typing import Any

import jax
import numpy as np
import pytest
import torch

from harness.plan import FRAMEWORKS, Framework
from harness.work.declared import benchmark, benchmark_names
from tests.made.sessions import make_session

DRAW = np.random.default_rng(0)
OF_TASKS = {
    "image_classification": "imagenet100",
    "generated_classification": "synthetic",
    "next_token": "text",
    "graph_classification": "molpcba",
}
LABELS = np.array([2, 0], np.int32)
LOGITS = np.array([[1.0, 2.0, 4.0], [0.5, 1.5, -3.0]])
"""The first sample is classified as it should be, the second is not."""
TOKENS = np.array([[3, 1, 0, 2], [2, 2, 1, 0]], np.int32)
LOGITS_OF_TOKENS = DRAW.standard_normal((2, 3, 4))


class InNumpy:
    """The task of one framework, which takes and returns numpy arrays; images are NHWC."""

    def __init__(self, framework: Any, name: str, model: str = "") -> None:
        """`model`: of the benchmark; its first where none is named."""
        self.framework = framework
        declared = benchmark(OF_TASKS[name])
        model = model or declared.models[0].name
        session = make_session(framework, "train", benchmark=declared.name, model=model, precision="fp64")
        dtype = {"jax": jax.numpy.float64, "torch": torch.float64}[framework]
        self.task = importlib.import_module(f"{framework}_runner.task").make_task(session, dtype)

    def of_batch(self, function: str, batch: dict[str, np.ndarray]) -> np.ndarray:
        return self.to_numpy(getattr(self.task, function)({name: self.placed(array) for name, array in batch.items()}))

    def of_outputs(self, function: str, outputs: np.ndarray, targets: np.ndarray, *rest: float) -> np.ndarray:
        return self.to_numpy(getattr(self.task, function)(self.placed(outputs), self.placed(targets), *rest))

    def further(self, outputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
        found = self.task.further_scores(self.placed(outputs), self.placed(targets))
        return {name: self.to_numpy(scores) for name, scores in found.items()}

    def placed(self, array: np.ndarray) -> Any:
        if self.framework == "jax":
            return jax.numpy.asarray(array)
        return torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array)

    def to_numpy(self, found: Any) -> np.ndarray:
        if self.framework == "torch" and found.ndim == 4:
            found = found.movedim(1, -1)
        return np.asarray(found)


def cross_entropy(logits: np.ndarray, target: int) -> float:
    return float(np.log(np.exp(logits).sum()) - logits[target])


def test_every_declared_task_is_here() -> None:
    assert {benchmark(name).task.name for name in benchmark_names()} == OF_TASKS.keys()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["image_classification", "generated_classification"])
def test_classification(framework: Framework, name: str) -> None:
    task = InNumpy(framework, name)
    np.testing.assert_array_equal(task.of_batch("targets", {"labels": LABELS}), LABELS)
    losses = [cross_entropy(LOGITS[0], 2), cross_entropy(LOGITS[1], 0)]
    require_losses(task, LOGITS, LABELS, losses)
    assert task.of_outputs("scores", LOGITS, LABELS).tolist() == [True, False]


def require_losses(task: InNumpy, logits: np.ndarray, targets: np.ndarray, losses: list[float]) -> None:
    """And of smoothed labels: a quarter of each target is given to all classes alike, its own among them."""
    np.testing.assert_allclose(task.of_outputs("losses", logits, targets), losses, rtol=1e-12)
    np.testing.assert_allclose(task.of_outputs("mean_loss", logits, targets), np.mean(losses), rtol=1e-12)
    classes = logits.shape[-1]
    alike = np.mean([cross_entropy(row, label) for row in logits.reshape(-1, classes) for label in range(classes)])
    smoothed = 0.75 * np.mean(losses) + 0.25 * alike
    np.testing.assert_allclose(task.of_outputs("mean_loss", logits, targets, 0.25), smoothed, rtol=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_five_best_classes(framework: Framework) -> None:
    """The label's logit is the fifth, the sixth, the first, and one of six that are equal: nothing is larger."""
    logits = np.array([[5.0, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0], [0, 9, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    labels = np.array([4, 5, 1, 5], np.int32)
    found = InNumpy(framework, "image_classification").further(logits, labels)
    assert {name: scores.tolist() for name, scores in found.items()} == {"top_5_accuracy": [True, False, True, True]}
    for name in ("generated_classification", "next_token"):
        assert InNumpy(framework, name).further(logits, labels) == {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_images_are_normalised_and_cut_to_what_the_benchmark_says(framework: Framework) -> None:
    """The centre 64 x 64 of 68 x 71: 2 rows are left out above, 3 columns on the left. The means and standard
    deviations of the channels are ImageNet's."""
    mean, std = (np.array(of_channels, np.float32) for of_channels in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = DRAW.integers(0, 256, (2, 68, 71, 3), np.uint8)
    found = InNumpy(framework, "image_classification").of_batch("inputs", {"images": images})
    np.testing.assert_allclose(found, (images[:, 2:66, 3:67] / 255 - mean) / std, rtol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_drawn_inputs_are_taken_as_they_are(framework: Framework) -> None:
    """Given as channels x height x width; of many models there may be one more axis in front."""
    task, of_images = (InNumpy(framework, "generated_classification", model) for model in ("linear", "conv2d"))
    features, images = DRAW.standard_normal((2, 6)), DRAW.standard_normal((2, 3, 4, 5))
    np.testing.assert_array_equal(task.of_batch("inputs", {"inputs": features, "labels": LABELS}), features)
    found = of_images.of_batch("inputs", {"inputs": images, "labels": LABELS})
    np.testing.assert_array_equal(found, images.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_next_tokens(framework: Framework) -> None:
    task = InNumpy(framework, "next_token")
    np.testing.assert_array_equal(task.of_batch("inputs", {"tokens": TOKENS}), [[3, 1, 0], [2, 2, 1]])
    targets = np.array([[1, 0, 2], [2, 1, 0]], np.int32)
    np.testing.assert_array_equal(task.of_batch("targets", {"tokens": TOKENS}), targets)
    losses = [
        np.mean([cross_entropy(logits, target) for logits, target in zip(*sample, strict=True)])
        for sample in zip(LOGITS_OF_TOKENS, targets, strict=True)
    ]
    require_losses(task, LOGITS_OF_TOKENS, targets, losses)
    np.testing.assert_allclose(task.of_outputs("scores", LOGITS_OF_TOKENS, targets), losses, rtol=1e-12)
