"""Use case 6 in JAX: the gradient of the losses' sum is each model's own.

test_many_models.py has every formulation against models trained alone.
"""

import re
from typing import Any

import jax
import pytest

from harness.plan import Precision
from harness.work.closeness import relative_error
from tests.made.sessions import build, make_session

COUNT = 3
TOLERANCE: dict[Precision, float] = {"fp32": 1e-6, "fp64": 1e-12}


def program(mode: str, model: str, precision: Precision, batches: str = "different") -> Any:
    options = {"models": COUNT, "batches": batches, "learning_rates": "separate"}
    session = make_session(
        "jax",
        "many_models",
        benchmark="synthetic",
        model=model,
        batch_size=4,
        precision=precision,
        execution_mode=mode,
        options=options,
    )
    return build(session)


@pytest.mark.parametrize(
    "precision", [pytest.param(one, marks=[] if one == "fp64" else pytest.mark.nightly) for one in TOLERANCE]
)
@pytest.mark.parametrize(
    ("mode", "model", "batches"),
    [
        ("vmap.jit", "convnet", "different"),
        ("vmap.jit", "mlp", "same"),
        ("side_by_side.jit", "convnet", "different"),
        pytest.param("side_by_side.jit", "convnet", "same", marks=pytest.mark.nightly),
    ],
)
def test_gradient_of_the_sum_is_each_models_own(mode: str, model: str, batches: str, precision: Precision) -> None:
    """The phases and the whole step."""
    expected = program(mode, model, precision, batches).parity()
    actual = program(f"grad_of_{mode}", model, precision, batches).parity()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert relative_error({name: actual[name]}, {name: value}) < TOLERANCE[precision], name


@pytest.mark.parametrize("mode", ["vmap.jit", "side_by_side.jit"])
def test_xla_sees_grouped_weight_gradients(mode: str) -> None:
    """One for each of the four convolutions; forward, and by the images, they are grouped by features."""
    assert batch_groups(program(mode, "convnet", "fp32")) == []
    assert batch_groups(program(f"grad_of_{mode}", "convnet", "fp32")) == [COUNT] * 4


def batch_groups(of_models: Any) -> list[int]:
    """Of the convolutions that have several."""
    groups = [int(count) for count in re.findall(r"batch_group_count = (\d+)", of_models.lowered().as_text())]
    return [count for count in groups if count > 1]


def test_a_step_has_no_more_arrays_unrolled() -> None:
    """What a call costs the host grows with their number."""
    shapes = []
    for mode in ("vmap.jit", "unrolled.jit"):
        own = program(mode, "mlp", "fp32")
        shapes.append([leaf.shape for leaf in jax.tree.leaves((own.state(), own.step()))])
    assert shapes[0] == shapes[1]
