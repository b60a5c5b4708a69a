"""Whether both sides of a pair predict the same for the same samples. Pure."""

from collections.abc import Sequence

from pipeline.report.compare import Comparison, Mode

STORED_AS = "predictions"
"""In a result's details: the class of each test sample, in their order."""


def same_predictions_text(jax: Sequence[int], torch: Sequence[int], samples: str) -> str:
    """`The same prediction for 4,990 of 5,000 images (99.80 %).`

    Args:
        jax, torch: the class of each sample, in the same order.
        samples: what they are called.
    """
    if len(jax) != len(torch):
        return f"Predictions cannot be compared: JAX has {len(jax):,} and PyTorch {len(torch):,} {samples}."
    same = sum(one == other for one, other in zip(jax, torch, strict=True))
    return f"The same prediction for {same:,} of {len(jax):,} {samples} ({same / len(jax):.2%})."


def agreement(comparison: Comparison | None, samples: str) -> str:
    """Of the first replicate that both sides have predictions of; empty without one."""
    if comparison is None:
        return ""
    jax, torch = _by_replicate(comparison.jax), _by_replicate(comparison.torch)
    common = sorted(jax.keys() & torch.keys())
    return same_predictions_text(jax[common[0]], torch[common[0]], samples) if common else ""


def _by_replicate(mode: Mode) -> dict[int, list[int]]:
    found = {one.measurement.replicate: one.result.details.get(STORED_AS) for one in mode.records if one.result}
    return {replicate: classes for replicate, classes in found.items() if isinstance(classes, list) and classes}
