"""Why two models differ, by traces made by hand: two weights, and layers `a` and `b` behind each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import RecordError
from harness.results.model_trace import Call, ModelTrace, read_trace, why_not_the_same, write_trace

SHAPES = {"a.weight": (2, 3), "b.weight": (2, 2)}
IMAGE = np.arange(24.0).reshape(1, 2, 3, 4)  # batch, channels, height, width


def trace(*calls: Call, shapes: dict[str, tuple[int, ...]] = SHAPES, **more: Any) -> ModelTrace:
    return ModelTrace(shapes, calls, **more)


def call(layer: str, inputs: Any, outputs: Any) -> Call:
    return Call(layer, (np.array(inputs),), (np.array(outputs),))


GOOD = (call("a", [3.0, 4.0], [6.0, 8.0]), call("b", [6.0, 8.0], [0.0, 5.0]), call("", [3.0, 4.0], [0.0, 5.0]))


@pytest.mark.parametrize(
    ("jax", "torch", "sentence"),
    [
        (trace(*GOOD), trace(*GOOD), None),
        (
            trace(*GOOD),
            trace(*GOOD, shapes={"a.weight": (2, 3), "b.weight": (2, 2), "b.bias": (2,)}),
            "the models have other parameters: only PyTorch has b.bias (JAX has 10 parameters, PyTorch 12)",
        ),
        (  # of norm 10, and off by 0.3
            trace(*GOOD),
            trace(call("a", [3.0, 4.0], [6.0, 8.3]), *GOOD[1:]),
            "the first layer that differs is a: relative error 2.9e-2; its inputs agree",
        ),
        (
            trace(*GOOD),
            trace(GOOD[0], call("b", [6.0, 0.0], [0.0, 4.0]), GOOD[2]),
            "the first layer that differs is b: relative error 2.5e-1; its inputs differ already, by 1.3e+0 (the "
            "outputs of a agree): look at what lies before it and is no layer, such as an activation, a padding or a "
            "residual",
        ),
        (
            trace(*GOOD[:2], call("", [3.0, 4.0], [5.0, 0.0])),
            trace(*GOOD),
            "the first layer that differs is the model itself, behind all of its layers: relative error 1.4e+0; its "
            "inputs agree",
        ),
        (trace(), trace(error="RuntimeError: no"), "the forward pass of PyTorch ends with RuntimeError: no"),
        (  # the same image, channels last in JAX
            trace(call("a", 0.0, np.moveaxis(IMAGE, 1, -1))),
            trace(call("a", 0.0, IMAGE)),
            None,
        ),
    ],
)
def test_the_first_cause_is_named(jax: ModelTrace, torch: ModelTrace, sentence: str | None) -> None:
    assert why_not_the_same(jax, torch) == sentence


def test_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    write_trace(trace(*GOOD, error="ValueError: x"), path)
    read = read_trace(path)
    assert (read.shapes, read.error, [one.layer for one in read.calls]) == (SHAPES, "ValueError: x", ["a", "b", ""])
    np.testing.assert_array_equal(read.calls[1].inputs[0], [6.0, 8.0])
    path.write_bytes(b"PK")
    with pytest.raises(RecordError, match=r"a\.trace: not a trace of a model"):
        read_trace(path)
