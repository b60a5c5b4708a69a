"""What XLA made of some steps until they were written in another way. Only a compiler for GPUs shows it."""

from functools import cache

import pytest

from harness.results.program_facts import ProgramFacts
from tests.gpu_compile.programs import Asked, ask

ASKED = {
    "vit": Asked("imagenet100_1", "vit_b_16", 128, "bf16", "cudnn_attention.jit_graph"),
    "one image": Asked("imagenet100_5", "resnet50", 1, "bf16", "forward.jit"),
    "cnn": Asked("cifar10_1", "cnn", 256, "fp32", "step.jit"),
}


nightly = pytest.mark.nightly
"""Of what takes half a minute and more."""


@cache
def facts(name: str) -> ProgramFacts:
    """Of one of ASKED, on an H100."""
    (line,) = ask("jax_runner.ahead", "h100", [ASKED[name].measurement()])
    return ProgramFacts.model_validate_json(line)


@nightly
def test_vit_trains_with_cudnns_attention() -> None:
    """Forward and backward in each of its 12 layers. JAX refused the gradients of its 197 tokens."""
    vit = facts("vit")
    assert (vit.outcome, vit.reason) == ("ok", None)
    assert vit.library_calls["attention"] == 2 * 12


def test_inference_transposes_no_weights() -> None:
    """53 convolutions, and no kernel that only moves data. There was one for each of them."""
    one_image = facts("one image")
    assert one_image.library_calls["convolution"] == 53
    assert (one_image.classes.get("layout", 0), one_image.layout_bytes) == (0, 0)


def test_training_transposes_neither_weights_nor_their_updates() -> None:
    """Eight convolutions, forward and twice backward but for the images' gradient. Eight kernels moved 2.4 MB."""
    cnn = facts("cnn")
    assert cnn.library_calls["convolution"] == 8 + 8 + 7
    assert (cnn.classes.get("layout", 0), cnn.layout_bytes) == (0, 0)


def test_training_keeps_only_the_outputs_of_relu() -> None:
    """Of seven ReLUs the first two and the largest have 256 x 32 x 32 x 32 numbers, 32 MiB. The peak was 208 MiB."""
    peak_bytes = facts("cnn").peak_bytes
    assert peak_bytes is not None and peak_bytes < (208 - 32) * 2**20
