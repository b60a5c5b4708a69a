"""A wrong name is answered with the nearest valid one."""

import pytest

from harness.experiments.narrow import PRECISIONS
from harness.suggest import nearest, valid_names


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *(("float32", "fp32"), ("single", "fp32"), ("FP32", "fp32"), ("half", "fp16"), ("float16", "fp16")),
        *(("bfloat16", "bf16"), ("float64", "fp64"), ("double", "fp64"), ("TensorFloat32", "tf32"), ("fp23", "fp32")),
        *(("fp8", None), ("e4m3", None)),
    ],
)
def test_precisions_by_their_other_names(typed: str, meant: str | None) -> None:
    assert nearest(typed, PRECISIONS) == meant
    ending = f"did you mean {meant}?" if meant else f"{typed} is not supported"
    assert valid_names(typed, PRECISIONS).endswith(f"; {ending}")


def test_other_names_are_no_precisions() -> None:
    assert nearest("half", ["halve", "fp32x"]) == "halve"
    assert nearest("fp8", ["fp7"]) == "fp7"
    assert valid_names("minst", ["mnist", "cifar10"]) == "valid: mnist, cifar10; did you mean mnist?"
