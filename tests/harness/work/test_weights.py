"""The weights and the order of the batches that both frameworks get."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from harness.work.weights import batch_order, inference_weight, initial_weight


@pytest.mark.parametrize(
    ("kind", "shape", "fan_in"),
    [("weight", (32, 16, 4, 4), 256), ("weight", (10, 32), 32), ("in_proj_weight", (96, 32), 32)],
)
def test_kernels_are_kaiming_uniform(kind: str, shape: tuple[int, ...], fan_in: int) -> None:
    weight = initial_weight(0, f"conv1.{kind}", shape)
    bound = math.sqrt(6 / fan_in)
    assert (weight.shape, weight.dtype) == (shape, np.float32)
    assert 0.95 * bound < np.abs(weight).max() <= np.float32(bound)
    # Uniform on (-b, b) has the standard deviation b / sqrt(3), and its estimate from n values errs by about
    # b / sqrt(3) * sqrt(0.2 / n); the mean by b / sqrt(3 n). Five of these.
    sigma, count = bound / math.sqrt(3), weight.size
    assert weight.std() == pytest.approx(sigma, abs=5 * sigma * math.sqrt(0.2 / count))
    assert weight.mean() == pytest.approx(0, abs=5 * sigma / math.sqrt(count))


def test_a_weight_by_hand() -> None:
    """Pinned: whoever changes how weights are drawn makes all old records incomparable. crc32("fc2.weight")."""
    generator = np.random.default_rng([7, 0xB4F84303])
    expected = generator.uniform(-math.sqrt(6 / 3), math.sqrt(6 / 3), (2, 3)).astype(np.float32)
    np.testing.assert_array_equal(initial_weight(7, "fc2.weight", (2, 3)), expected)
    np.testing.assert_array_equal(inference_weight(7, "fc2.weight", (2, 3)), expected)


@pytest.mark.parametrize(("weight", "name"), [(initial_weight, "fc1.weight"), (inference_weight, "bn1.bias")])
def test_a_weight_is_that_of_its_seed_and_name(weight: Callable[..., np.ndarray], name: str) -> None:
    first = weight(0, name, (8, 4))
    np.testing.assert_array_equal(first, weight(0, name, (8, 4)))
    for other in (weight(1, name, (8, 4)), weight(0, name.replace("1", "2"), (8, 4))):
        assert not np.any(first == other)


@pytest.mark.parametrize(("name", "shape"), [("class_token", (1, 1, 768)), ("encoder.pos_embedding", (1, 17, 64))])
def test_embeddings_are_small_and_normal(name: str, shape: tuple[int, ...]) -> None:
    weight = initial_weight(0, name, shape)
    assert (weight.shape, weight.dtype) == (shape, np.float32)
    # The estimate of a standard deviation from n values errs by a share of about sqrt(1 / 2n). Five of these.
    assert weight.std() == pytest.approx(0.02, rel=5 * math.sqrt(1 / (2 * weight.size)))
    assert np.abs(weight).max() > 0.02 * math.sqrt(3)  # where a uniform one would end


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


def test_nothing_is_constant_in_weights_for_inference() -> None:
    for name, low, high in [
        ("bn1.weight", 0.5, 1.5),
        ("bn1.running_var", 0.5, 1.5),
        ("bn1.bias", -0.5, 0.5),
        ("bn1.running_mean", -0.5, 0.5),
        ("conv1.bias", -0.5, 0.5),
    ]:
        value = inference_weight(0, name, (512,))
        assert value.dtype == np.float32 and low < value.min() and value.max() < high
        assert len(np.unique(value)) > 500
        middle, spread = (1, 1 / math.sqrt(12)) if low > 0 else (0, 0.1)
        assert value.mean() == pytest.approx(middle, abs=5 * spread / math.sqrt(512))
        assert value.std() == pytest.approx(spread, rel=0.2)
