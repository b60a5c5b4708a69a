"""Both runners' task.py: inputs, targets, losses and scores of a small batch, by hand in numpy."""

import importlib
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from harness.work.datasets import Dataset
from harness.work.declared import benchmark, benchmark_names
from harness.work.tasks import IMAGES_OF_MANY_CLASSES
from tests.made.sessions import make_session

DRAW = np.random.default_rng(0)
OF_TASKS = {
    "image_classification": "mnist",
    "generated_classification": "synthetic",
    "next_token": "text",
    "graph_classification": "molpcba",
}
MEAN, STD = np.array([0.2, 0.5, 0.7]), np.array([0.5, 0.25, 2.0])
IMAGES = DRAW.integers(0, 256, (2, 4, 5, 3), np.uint8)
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
        constants = {"mean": MEAN.astype(np.float32), "std": STD.astype(np.float32)}
        of_many_classes = replace(session.benchmark, task=IMAGES_OF_MANY_CLASSES)
        session = replace(
            session,
            benchmark=of_many_classes if name == "image_classification" else session.benchmark,
            dataset=Dataset(train={}, test={}, constants=constants),
        )
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


@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize("name", ["image_classification", "generated_classification"])
def test_classification(framework: str, name: str) -> None:
    task = InNumpy(framework, name)
    np.testing.assert_array_equal(task.of_batch("targets", {"labels": LABELS}), LABELS)
    losses = [cross_entropy(LOGITS[0], 2), cross_entropy(LOGITS[1], 0)]
    np.testing.assert_allclose(task.of_outputs("losses", LOGITS, LABELS), losses, rtol=1e-12)
    np.testing.assert_allclose(task.of_outputs("mean_loss", LOGITS, LABELS), np.mean(losses), rtol=1e-12)
    assert task.of_outputs("scores", LOGITS, LABELS).tolist() == [True, False]


@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize("name", ["image_classification", "next_token"])
def test_smoothed_labels(framework: str, name: str) -> None:
    """A quarter of each target is given to all classes alike, the label's own among them."""
    if name == "next_token":
        logits = LOGITS_OF_TOKENS
        targets = np.array([[1, 0, 2], [2, 1, 0]], np.int32)
    else:
        logits, targets = LOGITS, LABELS
    of_all = [
        [cross_entropy(row, label) for label in range(logits.shape[-1])] for row in logits.reshape(-1, logits.shape[-1])
    ]
    losses = [0.75 * row[label] + 0.25 * np.mean(row) for row, label in zip(of_all, targets.ravel(), strict=True)]
    found = InNumpy(framework, name).of_outputs("mean_loss", logits, targets, 0.25)
    np.testing.assert_allclose(found, np.mean(losses), rtol=1e-12)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_the_five_best_classes(framework: str) -> None:
    """The label's logit is the fifth, the sixth, the first, and one of six that are equal: nothing is larger."""
    logits = np.array([[5.0, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0], [0, 9, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    labels = np.array([4, 5, 1, 5], np.int32)
    found = InNumpy(framework, "image_classification").further(logits, labels)
    assert {name: scores.tolist() for name, scores in found.items()} == {"top_5_accuracy": [True, False, True, True]}
    for name in ("generated_classification", "next_token"):
        assert InNumpy(framework, name).further(logits, labels) == {}


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_images_are_normalised_channel_by_channel(framework: str) -> None:
    inputs = InNumpy(framework, "image_classification").of_batch("inputs", {"images": IMAGES})
    mean, std = MEAN.astype(np.float32).astype(np.float64), STD.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(inputs, (IMAGES / 255 - mean) / std, rtol=1e-12)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_images_are_cut_to_what_the_benchmark_says(framework: Any) -> None:
    """The centre 32 x 32 of 36 x 39: 2 rows are left out above, 3 columns on the left, with and without further axes
    before. The mean and standard deviation are ImageNet's, 0.485 and 0.229 of red."""
    session = make_session(framework, "train", benchmark="imagenet100", precision="fp64", sizes={"image_size": 32})
    module, dtype = importlib.import_module(f"{framework}_runner.task"), {"jax": "float64", "torch": torch.float64}
    task = module.make_task(session, dtype[framework])
    images = DRAW.integers(0, 256, (3, 2, 36, 39, 3), np.uint8)
    for batch in (images, images[0]):
        found = task.inputs({"images": {"jax": jax.numpy.asarray, "torch": torch.from_numpy}[framework](batch)})
        found = np.asarray(found if framework == "jax" else found.movedim(-3, -1))
        cut = batch[..., 2:34, 3:35, :]
        assert found.shape == cut.shape
        np.testing.assert_allclose(found[..., 0], (cut[..., 0] / 255 - np.float32(0.485)) / np.float32(0.229))


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_drawn_inputs_are_taken_as_they_are(framework: str) -> None:
    """Given as channels x height x width; of many models there may be one more axis in front."""
    task, of_images = (InNumpy(framework, "generated_classification", model) for model in ("linear", "conv2d"))
    features, images = DRAW.standard_normal((2, 6)), DRAW.standard_normal((2, 3, 4, 5))
    np.testing.assert_array_equal(task.of_batch("inputs", {"inputs": features, "labels": LABELS}), features)
    found = of_images.of_batch("inputs", {"inputs": images, "labels": LABELS})
    np.testing.assert_array_equal(found, images.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_next_tokens(framework: str) -> None:
    task = InNumpy(framework, "next_token")
    np.testing.assert_array_equal(task.of_batch("inputs", {"tokens": TOKENS}), [[3, 1, 0], [2, 2, 1]])
    targets = np.array([[1, 0, 2], [2, 1, 0]], np.int32)
    np.testing.assert_array_equal(task.of_batch("targets", {"tokens": TOKENS}), targets)
    losses = [
        np.mean([cross_entropy(logits, target) for logits, target in zip(*sample, strict=True)])
        for sample in zip(LOGITS_OF_TOKENS, targets, strict=True)
    ]
    np.testing.assert_allclose(task.of_outputs("losses", LOGITS_OF_TOKENS, targets), losses, rtol=1e-12)
    np.testing.assert_allclose(task.of_outputs("mean_loss", LOGITS_OF_TOKENS, targets), np.mean(losses), rtol=1e-12)
    np.testing.assert_allclose(task.of_outputs("scores", LOGITS_OF_TOKENS, targets), losses, rtol=1e-12)
