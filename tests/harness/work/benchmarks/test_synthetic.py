"""What is drawn for which model, and how large."""

import pytest

from harness.work.benchmarks.synthetic import BENCHMARK, Sizes
from tests.made.sessions import SMALL_SIZES


@pytest.mark.parametrize(
    ("model", "shape", "classes"),
    [("linear", (6,), 5), ("mlp", (6,), 5), ("conv2d", (2, 5, 5), 4), ("convnet", (2, 5, 5), 3)],
)
def test_inputs_and_classes_of_each_model(model: str, shape: tuple[int, ...], classes: int) -> None:
    sizes = Sizes.model_validate(SMALL_SIZES)
    assert BENCHMARK.drawn.shape(model, sizes) == shape
    assert BENCHMARK.drawn.classes(model, sizes) == classes
