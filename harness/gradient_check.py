"""The check that per-sample gradients pass before they are timed; numbers only, no framework.

The check's batch repeats a few distinct samples up to the measured batch size, so that the very program that will be
timed is checked, and a one-by-one loop in float64 over the distinct samples is reference enough.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import CheckFailed
from harness.record import Check
from harness.settings import Precision

Gradients = Mapping[str, NDArray[np.float64]]

DISTINCT_SAMPLES = 8
PER_SAMPLE_OUTPUTS = ("norms", "full")
"""Outputs with one entry per sample, in the order of the batch; of several devices, each holds those of its own part.
The other outputs are sums over the whole batch, and the same on all devices."""


class Tolerance(NamedTuple):
    """Relative L2 errors."""

    typical: float
    """Of the median over samples, models or tensors. A mistake of mathematics is in most of them."""
    worst: float
    """Of each. A ReLU whose input rounds across zero opens or closes a whole path of one sample's gradient, which
    rounding does not bound; what belongs to another sample or model is off by about 1."""


TOLERANCES: dict[Precision, Tolerance] = {
    "fp32": Tolerance(typical=2e-3, worst=1e-1),
    "tf32": Tolerance(typical=6e-2, worst=4e-1),
    "bf16": Tolerance(typical=1.5e-1, worst=5e-1),
}
"""More than twice what rounding alone was found to do: bench/rounding.py, with its record."""
SMALL = 1e-2
"""Of the root mean square over all items. What is smaller is compared on that scale: a sample that the model gets
exactly right has no gradient, so no relative error."""
REFERENCE_TOLERANCE = 1e-9
"""Float64 against float64."""


def check_batch_rows(batch_size: int) -> NDArray[np.int64]:
    """Rows of the training set for the check's batch: the first few samples over and over."""
    return np.arange(batch_size) % min(DISTINCT_SAMPLES, batch_size)


def expected_output(
    loop: Sequence[Gradients], output: str, batch_size: int, clip_norm: float, own: slice = slice(None)
) -> dict[str, NDArray[np.float64]]:
    """What the use case must return for the check's batch.

    Args:
        own: this device's part of the batch.
        loop: the gradient of each distinct sample's loss, float64, by neutral name.
        output: `full`: each sample's gradient, [batch, ...] per parameter. `norms`: [batch] L2 norms over all
        parameters.
            `clipped_sum`: sum of g * min(1, clip_norm / |g|) (Abadi et al. 2016, arXiv 1607.00133, algorithm 1, no
            noise).
            `batch_gradient`: gradient of the mean loss.
    """
    rows = check_batch_rows(batch_size)
    norms = np.array([np.sqrt(sum(np.sum(g**2) for g in gradient.values())) for gradient in loop])
    stacked = {name: np.stack([gradient[name] for gradient in loop]) for name in loop[0]}
    if output == "norms":
        return {"norms": norms[rows[own]]}
    if output == "full":
        return {name: gradient[rows[own]] for name, gradient in stacked.items()}
    # clip_norm / max(norm, clip_norm) is min(1, clip_norm / norm), for a norm of zero too.
    clipped = output == "clipped_sum"
    factors = clip_norm / np.maximum(norms, clip_norm) if clipped else np.full(len(loop), 1 / batch_size)
    weights = factors * np.bincount(rows, minlength=len(loop))
    return {name: np.tensordot(weights, gradient, axes=1) for name, gradient in stacked.items()}


def relative_error(actual: Gradients, expected: Gradients) -> float:
    """|actual - expected| / |expected|, L2 over all parameters together; infinite where names or shapes differ."""
    if not _are_alike(actual, expected):
        return float("inf")
    difference = sum(float(np.sum((actual[name] - expected[name]) ** 2)) for name in expected)
    size = sum(float(np.sum(value**2)) for value in expected.values())
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    error = float(np.sqrt(difference / size))
    return error if np.isfinite(error) else float("inf")


def errors_of_items(actual: Gradients, expected: Gradients) -> NDArray[np.float64]:
    """Relative L2 error of each item over all parameters together, [items]; their first axis counts the items.

    Where names or shapes differ, there is one item, whose error is infinite.
    """
    if not _are_alike(actual, expected):
        return np.array([np.inf])
    differences = sum(_sums_of_squares(actual[name] - expected[name]) for name in expected)
    return _relative(np.asarray(differences), np.asarray(sum(map(_sums_of_squares, expected.values()))))


def errors_of_tensors(actual: Gradients, expected: Gradients) -> NDArray[np.float64]:
    """Relative L2 error of each parameter, [parameters]. Infinite as in `errors_of_items`."""
    if not _are_alike(actual, expected):
        return np.array([np.inf])
    differences = np.array([np.sum((actual[name] - expected[name]) ** 2) for name in expected])
    return _relative(differences, np.array([np.sum(value**2) for value in expected.values()]))


def check_errors(
    name: str, errors: NDArray[np.float64], of: str, precision: Precision, worst: float | None = None
) -> list[Check]:
    """The typical error and the worst.

    Args:
        errors: relative, one for each `of`, such as `sample`.
        worst: instead of the largest of the errors.

    Raises:
        CheckFailed: either is more than its tolerance; the variant is then recorded as failed and never timed.
    """
    tolerance = TOLERANCES[precision]
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


def check_gradients(
    *,
    actual: Gradients,
    loop: Sequence[Gradients],
    batch_gradient: Gradients,
    output: str,
    batch_size: int,
    clip_norm: float,
    precision: Precision,
    own: slice = slice(None),
) -> list[Check]:
    """The measured output against the loop, and the loop's mean against the batch gradient of the distinct samples
    (float64).

    Raises:
        CheckFailed: either is off by more than its tolerance; the variant is then recorded as failed and never timed.
    """
    mean = {name: np.mean([gradient[name] for gradient in loop], axis=0) for name in loop[0]}
    reference = check_error(
        "mean of the float64 loop against the float64 batch gradient",
        relative_error(mean, batch_gradient),
        REFERENCE_TOLERANCE,
    )
    expected = expected_output(loop, output, batch_size, clip_norm, own)
    name = f"{output} against the float64 loop"
    if output in PER_SAMPLE_OUTPUTS:
        return [reference, *check_errors(name, errors_of_items(actual, expected), "sample", precision)]
    whole = relative_error(actual, expected)
    return [reference, *check_errors(name, errors_of_tensors(actual, expected), "tensor", precision, worst=whole)]


def _are_alike(actual: Gradients, expected: Gradients) -> bool:
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
