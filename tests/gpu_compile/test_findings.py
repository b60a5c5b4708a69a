"""What XLA made of some steps until they were written in another way. Only a compiler for GPUs shows it."""

import pytest

from tests.gpu_compile.programs import Asked, Examined, examine


def on_h100(asked: Asked) -> Examined:
    """Return what XLA makes of a program of experiments.yaml for an H100."""
    _, found = examine("h100", [asked.measurement()])
    return found


@pytest.mark.nightly  # it takes half a minute and more
def test_vit_trains_with_cudnns_attention() -> None:
    """Forward and backward in each of its 12 layers. JAX refused the gradients of its 197 tokens."""
    vit = on_h100(Asked("imagenet100_1", "vit_b_16", 128, "bf16", "cudnn_attention.jit_graph"))
    assert (vit.outcome, vit.reason) == ("ok", None)
    assert vit.library_calls["attention"] == 2 * 12


def test_inference_transposes_no_weights() -> None:
    """53 convolutions, and no kernel that only moves data. There was one for each of them."""
    one_image = on_h100(Asked("imagenet100_5", "resnet50", 1, "bf16", "forward.jit"))
    assert one_image.library_calls["convolution"] == 53
    assert (one_image.layout_kernels, one_image.layout_bytes) == (0, 0)


def test_training_transposes_no_weights_and_keeps_only_the_outputs_of_relu() -> None:
    """Eight convolutions, forward and twice backward but for the images' gradient. Eight kernels moved 2.4 MB of them.
    Of seven ReLUs the first two and the largest have 256 x 32 x 32 x 32 numbers, 32 MiB. The peak was 208 MiB."""
    cnn = on_h100(Asked("cifar10_1", "cnn", 256, "fp32", "step.jit"))
    assert cnn.library_calls["convolution"] == 8 + 8 + 7
    assert (cnn.layout_kernels, cnn.layout_bytes) == (0, 0)
    assert cnn.peak_bytes is not None and cnn.peak_bytes < (208 - 32) * 2**20
