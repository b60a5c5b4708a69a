"""What a model is made of, and what each of its layers gives for one batch: by that, why the two models of one name do
not agree. Made by forward.py of each runner, and only where the parity gate has failed. Numpy alone.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import RecordError
from harness.results.npz import read_npz, write_npz
from harness.suggest import nearest

SAME = 1e-5
"""Relative L2 error up to which the outputs of a layer agree. Rounding is below 3e-6 in the models of this project on a
CPU; LayerNorm's epsilon of 1e-6 for 1e-5 is above."""
KEPT_ELEMENTS = 2**17
"""Of an array, at most: whole rows of its first axis."""
MOST_NAMED = 3

Array = NDArray[Any]


class Call(NamedTuple):
    """Of one layer."""

    layer: str
    """`block0.norm1`; empty for the model itself."""
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


class ModelTrace(NamedTuple):
    shapes: Mapping[str, tuple[int, ...]]
    """Of all parameters, by neutral name and in the neutral layout."""
    calls: tuple[Call, ...]
    """In the order in which they end: a layer before what it is a part of."""
    error: str | None = None
    """What ended the forward pass."""


def kept(array: Any) -> Array:
    values = np.asarray(array)
    rows = max(1, KEPT_ELEMENTS * len(values) // max(1, values.size)) if values.ndim else 1
    return values[:rows] if values.ndim else values


def write_trace(trace: ModelTrace, path: Path) -> None:
    arrays: dict[str, Array] = {}
    calls = []
    for number, call in enumerate(trace.calls):
        calls.append((call.layer, len(call.inputs), len(call.outputs)))
        arrays |= {f"{number}/in/{place}": one for place, one in enumerate(call.inputs)}
        arrays |= {f"{number}/out/{place}": one for place, one in enumerate(call.outputs)}
    about = {"shapes": trace.shapes, "calls": calls, "error": trace.error}
    write_npz(path, {"about": np.array(json.dumps(about)), **arrays}, is_compressed=False)


def read_trace(path: Path) -> ModelTrace:
    """Raises RecordError."""
    try:
        arrays = read_npz(path)
        about = json.loads(str(arrays["about"]))
        calls = tuple(
            Call(
                layer,
                tuple(arrays[f"{number}/in/{place}"] for place in range(inputs)),
                tuple(arrays[f"{number}/out/{place}"] for place in range(outputs)),
            )
            for number, (layer, inputs, outputs) in enumerate(about["calls"])
        )
        shapes = {name: tuple(shape) for name, shape in about["shapes"].items()}
        return ModelTrace(shapes, calls, about["error"])
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"{path}: not a trace of a model: {error}") from error


def why_not_the_same(jax: ModelTrace, torch: ModelTrace) -> str | None:
    """A sentence, of what comes first: names and shapes of the weights, their number, the first layer that differs.
    None where nothing of that differs."""
    return other_parameters(jax.shapes, torch.shapes) or _of_layers(jax, torch)


Shapes = Mapping[str, tuple[int, ...]]


def other_parameters(jax: Shapes, torch: Shapes, *, with_counts: bool = True) -> str | None:
    """What tells the weights of two models apart: names, or else shapes; None where these are the same.

    Args:
        with_counts: the shapes are those of the weights, so that their elements may be counted.
    """
    counts = [sum(math.prod(shape) for shape in shapes.values()) for shapes in (jax, torch)]
    about = f" (JAX has {counts[0]:,} parameters, PyTorch {counts[1]:,})"
    about = about if with_counts and counts[0] != counts[1] else ""
    if jax.keys() != torch.keys():
        only = {"JAX": sorted(jax.keys() - torch.keys()), "PyTorch": sorted(torch.keys() - jax.keys())}
        sentence = "; ".join(f"only {side} has {_some(names)}" for side, names in only.items() if names)
        close = nearest(only["JAX"][0], only["PyTorch"]) if all(only.values()) else None
        return f"the models have other parameters: {sentence}{f': did you mean {close}?' if close else ''}{about}"
    shapes = [f"{name} is {list(jax[name])} in JAX and {list(shape)} in PyTorch" for name, shape in torch.items()]
    if differing := [words for words, name in zip(shapes, torch, strict=True) if jax[name] != torch[name]]:
        return f"the parameters have other shapes: {_some(differing, '; ')}{about}"
    return None


def _some(words: list[str], separator: str = ", ") -> str:
    more = len(words) - MOST_NAMED
    return separator.join(words[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _of_layers(jax: ModelTrace, torch: ModelTrace) -> str | None:
    numbered = [dict(_numbered(trace.calls)) for trace in (jax, torch)]
    before = ""
    for name, theirs in numbered[1].items():
        ours = numbered[0].get(name)
        if ours is None:
            continue
        error = _error(ours.outputs, theirs.outputs)
        if error is not None and error > SAME:
            layer = name[0] or "the model itself, behind all of its layers"
            of_inputs = _error(ours.inputs, theirs.inputs)
            words = f"the first layer that differs is {layer}: relative error {short(error)}"
            if of_inputs is None:
                return words
            if of_inputs <= SAME:
                return f"{words}; its inputs agree"
            agrees = f" (the outputs of {before} agree)" if before else ""
            return (
                f"{words}; its inputs differ already, by {short(of_inputs)}{agrees}: look at what lies before it and "
                f"is no layer, such as an activation, a padding or a residual"
            )
        if error is not None:
            before = name[0] or before
    broken = {framework: trace.error for framework, trace in (("JAX", jax), ("PyTorch", torch)) if trace.error}
    ends = [f"the forward pass of {framework} ends with {error}" for framework, error in broken.items()]
    return "; ".join(ends) or None


def _numbered(calls: tuple[Call, ...]) -> Iterator[tuple[tuple[str, int], Call]]:
    """By layer and how often it was called before."""
    seen: dict[str, int] = {}
    for call in calls:
        seen[call.layer] = seen.get(call.layer, -1) + 1
        yield (call.layer, seen[call.layer]), call


def _error(ours: tuple[Array, ...], theirs: tuple[Array, ...]) -> float | None:
    """The largest of these arrays; None where they cannot be told to be the same things."""
    if len(ours) != len(theirs) or not ours:
        return None
    errors = [_error_of(*pair) for pair in zip(ours, theirs, strict=True)]
    known = [error for error in errors if error is not None]
    return max(known) if len(known) == len(errors) else None


LAYOUTS: tuple[Callable[[Array], Array], ...] = (lambda array: array, lambda array: np.moveaxis(array, -1, 1))
"""From JAX's to PyTorch's, if the array is not an image, or is one. Whichever fits best."""


def _error_of(ours: Array, theirs: Array) -> float | None:
    """Relative, L2."""
    candidates = [laid_out(ours) for laid_out in LAYOUTS[: 1 + (ours.ndim > 2)]]
    fitting = [one for one in candidates if one.shape == theirs.shape]
    if not fitting:
        return None
    size = max(float(np.linalg.norm(theirs.astype(np.float64))), 1e-30)
    errors = [float(np.linalg.norm(one.astype(np.float64) - theirs)) / size for one in fitting]
    return min(error if np.isfinite(error) else float("inf") for error in errors)


def short(number: float) -> str:
    """`1.2e-4`"""
    return f"{number:.1e}".replace("e-0", "e-").replace("e+0", "e+")
