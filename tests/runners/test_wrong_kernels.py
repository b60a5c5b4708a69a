"""A kernel that is wrong is found before it is timed, in every use case. One that an autotuner has chosen would be
wrong in one mode and one precision only, so that no parity gate meets it.

Planted in float32, which the references in float64 never meet: a convolution that leaves out one tap of its kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import pytest
import torch
from flax import nnx
from jax import numpy as jnp

from harness.errors import CheckFailed
from tests.made.captures import allow_captures
from tests.made.sessions import build, make_session


@contextmanager
def one_tap_left_out(framework: str) -> Iterator[None]:
    with {"jax": in_jax, "torch": in_torch}[framework]():
        yield


@contextmanager
def in_torch() -> Iterator[None]:
    right = torch.nn.functional.conv2d

    def wrong(inputs: torch.Tensor, weight: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        if weight.dtype == torch.float32:
            kept = torch.ones(weight.shape[-2:])
            kept[-1, -1] = 0
            weight = weight * kept
        return right(inputs, weight, *arguments, **keywords)

    with mock.patch.object(torch.nn.functional, "conv2d", wrong):
        yield


@contextmanager
def in_jax() -> Iterator[None]:
    right = jax.lax.conv_general_dilated
    make = nnx.Conv.__init__

    def wrong(inputs: jax.Array, kernel: jax.Array, *arguments: Any, **keywords: Any) -> jax.Array:
        if kernel.dtype == jnp.float32:
            kernel = kernel.at[-1, -1].set(0)
        return right(inputs, kernel, *arguments, **keywords)

    def make_wrong(self: nnx.Conv, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords, conv_general_dilated=wrong)

    with mock.patch.object(nnx.Conv, "__init__", make_wrong):
        yield


CASES = [
    ("jax", "train", "jit", {}),
    ("jax", "train", "scan", {}),
    ("torch", "train", "eager", {}),
    ("torch", "train", "eager_graph", {}),
    ("torch", "train", "epoch_graph", {}),
    *(
        (framework, "per_sample_gradients", mode, {"output": output})
        for framework, mode, output in [
            ("jax", "batch", "batch_gradient"),
            ("jax", "vmap", "norms"),
            ("jax", "outer_product", "full"),
            ("torch", "batch_eager", "batch_gradient"),
            ("torch", "vmap_eager", "norms"),
            ("torch", "vmap_eager_graph", "clipped_sum"),
            ("torch", "outer_product_eager", "full"),
        ]
    ),
    ("jax", "many_models", "vmap", {"models": 3}),
    ("jax", "many_models", "unrolled", {"models": 3}),
    ("torch", "many_models", "loop_eager", {"models": 3}),
    ("torch", "many_models", "batched_eager_graph", {"models": 3}),
]


@pytest.mark.parametrize(("framework", "use_case", "mode", "options"), CASES)
def test_a_missing_tap_is_caught(
    framework: Any, use_case: str, mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "torch":
        allow_captures(monkeypatch)
    session = make_session(framework, use_case, batch_size=8, execution_mode=mode, options=options)
    build(session).check()
    with one_tap_left_out(framework):
        program = build(session)
        with pytest.raises(CheckFailed, match="The result is wrong, so it is not timed"):
            program.check()
