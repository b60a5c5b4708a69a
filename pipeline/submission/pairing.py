"""Which cells' processes take turns, block by block. Pure."""

from collections.abc import Sequence

from harness.plan import Pair, Pairing


def as_paired(
    pairs: Sequence[Pair], pairing: Pairing, *, is_on_cpu: bool = False
) -> tuple[list[Pair], dict[str, list[str]]]:
    """`auto` is `interleaved` on a CPU, where calibrations found that equal processes then differ by a tenth to a sixth
    of what they do one after the other (docs/studies/calibration.md). It is `together` on a GPU: none has been
    calibrated, and both processes must fit into its memory at once.

    Args:
        is_on_cpu: whatever the cells ask for.

    Returns:
        The pairs; and where `interleaved` was asked for and cannot be, the names of the cells by the reason.
    """
    found: list[Pair] = []
    refused: dict[str, list[str]] = {}
    for pair in pairs:
        reason = pair.why_not_interleaved
        is_better = is_on_cpu or pair.cell.is_for_cpu
        if reason is None and (pairing == "interleaved" or (pairing == "auto" and is_better)):
            found.append(pair.model_copy(update={"is_interleaved": True}))
            continue
        found.append(pair)
        if reason and pairing == "interleaved" and len(pair.jobs) == 2 and not pair.cell.is_calibration:
            refused.setdefault(reason, []).append(pair.cell.name)
    return found, refused
