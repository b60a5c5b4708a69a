"""Text as windows: each sample has the tokens that a model predicts, and one more before them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.work.datasets import Arrays, Dataset

Tokens = NDArray[np.integer[Any]]


def windows(tokens: Tokens, positions: int, stride: int | None = None) -> Tokens:
    """[windows, positions + 1] from [tokens].

    Args:
        stride: from the start of a window to that of the next. Left out, it is `positions`, and every token but the
            first is predicted once.
    """
    found = np.lib.stride_tricks.sliding_window_view(tokens, positions + 1)[:: stride or positions]
    return np.ascontiguousarray(found)


def as_dataset(train: Tokens, test: Tokens, positions: int, stride: int | None = None) -> Dataset:
    """`stride`: of the windows to train on."""
    return Dataset(train={"tokens": windows(train, positions, stride)}, test={"tokens": windows(test, positions)})


def cut_to(dataset: Dataset, positions: int) -> Dataset:
    """The same text in shorter windows, each of `positions` + 1 tokens; none is lost.

    Raises:
        ValueError: `positions` does not divide those of the data set's windows.
    """

    def of_part(arrays: Arrays) -> Arrays:
        return {"tokens": _cut(arrays["tokens"], positions)}

    return replace(dataset, train=of_part(dataset.train), test=of_part(dataset.test))


def _cut(tokens: Tokens, positions: int) -> Tokens:
    stored = tokens.shape[1] - 1
    if stored == positions:
        return tokens
    if stored % positions:
        raise ValueError(f"windows of {stored} tokens cannot be cut into windows of {positions}")
    parts = np.lib.stride_tricks.sliding_window_view(tokens, positions + 1, axis=1)[:, ::positions]
    return np.ascontiguousarray(parts).reshape(-1, positions + 1)


def logits_of(vocabulary: int, dataset: Dataset) -> int:
    """How many a sample has, one for each token of the vocabulary at each position (`Benchmark.outputs`)."""
    return vocabulary * int(dataset.train["tokens"].shape[1] - 1)


def tokens_of(dataset: Dataset) -> dict[str, float]:
    """How many tokens a sample has to predict (`Benchmark.units`)."""
    return {"tokens": float(dataset.train["tokens"].shape[1] - 1)}
