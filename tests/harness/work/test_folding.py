"""BatchNorm folded into the convolution before it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.work.folding import convolution_before, folded

WEIGHTS: dict[str, NDArray[np.float32]] = {
    "layer1.0.conv1.weight": np.array([[[[3.0]]], [[[-2.0]]]], np.float32),
    "layer1.0.bn1.weight": np.array([2.0, 0.5], np.float32),
    "layer1.0.bn1.bias": np.array([1.0, -1.0], np.float32),
    "layer1.0.bn1.running_mean": np.array([10.0, 4.0], np.float32),
    "layer1.0.bn1.running_var": np.array([3.0, 0.0], np.float32),
    "fc.weight": np.array([[7.0]], np.float32),
}


def given(name: str, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
    assert WEIGHTS[name].shape == shape
    return WEIGHTS[name]


def test_by_hand() -> None:
    """With an epsilon of 1 the deviations are 2 and 1, so the factors 2 / 2 = 1 and 0.5 / 1 = 0.5. Nothing is rounded
    to float32: with next to no epsilon the factor is 2 / sqrt(3), and the float32 beside that is 4e-8 away."""
    weight_of = folded(given, ["layer1.0.bn1"], epsilon=1.0)
    np.testing.assert_array_equal(weight_of("layer1.0.conv1.weight", (2, 1, 1, 1)).ravel(), [3.0, -1.0])
    np.testing.assert_array_equal(weight_of("layer1.0.conv1.bias", (2,)), [1 - 10 * 1, -1 - 4 * 0.5])
    assert weight_of("fc.weight", (1, 1)) is WEIGHTS["fc.weight"]  # what no BatchNorm follows stays as it is
    with pytest.raises(KeyError, match="conv1.bias"):
        folded(given, [], epsilon=1.0)("layer1.0.conv1.bias", (2,))
    exact = folded(given, ["layer1.0.bn1"], epsilon=1e-12)("layer1.0.conv1.weight", (2, 1, 1, 1))
    assert exact[0, 0, 0, 0] == pytest.approx(3 * 2 / 3**0.5, rel=1e-11)


def test_the_convolution_before() -> None:
    assert convolution_before("layer4.2.bn3") == "layer4.2.conv3"
    assert convolution_before("layer2.0.downsample.1") == "layer2.0.downsample.0"
    for name in ("layer1.norm", "features.0"):
        with pytest.raises(ValueError, match=f"{name}: which convolution is before it"):
            convolution_before(name)
