"""How much work a sample is, by declaration."""

from typing import Any

from harness.plan import Cell, Measurement
from harness.work.declared import benchmark, operations_of
from tests.made.report_records import record

INFERENCE = Cell(gpu="any", benchmark="imagenet100", use_case=5, use_case_name="inference")
TRAINING = Cell(gpu="any", benchmark="imagenet100", use_case=1, use_case_name="train")


def measurement(model: str, cell: Cell, **changes: Any) -> Measurement:
    return record("jax", "jit", model=model, cell=cell, **changes).measurement


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
    """The work of per-sample gradients depends on the formulation; that of models of mnist is not declared."""
    for changes in ({"use_case_name": "per_sample_gradients"}, {"use_case_name": "gone"}, {"benchmark": "gone"}):
        assert operations_of(measurement("resnet50", INFERENCE.model_copy(update=changes))) is None
    for model in ("cnn", "gone"):
        assert operations_of(record("jax", "jit", model=model).measurement) is None
    default = operations_of(measurement("resnet50", INFERENCE))
    assert operations_of(measurement("resnet50", INFERENCE, sizes={"image_size": 224})) == default
    assert operations_of(measurement("resnet50", INFERENCE, sizes={"image_size": 64})) is None
