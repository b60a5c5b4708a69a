"""The parity numbers of one variant, as a job's child computes them, in this process."""

import importlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch
from flax import nnx
from jax import numpy as jnp

from harness.data import Dataset
from harness.parity import ParityMetadata, ParityNumbers, condense, gate_measurement, key_of
from harness.settings import Framework
from jax_runner.use_cases import per_sample_gradients as jax_per_sample_gradients
from jax_runner.use_cases import train as jax_train
from tests.runners import jax_rank, torch_rank
from tests.runners.one_rank import normalising_in_float64
from tests.runners.sessions import make_session
from torch_runner.use_cases import per_sample_gradients as torch_per_sample_gradients

CLIP_NORM = {"mnist": 60.0, "cifar10": 20.0}
"""As in experiments.yaml: about half of the samples are clipped."""


def gated_numbers(
    framework: Framework, use_case: str, *, benchmark: str = "mnist", float64: bool = False, **arguments: Any
) -> ParityNumbers:
    settings = {"clip_norm": CLIP_NORM[benchmark]} if use_case == "per_sample_gradients" else {}
    session = make_session(framework, use_case, benchmark=benchmark, **(settings | arguments))
    session = replace(session, measurement=gate_measurement(session.measurement))
    module = importlib.import_module(f"{framework}_runner.parity.{use_case}")
    with ExitStack() as stack:
        if float64:
            session = normalising_in_float64(session)
            stack.enter_context({"jax": jax_rank, "torch": torch_rank}[framework].in_float64())
            stack.enter_context(mock.patch.object(jax_train, "Training", Float64Training))
            stack.enter_context(mock.patch.object(jax_per_sample_gradients.Problem, "batch", jax_float64_batch))
            stack.enter_context(mock.patch.object(torch_per_sample_gradients.Problem, "batch", torch_float64_batch))
        kept, shapes = condense(module.parity_numbers(session))
    metadata = ParityMetadata(key=key_of(session.measurement), outcome="ok", shapes=shapes, created_at="now")
    return ParityNumbers(metadata=metadata, kept=kept)


class Float64Training(jax_train.Training):
    """BatchNorm of jax_runner keeps its own in float32; here in float64 too."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        dtype = session.dataset.mean.dtype
        nnx.update(self.model, jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.state(self.model)))


def jax_float64_batch(problem: Any, rows: Iterable[int]) -> tuple[jax.Array, jax.Array]:
    """The use case itself divides by 255 in float32."""
    images, labels = normalised(problem.dataset, rows)
    return jnp.asarray(images), jnp.asarray(labels)


def torch_float64_batch(problem: Any, rows: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = normalised(problem.dataset, rows)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels).long()


def normalised(dataset: Dataset, rows: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    rows = list(rows)
    return (dataset.train_images[rows] / 255 - dataset.mean) / dataset.std, dataset.train_labels[rows]
