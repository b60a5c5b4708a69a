"""The check that per-sample gradients pass before they are timed; numbers only, no framework.

The check's batch repeats a few distinct samples up to the measured batch size, so that the very program that will be
timed is checked, and a one-by-one loop in float64 over the distinct samples is reference enough.
"""

from collections.abc import Mapping, Sequence

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

TOLERANCES: dict[Precision, float] = {"fp32": 2e-3, "tf32": 3e-2, "bf16": 1e-1}
"""Relative L2 error over all parameters together.

Rounding alone stays near 1e-6 (fp32), 1e-3 (tf32: 10 bits of mantissa) and 1e-2 (bf16: 7 bits), but a ReLU whose input
rounds across zero opens or closes a whole path of one sample's gradient, which rounding does not bound. Mistakes of
mathematics (a factor, a sign) are far above all three; one missing sample of 256 is above the first.
"""
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
    if {name: value.shape for name, value in actual.items()} != {name: value.shape for name, value in expected.items()}:
        return float("inf")
    difference = sum(float(np.sum((actual[name] - expected[name]) ** 2)) for name in expected)
    size = sum(float(np.sum(value**2)) for value in expected.values())
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    error = float(np.sqrt(difference / size))
    return error if np.isfinite(error) else float("inf")


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
    expected = expected_output(loop, output, batch_size, clip_norm, own)
    checks = [
        _check(
            "mean of the float64 loop against the float64 batch gradient",
            mean,
            batch_gradient,
            REFERENCE_TOLERANCE,
        ),
        _check(f"{output} against the float64 loop", actual, expected, TOLERANCES[precision]),
    ]
    for check in checks:
        if not check.passed:
            raise CheckFailed(
                f"{check.name}: relative error {check.error:.2e}, tolerance {check.tolerance:g}. "
                f"The result is wrong, so it is not timed."
            )
    return checks


def _check(name: str, actual: Gradients, expected: Gradients, tolerance: float) -> Check:
    error = relative_error(actual, expected)
    return Check(name=name, error=error, tolerance=tolerance, passed=error <= tolerance)
