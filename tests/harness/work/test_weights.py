"""The weights and the order of the batches that both frameworks get."""

import math
import zlib

import numpy as np
import pytest

from harness.work.weights import batch_order, inference_weight, initial_weight


@pytest.mark.parametrize(
    ("name", "crc32", "shape", "fan_in"),
    [
        ("fc2.weight", 0xB4F84303, (2, 3), 3),
        ("conv1.weight", 0xCB487135, (4, 3, 2, 2), 12),
        ("in_proj_weight", 0xE43782D1, (6, 2), 2),
    ],
)
def test_a_kernel_by_hand(name: str, crc32: int, shape: tuple[int, ...], fan_in: int) -> None:
    """Pinned: whoever changes how weights are drawn makes all old records incomparable."""
    bound = math.sqrt(6 / fan_in)
    expected = np.random.default_rng([7, crc32]).uniform(-bound, bound, shape).astype(np.float32)
    np.testing.assert_array_equal(initial_weight(7, name, shape), expected)
    np.testing.assert_array_equal(inference_weight(7, name, shape), expected)
    assert initial_weight(7, name, shape).dtype == np.float32
    for other in (initial_weight(8, name, shape), initial_weight(7, f"other.{name}", shape)):
        assert not np.any(other == expected)


def test_embeddings_are_small_and_normal_and_nothing_is_constant_in_weights_for_inference() -> None:
    def draw(name: str, *more: int) -> np.random.Generator:
        return np.random.default_rng([7, zlib.crc32(name.encode()), *more])

    expected = {name: 0.02 * draw(name).standard_normal(64) for name in ("class_token", "encoder.pos_embedding")}
    expected |= {name: draw(name, 1).uniform(0.5, 1.5, 64) for name in ("bn1.weight", "bn1.running_var")}
    expected["bn3.weight"] = 0.2 * draw("bn3.weight", 1).uniform(0.5, 1.5, 64)
    expected |= {name: 0.1 * draw(name, 1).standard_normal(64) for name in ("bn1.bias", "bn1.running_mean")}
    for name, values in expected.items():
        np.testing.assert_allclose(inference_weight(7, name, (64,)), values, rtol=1e-6)


def test_other_parameters_are_constant() -> None:
    zeros = dict.fromkeys(("conv1.bias", "bn1.bias", "bn1.running_mean", "attention.in_proj_bias", "bn3.bias"), 0)
    ones = dict.fromkeys(("bn1.weight", "bn1.running_var", "layer1.0.bn2.weight", "layer1.0.bn3.running_var"), 1)
    for name, value in (zeros | ones | {"layer1.0.bn3.weight": 0.2}).items():
        np.testing.assert_array_equal(initial_weight(0, name, (64,)), np.full((64,), value, np.float32))


def test_every_epoch_is_a_permutation_of_the_seed_without_the_last_incomplete_batch() -> None:
    order = batch_order(seed=0, sample_count=10, batch_size=3, epochs=4)
    assert (order.shape, order.dtype) == ((12, 3), np.int32)  # 4 epochs of 10 // 3 steps
    epochs = order.reshape(4, 9)
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 9 and set(epoch.tolist()) < set(range(10))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4  # a fresh one each time
    for epoch in batch_order(seed=0, sample_count=12, batch_size=3, epochs=2).reshape(2, 12):
        assert sorted(epoch.tolist()) == list(range(12))
    assert not np.array_equal(order, batch_order(seed=1, sample_count=10, batch_size=3, epochs=4))
    # More epochs begin with the same ones.
    np.testing.assert_array_equal(order[:6], batch_order(seed=0, sample_count=10, batch_size=3, epochs=2))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="'attention.query'.*valid: bias, in_proj_bias, weight, .*running_var"):
        initial_weight(0, "attention.query", (4, 4))
    with pytest.raises(ValueError, match=r"batch size 65 is larger than the training set \(64 samples\)"):
        batch_order(seed=0, sample_count=64, batch_size=65, epochs=1)
