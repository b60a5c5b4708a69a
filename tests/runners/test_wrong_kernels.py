"""A kernel that is wrong is found before it is timed, in every use case. One that an autotuner has chosen would be
wrong in one mode and one precision only, so that no parity gate meets it.

Planted is a convolution that leaves out one tap of its kernel, in float32 only: references in float64 never meet it.
Use case 2 has the check of use case 1, which is seen to fail on two devices in test_several_devices.py.
"""

from typing import Any
from unittest import mock

import jax
import pytest
import torch
from flax import nnx
from jax import numpy as jnp

from harness.errors import CheckFailed
from tests.made.captures import allow_captures
from tests.made.sessions import build, make_session, with_first

CONVOLVE = {"jax": jax.lax.conv_general_dilated, "torch": torch.nn.functional.conv2d}
MAKE = nnx.Conv.__init__


def in_torch(inputs: Any, weight: Any, *arguments: Any, **keywords: Any) -> Any:
    if weight.dtype == torch.float32:
        kept = torch.ones(weight.shape[-2:])
        kept[-1, -1] = 0
        weight = weight * kept
    return CONVOLVE["torch"](inputs, weight, *arguments, **keywords)


def in_jax(inputs: Any, kernel: Any, *arguments: Any, **keywords: Any) -> Any:
    kernel = kernel.at[-1, -1].set(0) if kernel.dtype == jnp.float32 else kernel
    return CONVOLVE["jax"](inputs, kernel, *arguments, **keywords)


def make_in_jax(self: Any, *arguments: Any, **keywords: Any) -> None:
    MAKE(self, *arguments, **keywords, conv_general_dilated=in_jax)


ONE_TAP_LEFT_OUT = {
    "jax": mock.patch.object(nnx.Conv, "__init__", make_in_jax),
    "torch": mock.patch.object(torch.nn.functional, "conv2d", in_torch),
}

CASES = [
    ("jax", "train", "step.jit", {}),
    ("jax", "train", "scan.jit", {}),
    ("torch", "train", "step.eager", {}),
    ("torch", "train", "step.eager_graph", {}),
    *(
        (framework, "per_sample_gradients", mode, {"output": output})
        for framework, mode, output in [
            ("jax", "batch.jit", "batch_gradient"),
            ("jax", "vmap.jit", "norms"),
            ("jax", "outer_product.jit", "full"),
            ("torch", "batch.eager", "batch_gradient"),
            ("torch", "vmap.eager", "norms"),
            ("torch", "vmap.eager_graph", "clipped_sum"),
            ("torch", "outer_product.eager", "full"),
        ]
    ),
    ("jax", "inference", "forward.jit", {"inputs": "on_host"}),
    ("torch", "inference", "forward.eager", {"inputs": "on_host"}),
    ("torch", "inference", "forward.eager_graph", {"inputs": "on_device"}),
    ("torch", "inference", "forward.eager_nchw", {"inputs": "on_device"}),
    ("jax", "many_models", "vmap.jit", {"models": 3}),
    ("torch", "many_models", "loop.eager", {"models": 3}),
    ("torch", "many_models", "batched.eager_graph", {"models": 3}),
]


@pytest.mark.parametrize(("framework", "use_case", "mode", "options"), CASES)
def test_a_missing_tap_is_caught(
    framework: Any, use_case: str, mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "torch":
        allow_captures(monkeypatch)
    session = make_session(framework, use_case, execution_mode=mode, options=options)
    if use_case == "train":
        session = with_first(session, train=24)  # an epoch of three steps, as a call of `scan` makes all of them
    build(session).check()
    with ONE_TAP_LEFT_OUT[framework]:
        program = build(session)
        with pytest.raises(CheckFailed, match="The result is wrong, so it is not timed"):
            program.check()
