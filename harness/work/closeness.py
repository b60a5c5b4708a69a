"""How close a result must be to its float64 reference before it is timed: relative errors and tolerances."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import CheckFailed
from harness.plan import Precision
from harness.results.record import Check

Tensors = Mapping[str, NDArray[np.float64]]
"""By neutral name (harness/work/weights.py)."""
Items = Sequence[NDArray[np.float64]]
"""Such as the outputs of each sample."""


class Tolerance(NamedTuple):
    """Relative L2 errors."""

    typical: float
    """Of the median over samples, models or tensors. A mistake of mathematics is in most of them."""
    worst: float
    """Of each. A ReLU whose input rounds across zero opens or closes a whole path of one sample's gradient, which
    rounding does not bound; what belongs to another sample or model is off by about 1."""


TOLERANCES: dict[Precision, Tolerance] = {
    "fp64": Tolerance(typical=1e-9, worst=1e-6),
    "fp32": Tolerance(typical=2e-3, worst=1e-1),
    "tf32": Tolerance(typical=6e-2, worst=4e-1),
    "bf16": Tolerance(typical=1.5e-1, worst=5e-1),
    "default": Tolerance(typical=6e-2, worst=4e-1),  # TF32 in some operations of either framework
}
"""More than twice what rounding alone was found to do: docs/studies.md."""
WITH_BATCH_NORM: dict[Precision, Tolerance] = TOLERANCES | {
    "fp32": Tolerance(typical=5e-2, worst=1e-1),
    "tf32": Tolerance(typical=3e-1, worst=5e-1),
    "bf16": Tolerance(typical=7e-1, worst=8e-1),
    "default": Tolerance(typical=3e-1, worst=5e-1),
}
"""Of gradients through layers of BatchNorm, each of which divides by what it has rounded, and of steps along them. More
than twice what 20 layers make of rounding at a learning rate of 0.1, by the same study. A wrong kernel does not pass in
fp32 or tf32; in bf16 one late in the network may."""
OUTPUTS: dict[Precision, Tolerance] = {
    "fp64": Tolerance(typical=1e-9, worst=1e-7),
    "fp32": Tolerance(typical=5e-5, worst=1e-3),
    "tf32": Tolerance(typical=1e-2, worst=5e-2),
    "bf16": Tolerance(typical=6e-2, worst=4e-1),
    "fp16": Tolerance(typical=1e-2, worst=5e-2),
    "default": Tolerance(typical=1e-2, worst=5e-2),
}
"""Of outputs in evaluation: of all together, and of each sample's less the mean over samples, where what all samples
share hides no error. More than twice what rounding alone was found to do: docs/studies.md."""
LOSSES: dict[Precision, float] = {"fp64": 1e-9, "fp32": 4e-4, "tf32": 4e-3, "bf16": 1.5e-2, "default": 4e-3}
"""Relative, of mean losses of a batch, in which rounding averages out."""
SMALL = 1e-2
"""Of the root mean square over all items. What is smaller is compared on that scale: a sample that the model gets
exactly right has no gradient, so no relative error."""


def relative_error(actual: Tensors, expected: Tensors) -> float:
    """|actual - expected| / |expected|, L2 over all parameters together; infinite where names or shapes differ."""
    if not _are_alike(actual, expected):
        return float("inf")
    return relative_error_of([actual[name] for name in expected], list(expected.values()))


def errors_of_items(actual: Tensors, expected: Tensors) -> NDArray[np.float64]:
    """Relative L2 error of each item over all parameters together, [items]; their first axis counts the items.

    Where names or shapes differ, there is one item, whose error is infinite.
    """
    if not _are_alike(actual, expected):
        return np.array([np.inf])
    differences = sum(_sums_of_squares(actual[name] - expected[name]) for name in expected)
    return _relative(np.asarray(differences), np.asarray(sum(map(_sums_of_squares, expected.values()))))


def relative_error_of(actual: Items, expected: Items) -> float:
    """As `relative_error`, over all items together, without a copy of all of them."""
    if [item.shape for item in actual] != [item.shape for item in expected]:
        return float("inf")
    difference = sum(float(np.sum((ours - theirs) ** 2)) for ours, theirs in zip(actual, expected, strict=True))
    size = sum(float(np.sum(item**2)) for item in expected)
    return float(_relative(np.array([difference]), np.array([size]))[0])


def errors_of_centred(actual: Items, expected: Items) -> NDArray[np.float64]:
    """As `errors_of_items`, [items], of each item less the mean over the items of its side, without a copy of all."""
    if [item.shape for item in actual] != [item.shape for item in expected]:
        return np.array([np.inf])
    mean = sum(expected) / len(expected)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told as an infinite error
        apart = sum(actual) / len(actual) - mean
        differences = [np.sum((ours - theirs - apart) ** 2) for ours, theirs in zip(actual, expected, strict=True)]
    return _relative(np.array(differences), np.array([np.sum((item - mean) ** 2) for item in expected]))


def errors_of_tensors(actual: Tensors, expected: Tensors) -> NDArray[np.float64]:
    """Relative L2 error of each parameter, [parameters]. Infinite as in `errors_of_items`."""
    if not _are_alike(actual, expected):
        return np.array([np.inf])
    differences = np.array([np.sum((actual[name] - expected[name]) ** 2) for name in expected])
    return _relative(differences, np.array([np.sum(value**2) for value in expected.values()]))


def check_errors(
    name: str, errors: NDArray[np.float64], of: str, tolerance: Tolerance, worst: float | None = None
) -> list[Check]:
    """The typical error and the worst.

    Args:
        errors: relative, one for each `of`, such as `sample`.
        worst: instead of the largest of the errors.

    Raises:
        CheckFailed: either is more than its tolerance; the variant is then recorded as failed and never timed.
    """
    typical = check_error(f"{name}, median over {len(errors)} {of}s", float(np.median(errors)), tolerance.typical)
    if worst is None:
        return [typical, check_worst(name, errors, of, tolerance.worst)]
    return [typical, check_error(f"{name}, all {of}s together", worst, tolerance.worst)]


def check_worst(name: str, errors: NDArray[np.float64], of: str, tolerance: float) -> Check:
    """Raises CheckFailed where the largest of the errors is more than the tolerance."""
    index = int(np.argmax(errors))
    return check_error(f"{name}, worst {of}, which is number {index}", float(errors[index]), tolerance)


def check_error(name: str, error: float, tolerance: float) -> Check:
    """Raises CheckFailed where it is more than the tolerance."""
    if not error <= tolerance:  # not a number is no agreement
        raise CheckFailed(
            f"{name}: relative error {error:.2e}, tolerance {tolerance:g}. The result is wrong, so it is not timed."
        )
    return Check(name=name, error=error, tolerance=tolerance, passed=True)


def _are_alike(actual: Tensors, expected: Tensors) -> bool:
    shapes = ({name: value.shape for name, value in of_one.items()} for of_one in (actual, expected))
    return next(shapes) == next(shapes)


def _sums_of_squares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[items, ...] to [items]."""
    sums: NDArray[np.float64] = np.sum(values**2, axis=tuple(range(1, values.ndim)))
    return sums


def _relative(differences: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """From squares. Infinite where nothing is expected and something is there, and where a number is not finite."""
    scales = np.maximum(sizes, SMALL**2 * np.mean(sizes))
    errors = np.full(len(sizes), np.inf)
    errors[differences == 0] = 0.0
    np.divide(differences, scales, out=errors, where=scales > 0)
    errors = np.sqrt(errors)
    return np.where(np.isfinite(errors), errors, np.inf)
