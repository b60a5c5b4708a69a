"""What XLA made of some steps until they were written in another way. Only a compiler for GPUs shows it."""

import pytest

from harness.results.program_facts import ProgramFacts
from tests.gpu_compile.programs import Asked, ask


def facts(asked: Asked) -> ProgramFacts:
    """Of a program of experiments.yaml, on an H100."""
    (line,) = ask("jax_runner.ahead", "h100", [asked.measurement()])
    return ProgramFacts.model_validate_json(line)


@pytest.mark.nightly  # it takes half a minute and more
def test_vit_trains_with_cudnns_attention() -> None:
    """Forward and backward in each of its 12 layers. JAX refused the gradients of its 197 tokens."""
    vit = facts(Asked("imagenet100_1", "vit_b_16", 128, "bf16", "cudnn_attention.jit_graph"))
    assert (vit.outcome, vit.reason) == ("ok", None)
    assert vit.library_calls["attention"] == 2 * 12


def test_inference_transposes_no_weights() -> None:
    """53 convolutions, and no kernel that only moves data. There was one for each of them."""
    one_image = facts(Asked("imagenet100_5", "resnet50", 1, "bf16", "forward.jit"))
    assert one_image.library_calls["convolution"] == 53
    assert (one_image.classes.get("layout", 0), one_image.layout_bytes) == (0, 0)


def test_training_transposes_no_weights_and_keeps_only_the_outputs_of_relu() -> None:
    """Eight convolutions, forward and twice backward but for the images' gradient. Eight kernels moved 2.4 MB of them.
    Of seven ReLUs the first two and the largest have 256 x 32 x 32 x 32 numbers, 32 MiB. The peak was 208 MiB."""
    cnn = facts(Asked("cifar10_1", "cnn", 256, "fp32", "step.jit"))
    assert cnn.library_calls["convolution"] == 8 + 8 + 7
    assert (cnn.classes.get("layout", 0), cnn.layout_bytes) == (0, 0)
    assert cnn.peak_bytes is not None and cnn.peak_bytes < (208 - 32) * 2**20
