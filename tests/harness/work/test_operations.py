"""How much work a sample is, by declaration."""

from typing import Any

import pytest

from harness.plan import Cell, Measurement
from harness.work.declared import Reference, benchmark, operations_of
from tests.made.report_records import record
from tests.made.vision_records import INFERENCE, TRAINING, vision_record


def measurement(model: str, cell: Cell, **changes: Any) -> Measurement:
    return vision_record("jax", "jit", model, 8, 1.0, cell=cell, **changes).measurement


def test_an_inference_is_one_forward_pass_and_a_step_of_training_three() -> None:
    multiply_adds = benchmark("imagenet100").model("vit_b_16").multiply_adds
    assert multiply_adds is not None and round(multiply_adds / 1e9, 2) == 17.56
    assert operations_of(measurement("vit_b_16", INFERENCE)) == 2 * multiply_adds
    assert operations_of(measurement("vit_b_16", TRAINING)) == 6 * multiply_adds


def test_resnet18_of_cifar10_by_hand() -> None:
    """The first layer; four stages of four 3 x 3 convolutions, whose first halves the image in stages 2 to 4, and three
    1 x 1 shortcuts there; the last layer."""
    stages = 4 * 64 * 64 * 9 * 32**2
    for channels, side in ((128, 16), (256, 8), (512, 4)):
        stages += (channels // 2 + 3 * channels) * channels * 9 * side**2 + channels // 2 * channels * side**2
    assert benchmark("cifar10").model("resnet18").multiply_adds == 3 * 64 * 9 * 32**2 + stages + 512 * 10


def test_what_is_not_declared_is_not_known() -> None:
    """The work of per-sample gradients depends on the formulation."""
    for changes in ({"use_case_name": "per_sample_gradients"}, {"use_case_name": "gone"}, {"benchmark": "gone"}):
        assert operations_of(measurement("resnet50", INFERENCE.model_copy(update=changes))) is None
    mnist = record("jax", "jit").measurement  # no count is declared
    assert operations_of(mnist) is None
    gone = mnist.variant.model_copy(update={"model": "gone"})
    assert operations_of(mnist.model_copy(update={"variant": gone})) is None
    default = operations_of(measurement("resnet50", INFERENCE))
    assert operations_of(measurement("resnet50", INFERENCE, sizes={"image_size": 224})) == default
    assert operations_of(measurement("resnet50", INFERENCE, sizes={"image_size": 64})) is None


WEIGHTS = {
    "resnet50": "ResNet50_Weights",
    "vit_b_16": "ViT_B_16_Weights",
    "mobilenet_v3_small": "MobileNet_V3_Small_Weights",
    "efficientnet_b0": "EfficientNet_B0_Weights",
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_references_are_what_torchvision_says(name: str) -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    meta = getattr(models, WEIGHTS[name]).IMAGENET1K_V1.meta
    assert benchmark("imagenet100").model(name).reference == Reference(
        source="torchvision, IMAGENET1K_V1",
        outputs=len(meta["categories"]),
        parameter_count=meta["num_params"],
        multiply_adds=round(meta["_ops"] * 1e9),
        accuracy=pytest.approx(meta["_metrics"]["ImageNet-1K"]["acc@1"] / 100),
    )
